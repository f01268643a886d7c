"""Entries that follow each other, such as patches that become lines of a picture: their boxes are
those of whole chains, and all that is said of single ones stays true."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from tests.engine import specs
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.node_triton import given_mistakes, given_work
from tests.node_triton.given_specs import example

NUM_RANKS, P, ROWS, COLUMNS, IMAGES = 3, 2, 3, 70, 2
UNPACK = example(
    "vit_unpack",
    (
        "p = 14, c = 3, rows = 16, columns = 16",
        f"p = {P}, c = 3, rows = {ROWS}, columns = {COLUMNS}",
    ),
)
# Entries of two rows of whole words each, a range of slots.
PAIRS = """
shuffle pairs {
  index t : tokens   index i : 2   index s : length
  segment item { x : f32[4] }
  layout rows[t, i] of item
  layout there[s] of item
  route to(t) -> (rank, slot) = input to : int64[2]
  dispatch rows[t, i] -> there[to(t).slot + i] on to(t).rank
  combine reverse
}"""


pool = pool_of(NUM_RANKS)


def places(num_ranks: int, seed: int) -> list[list[list[int]]]:
    """(rank, image, row, column) of every patch of each rank: all there are, in lines that are cut
    anywhere and dealt out, a part of a line at once; and some that are dropped."""
    draw = random.Random(seed)
    patches = [
        [rank, n, i, j]
        for rank in range(num_ranks)
        for n in range(IMAGES)
        for i in range(ROWS)
        for j in range(COLUMNS)
    ]
    cuts = sorted({0, len(patches), *draw.sample(range(len(patches)), 40)})
    parts = [patches[begin:end] for begin, end in pairwise(cuts)]
    draw.shuffle(parts)
    given: list[list[list[int]]] = [[] for _ in range(num_ranks)]
    for part in parts:
        given[draw.randrange(num_ranks)] += part
    for mine in given:
        for patch in draw.sample(mine, len(mine) // 50):
            patch[draw.randrange(4)] = -1
    return given


@pytest.mark.parametrize("num_ranks", [pytest.param(1, marks=pytest.mark.nightly), 3])
def test_lines_of_pictures(pool: Pool, num_ranks: int) -> None:
    path = str(specs.artifact(UNPACK).path)
    tables = [places(num_ranks, seed) for seed in (1, 2)]
    most = max(len(mine) for table in tables for mine in table)
    options = {"max_sources": P * most, "capacity": IMAGES * ROWS * P * COLUMNS}
    pool.run(given_work.unpacked, num_ranks, path, tables, IMAGES, options)


def test_ranges_of_rows(pool: Pool) -> None:
    """The slots of chains are one range; between them are others, and gaps of one slot."""
    path = str(specs.artifact(PAIRS).path)
    draw, tables = random.Random(3), list[list[list[list[int]]]]()
    for _ in range(2):
        at, table = [0] * NUM_RANKS, [list[list[int]]() for _ in range(NUM_RANKS)]
        for mine in table:
            for _ in range(12):
                rank = draw.randrange(NUM_RANKS)
                at[rank] += draw.randrange(2)
                for _ in range(draw.randrange(1, 30)):
                    mine.append([rank, at[rank]])
                    at[rank] += 2
                mine += [[-1, 0]] * draw.randrange(2)
        tables.append(table)
    length = max(slot + 2 for table in tables for mine in table for _, slot in mine)
    most = max(len(mine) for table in tables for mine in table)
    options = {"max_sources": 2 * most, "capacity": length}
    pool.run(given_work.paired, NUM_RANKS, path, tables, length, options)


def test_a_chain_has_one_rank(pool: Pool) -> None:
    """Slots that follow each other, on another rank each, or after every fifth."""
    path, num = str(specs.artifact(PAIRS).path), 12
    tables = [
        [
            [[(mine + n // often) % NUM_RANKS, 2 * (num * mine + n)] for n in range(num)]
            for mine in range(NUM_RANKS)
        ]
        for often in (1, 5)
    ]
    length = 2 * num * NUM_RANKS
    options = {"max_sources": 2 * num, "capacity": length}
    pool.run(given_work.paired, NUM_RANKS, path, tables, length, options)


def test_mistakes_within_a_chain(pool: Pool) -> None:
    """An entry whose slots end behind the target, and others that take a slot of the one before:
    the first alone is dropped, and the others are counted."""
    path = str(specs.artifact(PAIRS).path)
    good = [[[(rank + 1) % NUM_RANKS, 2 * n] for n in range(8)] for rank in range(NUM_RANKS)]
    ends = [[*mine, [mine[0][0], 15 + 2 * (rank == 0)]] for rank, mine in enumerate(good)]
    said = pool.run(given_mistakes.pair_mistakes, NUM_RANKS, path, ends, 17)
    assert said[0] == (2, {8}, ["DestinationError", "SlotClashError"])
    assert said[1] == (0, set(), [])
    assert said[2] == (0, set(), ["SlotClashError"])
