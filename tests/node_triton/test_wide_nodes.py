"""Nodes of many ranks. Few ranks whose kernels have room for 128 go every way of their words and
sets; at night there are 16 and 72 ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc_runtime import room
from fuscoc_runtime.kernels.loader import device_module, launching
from tests.engine import specs
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.node_exact import rank_work as exact_work
from tests.node_triton import rank_work
from tests.rails import rail_work

SMALL = specs.routed("f32")
COMPACT = specs.routed("f32", capacity="compact")
MANY_KEYS = {
    "packed": specs.routed("bf16", hidden=8, keys=144, topk=3, align=4, placement="cyclic"),
    "compact": specs.routed("bf16", hidden=8, keys=144, topk=3, capacity="compact"),
}

ROOMS = (8, 32, 64, 128)
SETS = st.sampled_from(ROOMS).flatmap(
    lambda size: st.tuples(st.just(size), *[st.sets(st.integers(0, size - 1))] * 2)
)

pool = pool_of(3)


def path(text: str) -> str:
    return str(specs.artifact(text).path)


def with_room(group: Any, work: Callable[..., Any], *arguments: Any) -> Any:
    """Do ``work`` on a rank whose kernels have room for the most ranks."""
    fewest, room.room_for.__defaults__ = room.room_for.__defaults__, (room.MOST,)
    try:
        assert room.room_for(2) == room.MOST
        return work(group, *arguments)
    finally:
        room.room_for.__defaults__ = fewest


@pytest.mark.parametrize("text", [SMALL, COMPACT], ids=["expanded", "compact"])
def test_with_room_for_many(pool: Pool, text: str) -> None:
    pool.run(with_room, 2, rank_work.epochs, path(text), [(5, 0), (2, 12)], 1)


def test_exact_sizes_with_room_for_many(pool: Pool) -> None:
    pool.run(with_room, 2, exact_work.batches, path(SMALL), [(5, 0), (2, 12)], 1)


def test_calls_that_one_rank_refuses(pool: Pool) -> None:
    """What needs its rows is lost, nothing else; and the others name it."""
    first, second, third = pool.run(with_room, 3, rank_work.one_refuses, path(SMALL))
    for said in (first, third):
        assert said[0] == said[3] == "no error"
        assert "rank 1 refused 1 calls" in said[1]
        assert "rank 1 refused 2 calls" in said[2]
    assert "has 13 segments; max_sources is 12" in second[0]


def test_a_combine_between_nodes_that_one_rank_refuses(pool: Pool) -> None:
    work = rail_work.combine_is_refused
    (said, lost), other = pool.run(with_room, 2, work, path(SMALL), "2x1")
    assert "rank 1 refused 1 calls that rank 0 had joined" in said[0]
    needed = rail_work.points(3, 0)["idx"] >= rail_work.KEYS // 2
    assert lost == needed.any(1).nonzero().flatten().tolist()
    assert [*said[1:], *other[0][1:]] == ["no error"] * 3


def use_sets(first: Any, second: Any, found: Any, size: tl.constexpr, ranks: tl.constexpr) -> None:
    """``found``: [3, size], whether ranks are in what is made of two sets; then the words of one to
    which the other's ranks have been added, one by one and together."""
    rank = tl.arange(0, size)
    both = ranks.load_set(first)
    for peer in range(size):
        both |= ranks.one(peer, tl.load(second + peer))
        tl.store(found + peer, ranks.has(both, peer))
    tl.store(found + size + rank, ranks.each(both))
    made = ranks.of(rank, tl.load(second + rank) != 0)
    tl.store(found + 2 * size + rank, ranks.have(made, rank))
    words = found + 3 * size
    ranks.store_set(words, both)
    ranks.store_set(words + 4, ranks.none())
    ranks.add(words + 4, tl.load(second + rank))
    ranks.store_set(words + 8, both)
    ranks.add_one(words + 8, tl.load(found + 3 * size + 12))
    tl.store(words + 13, ranks.is_any(made).to(tl.int32))


@given(sets=SETS, last=st.integers(0, 127))
@settings(max_examples=12, deadline=None)
def test_sets_of_ranks(sets: tuple[int, set[int], set[int]], last: int) -> None:
    """In a word and in a vector, in registers and in memory."""
    size, one, other = sets
    last %= size

    def bits(of: set[int]) -> list[int]:
        words = [sum(1 << rank % 32 for rank in of if rank // 32 == word) for word in range(4)]
        return [word - (word >> 31 << 32) for word in words]

    def is_in(of: set[int]) -> list[int]:
        return [int(rank in of) for rank in range(size)]

    first = torch.tensor(bits(one), dtype=torch.int32)
    second = torch.tensor(is_in(other), dtype=torch.int32)
    found = torch.zeros(3 * size + 16, dtype=torch.int32)
    found[3 * size + 12] = last
    functions = device_module("ranks", interpreted=True, room=size)
    with launching(interpreted=True):
        triton.jit(use_sets)[(1,)](first, second, found, size, functions)
    seen = [int(rank in one | {each for each in other if each <= rank}) for rank in range(size)]
    assert found[: 3 * size].tolist() == [*seen, *is_in(one | other), *is_in(other)]
    words = found[3 * size :].tolist()
    assert words[:12] == [*bits(one | other), *bits(other), *bits(one | other | {last})]
    assert words[13] == (len(other) > 0)


def test_rooms_share_no_machine_code() -> None:
    """Their constants are those of another module."""
    functions = [device_module("combine", interpreted=False, room=each).sum_rows for each in ROOMS]
    assert len({each.cache_key for each in functions}) == len(ROOMS)


@pytest.mark.nightly
@pytest.mark.parametrize("num_ranks", [16, 72])
@pytest.mark.parametrize("name", MANY_KEYS)
def test_many_ranks(name: str, num_ranks: int) -> None:
    sizes = [tuple((rank + turn) % 3 for rank in range(num_ranks)) for turn in range(2)]
    processes = Pool(num_ranks, sizes=[num_ranks])
    try:
        processes.run(rank_work.epochs, num_ranks, path(MANY_KEYS[name]), sizes, 1)
    finally:
        processes.close()
