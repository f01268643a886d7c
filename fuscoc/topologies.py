"""Whether shuffles can run on given topologies, as far as their specs tell."""

from __future__ import annotations

from collections.abc import Sequence

from fuscoc.diagnostics import DiagnosticSink, Fix
from fuscoc.lang.checked import CheckedShuffle, PackedTarget
from fuscoc.source import Span
from fuscoc_runtime.topology import Topology

BLOCK = "block"


def check_placements(shuffles: Sequence[CheckedShuffle], topologies: Sequence[str]) -> None:
    """Every number of ranks divides the keys that are placed in blocks.

    Raises:
        CompileError: with every placement that a topology, such as ``2x4``, does not fit.
    """
    sink = DiagnosticSink(shuffles[0].source_file)
    parsed = [Topology.parse(text) for text in topologies]
    for shuffle in shuffles:
        target = shuffle.target
        if isinstance(target, PackedTarget) and target.placement.kind == BLOCK:
            _check_block(target, parsed, sink)
    sink.raise_errors()


def _check_block(
    target: PackedTarget, topologies: Sequence[Topology], sink: DiagnosticSink
) -> None:
    placed = target.num_keys // target.group
    bad = [each for each in topologies if placed % each.num_ranks]
    if not bad:
        return
    ranks = " and ".join(f"{each.num_ranks} ranks ({each})" for each in bad)
    end = target.placement.span.end
    sink.report(
        "FSC046",
        target.placement.span,
        f"`{target.layout}` has {placed} keys, which {ranks} do not divide",
        "gives every rank the same number of keys",
        fix=Fix(Span(end - len(BLOCK), end), "cyclic", "deal the keys out one by one: `by cyclic`"),
    )


def check_topologies(shuffles: Sequence[CheckedShuffle], topologies: Sequence[str]) -> None:
    """Placements as in ``check_placements``, and the whole plan of every static shuffle.

    Raises:
        CompileError: with every placement, or every static shuffle, that does not fit.
    """
    check_placements(shuffles, topologies)
    if any(shuffle.is_static for shuffle in shuffles):
        from fuscoc.bake import check_plans  # loads MLIR

        check_plans(shuffles, [Topology.parse(each) for each in topologies])
