"""The arguments of a kernel: their names in the text, and what a launch passes for each.

``docs/abi.md`` is the reference. Names of the spec (extents, inputs) get a trailing underscore
where they would hide a word of the kernel or of Triton.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from fuscoc.dialect.l3 import Kernel
from fuscoc.dialect.mlir import arith, ir

# What a kernel's launch takes, or Triton (3.6 to 3.9) makes up, beside the parameters.
_LAUNCH = (
    *("self", "grid", "warmup", "debug", "num_warps", "num_stages", "num_ctas", "maxnreg"),
    *("enable_fp_fusion", "instrumentation_mode", "fpsan_homomorphic_casts"),
    *("options", "params", "backend", "specialize_impl", "JITCallable"),
)
# The functions that kernels which make scales, or normalise, call.
AMAX = "largest_magnitudes"
NORMALISED, NORMALISED_BY = "normalised", "normalised_by"
# Names that neither parameters nor variables may have: those above, those that kernel text uses
# and those that Python lets nobody assign.
RESERVED = frozenset(
    {
        "tl",
        "triton",
        "range",
        AMAX,
        NORMALISED,
        NORMALISED_BY,
        *_LAUNCH,
        "__debug__",
        *keyword.kwlist,
    }
)


@dataclass(frozen=True)
class Argument:
    """One parameter: see ``fuscoc.dialect.l3.Kernel`` for the meaning of its parts."""

    name: str
    kind: str
    value: str
    element: str | None = None


def scalar(name: str) -> Argument:
    """A count."""
    return Argument(name, "scalar", name)


def column(name: str) -> Argument:
    """A column of the launch's descriptor list."""
    return Argument(name, "column", name, "i64")


def array(name: str, element: str = "i64") -> Argument:
    """The address of an array of ``element``."""
    return Argument(name, "address", name, element)


def memory(name: str) -> Argument:
    """The address of untyped memory: rows, or a signal window."""
    return Argument(name, "address", name)


SIGNALS = (array("signals"), scalar("signal_slot"), scalar("num_peers"), scalar("my_peer"))


def waits(slots: Sequence[int]) -> tuple[Argument, ...]:
    """What a kernel needs to wait for signal slots; none if there are none."""
    if not slots:
        return ()
    expected = [scalar(f"expected_{slot}") for slot in slots]
    words = array("abort", "i32"), array("late", "i32")
    return (memory("wait_base"), scalar("num_peers"), *expected, *words)


def of_spec(names: Sequence[Argument], kernel: Sequence[Argument]) -> list[Argument]:
    """Arguments that the spec named, renamed apart from the kernel's own."""
    taken = RESERVED | {argument.name for argument in kernel}
    renamed = []
    for argument in names:
        name = argument.name
        while name in taken:
            name += "_"
        taken |= {name}
        renamed.append(Argument(name, argument.kind, argument.value, argument.element))
    return renamed


class Values(dict[str, Any]):
    """The body arguments of a kernel by ``value``, what a launch passes for them."""


@contextmanager
def kernel(name: str, arguments: Sequence[Argument], num_warps: int) -> Iterator[Values]:
    """Build a kernel at the insertion point; its body is built inside the ``with``."""
    op = Kernel.build(
        sym_name=name,
        args=[asdict(argument) for argument in arguments],
        num_warps=num_warps,
    )
    block = op.body.blocks.append(*[ir.IntegerType.get_signless(64)] * len(arguments))
    values = (argument.value for argument in arguments)
    with ir.InsertionPoint(block):
        yield Values(zip(values, block.arguments, strict=True))


def named(name: str) -> Any:
    """The current location under a name, which printed text prefers for its variables."""
    return ir.Location.name(name, childLoc=ir.Location.current)


def body_of(loop: Any, name: str) -> Any:
    """The block of a loop over one i64, which printed text calls ``name``."""
    return loop.body.blocks.append(ir.IntegerType.get_signless(64), arg_locs=[named(name)])


def constant(value: int) -> Any:
    """An i64."""
    return arith.constant(ir.IntegerType.get_signless(64), value)
