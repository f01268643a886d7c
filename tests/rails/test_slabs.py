"""The rounds in which slabs travel."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc_runtime.engine.node import slabs
from fuscoc_runtime.engine.node.slabs import Slabs, divide, new_slab_memory
from fuscoc_runtime.engine.node.state import ALIGNMENT
from fuscoc_runtime.engine.node.weights import taken_on
from fuscoc_runtime.manifest.artifact import load_artifact
from fuscoc_runtime.topology import Topology
from tests.engine import specs


@pytest.mark.parametrize(
    ("tokens", "num_nodes", "rounds"),
    [
        (1024, 2, [1024]),
        (2048, 2, [1024, 1024]),
        (4096, 2, [1024, 2048, 1024]),
        (1024, 4, [344, 344, 336]),
        (4096, 8, [144, 3888, 64]),
        (16, 2, [16]),
        (16, 128, [16]),
    ],
)
def test_rows_that_travel_at_once(tokens: int, num_nodes: int, rounds: list[int]) -> None:
    """Of 14 kB: first and last those of 1024 tokens to one node, or as many bytes to several,
    but no small messages to very many."""
    assert [len(each) for each in divide(tokens, 2 * 7168, num_nodes)] == rounds


@given(st.integers(1, 5000), st.integers(1, 20000), st.integers(2, 9))
def test_every_place_travels_once(places: int, row_bytes: int, num_nodes: int) -> None:
    made = divide(places, row_bytes, num_nodes)
    assert [place for each in made for place in each] == list(range(places))
    assert all(each.start % slabs.STEP == 0 for each in made)
    assert len(made) <= 3


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 5), st.integers(0, 3))
def test_weights_are_where_segments_are_taken_on(
    num_nodes: int, ranks_per_node: int, num_sources: int, further: int
) -> None:
    """Of the rank that has a place in its node those of all that have the same one in theirs."""
    topology, places = Topology(num_nodes, ranks_per_node), num_sources + further
    weights = torch.rand(topology.num_ranks, num_sources, 2)
    found = taken_on(weights, topology, places)
    assert found.shape == (ranks_per_node, num_nodes * places, 2)
    for rank in range(topology.num_ranks):
        first = topology.node(rank) * places
        segments = found[topology.local_rank(rank), first : first + places]
        assert torch.equal(segments[:num_sources], weights[rank])
        assert not segments[num_sources:].any()


@settings(deadline=None, max_examples=20)
@given(st.sampled_from([specs.FIELDS, specs.routed("bf16")]), st.integers(1, 300))
def test_every_byte_of_a_slab_travels(text: str, num_sources: int) -> None:
    """Points before any row, the header of a way back with every round; nothing else twice."""
    artifact = load_artifact(specs.artifact(text).path)
    shuffle, num_nodes = artifact.shuffle(None), 3
    node = shuffle.node
    assert node is not None
    cpu, topology = torch.device("cpu"), Topology(num_nodes, 2)
    memory = new_slab_memory(shuffle, node, topology, num_sources, cpu)
    made = Slabs(shuffle, node, topology, num_sources, memory, is_one_round=False)
    made.rounds = divide(made.rounds[-1].stop, slabs.ROUND_BYTES // 5, num_nodes)
    header = range(slabs.HEADER_BYTES)
    for ranges, slab in ((made.ranges, memory.out), (made.ranges_back, memory.back_out)):
        counts = torch.zeros(slab.shape[1], dtype=torch.int64)
        for number, places in enumerate(made.rounds):
            travelling = ranges(places)
            assert travelling.sends == travelling.receives == [travelling.sends[0]] * num_nodes
            parts = travelling.sends[0]
            assert number > 0 or parts[0].start == 0
            if ranges == made.ranges_back and len(made.rounds) > 1:
                assert set(header) <= set(parts[0])
                counts[: len(header)] -= int(number > 0)
            for part in parts:
                counts[part.start : part.stop] += 1
        assert counts.max() == 1
        assert int((counts == 0).sum()) < ALIGNMENT * 5  # that parts begin at multiples of it
