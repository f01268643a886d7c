"""Columns as progressions: whatever they are they come back, small where they are affine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc_runtime.plan.progressions import pack, unpack
from tests.drawn import at_night

LOW, HIGH = -(2**63), 2**63 - 1


@st.composite
def mixed_radix(draw: st.DrawFn, digits: st.SearchStrategy[int], most: int) -> list[int]:
    """All numbers of up to ``most`` digits, each with its own stride; the last runs fastest."""
    column = np.array([draw(st.integers(-5, 2**20))])
    for _ in range(draw(st.integers(1, most))):
        stride = draw(st.sampled_from([0, 1, 1, -1, 7, 64, 4096]) | st.integers(-300, 300))
        column = (column[:, None] + np.arange(draw(digits)) * stride).ravel()
    found: list[int] = column.tolist()
    return found


@dataclass(frozen=True)
class InTurn:
    """Progressions in turn; ``inner``: so many of their rounds are repeated, ``step`` apart."""

    offsets: list[int]
    steps: int | list[int]  # of all, so that a block is repeated, or of each
    inner: int | None
    step: int
    turns: list[int]  # one column behind another, as of ranks: which offset each begins with

    def column(self, num: int) -> list[int]:
        """Of so many of the outermost rounds."""
        found: list[int] = []
        for turn in self.turns:
            block, step = np.roll(int64(self.offsets), turn), np.asarray(self.steps)
            if self.inner is not None:
                block = (block + np.arange(self.inner)[:, None] * step).ravel()
                step = np.asarray(self.step)
            found += (block + np.arange(num)[:, None] * step).ravel().tolist()
        return found


@st.composite
def in_turn(draw: st.DrawFn) -> InTurn:
    period = draw(st.integers(1, 17))
    numbers = st.integers(-(2**20), 2**20)
    of_each = st.lists(numbers, min_size=period, max_size=period)
    inner = draw(st.none() | st.integers(2, 9))
    turns = st.lists(st.integers(0, 16), min_size=1, max_size=3)
    return InTurn(draw(of_each), draw(numbers | of_each), inner, draw(numbers), draw(turns))


@st.composite
def columns(draw: st.DrawFn) -> list[int]:
    """Of few values, of any, ascending, affine or in turn, one behind another."""
    few, of_any = st.lists(st.integers(0, 2)), st.lists(st.integers(LOW, HIGH))
    rising = few.map(lambda steps: np.cumsum(steps, dtype=np.int64).tolist())
    short = st.builds(InTurn.column, in_turn(), st.integers(0, 12))
    part = st.one_of(few, of_any, rising, mixed_radix(st.integers(1, 6), 4), short)
    return list(chain(*draw(st.lists(part, max_size=3))))


def int64(values: list[int]) -> Any:
    return np.array(values, np.int64)


def num_stored(pools: dict[str, Any]) -> int:
    return sum(pool.size for pool in pools.values())


@given(st.lists(columns(), max_size=4))
@settings(max_examples=at_night(400))
def test_every_column_comes_back(values: list[list[int]]) -> None:
    wanted = {f"c{number}": int64(each) for number, each in enumerate(values)}
    forms, pools = pack(wanted.items())
    found = unpack(json.loads(json.dumps(forms)), pools)
    assert found.keys() == wanted.keys()
    for name, column in wanted.items():
        assert found[name].dtype == np.int64
        assert np.array_equal(found[name], column)


@given(mixed_radix(st.integers(20, 40), 3))
@settings(max_examples=100)
def test_the_size_is_that_of_the_radices(column: list[int]) -> None:
    """Up to 64000 values; the extents of the digits do not matter. Up to 40 progressions may run
    into the next one, and are longer than the rest."""
    _, pools = pack([("affine", int64(column))])
    changes = np.flatnonzero(np.diff(column, 2)) + 1
    lengths = np.diff(changes, prepend=0, append=len(column) - 1)
    are_alike = len(set(lengths[lengths > 1].tolist())) <= 1
    assert num_stored(pools) <= min(len(column), 100 if are_alike else 400)


@given(in_turn())
@settings(max_examples=at_night(100))
def test_the_size_of_progressions_in_turn_is_not_that_of_their_number(parts: InTurn) -> None:
    """Of 8 times as many values they are some numbers more, as of a few that come out of step."""
    stored = []
    for num in (250, 2000):
        column = int64(parts.column(num))
        forms, pools = pack([("c", column)])
        assert np.array_equal(unpack(forms, pools)["c"], column)
        stored.append(num_stored(pools))
    assert stored[1] <= stored[0] + 300


@given(st.lists(st.integers(-(2**15), 2**15 - 1), min_size=1))
def test_no_column_grows(values: list[int]) -> None:
    column = int64(values)
    _, pools = pack([("any", column)])
    assert sum(pool.nbytes for pool in pools.values()) <= column.astype(np.int16).nbytes


def num_progressions(values: list[int]) -> int:
    """From left to right, each as long as it can be; the last one may be of a single value."""
    found = begin = 0
    while begin < len(values):
        end = begin + 2
        while end < len(values):
            step = values[begin + 1] - values[begin]
            if (values[end] - values[end - 1] - step) % 2**64:
                break
            end += 1
        begin, found = end, found + 1
    return found


@given(columns())
@settings(max_examples=200)
def test_the_smaller_of_long_progressions_and_a_narrow_leaf(values: list[int]) -> None:
    limits = {name: np.iinfo(name) for name in ("u1", "i1", "u2", "i2", "u4", "i4", "i8")}
    narrow = next(
        name for name, of in limits.items() if all(of.min <= value <= of.max for value in values)
    )
    forms, pools = pack([("any", int64(values))])
    _, shape = forms["any"]
    column = values
    while len(shape) == 2 and isinstance(shape, list):
        period, shape = shape
        assert period >= 3
        assert period % 2 == 1
        assert not isinstance(shape, str)
        column = [value for first in range(period) for value in column[first::period]]
    if isinstance(shape, str):
        assert shape == narrow
        assert pools[shape].tolist() == values
    else:
        assert shape[0] == num_progressions(column)
        assert sum(pool.nbytes for pool in pools.values()) < len(values) * np.dtype(narrow).itemsize


def test_worked_examples() -> None:
    """The module's own; a transpose; what has no pattern; and what does not fit."""
    rows = [first + i for first in range(0, 800, 8) for i in range(4)]
    forms, pools = pack([("rows", int64(rows))])
    one = [1, "u1", "u1", "u1"]
    assert forms == {"rows": [400, [100, one, one, one]]}
    assert pools["u1"].tolist() == [0, 8, 100, 1, 0, 100, 4, 0, 100]
    assert pools.keys() == {"u1"}

    transpose = np.arange(64 * 64).reshape(64, 64).T.ravel()
    assert num_stored(pack([("transpose", transpose)])[1]) == 9

    # The first values of three progressions are 0, 40 and 20, their steps 1.
    dealt = [first + i for i in range(300) for first in (0, 40, 20)]
    forms, pools = pack([("dealt", int64(dealt))])
    assert forms == {"dealt": [900, [3, [3, "u1", "u1", "u2"]]]}
    assert pools["u1"].tolist() == [0, 40, 20, 1, 1, 1]
    assert pools["u2"].tolist() == [300, 300, 300]

    random = np.random.default_rng(0).permutation(1000)
    forms, pools = pack([("random", random)])
    assert forms == {"random": [1000, "u2"]}
    assert np.array_equal(pools["u2"], random)

    far = np.resize(int64([LOW, HIGH]), 100)
    forms, pools = pack([("far", far)])
    assert num_stored(pools) == 9
    assert np.array_equal(unpack(forms, pools)["far"], far)


