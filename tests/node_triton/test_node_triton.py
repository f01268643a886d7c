"""The Triton kernels of one node, interpreted: processes that store into each other's memory."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine import specs
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.node_triton import rank_work

MOST = rank_work.MAX_SOURCES
SMALL = specs.routed("f32")
COMPACT = specs.routed("f32", capacity="compact")
COPIED = specs.copied("f32")
SPECS = {
    "bf16": specs.routed("bf16", hidden=40),
    "cyclic": specs.routed("f32", hidden=7, keys=5, topk=4, align=1, placement="cyclic"),
    "table": specs.routed("f32", keys=7, topk=1, placement="table owner"),
    "unweighted": specs.routed("bf16", hidden=5, topk=2, reduce="sum", options="dedup(rank)"),
    "long": specs.routed("f32", hidden=9001, keys=3, topk=2, placement="cyclic"),
    "fields": specs.FIELDS,
    "single": specs.SINGLE,
    "compact": specs.routed(
        "bf16", keys=6, topk=5, reduce="sum", placement="cyclic", capacity="compact"
    ),
}


pool = pool_of(3)


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
    """Two ranks, a capacity of 8 slots: four segments send three rows each to key 0. Each kind of
    mistake is raised once."""
    first, second = pool.run(rank_work.mistakes, 2, path(SMALL))
    for messages in (first, second):
        assert "2 points" in messages[0]
        assert "idx[t, k]" in messages[0]
        assert "1 points" in messages[1]
        assert messages[2] == "no error"
        assert messages[4:] == ["no error"] * 2
    assert "4 points" in first[3]
    assert "12 points" in second[3]


def test_one_bad_index(pool: Pool) -> None:
    """It is dropped, and told once, on the rank that gave it; all other calls are whole."""
    first, second = pool.run(rank_work.one_bad_index, 2, path(SMALL))
    assert first == (["no error"] * 4, [0, 0, 0, 0, 0])
    messages, dropped = second
    assert dropped == [0, 1, 0, 20, 0]
    assert messages[0].startswith("KeyRangeError: [FSR017] `idx[t, k]` is no key for 1 points")
    assert messages[2].startswith("NoSlotError: [FSR018] 20 points of rank 1")
    assert messages[1::2] == ["no error"] * 2


@pytest.mark.parametrize("text", [SMALL, COMPACT, COPIED], ids=["expanded", "compact", "copied"])
def test_calls_that_one_rank_refuses(pool: Pool, text: str) -> None:
    """The others go on without its rows, and their check names it; every other call is whole."""
    first, second, third = pool.run(rank_work.one_refuses, 3, path(text))
    for said in (first, third):
        assert said[0] == "no error"
        assert "rank 1 refused 1 calls" in said[1]
        assert "rank 1 refused 2 calls" in said[2]
        assert said[3] == "no error"
    assert "has 13 segments; max_sources is 12" in second[0]
    assert second[1] == "no error"
    assert "has the shape [1, 23]" in second[2]
    assert "`handle` on rank 1" in second[3]
    assert "is older than a combine that was given no handle" in second[4]
    assert second[5:] == ["no error"] * 2


def test_nothing_is_left_of_a_refused_dispatch(pool: Pool) -> None:
    assert pool.run(rank_work.padding_after_refusals, 2, path(COMPACT)) == [[0, 0, 0]] * 2


def test_a_refused_dispatch_takes_its_turn(pool: Pool) -> None:
    assert pool.run(rank_work.two_in_turn, 2, path(SMALL)) == [[True, False]] * 2


def test_a_rank_that_is_late(pool: Pool) -> None:
    pool.run(rank_work.one_is_late, 2, path(SMALL))


def test_a_rank_that_does_not_come(pool: Pool) -> None:
    message = pool.run(rank_work.one_is_absent, 2, path(SMALL), 4.0)[0]
    assert message.startswith("HopTimeoutError")
    assert "rank 1" in message
