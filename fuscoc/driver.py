"""Source text -> checked shuffles -> kernels -> artifact: the stages, end to end.

The passes in the middle are listed in ``fuscoc/pipeline.py``. MLIR is loaded only once a spec has
been checked, so that ``fuscoc check`` stays quick.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fuscoc.diagnostics import DiagnosticSink, render
from fuscoc.lang.ast import dump
from fuscoc.lang.check import Checked, check_file
from fuscoc.lang.parser import parse
from fuscoc.source import SourceFile

if TYPE_CHECKING:
    from fuscoc.manifest import Assembler, CompiledShuffle

_log = logging.getLogger("fuscoc")

Trace = Callable[[str, str], None]
"""Called after every pass with the pass's name and the module's text."""

WhenChecked = Callable[[Checked], object]
"""Called with the shuffles of a spec without errors and the warnings about it."""


def compile_source(
    source: SourceFile,
    out: str | Path,
    defines: Mapping[str, int],
    trace: Trace | None = None,
    topologies: Sequence[str] = (),
    assembler: Assembler | None = None,
    when_checked: WhenChecked | None = None,
) -> Path:
    """Compile a spec into the artifact directory ``out``; see ``fuscoc.compile``.

    ``assembler`` adds machine code of the kernels. ``topologies``, such as ``2x4``, are those
    that static shuffles are planned for at once. Warnings are logged, unless ``when_checked`` is
    there to take them.

    Raises:
        CompileError: also where topologies are given and no shuffle is static, or one cannot run
            on them.
    """
    compiled = _lower(source, defines, trace=trace, when_checked=when_checked)
    from fuscoc.artifact import write_artifact

    return write_artifact(out, _files(source, compiled, topologies, assembler))


def check_source(
    source: SourceFile, defines: Mapping[str, int], topologies: Sequence[str] = ()
) -> Checked:
    """Parse and check a spec, also for the ``topologies`` that it has to run on.

    Raises:
        CompileError: with every error; those about topologies only where there is no other.
    """
    checked = check_file(source, defines)
    if topologies:
        from fuscoc.topologies import check_topologies

        check_topologies(checked.shuffles, topologies)
    return checked


def emit_ast(source: SourceFile) -> str:
    """The syntax tree, without looking up any name."""
    sink = DiagnosticSink(source)
    shuffles = parse(source, sink)
    sink.raise_errors()
    return "\n".join(dump(shuffle) for shuffle in shuffles) + "\n"


def emit_ir(
    source: SourceFile,
    defines: Mapping[str, int],
    after: str | None = None,
    trace: Trace | None = None,
) -> str:
    """The module of every shuffle after the pass ``after``, or after the last one.

    Raises:
        ValueError: ``after`` names no pass; the message lists them.
    """
    from fuscoc.manifest import with_replies

    compiled = with_replies(_lower(source, defines, after, trace))
    return "\n".join(str(each.module) for each in compiled)


def emit_kernel_ir(
    source: SourceFile,
    defines: Mapping[str, int],
    after: str | None = None,
    trace: Trace | None = None,
) -> str:
    """What a pass, or the last one, has left of the kernels of every shuffle, as operations: what
    those inside one node do and with which sizes, and those of single steps.

    Raises:
        ValueError: ``after`` names no pass, or one that comes before there are kernels; the message
            lists those that do not.
    """
    compiled = _lower(source, defines, after, trace)
    from fuscoc.dialect.base import ops_of
    from fuscoc.dialect.l3 import Kernel
    from fuscoc.dialect.node import Node
    from fuscoc.manifest import with_replies
    from fuscoc.pipeline import PASS_NAMES

    later = PASS_NAMES[PASS_NAMES.index("fuse-node") :]
    if after not in (None, *later):
        raise ValueError(f"there are no kernels after {after}; there are after {', '.join(later)}")
    texts = []
    for each in with_replies(compiled):
        with each.module.context:
            kernels = [str(op) for op in ops_of(each.module, Node, Kernel)]
        texts += kernels or [f"// {each.checked.name}: no kernels that work inside one node alone"]
    return "\n".join(texts) + "\n"


def emit_files(
    source: SourceFile, defines: Mapping[str, int], prefix: str, topologies: Sequence[str] = ()
) -> str:
    """The artifact's files whose path begins with ``prefix``, one after the other."""
    files = _files(source, _lower(source, defines), topologies)
    return "\n".join(text.decode() for name, text in files.items() if name.startswith(prefix))


def _files(
    source: SourceFile,
    compiled: list[CompiledShuffle],
    topologies: Sequence[str],
    assembler: Assembler | None = None,
) -> dict[str, bytes]:
    """The artifact's files; static shuffles are planned for the topologies, if there are any."""
    from fuscoc.artifact import artifact_files

    if not topologies:
        return artifact_files(source, compiled, assembler=assembler)
    from fuscoc.bake import baker
    from fuscoc.topologies import check_placements

    check_placements([each.checked for each in compiled], topologies)
    bake = baker(compiled, topologies)
    return artifact_files(source, compiled, bake, assembler)


def _lower(
    source: SourceFile,
    defines: Mapping[str, int],
    after: str | None = None,
    trace: Trace | None = None,
    when_checked: WhenChecked | None = None,
) -> list[CompiledShuffle]:
    checked = check_file(source, defines)
    if when_checked is not None:
        when_checked(checked)
    else:
        for warning in checked.warnings:
            _log.warning(render(warning, source))
    from fuscoc.manifest import compile_shuffle

    return [compile_shuffle(shuffle, after, trace) for shuffle in checked.shuffles]
