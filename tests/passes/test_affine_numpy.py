"""Pieces of random transposes, views and divided dimensions, against numpy alone.

A spec has some dimensions. Its source lists them in one order, with steps and first cells, and is
divided over ranks by blocks of one of them; its target lists them in another order, and is divided
by blocks of one, of which the last or the first rank may take what is left, or deals it out by rows
or by blocks, perhaps to be laid in tiles. What every slot must get is what numpy says of arrays of
numbers that are sliced, transposed and split: nothing of the compiler's own arithmetic is in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import permutations, product
from math import prod
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view

from fuscoc.lang.check import check_file
from fuscoc.source import SourceFile
from tests.passes.points import Rows, Split, moved, ordered, ranks_of

MAX_RANKS = 6
MAX_EXTENT = 40
MAX_POINTS = 4000  # of a call
NUM_SPECS = 200  # by day: most of the time goes into compiling them
NIGHTLY_SPECS = 4000
KINDS = ("block", "cyclic", "last", "first", "blocks")
"""How a target is divided: by blocks, row by row in turn, by blocks of which the last rank takes
all that are left or the first one, from behind, and by blocks in turn."""


@dataclass(frozen=True)
class Dim:
    """A dimension: its extent, None where calls give it, and which cells a view takes: from
    ``first`` on every ``step``-th, with those behind it ``run``, and ``more`` cells in all than
    a step for each."""

    extent: int | None
    step: int
    first: int
    run: int
    more: int


@dataclass(frozen=True)
class Affine:
    """A spec. ``source`` and ``target`` are orders of its dimensions, ``divided`` and ``dealt``
    those that are divided there; ``even`` says of each whether numbers of ranks divide it."""

    dims: tuple[Dim, ...]
    source: tuple[int, ...]
    target: tuple[int, ...]
    divided: int
    dealt: int
    even: tuple[bool, bool]
    kind: str
    flat: bool  # the target is one dimension, and places are sums of strides
    tile: int  # so many numbers of what is dealt lie innermost
    width: int  # of blocks that are dealt or of which some are left, 0: as many as ranks have

    @classmethod
    def of(cls, random: Random) -> Affine:
        count = random.choice([1, 2, 2, 3, 3, 4, 4])
        source, target = (tuple(random.sample(range(count), count)) for _ in range(2))
        divided, dealt = random.randrange(count), random.randrange(count)
        even = random.random() < 0.3, random.random() < 0.3
        flat = random.random() < 0.6
        # What ranks would have to agree upon is part of the text: the extent that is divided, and
        # all that its numbers are multiplied by; and a target's own extents.
        fixed = {*target[target.index(divided) :], *([] if flat else [dealt, *target[1:]])}
        dims: dict[int, Dim] = {}
        left = MAX_POINTS
        for at in random.sample(range(count), count):
            extent = random.randint(1, min(MAX_EXTENT, left))
            if at in (divided, dealt) and any(even):
                extent = max(extent // MAX_RANKS, 1) * random.randint(1, MAX_RANKS)
            left = max(left // extent, 1) if at in fixed else left
            step = random.choice([1, 1, 2, 3, 4])
            run = random.choice([1, 1, step, random.randint(1, step + 1)])
            first = random.choice([0, 0, 1, 2])
            more = max(first + run - step, 0) + random.choice([0, 0, 1])
            dims[at] = Dim(extent if at in fixed else None, step, first, run, more)
        ordered_dims = tuple(dims[at] for at in range(count))
        kind = random.choice([*KINDS[:2] * 3, *KINDS[2:] * 2])
        tile = random.choice([1, random.randint(2, 5)]) if kind == "cyclic" else 1
        width = random.choice([0, 1, *random.choices(range(2, 12), k=3)])
        return cls(ordered_dims, source, target, divided, dealt, even, kind, flat, tile, width)

    @property
    def text(self) -> str:
        consts = [f"n{at} = {each.extent}" for at, each in enumerate(self.dims) if each.extent]
        rest = f"min(part, max(n{self.divided} - rank * part, 0))"
        consts += [f"part = {self._part(0)}", f"mine = {'part' if self.even[0] else rest}"]
        lengths = [f"n{at}" for at in range(len(self.dims))]
        extents = list(lengths)
        extents[self.divided] = "mine"
        numbers = [f"i{at}" for at in range(len(self.dims))]
        names = ", ".join(numbers)
        numbers[self.divided] = f"(rank * part + {numbers[self.divided]})"
        owner, numbers[self.dealt], lengths[self.dealt] = self._dealt(numbers[self.dealt])
        place, room = ([each[at] for at in self.target] for each in (numbers, lengths))
        if self.tile > 1:
            at = self.target.index(self.dealt)
            place, room = [*place, f"{place[at]} % {self.tile}"], [*room, str(self.tile)]
            place[at], room[at] = f"{place[at]} / {self.tile}", f"cdiv({room[at]}, {self.tile})"
        if self.flat:
            terms = [" * ".join([f"({each})", *room[at + 1 :]]) for at, each in enumerate(place)]
            place, room = [" + ".join(terms)], ["slots"]
        views, cells, runs = [], [], []
        for at in self.source:
            dim = self.dims[at]
            start = f"i{at} * {dim.step} + {dim.first}"
            views.append(start if dim.run == 1 else f"{start} .. {start} + {dim.run}")
            cells.append(f"{extents[at]} * {dim.step} + {dim.more}")
            runs += [str(dim.run)] if dim.run > 1 else []
        lines = [
            f"const {', '.join(consts)}",
            *(f"index i{at} : {extent}" for at, extent in enumerate(extents)),
            "index z : slots",
            f"segment seg {{ x : f32[{', '.join([*runs, '4'])}] }}",
            f"layout src[{_names('s', views)}] of f32[4]  dense({', '.join(cells)})",
            f"view v[{names}] = src[{', '.join(views)}]",
            f"layout out[{_names('o', room)}] of seg  dense({', '.join(room)})",
            f"dispatch v[{names}] -> out[{', '.join(place)}] on {owner}  partial",
        ]
        return "shuffle affine {\n  " + "\n  ".join(lines) + "\n}\n"

    def _part(self, number: int) -> str:
        """A rank's part of what is divided there."""
        at = (self.divided, self.dealt)[number]
        return f"n{at} / ranks" if self.even[number] else f"cdiv(n{at}, ranks)"

    def _dealt(self, number: str) -> tuple[str, str, str]:
        """The rank of a number, its place there, and how many places there are."""
        every, part = f"n{self.dealt}", f"({self._part(1)})"
        width = str(self.width or part)
        largest = f"max({every} - (ranks - 1) * {width}, {width})"
        match self.kind:
            case "block":
                return f"{number} / {part}", f"{number} % {part}", part
            case "cyclic":
                return f"{number} % ranks", f"{number} / ranks", part
            case "last":
                owner = f"min({number} / {width}, ranks - 1)"
                return owner, f"{number} - {owner} * {width}", largest
            case "first":
                owner = f"max(ranks - 1 - {number} / {width}, 0)"
                return owner, f"{number} - (ranks - 1 - {owner}) * {width}", largest
        cycle = f"({width} * ranks)"
        place = f"{number} / {cycle} * {width} + {number} % {width}"
        return f"{number} / {width} % ranks", place, f"(cdiv({every}, {cycle}) * {width})"


