"""Pieces of blocks that ranks have in turn, or of which one rank takes what is left, through the
Triton kernels of one node, interpreted."""

from __future__ import annotations

import pytest

from fuscoc_runtime.manifest.artifact import load_artifact
from tests.engine import specs
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.node_triton import given_work

NUM_RANKS = 3
ROWS = ((0, 20, 7), (1, 0, 0), (24, 3, 9))
"""Of each rank, in turn: none, some of one block, and more than blocks of all ranks have."""
MINE = {"last": specs.LAST, "first": specs.FIRST, "blocks": specs.MY_BLOCKS}
BLOCKS = [
    specs.BLOCKS.replace("rows = 23, width = 3", f"rows = {rows}, width = {width}")
    for rows, width in ((23, 3), (4, 1), (5, 8))
]
OPTIONS = {"max_sources": 2 * 24, "capacity": 2 * 24 * NUM_RANKS}

pool = pool_of(NUM_RANKS)


def num_pieces(artifact: str) -> int:
    shuffle = load_artifact(artifact).shuffle()
    assert shuffle.node is not None
    assert shuffle.node.pieces is not None
    return shuffle.node.pieces.per_entry


@pytest.mark.parametrize("name", MINE)
def test_rows_of_each_rank(pool: Pool, name: str) -> None:
    path = str(specs.artifact(MINE[name]).path)
    assert num_pieces(path) == 3
    for num_ranks in (1, 2, 3):
        batches = [rows[:num_ranks] for rows in ROWS]
        pool.run(given_work.epochs, num_ranks, path, batches, 1, OPTIONS)


@pytest.mark.parametrize("text", BLOCKS, ids=["many", "few", "wide"])
def test_uneven_parts(pool: Pool, text: str) -> None:
    path = str(specs.artifact(text).path)
    assert num_pieces(path) == 5 - (", width = 1," in text) * 2
    for num_ranks in (1, 2, 3):
        batches = [(1,) * num_ranks] * 2  # constants say what there is
        pool.run(given_work.epochs, num_ranks, path, batches, 1, OPTIONS)
