"""Places that nobody proved, tried before anything runs, against trying them one by one."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuscoc.lang.check import check
from fuscoc.source import SourceFile
from fuscoc.testing.spec import describe
from fuscoc_runtime.engine.bounds import check_bounds, check_bounds_of_all
from fuscoc_runtime.errors import IndexOutOfRangeError
from fuscoc_runtime.manifest.declared import Bound
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.scalar import BinaryOp, Extent, Index, Scalar, builtin_extents
from tests.plan.specs import declaring

TEXT = """
shuffle far {
  const most = 29
  index i : 4
  index j : rows
  segment cell { x : u8 }
  layout from[i, j] of cell
  layout to[a, b]   of cell  dense(4 * rows, most)
  dispatch from[i, j] -> to[j * 4 + i, rank * ranks / 2] on rank
}"""

leaves = st.integers(0, 5) | st.sampled_from(
    [Index("i"), Index("j"), Extent("rank"), Extent("ranks"), Extent("rows")]
)
values: st.SearchStrategy[Scalar] = st.recursive(
    leaves,
    lambda inner: (
        st.builds(BinaryOp, st.sampled_from(["+", "-", "*", "min", "max"]), inner, inner)
        | st.builds(BinaryOp, st.sampled_from(["/", "//", "%", "cdiv"]), inner, st.integers(1, 4))
    ),
    max_leaves=5,
)


@cache
def far() -> ShuffleSpec:
    (checked,) = check(SourceFile("far.fsc", TEXT))
    return describe(checked)


def test_what_holds_for_few_ranks_is_checked_for_more() -> None:
    """``rank * ranks / 2`` is below 29 on up to eight ranks, as many as fuscoc tries."""
    assert far().declared.bounds
    shuffle = far()
    check_bounds_of_all(shuffle, 8)
    with pytest.raises(IndexOutOfRangeError) as raised:
        check_bounds_of_all(shuffle, 9)
    assert str(raised.value) == (
        "[FSR010] `(rank * ranks) / 2` on rank 7 is 31; it must be between 0 and 28"
    )


@given(values, values, st.integers(0, 3), st.integers(1, 4), st.integers(0, 5))
def test_every_place_is_tried(
    value: Scalar, limit: Scalar, rank: int, ranks: int, rows: int
) -> None:
    shuffle = declaring(far(), bounds=(Bound(value, limit),))
    extents = {**builtin_extents(rank, ranks), "rows": rows}
    used = repr((value, limit))
    every = [(i, j) for i in range(4 if "'i'" in used else 1) for j in range(rows)]
    points = every if "'j'" in used else [(i, 0) for i in range(4)]
    wrong = [
        at for at in points if not 0 <= plain(value, *at, extents) < plain(limit, *at, extents)
    ]
    if wrong:
        with pytest.raises(IndexOutOfRangeError):
            check_bounds(shuffle, rank, extents)
    else:
        check_bounds(shuffle, rank, extents)


def plain(scalar: Scalar, i: int, j: int, extents: dict[str, int]) -> int:
    match scalar:
        case int():
            return scalar
        case Index(name):
            return {"i": i, "j": j}[name]
        case Extent(name):
            return extents[name]
        case BinaryOp(op, lhs, rhs):
            left, right = plain(lhs, i, j, extents), plain(rhs, i, j, extents)
            return {
                "+": lambda: left + right,
                "-": lambda: left - right,
                "*": lambda: left * right,
                "/": lambda: left // right,
                "//": lambda: left // right,
                "%": lambda: left % right,
                "min": lambda: min(left, right),
                "max": lambda: max(left, right),
                "cdiv": lambda: -(-left // right),
            }[op]()
    raise AssertionError(scalar)
