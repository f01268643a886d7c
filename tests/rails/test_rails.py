"""Fixed capacity between nodes, interpreted: processes that are ranks of several nodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.engine import specs
from tests.engine.fixtures import pool_of
from tests.engine.pool import Died, Pool
from tests.node_triton import rank_work
from tests.rails import rail_work

SMALL = specs.routed("f32")
COMPACT = specs.routed("f32", capacity="compact")
WIDE = specs.routed("bf16", hidden=40, keys=12, topk=8, align=1)
SHORT = specs.copied("f32", 5)  # moved many at once inside a node
ODD = specs.routed("f32", hidden=2, keys=9, topk=3, capacity="compact")
MANY_KEYS = specs.routed("f32", hidden=2, keys=9003, topk=3, align=1)
CYCLIC = specs.routed("f16", keys=7, topk=8, reduce="max", placement="cyclic", capacity="compact")


LARGER = {"2x1": 2, "2x2": 4}
"""Ranks of topologies; those of four take more time than all other tests here."""


pool = pool_of(4)


def path(text: str) -> str:
    return str(specs.artifact(text).path)


@pytest.mark.parametrize(
    ("text", "topology", "batches"),
    [
        (SMALL, "2x1", [(3, 0), (12, 5)]),
        (WIDE, "3x1", [(2, 0, 4)]),
        (specs.FIELDS, "4x1", [(0, 3, 1, 2)]),
        (CYCLIC, "2x2", [(1, 0, 2, 1)]),
        (SHORT, "2x1", [(3, 0), (1, 12)]),
    ],
    ids=["sum", "wide", "fields", "compact max", "short"],
)
def test_calls(pool: Pool, text: str, topology: str, batches: list[tuple[int, ...]]) -> None:
    """Uneven ranks, some without segments: rows bit by bit, results within rounding."""
    work = partial(rank_work.epochs, topology=topology)
    pool.run(work, len(batches[0]), path(text), batches, 1)


@pytest.mark.parametrize("text", [ODD, MANY_KEYS], ids=["compact", "tile by tile"])
def test_odd_numbers_of_counts(pool: Pool, text: str) -> None:
    """Two counts share a word, which is added to: several programs have so many of each node."""
    work = partial(rank_work.epochs, topology="3x1", max_sources=160)
    pool.run(work, 3, path(text), [(100, 0, 130)], 1)


@pytest.mark.parametrize(
    ("text", "topology"),
    [(SMALL, "2x1"), pytest.param(WIDE, "2x2", marks=pytest.mark.nightly)],
    ids=["sum", "several ranks a node"],
)
def test_rounds(pool: Pool, text: str, topology: str) -> None:
    """Large slabs, whose last round has segments of some ranks only, or of none."""
    num_ranks = LARGER[topology]
    batches = [(3, *[12] * (num_ranks - 1)), (12, *[9] * (num_ranks - 1))]
    found = pool.run(rail_work.rounds, num_ranks, path(text), topology, batches)
    rounds, places, inside = found[0]
    assert rounds == min(3, places // 8) > 1
    assert inside == 1


@pytest.mark.parametrize(
    ("num_turns", "at_once", "in_rounds"),
    [
        pytest.param(
            2,
            [range(24), range(24, 48)],
            ([range(8)], [range(8, 24), range(24, 40)], [range(40, 48)]),
            marks=pytest.mark.nightly,
        ),
        (
            3,
            [range(16), range(16, 32), range(32, 48)],
            ([range(8)], [range(8, 16), range(16, 32), range(32, 40)], [range(40, 48)]),
        ),
    ],
)
def test_turns(pool: Pool, num_turns: int, at_once: Any, in_rounds: Any) -> None:
    """Segments of all parts of the places, whose partial rows share memory."""
    text, sizes = specs.routed("f32", topk=5), [(34, 1, 0, 26), (0, 26, 33, 2)]
    for found in pool.run(rail_work.turns, 4, path(text), "2x2", sizes, num_turns):
        assert found == [(at_once,), in_rounds]


def test_epochs_wrap(pool: Pool) -> None:
    work = partial(rank_work.epochs, topology="2x1", first=2**31 - 2)
    pool.run(work, 2, path(WIDE), [(1, 2)] * 2, 1)


def test_handles(pool: Pool) -> None:
    pool.run(rail_work.handles, 2, path(SMALL), "2x1")


def test_repeats(pool: Pool) -> None:
    for said in pool.run(rail_work.repeats, 2, path(SMALL), "2x1"):
        changed, overwritten, outdated, wrong = said
        assert "has been changed in place" in changed
        assert "has put its own rows since" in overwritten
        assert "is outdated" in outdated
        assert "float64" in wrong


def test_captured_calls_have_memory_of_their_own(pool: Pool) -> None:
    for dropped, no_slot, between_hosts in pool.run(rail_work.captured, 2, path(SMALL), "2x1"):
        assert f"FSR018] {dropped}" in no_slot
        assert "cannot be captured by a CUDA graph: between hosts" in between_hosts


small_or_larger = pytest.mark.parametrize(
    "topology", ["2x1", pytest.param("2x2", marks=pytest.mark.nightly)]
)


@small_or_larger
def test_gradients(pool: Pool, topology: str) -> None:
    pool.run(partial(rank_work.gradients, topology=topology), LARGER[topology], path(COMPACT))


@pytest.mark.nightly
def test_mistakes_are_told_where_they_were_made(pool: Pool) -> None:
    """As inside a node: keys that do not exist, and points that find no slot in another one."""
    first, second = pool.run(partial(rank_work.mistakes, topology="2x1"), 2, path(SMALL))
    for messages in (first, second):
        assert "2 points" in messages[0]
        assert "idx[t, k]" in messages[0]
        assert "1 points" in messages[1]
        assert messages[2] == "no error"
        assert messages[4:] == ["no error"] * 2
    assert "4 points" in first[3]
    assert "12 points" in second[3]


def test_dropped_points_are_of_their_handle(pool: Pool) -> None:
    first, second = pool.run(partial(rank_work.one_bad_index, topology="2x1"), 2, path(SMALL))
    assert first == (["no error"] * 4, [0, 0, 0, 0, 0])
    messages, dropped = second
    assert dropped == [0, 1, 0, 20, 0]
    assert messages[0].startswith("KeyRangeError: [FSR017] `idx[t, k]` is no key for 1 points")
    assert messages[2].startswith("NoSlotError: [FSR018] 20 points of rank 1")
    assert messages[1::2] == ["no error"] * 2


@pytest.mark.parametrize(
    ("topology", "is_in_turns"),
    [  # a rank that is a node has no partial rows of others, and no turns
        ("2x1", False),
        pytest.param("2x2", False, marks=pytest.mark.nightly),
        ("2x2", True),
    ],
)
def test_a_combine_that_one_rank_refuses(pool: Pool, topology: str, is_in_turns: bool) -> None:
    """Sums that need rows of the last rank are lost, on another rank of its place all that need any
    of its node; and every other call is whole."""
    num_ranks = LARGER[topology]
    work = rail_work.turn_is_refused if is_in_turns else rail_work.combine_is_refused
    found = pool.run(work, num_ranks, path(SMALL), topology)
    for rank, (said, lost) in enumerate(found[:-1]):
        assert f"rank {num_ranks - 1} refused 1 calls that rank {rank} had joined" in said[0]
        assert said[1] == "no error"
        is_of_its_rail = rank % (num_ranks // 2) == num_ranks // 2 - 1
        first_key = rail_work.KEYS * (num_ranks // 2 if is_of_its_rail else num_ranks - 1)
        needed = rail_work.points(3, rank)["idx"] >= first_key // num_ranks
        assert lost == needed.any(1).nonzero().flatten().tolist()
    assert "has the shape [1, 7]" in found[-1][0][0]
    assert found[-1][0][1:] == ["no error"] * 2


def test_a_dispatch_that_one_rank_refuses(pool: Pool) -> None:
    """One that nobody has joined is no loss. Else whoever refuses cannot follow the others."""
    first, second = pool.run(rail_work.dispatch_is_refused, 2, path(SMALL), "2x1")
    for said in (first, second):
        assert "has 13 segments; max_sources is 12" in said[0]
        assert said[1] == "no error"
    assert first[2] == "no error"
    assert "rank 1 refused 1 calls that rank 0 had joined" in first[3]
    assert "has 13 segments; max_sources is 12" in second[2]
    assert second[3] == "no error"
    assert second[4].startswith("ProtocolError")
    assert "rank 1 has refused a call" in second[4]


@small_or_larger
def test_a_rank_that_dies_is_named(topology: str) -> None:
    check_that_the_last_is_named(rail_work.one_dies, LARGER[topology], path(SMALL), topology)


def check_that_the_last_is_named(
    work: Callable[..., list[str]], num_ranks: int, *arguments: Any
) -> None:
    """The last of the ranks dies; every other one names it, in the same words in a later call."""
    ranks = Pool(num_ranks)
    try:
        *found, died = ranks.outcomes(work, num_ranks, *arguments)
    finally:
        ranks.close()
    assert isinstance(died, Died)
    for rank, (first, again) in enumerate(found):
        assert first.startswith("HopTimeoutError")
        assert f"rank {rank} waited" in first
        assert f"for rank {num_ranks - 1} in" in first
        assert again == first
