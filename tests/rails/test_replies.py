"""Replies between nodes by the Triton kernels, interpreted: the same calls as inside one, and what
goes wrong there."""

from __future__ import annotations

from functools import partial

import pytest

from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.engine.specs import artifact
from tests.engine.test_replies import QUERIES
from tests.node_triton import reply_work
from tests.rails import reply_mistakes
from tests.static import specs

MOST = 5
"""Bags of a rank."""

pool = pool_of(4)


@pytest.fixture(scope="module")
def embedding() -> str:
    return str(specs.artifact("embedding.fsc", **reply_work.SIZES).path)


@pytest.mark.parametrize(
    ("topology", "sizes"),
    [
        ("2x1", [(3, 5)]),
        pytest.param("2x1", [(0, 4), (5, 2)], marks=pytest.mark.nightly),
        pytest.param("2x2", [(2, 0, 5, 1)], marks=pytest.mark.nightly),
        pytest.param("4x1", [(2, 0, 5, 1)], marks=pytest.mark.nightly),
    ],
)
def test_bags_and_their_gradients(
    pool: Pool, embedding: str, topology: str, sizes: list[tuple[int, ...]]
) -> None:
    """``max_sources`` need not be whole bags, nor fill the places of slabs."""
    work = partial(reply_work.fixed, topology=topology)
    pool.run(work, len(sizes[0]), embedding, sizes, MOST * reply_work.BAG - 1)


@pytest.mark.parametrize(
    ("topology", "packing"),
    [
        ("2x1", "compact"),
        pytest.param("2x2", "", marks=pytest.mark.nightly),
        pytest.param("2x2", "compact", marks=pytest.mark.nightly),
    ],
)
def test_what_was_sent_has_gradients(pool: Pool, topology: str, packing: str) -> None:
    """Answers of two fields to queries that go to two places, maybe of two nodes."""
    path = str(artifact(QUERIES.replace("ALIGN", packing)).path)
    work = partial(reply_work.questions, topology=topology)
    pool.run(work, 2 if topology == "2x1" else 4, path, True)


def test_answers_in_several_rounds(pool: Pool) -> None:
    """Between hosts, where slabs of both ways are large."""
    path = str(artifact(QUERIES.replace("ALIGN", "")).path)
    assert pool.run(reply_mistakes.in_rounds, 2, path, "2x1") == [(3, 3)] * 2


def test_bags_that_repeat(pool: Pool, embedding: str) -> None:
    """Of the same forms, with other ids and weights, which are not looked at again."""
    pool.run(reply_mistakes.repeats, 2, embedding, "2x1")


def test_too_few_slots(pool: Pool, embedding: str) -> None:
    """Both ranks ask rank 0 alone for more than it has room for: both are told of their points, and
    sums are of what found a slot."""
    for rank, (said, dropped) in enumerate(
        pool.run(reply_mistakes.too_few_slots, 2, embedding, "2x1")
    ):
        lost = (4, 12)[rank]
        assert dropped == lost
        assert f"FSR018] {lost} points of rank {rank}" in said


def test_a_refused_reply(pool: Pool, embedding: str) -> None:
    """Sums that need it are lost, and the next call is whole."""
    first, second = pool.run(reply_mistakes.refused_reply, 2, embedding, "2x1")
    assert "rank 1 refused 1 calls" in first[0]
    assert "has the shape" in second[0]
    assert first[1] == second[1] == "no error"


def test_a_refused_dispatch(pool: Pool, embedding: str) -> None:
    """Others go on without it. Who has refused it, and cannot tell how often they will combine, can
    make no further call, neither way."""
    first, second = pool.run(reply_mistakes.refused_dispatch, 2, embedding, "2x1")
    assert "rank 1 refused 1 calls" in first[0]
    assert "is torch.int32" in second[0]
    assert all("cannot follow" in each for each in second[1:])
    assert len(second) == 3
