"""Calls of fixed capacity between nodes, against the runtime and a count segment by segment."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc.simulate.contenders import CONTENDERS, SimulationError
from fuscoc.simulate.counts import Counts, Sharing, count
from fuscoc.simulate.runs import simulate
from fuscoc.simulate.slabs import own, slab_bytes, taken_on
from fuscoc_runtime.engine.node.slabs import lay_out_slab, num_places
from fuscoc_runtime.plan.links import row_bytes
from fuscoc_runtime.topology import Topology
from tests.engine.specs import artifact
from tests.node_triton.given_specs import EXAMPLES
from tests.rails.static_specs import uneven
from tests.simulate.small import cluster, counted, destinations, made, opened

FIXED = CONTENDERS["fixed"]


def by_hand(given: list[np.ndarray], topology: Topology) -> list[Counts]:
    """Who does what for whom, segment by segment: this node's, and what is taken on."""
    m = topology.ranks_per_node
    segments = [[np.full((0, 3), -1) for _ in given] for _ in range(2)]
    for rank, rows in enumerate(given):
        for node in range(topology.num_nodes):
            there = np.where((rows // m == node) & (rows >= 0), rows, -1)
            there = there[(there >= 0).any(axis=1)]
            taker = node * m + rank % m
            which = segments[int(node != rank // m)]
            which[taker] = np.concatenate([which[taker], there])
    one = Topology(1, topology.num_ranks)
    sharing = Sharing(once_per_rank=True, once_per_node=True)
    return [count(each, one, [sharing])[sharing] for each in segments]


@given(st.sampled_from([(2, 1), (2, 3), (3, 2)]), st.integers(0, 99), st.integers(1, 40))
@settings(max_examples=15, deadline=None)
def test_what_ranks_take_on_is_what_comes_along_their_rail(
    shape: tuple[int, int], seed: int, tokens: int
) -> None:
    topology = Topology(*shape)
    given = destinations(topology, tokens, seed)
    sharing = Sharing.of(made(FIXED).program)
    counts = count(given, topology, [sharing])[sharing]
    for found, expected in zip((own(counts), taken_on(counts)), by_hand(given, topology),
                               strict=True):  # fmt: skip
        for name in ("points", "pairs", "shared", "sources"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize("shape", [(1, 3), (2, 1), (2, 3), (3, 2)])
def test_traffic_goes_by_way_of_the_rail(shape: tuple[int, int]) -> None:
    topology, m = Topology(*shape), shape[1]
    given = destinations(topology, 30, 7)
    sharing = Sharing.of(made(FIXED).program)
    counts = count(given, topology, [sharing])[sharing]
    rows = np.zeros((topology.num_ranks, topology.num_ranks))
    for rank, segments in enumerate(given):
        for wanted in (set(segment[segment >= 0]) for segment in segments):
            for node in {each // m for each in wanted}:
                holder = rank if node == rank // m else node * m + rank % m
                rows[rank, holder] += holder != rank
                for each in wanted:
                    rows[holder, each] += each // m == node
    traffic = simulate(made(FIXED), counts, cluster(*shape)).traffic
    size = row_bytes(made(FIXED).program.buffers["slices"])
    np.testing.assert_allclose(traffic.rank_after, rows * size)


@pytest.mark.parametrize("tokens", [1, 40, 1000])
def test_slabs_are_as_large_as_the_runtime_s(tokens: int) -> None:
    shuffle, _ = opened()
    assert shuffle.node is not None
    counts = counted(made(FIXED), Topology(2, 2), tokens, 0)
    node, most = shuffle.node, int(counts.sources.max())
    rounded = num_places(shuffle, node, most)
    parts, there = lay_out_slab(shuffle, node, Topology(2, 2), rounded)
    there -= parts["rows"][0] - parts["counts"][0]
    forth, back = (int(each.max()) for each in slab_bytes(made(FIXED).program, counts))
    place, align = forth / most, 4 * 256  # of four parts
    assert forth <= there <= forth + (rounded - most) * place + align
    rows = most * node.partial_bytes
    assert back == rows + 1024 + 4 * most


def test_slabs_of_static_shuffles_have_what_crosses() -> None:
    """Of ranks with rows of 28 bytes and a point each; what stays in a node is in none."""
    [shuffle] = artifact(EXAMPLES["redistribute"].text).manifest.shuffles
    topology = Topology(2, 2)
    to = [np.arange(4)[:, None] for _ in range(topology.num_ranks)]  # a row to every rank
    sharing = Sharing.of(shuffle.program)
    forth, back = slab_bytes(shuffle.program, count(to, topology, [sharing])[sharing])
    other_node = np.kron([[0, 1], [1, 0]], [[1], [1]])
    np.testing.assert_array_equal(forth, other_node * (1024 + 2 * (28 + 8)))
    assert ((back > 0) == (other_node > 0)).all()


def test_slabs_back_go_where_segments_came_from() -> None:
    """All rows of two nodes of two ranks go to the first rank: the second node sends, and gets sums
    back, of other numbers of segments from each of its ranks."""
    shuffle = artifact(uneven("first", 6, 1, "u8", 4)).shuffle()
    topology = Topology(2, 2)
    to = [np.zeros((each, 1), np.int64) for each in (2, 2, 2, 0)]
    sharing = Sharing.of(shuffle.program)
    forth, back = slab_bytes(shuffle.program, count(to, topology, [sharing])[sharing])
    sent, returned = forth - forth[0, 1], back - back[2, 0]
    assert [sent[2, 0], sent[3, 0], sent[1, 1]] == [2 * (4 + 8), 0, 0]
    assert returned[0, 1] > 0
    assert [returned[1, 1], returned[2, 0], returned[3, 0]] == [0, 0, 0]


def test_too_large_slabs_are_an_error_as_in_the_runtime() -> None:
    counts = counted(made(FIXED), Topology(3, 1), 40_000, 0)
    with pytest.raises(SimulationError, match="takes exact sizes"):
        simulate(made(FIXED), counts, cluster(3, 1))


def test_nothing_is_hidden_behind_the_wire() -> None:
    """Twice the latency makes each call later by all of it, and so do slower kernels."""
    here, late = cluster(2, 2, latency=10e-6), cluster(2, 2, latency=110e-6)
    counts = counted(made(FIXED), Topology(2, 2), 50, 1)
    first, second = (simulate(made(FIXED), counts, each) for each in (here, late))
    assert second.seconds - first.seconds == pytest.approx(200e-6)
    assert first.dispatch.bounds[0].resource != "host"
