"""Where rows are that travel as flows: in memory that all ranks of a node address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fuscoc_runtime.comm.rails import TRANSFER
from fuscoc_runtime.comm.windows import Allocate, outlast_calls
from fuscoc_runtime.engine.node.state import lay_out
from fuscoc_runtime.engine.node.ways import END, FIRST, IS_SENT, PEER
from fuscoc_runtime.kernels.loader import address
from fuscoc_runtime.plan.flows import Int64Array

SENT, GOT = "sent", "got"
"""Rows that this rank sends, and those that it gets; the other way round where they come back."""


@dataclass(frozen=True)
class Rows:
    """Of one field: ``at`` what byte of each side they begin, and the bytes of a row."""

    at: int
    row_bytes: int


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
        sections, nbytes = lay_out({"told": [told_bytes], SENT: [side], GOT: [side]})
        self.sections = {name: sections[name][0] for name in (SENT, GOT)}
        self._window = allocate(nbytes)

    @property
    def bases(self) -> Tensor:
        """int64 [ranks_per_node], where every rank has its own."""
        return self._window.peer_bases

    @property
    def local(self) -> Tensor:
        """This rank's, uint8."""
        return self._window.local

    def transfers(self, moves: Int64Array, is_back: bool) -> NDArray[Any]:
        """Of moves, [.., words of `ways`], the bytes of every field: `TRANSFER` [.., fields]."""
        fields = self.back if is_back else self.forth
        begin = address(self._window.local)
        sides = [begin + self.sections[name] for name in (GOT, SENT)]
        is_sent, first = moves[:, IS_SENT], moves[:, FIRST]
        side = np.where(is_sent != is_back, sides[1], sides[0])
        made = np.empty((len(moves), len(fields)), TRANSFER)
        made["peer"], made["is_sent"] = moves[:, PEER, None], is_sent[:, None]
        for number, each in enumerate(fields):
            made["at"][:, number] = side + each.at + first * each.row_bytes
            made["num_bytes"][:, number] = (moves[:, END] - first) * each.row_bytes
        return made

    def free(self) -> None:
        """Let go of it, when the calls so far have ended; none may follow."""
        outlast_calls(self._window.local)
        outlast_calls(self._window.peer_bases)
        del self._window
