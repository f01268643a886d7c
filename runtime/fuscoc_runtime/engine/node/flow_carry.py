"""Rows of flows between slabs and the memory from which they travel, or where they land."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fuscoc_runtime.engine.node.flow_memory import SIDES, FlowMemory, Rows
from fuscoc_runtime.engine.node.rail_calls import RailWork
from fuscoc_runtime.engine.node.triton_memory import uploaded
from fuscoc_runtime.engine.node.triton_program import TritonProgram
from fuscoc_runtime.engine.node.ways import Ways
from fuscoc_runtime.kernels.commands import Launch
from fuscoc_runtime.kernels.loader import Kernel, address

KERNELS = {
    "number": (("call", "has_landed", "fanout", "numbers", "counts"), 8),
    "share": (("call", "own", "landed", "width", "bases", "told", "stamp"), 1),
    "pass_by": (("call", "follows", "returns"), 1),
    "carry": (
        ("num_nodes", "stride", "parts_of_flows", "numbers", "num_ranks", "bases", "memory_at",
         "slab", "slab_bytes", "row_bytes", "comes"), 4,
    ),
}  # fmt: skip
"""Of kernels/device/flows.py, what they are given, and warps of a program."""


def flow_kernels(program: TritonProgram) -> dict[str, Kernel]:
    """Those of kernels/device/flows.py, compiled."""
    return {name: program.load("flows", name, *each) for name, each in KERNELS.items()}


@dataclass(frozen=True, eq=False)
class FlowWork(RailWork):
    """Also of every place the ``numbers`` of its rows in the flows to and from every node, int32
    [2, num_nodes, places]."""

    numbers: Tensor

    @property
    def tensors(self) -> list[Tensor]:
        """All of it."""
        return [*super().tensors, self.numbers]


@dataclass(frozen=True, eq=False)
class Going:
    """The ways of one dispatch, with what kernels read of them: int64 [2, num_nodes,
    ranks_per_node, PART], of ``own`` and of ``others``; rows travel on so many lanes."""

    ways: Ways
    parts: Tensor
    num_lanes: int


def going(ways: Ways, num_lanes: int, device: torch.device) -> Going:
    """Ways, as kernels read them."""
    both = torch.stack([torch.from_numpy(each) for each in (ways.own, ways.others)])
    return Going(ways, uploaded(both.flatten().tolist(), device).view(both.shape), num_lanes)


@dataclass(frozen=True)
class Carried:
    """Rows between slabs and memory as they travel, in one direction of one call.

    Attributes:
        side: of the memory, by its place in `SIDES`; that of rows which this rank sends has the
            parts and numbers of its own flows.
        comes: whether they go into slabs.
    """

    name: str
    side: int
    comes: int

    def launches(self, carry: Kernel, num_fields: int) -> list[Launch]:
        """One for each field."""
        alike = {"num_nodes": "nodes", "stride": "places", "num_ranks": "ranks_of_node"}
        alike |= {name: f"{self.name}.{name}" for name in ("parts_of_flows", "numbers", "comes")}
        alike["slab_bytes"] = f"{self.name}.slab_bytes"
        return [
            Launch(
                carry,
                "carrying",
                alike
                | {name: f"{self.name}.{name}.{i}" for name in ("memory_at", "slab", "row_bytes")},
            )
            for i in range(num_fields)
        ]

    def numbers(
        self, slabs: Tensor, rows_at: Sequence[int], fields: Sequence[Rows], memory: FlowMemory,
        work: FlowWork, going: Going,
    ) -> dict[str, int]:  # fmt: skip
        """What they are given, where the rows of ``fields`` begin in slabs at ``rows_at``."""
        numbers = {
            "parts_of_flows": address(going.parts[self.side]),
            "numbers": address(work.numbers[self.side]),
            "comes": self.comes,
            "slab_bytes": slabs.shape[1],
        }
        for i, (at, rows) in enumerate(zip(rows_at, fields, strict=True)):
            numbers[f"memory_at.{i}"] = memory.sections[SIDES[self.side]] + rows.at
            numbers[f"slab.{i}"] = address(slabs) + at
            numbers[f"row_bytes.{i}"] = rows.row_bytes
        return {f"{self.name}.{name}": each for name, each in numbers.items()}


LEAVES, LANDS = Carried("leaves", 0, 0), Carried("lands", 1, 1)
TURNS, RETURNS = Carried("turns", 1, 0), Carried("returns", 0, 1)
"""Of a dispatch, then of a combine, on both sides of the network."""
