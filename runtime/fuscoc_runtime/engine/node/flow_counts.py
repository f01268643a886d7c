"""What ranks tell each other of flows before rows travel, as the host reads it."""

from __future__ import annotations

import os

import numpy as np
import torch

from fuscoc_runtime.engine.node.report import signed
from fuscoc_runtime.engine.node.triton_program import TritonProgram
from fuscoc_runtime.plan.flows import Demand


class Counts:
    """What ranks tell each other of flows, int64; a row has those to every node, then the segments
    to every rank.

    Attributes:
        own: [columns]; ``landed`` [num_nodes, columns], of the ranks of this place.
        told: [ranks_per_node, num_nodes, columns], of all ranks, in the host's memory.
    """

    def __init__(self, program: TritonProgram) -> None:
        self._shape = program.num_nodes, program.num_ranks
        n, m = self._shape
        self.columns = n + n * m
        device = program.device
        self.own = torch.zeros(self.columns, dtype=torch.int64, device=device)
        self.landed = torch.zeros(n, self.columns, dtype=torch.int64, device=device)
        on_gpu = device.type == "cuda"
        self.told = torch.zeros(m, n, self.columns, dtype=torch.int64, pin_memory=on_gpu)

    def demand(self, stamp: int) -> Demand:
        """The flows of the dispatch with that stamp, whose slots have been reported: its words may
        come behind those of the report, but they have been written."""
        told = self.told.numpy()
        while not (told >> 32 == signed(stamp)).all():
            os.sched_yield()
        n, m = self._shape
        by_rank = (told & 0xFFFFFFFF).transpose(1, 0, 2).reshape(n * m, self.columns)
        flows, copies = by_rank[:, :n], by_rank[:, n:]
        return Demand(np.ascontiguousarray(flows), np.ascontiguousarray(copies))
