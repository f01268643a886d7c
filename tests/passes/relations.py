"""Random shuffles into dense targets, as text, and random sizes and inputs of them.

Slots and ranks need not exist, and may be those of several points: what is evaluated is all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.passes.interpreter import Rank

MOST = (40, 12, 7, 5, 4)  # numbers of an index, by how many there are
MAX_RANKS = 6


@dataclass(frozen=True)
class Size:
    """A run-time extent: at least ``least`` times ``factor``, and times ``ranks`` if it says so."""

    name: str
    factor: int = 1
    by_ranks: bool = False
    least: int = 0


@dataclass(frozen=True)
class Index:
    """An index, its extent as text, and what draws it."""

    name: str
    extent: str
    size: Size | None = None


@dataclass(frozen=True)
class Spec:
    """A shuffle's text; ``tables`` and ``ragged`` are inputs for its outermost ``rows``."""

    text: str
    sizes: tuple[Size, ...]
    most: int
    tables: tuple[str, ...] = ()
    ragged: tuple[tuple[str, int], ...] = ()
    rows: str | int = 0

    def __str__(self) -> str:
        return self.text


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    """A shuffle of any kind that the language has."""
    ragged = draw(st.sampled_from([False, False, False, True]))
    has_table = draw(st.booleans()) if ragged else draw(st.sampled_from([False, False, True]))
    count = draw(st.integers(1, 3)) + ragged
    indices = [_index(draw, number, ragged=ragged) for number in range(count)]
    num_fanout = draw(st.sampled_from([0, 0, 0, 1, 2]))
    fanout = [Index(f"f{at}", str(draw(st.integers(1, 5)))) for at in range(num_fanout)]
    heavy = draw(st.booleans()) or has_table
    source, segment = _source(draw, indices, ragged=ragged, cell="f32[4096]" if heavy else "f32[4]")
    body = [f"index {each.name} : {each.extent}" for each in (*indices, *fanout)]
    body += ["index z : slots", *source, f"segment seg {{ x : {segment} }}"]
    values = _Expressions(draw, [*indices, *fanout], ragged=ragged)
    if has_table:
        body.append(f"route to({indices[0].name}) -> (rank, offset) = input table : int64[2]")
        values.tables = [f"to({indices[0].name}).offset", f"to({indices[0].name}).rank"]
    dims, place = _place(draw, values)
    body.append(
        f"layout out[{', '.join(f'o{at}' for at in range(len(dims)))}] of seg "
        f"dense({', '.join(dims)})"
    )
    rank = values.rank()
    names = ", ".join(each.name for each in indices)
    body.append(f"dispatch v[{names}] -> out[{', '.join(place)}] on {rank}  partial")
    text = "shuffle s {\n  " + "\n  ".join(body) + "\n}\n"
    used = " ".join([*dims, *place, rank])
    sizes = [each.size for each in indices if each.size is not None]
    sizes = [Size(each.name, each.factor, each.by_ranks, int(each.name in used)) for each in sizes]
    most = MOST[min(len(indices) + len(fanout), len(MOST)) - 1]
    sizes.append(Size("slots"))
    tables = ("table",) if has_table else ()
    varying = tuple((f"h{at}", _divisor(each)) for at, each in enumerate(indices) if ragged and at)
    return Spec(text, tuple(sizes), most, tables, varying, indices[0].extent)


def _divisor(index: Index) -> int:
    _, divides, divisor = index.extent.partition(" / ")
    return int(divisor) if divides else 1