def _names(prefix: str, dims: list[str]) -> str:
    return ", ".join(f"{prefix}{at}" for at in range(len(dims)))


@dataclass(frozen=True)
class Call:
    """A spec with the extents of all its dimensions."""

    spec: Affine
    extents: tuple[int, ...]
    num_ranks: int

    def expected(self) -> Rows:
        """What every slot must get, as `moved` says it of pieces."""
        spec, num_ranks, axis = self.spec, self.num_ranks, self.spec.target.index(self.spec.dealt)
        parts = [self._part(rank) for rank in range(num_ranks)]
        whole = np.concatenate(parts, axis=spec.divided)
        assert whole.shape[:-1] == self.extents
        targets = whole.transpose(*spec.target, len(spec.target))
        shape = [*targets.shape[:-1], spec.tile]
        owned = [self._owned(rank) for rank in range(num_ranks)]
        shape[axis] = -(-self._places() // spec.tile)
        slots = np.moveaxis(np.arange(prod(shape)).reshape(shape), (axis, -1), (0, 1))
        slots = slots.reshape(shape[axis] * spec.tile, -1)
        targets, rows = np.moveaxis(targets, axis, 0), []
        for rank in range(num_ranks):
            found = targets[owned[rank]]
            found = found.reshape(-1, found.shape[-1])
            slot = slots[: len(found) // slots[0].size].reshape(-1, 1)
            rows.append(np.hstack([np.full_like(slot, rank), slot, found]))
        return np.concatenate(rows)

    def _places(self) -> int:
        """How many numbers of what is dealt a rank has room for."""
        spec, count = self.spec, self.extents[self.spec.dealt]
        width = spec.width or -(-count // self.num_ranks)
        match spec.kind:
            case "last" | "first":
                return max(count - (self.num_ranks - 1) * width, width)
            case "blocks":
                return -(-count // (width * self.num_ranks)) * width
        return -(-count // self.num_ranks)

    def _owned(self, rank: int) -> Any:
        """The numbers of what is dealt that a rank gets, in their order there."""
        spec, num_ranks = self.spec, self.num_ranks
        numbers = np.arange(self.extents[spec.dealt])
        part = -(-len(numbers) // num_ranks)
        width = spec.width or part
        edges = width * np.arange(1, num_ranks)
        match spec.kind:
            case "block":
                return numbers[rank * part : (rank + 1) * part]
            case "cyclic":
                return numbers[rank::num_ranks]
            case "last":
                return np.split(numbers, edges)[rank]
            case "first":
                return np.split(numbers, edges)[num_ranks - 1 - rank]
        blocks = np.split(numbers, range(width, len(numbers), width))
        return np.concatenate([numbers[:0], *blocks[rank::num_ranks]])

    def _part(self, rank: int) -> Rows:
        """The points of a rank by their indices: the rank, and the cells of their segments."""
        spec, extents = self.spec, list(self.extents)
        numbers = np.arange(extents[spec.divided])
        part = -(-len(numbers) // self.num_ranks)
        extents[spec.divided] = len(numbers[rank * part : (rank + 1) * part])
        dims = [spec.dims[at] for at in spec.source]
        sizes = [extents[at] for at in spec.source]
        shape = [size * dim.step + dim.more for size, dim in zip(sizes, dims, strict=True)]
        runs = [dim.run for dim in dims]
        if not prod(sizes):
            return np.zeros((*extents, 1 + prod(runs)), dtype=int)
        cells = sliding_window_view(np.arange(prod(shape)).reshape(shape), runs)
        cells = cells[tuple(slice(dim.first, None, dim.step) for dim in dims)]
        cells = cells[tuple(slice(size) for size in sizes)].reshape(*sizes, -1)
        cells = cells.transpose(*np.argsort(spec.source), len(dims))
        return np.concatenate([np.full((*extents, 1), rank), cells], axis=-1)


@cache
def spec_of(seed: int) -> tuple[Affine, Split]:
    spec = Affine.of(Random(seed))
    (shuffle,) = check_file(SourceFile("affine.fsc", spec.text), {}).shuffles
    return spec, Split.of(shuffle)


@st.composite
def calls(draw: st.DrawFn, num_specs: int) -> tuple[Split, Call]:
    """A call of one of some specs, of few points where the spec itself does not ask for more."""
    spec, found = spec_of(draw(st.integers(0, num_specs - 1)))
    by_ranks = [at for at, even in zip((spec.divided, spec.dealt), spec.even, strict=True) if even]
    fixed = [spec.dims[at].extent or 0 for at in by_ranks]
    numbers = [each for each in range(1, MAX_RANKS + 1) if not any(n % each for n in fixed)]
    num_ranks = draw(st.sampled_from(numbers))
    extents = [each.extent or 0 for each in spec.dims]
    for at in draw(st.permutations([at for at, extent in enumerate(extents) if not extent])):
        most = min(MAX_EXTENT, MAX_POINTS // prod(filter(None, extents)))
        step = num_ranks if at in by_ranks else 1
        extents[at] = step * draw(st.integers(1, max(most // step, 1)))
    return found, Call(spec, tuple(extents), num_ranks)


def check(found: Split, call: Call) -> None:
    note(call.spec.text)
    assert found.num_pieces, "each of these is affine"
    sizes = {f"n{at}": extent for at, extent in enumerate(call.extents)}
    points = moved(found, ranks_of(call.num_ranks, slots=prod(call.extents), **sizes))
    assert np.array_equal(ordered(points), ordered(call.expected()))


@settings(max_examples=1000)
@given(calls(NUM_SPECS))
def test_pieces_are_what_numpy_says(call: tuple[Split, Call]) -> None:
    check(*call)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@settings(max_examples=20000)
@given(calls(NIGHTLY_SPECS))
def test_pieces_are_what_numpy_says_at_night(call: tuple[Split, Call]) -> None:
    check(*call)


def test_specs_are_of_every_kind() -> None:
    """What is drawn: all that the tests above are said to be about."""
    specs = [Affine.of(Random(seed)) for seed in range(NUM_SPECS)]
    assert {len(each.dims) for each in specs} == {1, 2, 3, 4}
    kinds = {(each.kind, any(each.even), each.divided == each.dealt) for each in specs}
    assert len(kinds) == len(KINDS) * 2 * 2
    assert {(each.kind, bool(each.width)) for each in specs} == {*product(KINDS, [True, False])}
    assert {each.flat for each in specs} == {True, False}
    assert {(each.tile, each.divided == each.dealt) for each in specs if each.tile > 1} == {
        *product(range(2, 6), [False, True])
    }
    moves = {tuple(each.source.index(at) for at in each.target) for each in specs}
    assert moves >= set(permutations(range(3)))
    assert len(moves) > 24
    dims = [dim for each in specs for dim in each.dims]
    assert {dim.step for dim in dims} == {1, 2, 3, 4}
    assert {dim.first for dim in dims} == {0, 1, 2}
    assert any(dim.run > dim.step for dim in dims)
    assert {dim.extent for dim in dims} >= {None, 1, 37, MAX_EXTENT}
