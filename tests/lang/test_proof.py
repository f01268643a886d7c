"""Verdicts about subscripts and slots, against trying every value."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import pytest
from hypothesis import assume, given, settings

from fuscoc.lang.checked import DIVISIONS, BinaryOp, Const, Scalar
from fuscoc.lang.determined import determines
from fuscoc.lang.proof import Facts, Proved, Refuted, stays_inside
from fuscoc.lang.scalars import indices, parts
from tests.lang.specs import evaluate
from tests.lang.test_bounds import (
    I_,
    J_,
    RANK,
    RANKS,
    X,
    Y,
    affine,
    comes_out_even,
    dims,
    extents,
    run_time,
    runs,
    sharded,
    with_differences,
)

ROOT = Path(__file__).parents[2]


def divides_alike(*scalars: Scalar) -> bool:
    """Whether divisors are the same at all points, as the language demands."""
    every = [part for scalar in scalars for part in parts(scalar)]
    return not any(
        isinstance(part, BinaryOp) and part.op in DIVISIONS and indices(part.rhs) for part in every
    )


def holds(start: Scalar, dim: Scalar, values: Mapping[Scalar, int]) -> bool:
    return 0 <= evaluate(start, values) < evaluate(dim, values)


@settings(max_examples=40)
@given(affine | sharded | with_differences, dims, extents, extents)
def test_verdicts(start: Scalar, dim: Scalar, of_i: Scalar, of_j: Scalar) -> None:
    """What is proved holds at every point that a run accepts; what is refuted does not, there."""
    assume(divides_alike(start))
    checked = [dim, of_i, of_j]
    verdict = stays_inside(start, 1, dim, Facts({"i": of_i, "j": of_j}, checked, frozenset()))
    if isinstance(verdict, Refuted):
        unused = dict.fromkeys((I_, J_, X, Y, RANK, RANKS), 1)
        assert not holds(start, dim, {**unused, **verdict.values})
    if isinstance(verdict, Proved):
        for values in run_time:
            if not runs(values, start, *checked):
                continue
            if not all(comes_out_even(each, values) for each in checked):
                continue
            ranges = [range(evaluate(each, values)) for each in (of_i, of_j)]
            for i, j in product(*ranges):
                assert holds(start, dim, {**values, I_: i, J_: j})


@settings(max_examples=60)
@given(affine | sharded, affine | sharded, extents)
def test_what_is_told_is_never_the_same_twice(first: Scalar, second: Scalar, of_i: Scalar) -> None:
    assume(divides_alike(first, second))
    sizes = {"i": of_i, "j": Const(3)}
    if not determines([first, second], [I_, J_], sizes):
        return
    for values in run_time:
        if not runs(values, first, second, of_i) or not comes_out_even(of_i, values):
            continue
        seen = Counter(
            (evaluate(first, known), evaluate(second, known))
            for i, j in product(range(evaluate(of_i, values)), range(3))
            if (known := {**values, I_: i, J_: j})
        )
        assert max(seen.values(), default=1) == 1


def test_uneven_parts_are_decided() -> None:
    """A grid of ranks: its rows are those of the ranks that fill it."""
    row = BinaryOp("/", RANK, BinaryOp("/", RANKS, Const(2)))
    facts = Facts({}, [BinaryOp("/", RANKS, Const(2))], frozenset())
    assert not isinstance(stays_inside(row, 1, Const(2), facts), Refuted)
    refuted = stays_inside(row, 1, Const(2), Facts({}, [], frozenset()))
    assert isinstance(refuted, Refuted)
    assert not holds(row, Const(2), refuted.values)


IMPORTED = """
import sys
from pathlib import Path
from fuscoc.lang.check import check_file
from fuscoc.source import read_source
for name in sys.argv[1:]:
    check_file(read_source(Path("examples") / name))
    print(name, "islpy" in sys.modules)
"""


def test_which_examples_need_the_library() -> None:
    needs = ["all_gather.fsc", "fft_pencil.fsc", "halo.fsc", "kv_pages.fsc", "reshard.fsc"]
    others = sorted({path.name for path in ROOT.glob("examples/*.fsc")} - set(needs))
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, *others, *needs],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    imported = [f"{name} {name in needs}" for name in (*others, *needs)]
    assert done.stdout.splitlines() == imported


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@settings(max_examples=3000)
@given(affine | sharded | with_differences, dims, extents, extents)
def test_verdicts_at_night(start: Scalar, dim: Scalar, of_i: Scalar, of_j: Scalar) -> None:
    test_verdicts.hypothesis.inner_test(start, dim, of_i, of_j)  # type: ignore[attr-defined]
