"""The pipeline: every stage and pass from a checked shuffle to kernels, in order.

    CheckedShuffle --build--> L0 --...--> L1 --...--> L2 --specialise-kernels--> L3

All that happens to a spec, in turn, by ``driver.py``:

1. ``lang/check.py`` makes a ``CheckedShuffle`` of each shuffle, and another one of its reply;
   ``capabilities.py`` says which kernels of one node it can have.
2. ``dialect/builder.py`` makes a module of each, at L0, and of memory of the caller's a second
   relation beside it.
3. ``PASSES`` is all that happens to a module. What follows only reads it.
4. Printers: kernels of single steps (``codegen/triton.py``), those of one node that choose-tiles
   has chosen sizes for (``codegen/triton_node.py``, ``codegen/cuda_kernels.py``).
5. ``manifest.py`` describes them, ``program.py`` the steps; ``manifest.Assembler`` compiles CUDA
   text where machine code is wanted.
6. ``bake.py`` plans static shuffles for the topologies that are asked for.
7. ``artifact.py`` writes the directory.

The module is verified after every pass. What a verifier or a pass objects to is a mistake of
fuscoc, reported as an ``InternalError`` at the ``.fsc`` text that the operation comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import Any

from fuscoc.diagnostics import InternalError
from fuscoc.dialect import kept_context
from fuscoc.dialect.attrs import attributes_remembered, verify
from fuscoc.dialect.base import PassError
from fuscoc.dialect.builder import build_module
from fuscoc.dialect.mlir import ir
from fuscoc.lang.checked import CheckedShuffle
from fuscoc.passes import (
    build_hierarchy,
    check_relations,
    choose_forwarders,
    choose_tiles,
    coalesce_segments,
    derive_transpose,
    form_slices,
    fuse_node,
    fuse_transforms,
    simplify_scalars,
    specialise_kernels,
    split_affine,
)
from fuscoc.source import SourceFile, Span


@dataclass(frozen=True)
class Pass:
    """A rewrite of the module, and the level that the module is at after it."""

    name: str
    level: str
    run: Callable[[Any], None]


BUILD = "build"

PASSES = (
    Pass("check-relations", "L0", check_relations.run),
    Pass("coalesce-segments", "L0", coalesce_segments.run),
    Pass("simplify-scalars", "L0", simplify_scalars.run),
    Pass("build-hierarchy", "L1", build_hierarchy.run),
    Pass("derive-transpose", "L1", derive_transpose.run),
    Pass("choose-forwarders", "L1", choose_forwarders.run),
    Pass("form-slices", "L2", form_slices.run),
    Pass("fuse-transforms", "L2", fuse_transforms.run),
    Pass("fuse-node", "L2", fuse_node.run),
    Pass("split-affine", "L2", split_affine.run),
    Pass("choose-tiles", "L2", choose_tiles.run),
    Pass("specialise-kernels", "L3", specialise_kernels.run),
)

PASS_NAMES = (BUILD, *(step.name for step in PASSES))


@dataclass(frozen=True)
class Lowered:
    """The module of one shuffle, and its text as it left each level that it has reached.

    Operations of ``module`` must not be used once it is gone: it owns their memory.
    """

    module: Any
    dumps: Mapping[str, str]

    @property
    def text(self) -> str:
        """The module as the last pass left it."""
        return list(self.dumps.values())[-1]


def compile_to_ir(
    checked: CheckedShuffle,
    *,
    after: str | None = None,
    print_between: Callable[[str, str], None] | None = None,
) -> Lowered:
    """Lower a shuffle to L3, or until the pass named ``after`` (one of ``PASS_NAMES``) has run.

    ``print_between`` is called after every pass with its name and the module's text.

    Raises:
        ValueError: ``after`` names no pass.
        InternalError: a pass failed, or left a module that does not verify.
    """
    if after is not None and after not in PASS_NAMES:
        raise ValueError(f"no pass '{after}'; there are {', '.join(PASS_NAMES)}")
    dumps: dict[str, str] = {}

    steps = PASSES[: PASS_NAMES.index(after or PASS_NAMES[-1])]
    last = {"L0": BUILD} | {step.level: step.name for step in steps}

    def finish(module: Any, name: str, level: str) -> None:
        verify(module)
        if name == last[level] or print_between is not None:
            # As ``str`` would, which verifies it once more.
            dumps[level] = module.operation.get_asm(assume_verified=True)
        if print_between is not None:
            print_between(name, dumps[level])

    with _one_thread, kept_context(), attributes_remembered():
        with _located(checked, BUILD):
            module = build_module(checked)
            finish(module, BUILD, "L0")
        for step in steps:
            with _located(checked, step.name):
                step.run(module)
                finish(module, step.name, step.level)
    return Lowered(module, dumps)


def parse_module(text: str) -> Any:
    """The module of a text that a dump holds; raises ``ir.MLIRError`` for any other."""
    with _one_thread, kept_context():
        return ir.Module.parse(text)


_one_thread = RLock()
"""The bindings keep what they know of a dialect for all threads alike."""


@contextmanager
def _located(checked: CheckedShuffle, name: str) -> Iterator[None]:
    """Turn what a pass or a verifier objects to into an ``InternalError`` with its span."""
    try:
        yield
    except PassError as error:
        span = _span(checked.source_file, error.location)
        raise InternalError(f"{name}: {error}", checked.source_file, span) from error
    except ir.MLIRError as error:
        first = error.error_diagnostics[0]
        span = _span(checked.source_file, first.location)
        raise InternalError(f"{name}: {first.message}", checked.source_file, span) from error


def _span(source: SourceFile, location: Any) -> Span | None:
    """The characters that a location covers; None for one outside the file."""
    location = ir.Location.from_attr(location.attr)  # as its own class, which diagnostics forget
    if not isinstance(location, ir.FileLineColLoc):
        return None
    return Span(
        _offset(source, location.start_line, location.start_col),
        _offset(source, location.end_line, location.end_col),
    )


def _offset(source: SourceFile, line: int, column: int) -> int:
    """The character offset of a 1-based line and column."""
    lines = source.text.split("\n")[: line - 1]
    return sum(len(text) + 1 for text in lines) + column - 1
