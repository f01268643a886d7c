"""What ranks tell each other of flows before rows travel, as the host reads it."""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import Tensor

from fuscoc_runtime.engine.node.report import signed
from fuscoc_runtime.engine.node.triton_program import TritonProgram
from fuscoc_runtime.plan.flows import Demand, Int64Array


class Counts:
    """What ranks tell each other of flows, int64; a row has those to every node, then the segments
    to every rank; and where there is a reply the same of its rows.

    Attributes:
        own: [columns]; ``landed`` [num_nodes, columns], of the ranks of this place.
        told: [ranks_per_node, num_nodes, columns], of all ranks, in the host's memory.
    """

    def __init__(self, program: TritonProgram) -> None:
        self._shape = program.num_nodes, program.num_ranks
        n, m = self._shape
        self._has_reply = program.shuffle.reply is not None
        self.columns = (n + n * m) * (1 + self._has_reply)
        device = program.device
        self.own = torch.zeros(self.columns, dtype=torch.int64, device=device)
        self.landed = torch.zeros(n, self.columns, dtype=torch.int64, device=device)
        on_gpu = device.type == "cuda"
        self.told = torch.zeros(m, n, self.columns, dtype=torch.int64, pin_memory=on_gpu)

    @property
    def of_reply(self) -> Tensor:
        """The own ones of a reply."""
        return self.own[self.columns // 2 :]

    def demands(self, stamp: int) -> tuple[Demand, Demand | None]:
        """The flows of the dispatch with that stamp, whose slots have been reported, and those of
        its reply, if there is one: its words may come behind those of the report, but they have
        been written."""
        told = self.told.numpy()
        while not (told >> 32 == signed(stamp)).all():
            os.sched_yield()
        n, m = self._shape
        by_rank = (told & 0xFFFFFFFF).transpose(1, 0, 2).reshape(n * m, self.columns)
        if not self._has_reply:
            return _demand(by_rank, n), None
        asked, answered = np.split(by_rank, 2, axis=1)
        return _demand(asked, n), _demand(answered, n)


def _demand(by_rank: Int64Array, num_nodes: int) -> Demand:
    flows, copies = by_rank[:, :num_nodes], by_rank[:, num_nodes:]
    return Demand(np.ascontiguousarray(flows), np.ascontiguousarray(copies))