U1 = np.array([5, 1, 3], np.uint8)  # 5 6 7


@pytest.mark.parametrize(
    ("forms", "pools", "problem"),
    [
        ([], {"u1": U1}, "no forms"),
        ({"c": 3}, {"u1": U1}, "`c` has no length and shape"),
        ({"c": [True, "u1"]}, {"u1": U1}, "`c` has the length True"),
        ({"c": [-1, "u1"]}, {"u1": U1}, "`c` has the length -1"),
        ({"c": [3.0, "u1"]}, {"u1": U1}, r"`c` has the length 3\.0"),
        ({"c": [4, "u1"]}, {"u1": U1}, "`c` goes beyond the end of `u1`"),
        ({"c": [2**70, "u1"]}, {"u1": U1}, "`c` goes beyond the end of `u1`"),
        ({"c": [2, "u1"]}, {"u1": U1}, "1 of `u1` are of no column"),
        ({"c": [3, "u2"]}, {"u1": U1}, "`c` has values of the type `u2`"),
        ({"c": [3, "f4"]}, {"u1": U1, "f4": U1}, "`c` has values of the type `f4`"),
        ({"c": [3, None]}, {"u1": U1}, "`c` has the shape None"),
        ({"c": [3, [1, "u1", "u1"]]}, {"u1": U1}, "`c` has the shape"),
        ({"c": [3, [0, "u1"]]}, {"u1": U1}, "`c` has the period 0 and 3 values"),
        ({"c": [3, [4, "u1"]]}, {"u1": U1}, "`c` has the period 4 and 3 values"),
        ({"c": [3, [2**70, "u1"]]}, {"u1": U1}, r"`c` has the period \d+ and 3 values"),
        ({"c": [3, [True, "u1"]]}, {"u1": U1}, "`c` has the length True"),
        ({"c": [4, [3, "u1"]]}, {"u1": U1}, "`c` goes beyond the end of `u1`"),
        ({"c": [3, ["1", "u1", "u1", "u1"]]}, {"u1": U1}, "`c` has the length '1'"),
        ({"c": [4, [1, "u1", "u1", "u1"]]}, {"u1": U1}, "`c` has progressions of other than 4"),
        ({"c": [2**70, [1, "u1", "u1", "u1"]]}, {"u1": U1}, "`c` has progressions of other"),
        ({"c": [0, [0, "u1", "u1", "u1"]]}, {"u1": U1[:0]}, "`c` has progressions of other than 0"),
        ({"c": [3, "u1"]}, {"u1": U1.astype(np.int64)}, r"`u1` is int64 \[3\]"),
        ({"c": [3, "u1"]}, {"u1": U1[None]}, r"`u1` is uint8 \[1, 3\]"),
        ({"c": [3, "u1"]}, {"u1": b"abc"}, "`u1` is"),
    ],
)
def test_what_is_malformed_is_refused(forms: Any, pools: dict[str, Any], problem: str) -> None:
    assert unpack({"c": [3, [1, "u1", "u1", "u1"]]}, {"u1": U1})["c"].tolist() == [5, 6, 7]
    assert unpack({"c": [3, [2, "u1"]]}, {"u1": U1})["c"].tolist() == [5, 3, 1]
    with pytest.raises(ValueError, match=problem):
        unpack(forms, pools)


