"""Where rows are that travel for others of a node: in memory that all ranks of it address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fuscoc_runtime.comm.windows import Allocate, outlast_calls
from fuscoc_runtime.engine.node.state import lay_out
from fuscoc_runtime.engine.node.ways import Span

SIDES = ("sent", "got")
"""Rows that this rank sends, and those that it gets; the other way round where they come back."""


@dataclass(frozen=True)
class Rows:
    """Of one field: ``at`` what byte of each side they begin, and the bytes of a row."""

    at: int
    row_bytes: int

    def bytes_of(self, rows: Span) -> range:
        """Where some of them are."""
        first, end = rows
        return range(self.at + first * self.row_bytes, self.at + end * self.row_bytes)


class FlowMemory:
    """Room for so many ``rows`` on each side; construction is collective inside the node.

    Attributes:
        rows: that there is room for, on all ranks of the job.
        forth, back: the fields of a dispatch, and the sums of a combine.
        sections: where the sides begin.
    """

    def __init__(
        self,
        allocate: Allocate,
        rows: int,
        row_bytes: Sequence[int],
        partial_bytes: int,
        told_bytes: int,
    ) -> None:
        """With fields of ``row_bytes``, and what the ranks of the node tell each other of flows."""
        self.rows = rows
        fields, forth_bytes = lay_out({"rows": [rows * each for each in row_bytes]})
        self.forth = [Rows(*each) for each in zip(fields["rows"], row_bytes, strict=True)]
        self.back = [Rows(0, partial_bytes)]
        side = max(forth_bytes, rows * partial_bytes)
        sections, nbytes = lay_out({"told": [told_bytes], **{name: [side] for name in SIDES}})
        self.sections = {name: sections[name][0] for name in SIDES}
        self._window, self._side_bytes = allocate(nbytes), side

    @property
    def bases(self) -> Tensor:
        """int64 [ranks_per_node], where every rank has its own."""
        return self._window.peer_bases

    @property
    def num_bytes(self) -> int:
        """Bytes of this rank's."""
        return self._window.local.numel()

    def part(self, side: str, rows: Rows, which: Span) -> Tensor:
        """Bytes of some rows of a field on one side."""
        where, at = rows.bytes_of(which), self.sections[side]
        return self._window.local[at + where.start : at + where.stop]

    def free(self) -> None:
        """Let go of it, when the calls so far have ended; none may follow."""
        outlast_calls(self._window.local)
        outlast_calls(self._window.peer_bases)
        del self._window
