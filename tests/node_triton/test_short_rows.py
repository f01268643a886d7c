"""Short rows of segments with one destination each, which one kernel sorts and moves, interpreted:
several tiles, and several programs, each with a share of the segments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc_runtime.engine.node.schedule import Programs
from fuscoc_runtime.kernels.loader import device_module, launching
from tests.engine import specs
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.node_triton.rank_work import batch, open_shuffle, run, said_by

SHARED = specs.copied("f32", 4)  # a tile is sorted, and moved as it is
LONGER = specs.copied("f32", 64)  # four times as many segments are sorted as rows are moved
LOOKED_UP = """
    shuffle looked_up {
      index t : tokens   index g : groups   index e : 12
      segment row { x : f32[6] }
      layout by_row[t] of row
      layout by_key[e, s] of row packed(s) align 4
      place e on rank by table owner
      route group(t) -> g = input of : int64
      route of_group(g) -> e = input keys : int32
      route r(t) -> e = of_group(group(t))
      dispatch by_row[t] -> by_key[r(t), *]
      combine reverse
    }"""
BLOCKS = """
    shuffle blocks {
      index b : blocks   index e : 12
      segment block { x : bf16[4, 3] }
      layout tokens[t] of bf16[3] dense(4 * blocks)
      view parts[b] = tokens[4*b .. 4*b+4]
      layout slots[e, s] of block packed(s)
      place e on rank by block
      route r(b) -> e = (3 * b + rank) % 12
      dispatch parts[b] -> slots[r(b), *]
      combine reverse
    }"""


pool = pool_of(2)


def use(shuffle: Any, programs: int) -> None:
    shuffle.engine.node.configure(Programs(1, 1, 1, 1, sms=programs))


def shares(
    group: Any, artifact: str, batches: Sequence[Sequence[int]], programs: Sequence[int]
) -> None:
    """Calls of so many segments of every rank, each of them by other numbers of programs."""
    shuffle = open_shuffle(group, artifact, max_sources=max(map(max, batches)))
    for seed, sizes in enumerate(batches):
        use(shuffle, programs[(seed + shuffle.rank) % len(programs)])
        run(shuffle, batch(shuffle.spec, sizes, seed), combines=1)
    shuffle.check()


@pytest.mark.parametrize("text", [SHARED, LONGER], ids=["sorted", "in order"])
def test_shares(pool: Pool, text: str) -> None:
    """Rows are where the reference has them, whichever program, of how many, has moved them."""
    tile = specs.triton_tile(text)
    assert tile["sorted_rows"] > 1
    assert (tile["tile_rows"] < tile["sorted_rows"]) == (text is LONGER)
    sizes = [(1300, 33), (0, 600), (32, 64)]
    pool.run(shares, 2, str(specs.artifact(text).path), sizes, (3, 1, 2))


@pytest.mark.parametrize("text", [LOOKED_UP, BLOCKS], ids=["looked up", "blocks"])
def test_relations(pool: Pool, text: str) -> None:
    """Keys and owners that inputs say; computed keys, of segments of several cells."""
    assert specs.triton_tile(text)["sorted_rows"] > 1
    pool.run(shares, 2, str(specs.artifact(text).path), [(12, 40), (0, 3)], (2, 1))


def mistakes(group: Any, artifact: str) -> list[Any]:
    """Of a call with keys that do not exist, and of one with more rows than slots: what ``check``
    says, how many points were dropped, and how many have come back."""
    shuffle = open_shuffle(group, artifact, max_sources=600, capacity=700)
    use(shuffle, 3)
    x = torch.arange(2400.0).view(600, 4) + 1
    found: list[Any] = []
    for keys in (torch.arange(600) % 13, torch.zeros(600, dtype=torch.int64)):
        rows, handle = shuffle.dispatch(x, idx=keys)
        result = shuffle.combine(rows.clone(), handle)
        came = (result != 0).all(1)
        assert torch.equal(result, torch.where(came[:, None], x, 0))
        found += [int(handle.dropped), int(came.sum()), said_by(shuffle.check)]
    return found


def test_mistakes(pool: Pool) -> None:
    """A key that does not exist is the rank's own that has it; slots go to the first ranks first,
    and to the first segments of each."""
    for rank, found in enumerate(pool.run(mistakes, 2, str(specs.artifact(SHARED).path))):
        dropped, came, said, overflowed, left, told = found
        assert (dropped, came) == (46, 554)
        assert "46 points" in said
        assert (overflowed, left) == ((0, 600), (500, 100))[rank]
        assert ("500 points of rank 1" in told) == (rank == 1)


def store_sorted(x: Any, bits: tl.constexpr, sort: tl.constexpr) -> None:
    at = x + tl.arange(0, 2**bits)
    tl.store(at, sort(tl.load(at), bits))


@given(
    bits=st.integers(1, 9),
    values=st.lists(st.integers(-(2**30), 2**30 - 1), min_size=1, max_size=512),
)
@settings(max_examples=10, deadline=None)
def test_sort(bits: int, values: list[int]) -> None:
    numbers = torch.tensor((values * 512)[: 2**bits], dtype=torch.int32)
    wanted, sort = numbers.sort().values, device_module("vectors", interpreted=True).sort
    with launching(interpreted=True):
        triton.jit(store_sorted)[(1,)](numbers, bits, sort)
    assert torch.equal(numbers, wanted)