def _index(draw: st.DrawFn, number: int, *, ragged: bool) -> Index:
    name, extent = f"i{number}", f"e{number}"
    if ragged and number:
        divisor = draw(st.integers(1, 4))
        return Index(name, f"h{number}(i0)" + (f" / {divisor}" if divisor > 1 else ""))
    match draw(st.sampled_from(["constant", "extent", "ranks", "divided", "uneven", "rest"])):
        case "constant":
            return Index(name, str(draw(st.integers(1, 12 if number else 40))))
        case "ranks":
            return Index(name, f"{extent} / ranks", Size(extent, by_ranks=True))
        case "uneven":
            return Index(
                name, f"cdiv({extent}, {draw(st.sampled_from(['ranks', '3']))})", Size(extent)
            )
        case "rest":
            whole = draw(st.integers(1, 40))
            part = f"cdiv({whole}, ranks)"
            return Index(name, f"min({part}, max({whole} - rank * {part}, 0))")
        case "divided":
            divisor = draw(st.integers(2, 5))
            return Index(name, f"{extent} / {divisor}", Size(extent, divisor))
    return Index(name, extent, Size(extent))


def _source(
    draw: st.DrawFn, indices: Sequence[Index], *, ragged: bool, cell: str
) -> tuple[list[str], str]:
    """The layout, a view of it by the indices, and the type of a segment."""
    dtype, cells = cell.split("[")
    steps = [draw(st.integers(1, 4)) for _ in indices]
    runs = [draw(st.sampled_from([0, 0, step, draw(st.integers(2, 5))])) for step in steps]
    firsts = [draw(st.integers(0, 2)) for _ in indices]
    order = list(range(len(indices)))
    if not ragged:
        order = draw(st.permutations(order))
    dims, subscripts, lengths = [], [], []
    for at in order:
        name, extent = indices[at].name, indices[at].extent
        if ragged and at == 0:
            subscripts.append(name)
            continue
        step, run, first = steps[at], runs[at], firsts[at]
        start = f"{name} * {step} + {first}" if first else f"{name} * {step}"
        more = first + max(run, 1) - step
        dims.append(f"({extent}) * {step}" + (f" + {more}" if more > 0 else ""))
        subscripts.append(f"{start} .. {start} + {run}" if run > 1 else start)
        lengths += [str(run)] if run > 1 else []
    names = ["i0"] if ragged else []
    names += [f"d{at}" for at in range(len(dims))]
    plain = ", ".join(each.name for each in indices)
    lines = [
        f"layout src[{', '.join(names)}] of {cell}  dense({', '.join(dims)})",
        f"view v[{plain}] = src[{', '.join(subscripts)}]",
    ]
    return lines, f"{dtype}[{', '.join([*lengths, cells])}" if lengths else cell


