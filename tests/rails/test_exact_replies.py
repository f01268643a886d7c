"""Replies of exact sizes between nodes, interpreted: what `tests/rails/test_replies.py` has of a
fixed capacity."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuscoc_runtime.topology import Topology
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.engine.specs import artifact
from tests.engine.test_replies import QUERIES
from tests.node_triton import reply_work
from tests.rails import exact_reply_work
from tests.static import specs

NIGHTLY = pytest.mark.nightly
LARGER = pytest.param("2x2", marks=NIGHTLY)

pool = pool_of(6)


@pytest.fixture(scope="module")
def embedding() -> str:
    """Of parts that all ranks have equally many of."""
    return str(specs.artifact("embedding.fsc", **{**reply_work.SIZES, "parts": 12}).path)


@pytest.fixture(scope="module")
def queries() -> str:
    return str(artifact(QUERIES.replace("ALIGN", "")).path)


@pytest.mark.parametrize(
    ("topology", "sizes"),
    [
        ("2x1", [(3, 5), (0, 18)]),
        pytest.param("2x1", [(0, 0), (30, 2), (1, 1)], marks=NIGHTLY),
        pytest.param("2x2", [(2, 0, 5, 1), (0, 9, 0, 0)], marks=NIGHTLY),
        pytest.param("3x1", [(2, 0, 5)], marks=NIGHTLY),
        pytest.param("3x2", [(2, 0, 5, 1, 0, 3)], marks=NIGHTLY),
    ],
)
def test_bags_and_their_gradients(
    pool: Pool, embedding: str, topology: str, sizes: list[tuple[int, ...]]
) -> None:
    """Slabs and windows of both ways grow."""
    work = partial(exact_reply_work.bags, topology=topology)
    pool.run(work, len(sizes[0]), embedding, sizes)


@NIGHTLY
@pytest.mark.parametrize("topology", ["2x1", "2x2"])
@given(data=st.data())
@settings(
    max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_any_bags(pool: Pool, embedding: str, topology: str, data: st.DataObject) -> None:
    num_ranks = Topology.parse(topology).num_ranks
    sizes = st.tuples(*[st.one_of(st.integers(0, 5), st.integers(17, 40))] * num_ranks)
    batches = data.draw(st.lists(sizes, min_size=1, max_size=3))
    pool.run(partial(exact_reply_work.bags, topology=topology), num_ranks, embedding, batches)


@pytest.mark.parametrize("packing", ["", "compact"])
@pytest.mark.parametrize("topology", ["2x1", LARGER])
def test_what_was_sent_has_gradients(pool: Pool, topology: str, packing: str) -> None:
    """Answers of two fields to queries that go to two places, maybe of two nodes; of a compact
    target there is one row for both if they are of one rank."""
    work = partial(exact_reply_work.questions, topology=topology)
    path = str(artifact(QUERIES.replace("ALIGN", packing)).path)
    pool.run(work, Topology.parse(topology).num_ranks, path)


def test_answers_in_several_rounds(pool: Pool, queries: str) -> None:
    """Between hosts, where slabs of both ways are large."""
    assert pool.run(exact_reply_work.in_rounds, 2, queries, "2x1") == [(3, 3)] * 2


def test_only_a_dispatch_that_plans_waits(pool: Pool, embedding: str) -> None:
    for waits in pool.run(exact_reply_work.waits, 2, embedding, "2x1"):
        assert waits == [1, 0, 0, 0]


def test_handles_last(pool: Pool, embedding: str) -> None:
    pool.run(exact_reply_work.handles_last, 2, embedding, "2x1")


@pytest.mark.parametrize("topology", ["2x1", LARGER])
def test_mistakes(pool: Pool, embedding: str, topology: str) -> None:
    """All ranks raise what the general engine raises, and the next call is whole."""
    num_ranks, work = Topology.parse(topology).num_ranks, exact_reply_work.mistakes
    found = pool.run(work, num_ranks, embedding, topology, True)
    assert found == pool.run(work, num_ranks, embedding, topology, False)
    assert all(each == found[0] and "no error" not in each for each in found)


def test_a_refused_reply(pool: Pool, embedding: str) -> None:
    """Sums that need it are lost, and the next call is whole."""
    first, second = pool.run(exact_reply_work.refused_reply, 2, embedding, "2x1")
    assert "rank 1 refused 1 calls" in first[0]
    assert "has the shape" in second[0]
    assert first[1] == second[1] == "no error"


def test_weights_that_change_behind_their_dispatch(pool: Pool, embedding: str) -> None:
    """They have travelled with what was asked: a combine by other ones is refused."""
    first, second = pool.run(exact_reply_work.changed_weights, 2, embedding, "2x1")
    assert len(first) == 2
    assert all("rank 1 refused 1 calls" in each for each in first)
    changed = "`per_sample_weights` on rank 1 has been changed in place since"
    assert [changed in each for each in second] == [True, False] * 2
    assert second[1::2] == ["no error"] * 2


def test_a_refused_dispatch_along_a_known_routing(pool: Pool, embedding: str) -> None:
    """Who has refused it can make no further call, neither way."""
    first, second = pool.run(exact_reply_work.refused_dispatch, 2, embedding, "2x1")
    assert "rank 1 refused 1 calls" in first[0]
    assert "is torch.int32" in second[0]
    assert all("cannot follow" in each for each in second[1:])
    assert len(second) == 3


@pytest.mark.parametrize("topology", ["2x1", LARGER])
def test_no_memory_for_larger_slabs_of_answers(pool: Pool, embedding: str, topology: str) -> None:
    """All ranks name the one that has none, in every later call."""
    num_ranks = Topology.parse(topology).num_ranks
    for said in pool.run(exact_reply_work.no_memory, num_ranks, embedding, topology):
        assert said[0] == said[1]
        assert f"PreparationError: [FSR006] rank {num_ranks - 1} could not prepare" in said[0]
