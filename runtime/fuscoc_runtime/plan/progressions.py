"""Columns of integers as arithmetic progressions, so that their size follows what they say.

Descriptor columns of a static shuffle are mixed-radix numbers: 0 1 2 3, 8 9 10 11, 16 17 18 19, ...
``pack`` cuts such a column into progressions, here of 4 with the step 1, and treats their first
values, steps and lengths as three shorter columns in turn: the first values 0, 8, 16, ... are one
progression, and so are the steps, all 1, and the lengths, all 4. So a column takes a few numbers
for every affine piece and radix, however many rows it has. What does not get smaller that way stays
a plain array, a *leaf*, of the smallest type that holds it.

Values that no two neighbouring steps join, such as 0 40 20, 1 41 21, 2 42 22, ..., are paired from
left to right: 0 40, 20 1, 41 21, ... Pairs halve an even period of values, and so a period of 2, 4
or 8 is soon gone. An odd one stays, in the first values and in the steps, however often they are
paired. So where values an odd period apart form progressions the column is *dealt*, as cards
are: every third value, 0 1 2 ..., then every third from the second, 40 41 42 ..., then from the
third, 20 21 22 .... These are three progressions, one behind another.

The *form* of a column is JSON and says how to read it: ``[length, shape]``, where a shape is

- the type of a leaf, such as ``"u2"``,
- ``[pieces, begins, steps, counts]``, the number of progressions and the shapes of three columns of
  that length, or
- ``[period, shape]``, the shape of a column of the same length, which was dealt.

The leaves of all columns, in the order of their forms, lie end to end in one array a type, a
*pool*.

Arithmetic is modulo 2**64, so any int64 comes back, whatever the differences are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fuscoc_runtime.plan.arrays import differs
from fuscoc_runtime.plan.flows import Int64Array

TYPES = {name: np.dtype(f"<{name}") for name in ("u1", "i1", "u2", "i2", "u4", "i4", "i8")}
LIMITS = {
    name: (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)) for name, dtype in TYPES.items()
}
SHAPE_BYTES = 16
"""What the text of a shape that is no leaf takes, about."""
MOST_PERIOD = 127
NUM_WINDOWS, WINDOW = 64, 32
"""At how many values a period is looked for: at few, as random columns are long and have none."""
SPREAD = 0.6180339887498949
"""The golden ratio, whose multiples modulo 1 are spread evenly, yet at no regular distance."""

Shape = str | list[Any]
Leaves = list[np.ndarray[Any, Any]]
Progressions = tuple[Int64Array, Int64Array, Int64Array]


def pack(
    columns: Iterable[tuple[str, Int64Array]],
) -> tuple[dict[str, list[Any]], dict[str, np.ndarray[Any, Any]]]:
    """The forms of columns, by their names, and the pools, by those of ``TYPES`` that occur.

    ``columns``: names and int64 [any length] each, of which only one at a time has to be there. The
    same columns give the same forms and pools.
    """
    forms, leaves = {}, []
    for name, values in columns:
        shape, found = _encode(values)
        forms[name] = [len(values), shape]
        leaves += found
    # Also of leaves that are all empty: a form names no pool that is not there.
    of_type = {name: [leaf for leaf in leaves if leaf.dtype == TYPES[name]] for name in TYPES}
    return forms, {name: np.concatenate(found) for name, found in of_type.items() if found}


def unpack(forms: Mapping[str, Any], pools: Mapping[str, Any]) -> dict[str, Int64Array]:
    """The columns that ``pack`` was given; ``pools`` may hold further arrays of other names.

    Raises:
        ValueError: these are not forms and their pools; also where pools hold more than is read.
    """
    if not isinstance(forms, dict):
        raise ValueError("there are no forms of columns")
    reader = _Reader({name: _pool(name, pools[name]) for name in TYPES if name in pools})
    columns = {}
    for name, form in forms.items():
        if not isinstance(form, list) or len(form) != 2:
            raise ValueError(f"`{name}` has no length and shape")
        try:
            columns[name] = reader.column(_length(form[0]), form[1])
        except ValueError as error:
            raise ValueError(f"`{name}` {error}") from None
    reader.check_end()
    return columns


def _encode(values: Int64Array) -> tuple[Shape, Leaves]:
    """The smaller of a leaf and of progressions."""
    if len(values) <= SHAPE_BYTES and _leaf_bytes(values) <= SHAPE_BYTES:
        return _leaf(values)
    return _encode_split(values, _split(values))


def _encode_split(values: Int64Array, split: Progressions) -> tuple[Shape, Leaves]:
    """The same of a column that is long, and that has been split."""
    begins, steps, counts = split
    num = len(begins)
    if 4 * num > len(values) and (period := _period(values)):
        dealt = _deal(values, period)
        # Progressions get fewer each time, so this ends. Pairs may come to nothing by themselves;
        # longer ones pack well most of the time, and are left but for a large gain.
        most = num // 2 if 5 * num > 2 * len(values) else num // 8
        split = _split(dealt)
        if len(split[0]) <= most:
            inner, leaves = _encode_split(dealt, split)
            return _smaller([period, inner], leaves, values)
    of_steps, step_leaves = _encode(steps)
    if 4 * len(steps) > len(values) and isinstance(of_steps, str):
        return _leaf(values)  # no pattern: do not look for one in ever shorter columns
    of_begins, begin_leaves = _encode(begins)
    of_counts, count_leaves = _encode(counts)
    leaves = begin_leaves + step_leaves + count_leaves
    return _smaller([len(begins), of_begins, of_steps, of_counts], leaves, values)


def _smaller(shape: Shape, leaves: Leaves, values: Int64Array) -> tuple[Shape, Leaves]:
    """These, or one leaf."""
    size = sum(each.nbytes for each in leaves) + SHAPE_BYTES * _num_split(shape)
    # A leaf takes at least a byte a value; how much it takes is rarely asked, as it takes a while.
    is_smaller = size < len(values) or size < _leaf_bytes(values)
    return (shape, leaves) if is_smaller else _leaf(values)


def _num_split(shape: Shape) -> int:
    """Shapes that are no leaf, in this one."""
    return 0 if isinstance(shape, str) else 1 + sum(map(_num_split, shape[1:]))


def _leaf(values: Int64Array) -> tuple[Shape, Leaves]:
    name = _narrowest(values)
    return name, [values.astype(TYPES[name])]


def _leaf_bytes(values: Int64Array) -> int:
    return len(values) * TYPES[_narrowest(values)].itemsize


def _narrowest(values: Int64Array) -> str:
    """The type of the smallest leaf."""
    low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
    return next(name for name, (least, most) in LIMITS.items() if least <= low and high <= most)


def _split(values: Int64Array) -> Progressions:
    """First values, steps and lengths of the progressions that follow each other in ``values``,
    int64 [2 or more]; each as long as it can be, from left to right."""
    differences: Any = values[1:] - values[:-1]
    changes = differs(differences)
    first = np.flatnonzero(changes)  # of every run of equal differences
    is_single = np.append(changes[1:], True)[first]
    # A progression ends with its run; the difference behind it only leads to the next progression.
    # So a longer run always has one, and of single differences in a row every other one is one,
    # from the second behind a longer run, or from the very first.
    run = np.arange(len(first))
    taken = (run - np.maximum.accumulate(np.where(is_single, 0, run))) & 1 == 0
    begin = first[taken] + np.append(False, taken[:-1])[taken]
    if not taken[-1]:  # the last difference leads to the last value, which is alone
        begin = np.append(begin, len(differences))
    steps = differences.take(begin, mode="clip")  # of the last value, any
    return values[begin], steps, np.diff(begin, append=len(values))


def _period(values: Int64Array) -> int:
    """The odd distance, from 3 on, at which most values form progressions, as far as some of them
    show; 0: hardly any do."""
    most = min(MOST_PERIOD, (len(values) - 1) // 2)
    num = min(WINDOW, len(values) - 2 * most)
    # All over the column, but not evenly, so as not to meet one phase of a long period each time.
    begins = (SPREAD * np.arange(NUM_WINDOWS) % 1 * (len(values) - num - 2 * most)).astype(np.int64)
    windows = values[begins[:, None] + np.arange(num + 2 * most)]
    fits = {}
    for period in range(3, most + 1, 2):
        here, there, beyond = (windows[:, at : at + num] for at in (0, period, 2 * period))
        fits[period] = int(np.count_nonzero(there - here == beyond - there))
    best = max(fits.values(), default=0)
    if 4 * best <= NUM_WINDOWS * num:
        return 0
    # Multiples fit about as well.
    return next(period for period, fit in fits.items() if 8 * fit >= 7 * best)


def _deal(values: Int64Array, period: int) -> Int64Array:
    """Every ``period``-th value from the first, then from the second, and so on."""
    return np.concatenate([values[first::period] for first in range(period)])


def _collect(dealt: Int64Array, period: int) -> Int64Array:
    """What ``_deal`` was given."""
    values = np.empty_like(dealt)
    begin = 0
    for first in range(period):
        part = values[first::period]
        part[:] = dealt[begin : begin + len(part)]
        begin += len(part)
    return values


def _pool(name: str, found: Any) -> np.ndarray[Any, Any]:
    pool = np.asarray(found)
    if pool.dtype != TYPES[name] or pool.ndim != 1:
        raise ValueError(f"`{name}` is {pool.dtype} {list(pool.shape)}")
    return pool


def _length(value: Any) -> int:
    if type(value) is not int or value < 0:  # a bool is an int
        raise ValueError(f"has the length {value!r}")
    return value


class _Reader:
    """Takes leaves off the pools."""

    def __init__(self, pools: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self._pools = pools
        self._taken = dict.fromkeys(pools, 0)

    def column(self, length: int, shape: Any) -> Int64Array:
        """The next column."""
        if isinstance(shape, str):
            return self._leaf(length, shape)
        if not isinstance(shape, list) or len(shape) not in (2, 4):
            raise ValueError(f"has the shape {shape!r}")
        if len(shape) == 2:
            period = _length(shape[0])
            if not 0 < period <= length:
                raise ValueError(f"has the period {period} and {length} values")
            return _collect(self.column(length, shape[1]), period)
        pieces = _length(shape[0])
        begins, steps, counts = (self.column(pieces, each) for each in shape[1:])
        return _join(begins, steps, counts, length)

    def check_end(self) -> None:
        """Every leaf was taken."""
        for name, pool in self._pools.items():
            if self._taken[name] != len(pool):
                raise ValueError(f"{len(pool) - self._taken[name]} of `{name}` are of no column")

    def _leaf(self, length: int, name: str) -> Int64Array:
        if name not in self._pools:
            raise ValueError(f"has values of the type `{name}`")
        begin = self._taken[name]
        if length > len(self._pools[name]) - begin:
            raise ValueError(f"goes beyond the end of `{name}`")
        self._taken[name] += length
        return self._pools[name][begin : begin + length].astype(np.int64)


def _join(begins: Int64Array, steps: Int64Array, counts: Int64Array, length: int) -> Int64Array:
    """The values of progressions, ``length`` in all."""
    ends = counts.cumsum()
    # A sum that does not fit into int64 is less than the one before.
    wrong = (counts < 1).any() or (ends[1:] < ends[:-1]).any()
    if wrong or ends[-1:].tolist() != [length]:
        raise ValueError(f"has progressions of other than {length} values")
    # All differences; that of a progression's first value is from the last one before it.
    values = np.repeat(steps, counts)
    lasts = begins + steps * (counts - 1)
    begins[1:] -= lasts[:-1]
    values[ends - counts] = begins
    return np.cumsum(values, out=values)
