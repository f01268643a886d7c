"""The Triton kernels of one node, interpreted: processes that store into each other's memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine import specs
from tests.engine.pool import Pool
from tests.node_triton import rank_work

MOST = rank_work.MAX_SOURCES
SMALL = specs.routed("f32")
COMPACT = specs.routed("f32", capacity="compact")
SPECS = {
    "bf16": specs.routed("bf16", hidden=40),
    "cyclic": specs.routed("f32", hidden=7, keys=5, topk=4, align=1, placement="cyclic"),
    "table": specs.routed("f32", keys=7, topk=1, placement="table owner"),
    "unweighted": specs.routed("bf16", hidden=5, topk=2, reduce="sum", options="dedup(rank)"),
    "long": specs.routed("f32", hidden=9001, keys=3, topk=2, placement="cyclic"),
    "fields": specs.FIELDS,
    "compact": specs.routed(
        "bf16", keys=6, topk=5, reduce="sum", placement="cyclic", capacity="compact"
    ),
}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    processes = Pool(3)
    yield processes
    processes.close()


def path(text: str) -> str:
    return str(specs.artifact(text).path)


@pytest.mark.parametrize("name", SPECS)
def test_every_kind_of_shuffle(pool: Pool, name: str) -> None:
    sizes = [(5, 0), (0, 0), (2, MOST)]
    pool.run(rank_work.epochs, 2, path(SPECS[name]), sizes, 1)


@pytest.mark.parametrize("text", [SMALL, COMPACT], ids=["expanded", "compact"])
@given(data=st.data(), num_ranks=st.sampled_from([1, 2, 3]), seed=st.integers(0, 1000))
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_epochs(pool: Pool, text: str, data: st.DataObject, num_ranks: int, seed: int) -> None:
    """Any sizes, drops and repeated keys, batch after batch in the same memory."""
    sizes = st.tuples(*[st.integers(0, MOST)] * num_ranks)
    batches = data.draw(st.lists(sizes, min_size=1, max_size=3))
    pool.run(rank_work.epochs, num_ranks, path(text), batches, seed)


def test_epochs_wrap(pool: Pool) -> None:
    pool.run(rank_work.epochs, 2, path(SMALL), [(1, 2)] * 3, 1, 2**31 - 2)


def test_gradients_of_a_compact_target(pool: Pool) -> None:
    pool.run(rank_work.gradients, 2, path(COMPACT))


def test_mistakes_are_raised_by_check(pool: Pool) -> None:
    """Two ranks, a capacity of 8 slots: four segments send three rows each to key 0."""
    first, second = pool.run(rank_work.mistakes, 2, path(SMALL))
    for messages in (first, second):
        assert "2 points" in messages[0]
        assert "idx[t, k]" in messages[0]
        assert messages[2] == "no error"
    assert "4 points" in first[1]
    assert "12 points" in second[1]


def test_a_call_that_one_rank_refuses(pool: Pool) -> None:
    messages = pool.run(rank_work.one_refuses, 3, path(SMALL))
    assert messages[1].startswith("InputError")
    for message in (messages[0], messages[2]):
        assert message.startswith("RefusedCallError")
        assert "rank 1" in message


def test_a_rank_that_does_not_come(pool: Pool) -> None:
    message = pool.run(rank_work.one_is_absent, 2, path(SMALL), 4.0)[0]
    assert message.startswith("HopTimeoutError")
    assert "rank 1" in message