class _Expressions:
    """Draws slots and ranks as text.

    ``tame`` ones divide an index by anything, and numbers of several in mixed radix by the radix:
    most of these are sums of strides.
    """

    def __init__(self, draw: st.DrawFn, indices: Sequence[Index], *, ragged: bool) -> None:
        self.draw = draw
        self.indices = indices
        self.ragged = ragged
        self.tame = draw(st.sampled_from([True, True, True, False]))
        self.tables: list[str] = []

    def rank(self) -> str:
        """A rank, which exists."""
        kinds = ["number", "number", "quotient", "fixed", "bounded"]
        kinds += ["table"] * (2 * len(self.tables))
        match self._pick(kinds):
            case "table":
                return self.tables[1]
            case "fixed":
                return self._pick(["0", "rank", "ranks - 1 - rank"])
            case "quotient":
                text, divisors = self.number()
                return f"({text}) / {self._pick(divisors)} % ranks"
            case "bounded":
                text, divisors = self.number()
                return f"max(min(({text}) / {self._pick(divisors)}, ranks - 1), 0)"
        return f"({self.number()[0]}) % ranks"

    def slot(self) -> str:
        """A number, divided or bounded or not, and another one."""
        text, divisors = self.number()
        for _ in range(self.draw(st.integers(0, 2))):
            if self._pick([True, False, False]):
                bound = f"{self._pick(self.divisors())} + {self.draw(st.integers(0, 12))}"
                text = f"{self._pick(['min', 'max'])}({text}, {bound})"
            else:
                text = f"({text}) {self._pick('/%')} {self._pick(divisors)}"
        if self.draw(st.booleans()):
            other, divisors = self.number()
            more = f"({other}) {self._pick('/%')} {self._pick(divisors)}"
            text += f" + ({more}) * {self._pick(self.divisors())}"
        return text

    def number(self) -> tuple[str, list[str]]:
        """Some indices as one number, and what it may be divided by."""
        order = self.draw(st.permutations(self.indices))
        order = order[: self.draw(st.integers(1, len(order)))]
        alone, divisors = len(order) == 1, self.divisors()
        text = order[0].name
        for each in order[1:]:
            factor = each.extent
            if not self.tame and self.draw(st.booleans()):
                factor = self._pick(divisors)
            text = f"({text}) * ({factor}) + {each.name}"
        if self.tame and not alone:
            text = f"{self._more()}{text}" if self._is_fixed(order[-1]) else text
            return text, [f"({order[-1].extent})" if self._is_fixed(order[-1]) else "1"]
        return f"{self._more()}{text}", divisors

    def _more(self) -> str:
        """What a number begins with, before its indices."""
        match self._pick(["", "", "rank", "above", "below", *["table"] * len(self.tables)]):
            case "rank":
                return f"rank * {self._pick(self.divisors())} + "
            case "above":
                return f"{self.draw(st.integers(1, 12))} + "
            case "below":
                return f"0 - {self.draw(st.integers(1, 12))} + "
            case "table":
                return f"{self.tables[0]} + "
        return ""

    def divisors(self) -> list[str]:
        """Numbers that are the same for a whole call."""
        fixed = [f"({each.extent})" for each in self.indices if self._is_fixed(each)]
        return [str(self.draw(st.integers(1, 9))), "ranks", *fixed]

    def _is_fixed(self, index: Index) -> bool:
        """Whether an extent is the same on all ranks, and positive where there are points."""
        return not (self.ragged and index.extent.startswith("h")) and "rank *" not in index.extent

    def _pick(self, choices: Sequence[str]) -> str:
        return self.draw(st.sampled_from(choices))


def _place(draw: st.DrawFn, values: _Expressions) -> tuple[list[str], list[str]]:
    """The target's dims, and a subscript of each."""
    dims, place = ["slots"], [values.slot()]
    if draw(st.booleans()):
        text, divisors = values.number()
        length = draw(st.sampled_from(divisors))
        if re.search(r"\be\d", length):  # of a call, as inner extents of a target are not
            place = [f"({place[0]}) * {length} + ({text}) % {length}"]
        else:
            dims.append(length)
            place.append(f"({text}) % {length}")
    return dims, place


def _cdiv(lhs: int, rhs: int) -> int:
    return -(-lhs // rhs)


@st.composite
def calls(draw: st.DrawFn, spec: Spec) -> list[Rank]:
    """What every rank of a call of ``spec`` knows."""
    num_ranks = draw(st.integers(1, MAX_RANKS))
    ranks = []
    for rank in range(num_ranks):
        extents = {"ranks": num_ranks, "rank": rank}
        for size in spec.sizes:
            count = draw(st.integers(size.least, spec.most))
            extents[size.name] = count * size.factor * (num_ranks if size.by_ranks else 1)
        rows = eval(str(spec.rows).replace("/", "//"), {"cdiv": _cdiv}, extents)
        seed = draw(st.integers(0, 2**16))
        random = np.random.default_rng(seed)
        inputs: dict[str, Any] = {
            name: random.integers(0, spec.most + 1, rows) * factor for name, factor in spec.ragged
        }
        for name in spec.tables:
            table = np.stack(
                [random.integers(-1, num_ranks, rows), random.integers(-1, 60, rows)], axis=1
            )
            inputs[name] = table
        # Cells of an entry do not matter here but for being apart.
        offsets = 10_000_000 * np.arange(rows + 1)
        ranks.append(Rank(extents, inputs, offsets))
    return ranks
