"""Which items the programs of a Triton dispatch copy, interpreted: each item once."""

from __future__ import annotations

import pytest

from fuscoc_runtime.engine.node import triton_pieces
from fuscoc_runtime.kernels.device import load
from fuscoc_runtime.kernels.loader import launching
from tests.engine import specs
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.node_triton import item_work

pool = pool_of(1)

ROWS_AN_ITEM = 8  # of 2 KB
SPEC = """
shuffle lines {
  index i : length
  segment line { x : f32[512] }
  layout  mine[i] of line
  layout  yours[j] of line  dense(length)
  dispatch mine[i] -> yours[i] on rank
  backend triton
}
"""


@pytest.mark.parametrize("num_programs", [1, 2, 3, 5])
def test_each_item_is_copied_once(pool: Pool, num_programs: int) -> None:
    """Boxes are new in the first call of a size, and kept in the second one: then programs begin
    with the items of their numbers, if items are at most twice as many."""
    sizes = [size * ROWS_AN_ITEM for size in (3, 3, 4, 4, 4, 6, 6, 1, 1, 6, 6)]
    path = str(specs.artifact(SPEC).path)
    (seen,) = pool.run(item_work.copied, 1, path, num_programs, sizes)
    for size, items in zip(sizes, seen, strict=True):
        assert sorted(items) == list(range(size // ROWS_AN_ITEM))


def test_host_and_device_call_as_many_items_few() -> None:
    with launching(interpreted=True):
        assert load("move").FEW_TURNS.value == triton_pieces.FEW_TURNS
