"""How many places slabs of exact sizes have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuscoc_runtime.engine.node.places import Places
from fuscoc_runtime.engine.node.slabs import MOST_SENT, lay_out_slab
from fuscoc_runtime.topology import Topology
from tests.engine import specs
from tests.static import specs as static

TEXT = specs.routed("bf16", hidden=7168, keys=64, topk=8)
COUNTS = st.integers(0, 1 << 20)


def places(topology: Topology, options: str = "") -> Places:
    text = TEXT.replace("dedup(node, rank)", f"dedup(node, rank) {options}")
    shuffle = specs.artifact(text).shuffle()
    assert shuffle.node is not None
    return Places(shuffle, shuffle.node, topology)


@given(COUNTS)
def test_sizes_are_enough_and_few(count: int) -> None:
    sizes = places(Topology(2, 4))
    unit, size = sizes.size_of(1), sizes.size_of(count)
    assert count <= size < max(count * 9 / 8, 1) + unit
    assert size % unit == 0
    assert sizes.size_of(size) == size  # memory for so many has room for as many again
    assert len({sizes.size_of(each) for each in range(4096, 8193)}) <= 9


@given(COUNTS, COUNTS)
def test_sizes_where_places_come_by_three(count: int, other: int) -> None:
    """As where a row of a reply answers three segments: a call that has had places for so many is
    not followed by one with more than there is memory for."""
    artifact = static.artifact("embedding.fsc", rows=24, width=4, bag=3, parts=12)
    shuffle = artifact.shuffle()
    assert shuffle.node is not None
    sizes = Places(shuffle, shuffle.node, Topology(2, 1))
    unit, size = sizes.size_of(1), sizes.size_of(count)
    assert unit % 3 == size % unit == 0
    assert count <= size < max(count * 9 / 8, 1) + unit
    for needed in (count, size, min(count, other)):
        assert sizes.next(size, needed) <= size


@given(COUNTS, COUNTS)
def test_places_follow_what_is_needed(had: int, needed: int) -> None:
    """They grow at once, and abate step by step until there are no more than that."""
    sizes = places(Topology(2, 4))
    now, enough = sizes.size_of(had), sizes.size_of(needed)
    if enough >= now:
        assert sizes.next(now, needed) == enough
        return
    seen = [now]
    while seen[-1] > enough:
        seen.append(sizes.next(seen[-1], needed))
        assert enough <= seen[-1] < seen[-2]
        assert seen[-1] * 2 >= seen[-2] or seen[-1] == enough
    assert len(seen) < 100


def sent(topology: Topology, size: int) -> int:
    """Bytes of slabs to all other nodes, with rows."""
    shuffle = specs.artifact(TEXT).shuffle()
    assert shuffle.node is not None
    return lay_out_slab(shuffle, shuffle.node, topology, size)[1] * (topology.num_nodes - 1)


def test_what_slabs_carry() -> None:
    """What the first dispatch has places for, and no more bytes than there may be."""
    for topology in (Topology(2, 1), Topology(8, 8), Topology(64, 8), Topology(16, 72)):
        sizes = places(topology)
        assert sizes.are_carried(sizes.first)
        count = sizes.first
        while not sizes.are_flows(2 * count):
            count *= 2
        assert sent(topology, count) <= MOST_SENT < sent(topology, 2 * count)
    assert places(Topology(64, 8)).first < places(Topology(2, 1)).first == 128


@pytest.mark.parametrize(
    "topology", [Topology(2, 4), Topology(8, 8), Topology(16, 8), Topology(4, 36)]
)
def test_what_travels_as_flows(topology: Topology) -> None:
    """What slabs do not carry, up to 8,192 segments of 14 KB to 15 nodes; with a policy all."""
    sizes = places(topology)
    for count in (1, 128, 1024, 4096, 8192):
        size = sizes.size_of(count)
        assert sizes.are_carried(size)
        assert sizes.are_flows(size) == (sent(topology, size) > MOST_SENT)
    assert sizes.are_flows(8192) == (topology.num_nodes > 2)
    assert not sizes.are_carried(1 << 19)
    chosen = places(topology, options="balance rebalance")
    assert chosen.are_flows(chosen.first)


@given(COUNTS)
def test_what_asks_travels_as_answers_do(count: int) -> None:
    """Three ids of 8 bytes, which slabs would carry, and a sum of 4 KB, which they may not."""
    artifact = static.artifact("embedding.fsc", rows=24, width=1024, bag=3, parts=12)
    shuffle, topology = artifact.shuffle(), Topology(2, 9)
    assert shuffle.node is not None
    assert shuffle.reply is not None
    assert shuffle.reply.node is not None
    sizes = Places(shuffle, shuffle.node, topology)
    size = sizes.size_of(count)
    _, forth = lay_out_slab(shuffle, shuffle.node, topology, size)
    _, back = lay_out_slab(shuffle.reply, shuffle.reply.node, topology, size // 3)
    assert sizes.are_flows(size) == (max(forth, back) > MOST_SENT)
