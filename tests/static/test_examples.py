"""Computed relations against what torch does with the whole tensor in one place."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fuscoc_runtime.engine.handle import Handle
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.topology import Topology
from tests.static import specs

TOPOLOGIES = ("1x1", "1x4", "2x2", "4x1", "1x2")
FEW = settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
"""Of sizes that are compiled in, beside those that are written down."""

topologies = st.sampled_from(TOPOLOGIES)


class Ranks:
    """One shuffle on all ranks of a topology; tensors by rank."""

    def __init__(self, artifact: Artifact, topology: str) -> None:
        self.shuffle = LockstepShuffle(artifact, topology=Topology.parse(topology))
        self.handles: list[Handle] = []

    def dispatch(self, parts: Sequence[Tensor]) -> list[Tensor]:
        done = self.shuffle.dispatch([[part] for part in parts], [{} for _ in parts])
        self.handles = [each.handle for each in done]
        return [each.rows["x"].clone() for each in done]

    def combine(self, rows: Sequence[Tensor]) -> list[Tensor]:
        results = self.shuffle.combine(rows, self.handles, [{} for _ in rows])
        return [result["x"] for result in results]


def num_ranks(topology: str) -> int:
    return Topology.parse(topology).num_ranks


@given(topologies, st.integers(1, 3), st.integers(1, 2), st.integers(1, 3))
@example("1x4", 4, 2, 2)
@example("2x2", 4, 2, 2)
@FEW
def test_ulysses(topology: str, blocks: int, heads: int, block: int) -> None:
    """All tokens of some heads: the permutation of the gathered sequence."""
    count = num_ranks(topology)
    tokens, heads = count * blocks * block, count * heads
    sizes = {"tokens": tokens, "heads": heads, "width": 4, "block": block}
    ranks = Ranks(specs.artifact("ulysses.fsc", **sizes), topology)
    sequence = torch.randn(tokens, heads, 4).bfloat16()
    parts = list(sequence.chunk(count))
    rows = ranks.dispatch(parts)
    by_head = sequence.permute(1, 0, 2).chunk(count)
    for found, wanted in zip(rows, by_head, strict=True):
        assert torch.equal(found.view(wanted.shape), wanted)
    for found, part in zip(ranks.combine([row * 2 for row in rows]), parts, strict=True):
        assert torch.equal(found, part * 2)


@given(topologies, st.integers(1, 3), st.integers(1, 6))
@example("1x4", 2, 6)
@example("2x2", 2, 6)
@FEW
def test_redistribute(topology: str, cycles: int, columns: int) -> None:
    """Blocks of rows to rows that are dealt out."""
    count = num_ranks(topology)
    rows = count * count * cycles
    ranks = Ranks(specs.artifact("redistribute.fsc", rows=rows, columns=columns), topology)
    matrix = torch.randn(rows, columns)
    blocks = list(matrix.chunk(count))
    cyclic = ranks.dispatch(blocks)
    for rank, found in enumerate(cyclic):
        assert torch.equal(found, matrix[rank::count])
    for found, block in zip(ranks.combine(cyclic), blocks, strict=True):
        assert torch.equal(found, block)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_transpose(topology: str) -> None:
    ranks = Ranks(specs.artifact(specs.TRANSPOSE), topology)
    count = num_ranks(topology)
    matrix = torch.randn(12, 16)
    rows = list(matrix.chunk(count))
    columns = ranks.dispatch(rows)
    for found, wanted in zip(columns, matrix.T.chunk(count), strict=True):
        assert torch.equal(found.view(wanted.shape), wanted)
    for found, part in zip(ranks.combine(columns), rows, strict=True):
        assert torch.equal(found, part)


@pytest.mark.parametrize("topology", ["1x4", "2x2"])
def test_broadcast(topology: str) -> None:
    """An all-gather as a fan-out to a computed rank; the way back is a reduce-scatter."""
    ranks = Ranks(specs.artifact(specs.BROADCAST), topology)
    parts = list(torch.randn(4, 3, 5))
    everything = ranks.dispatch(parts)
    for found in everything:
        assert torch.equal(found.view(4, 3, 5), torch.stack(parts))
    back = ranks.combine([rank * rows for rank, rows in enumerate(everything)])
    for found, part in zip(back, parts, strict=True):
        torch.testing.assert_close(found, part * (0 + 1 + 2 + 3))