@pytest.mark.parametrize(
    "counts", [[4, 0], [5, -1], [HIGH, HIGH, 6], [2**62, 2**62, 2**62, 2**62, 4]]
)
def test_counts_that_only_seem_to_add_up_are_refused(counts: list[int]) -> None:
    """Whatever wraps around has the sum 4, modulo 2**64."""
    pools = {"u1": np.zeros(2 * len(counts), np.uint8), "i8": int64(counts)}
    shape = [len(counts), "u1", "u1", "i8"]
    with pytest.raises(ValueError, match="progressions of other than 4 values"):
        unpack({"c": [4, shape]}, pools)


@given(st.data(), st.lists(columns(), min_size=1, max_size=3))
@settings(max_examples=at_night(200))
def test_damage_is_refused_or_read_as_other_columns(
    data: st.DataObject, values: list[list[int]]
) -> None:
    """No other exception, and no column of another length than its form says."""
    forms, pools = pack((f"c{number}", int64(each)) for number, each in enumerate(values))
    words = json.dumps(forms).replace("[", "[ ").replace("]", " ]").replace(",", " ,").split(" ")
    place = data.draw(st.integers(0, len(words) - 1))
    words[place] = data.draw(st.sampled_from(["0", "1", "3", '"u1"', '"i8"', "[]", "null", "-1"]))
    try:
        damaged = json.loads("".join(words))
    except ValueError:
        return
    try:
        found = unpack(damaged, pools)
    except ValueError:
        return
    assert {name: len(column) for name, column in found.items()} == {
        name: form[0] for name, form in damaged.items()
    }
