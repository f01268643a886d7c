"""Routes of any relation, found by trying: with them points have keys, or slots of their own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from fuscoc_runtime.demo.packing import SPARE_SLOTS, Entry, domain_points, own_length, with_length
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.reference import RankData, scope_of
from fuscoc_runtime.scalar import Load, Scope, evaluate, is_dropped, subexpressions

BITS = 20
"""Of the largest numbers that a key, a rank or a slot may be computed from."""
TRIES = 3
"""With numbers below each power of two."""

Cell = tuple[int, str, Entry]  # of an input of a rank
Slot = tuple[int, int]  # rank and slot


@dataclass
class _Given:
    """The ``cells`` of inputs that are decided, and the slots that hang on each."""

    cells: set[Cell] = field(default_factory=set)
    slots: defaultdict[Cell, set[Slot]] = field(default_factory=lambda: defaultdict(set))
    taken: set[Slot] = field(default_factory=set)
    segments: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)
    """Of each rank and place in its source, which segment that is, where these must lie apart."""


def try_routes(
    shuffle: ShuffleSpec,
    ranks: Sequence[RankData],
    drop: float,
    random: torch.Generator,
) -> list[RankData]:
    """``ranks`` with their route inputs filled in, and the length of each dense target, whatever
    the relation computes of them. What finds no key or slot is dropped by a -1, and so is each
    point with probability ``drop``.

    Raises:
        NoDataError: the slots do not fit the target's length.
    """
    domain, target = shuffle.declared.domain, shuffle.declared.target
    points = [list(domain_points(domain, scope_of(data))) for data in ranks]
    trial = _Trial(shuffle, _lengths(shuffle, ranks, sum(map(len, points))), random)
    for source, heres in enumerate(points):
        for here in heres:
            trial.place(source, here, drop)
    if target.kind == "packed":
        return list(ranks)
    ends = [0] * len(ranks)
    for rank, slot in trial.given.taken:
        ends[rank] = max(ends[rank], slot + 1)
    return [
        replace(data, extents={**data.extents, **with_length(shuffle, target, data, end)})
        for data, end in zip(ranks, ends, strict=True)
    ]


def _lengths(shuffle: ShuffleSpec, ranks: Sequence[RankData], num_points: int) -> list[int]:
    """How many slots a dense target may have on each rank; none are counted of a packed one."""
    target = shuffle.declared.target
    if target.kind == "packed" or own_length(shuffle, target) is not None:
        return [num_points + SPARE_SLOTS] * len(ranks)
    return [evaluate(target.length, Scope(data.extents)) for data in ranks]


@dataclass
class _Trial:
    shuffle: ShuffleSpec
    lengths: Sequence[int]
    random: torch.Generator
    given: _Given = field(default_factory=_Given)

    def place(self, source: int, here: Scope, drop: float) -> None:
        """Decide what a point reads and no other has decided, so that it has a slot."""
        is_gone = float(torch.rand((), generator=self.random)) < drop
        for attempt in range(0 if is_gone else TRIES * (BITS + 1)):
            read = self._read(source, here, 2 ** (BITS - attempt // TRIES))
            if self._takes_slot(source, here, read):
                self.given.cells.update(read)
                return
            if self.given.cells.issuperset(read):
                break
        self._drop(here, self._read(source, here, 1))

    def _read(self, source: int, here: Scope, most: int) -> list[Cell]:
        """The cells that a point reads, inner ones first; those that are not decided are drawn, of
        numbers that exist, if they look something up, or else below ``most``."""
        declared, found = self.shuffle.declared, list[Cell]()
        routes = {each.name for each in declared.inputs if each.role == "route"}
        limits = {place.value: place.limit for place in declared.places}
        for load in self._loads():
            entry = tuple(evaluate(index, here) for index in load.at)
            shape = here.inputs[load.input].shape
            if not all(0 <= at < size for at, size in zip(entry, shape, strict=True)):
                break  # it is looked up where nothing is
            if load.input not in routes:
                continue
            cell = source, load.input, entry
            found.append(cell)
            if cell not in self.given.cells:
                limit = evaluate(limits[load], here) if load in limits else most
                here.inputs[load.input][entry] = self._number(max(limit, 1))
        return found

    def _loads(self) -> Iterator[Load]:
        target = self.shuffle.declared.target
        starts = (each.start for each in self.shuffle.declared.source.subscripts)
        ends = (target.key,) if target.kind == "packed" else (target.rank, target.slot)
        for scalar in (*starts, *ends):
            for part in reversed(tuple(subexpressions(scalar))):
                if isinstance(part, Load):
                    yield part

    def _number(self, end: int) -> int:
        return int(torch.randint(end, (), generator=self.random))

    def _takes_slot(self, source: int, here: Scope, read: Sequence[Cell]) -> bool:
        """Whether a point has a slot of its own, which is taken then."""
        declared, given = self.shuffle.declared, self.given
        exists = (
            0 <= evaluate(place.value, here) < evaluate(place.limit, here)
            for place in declared.places
        )
        if is_dropped(declared.drops, here) or not all(exists):
            return False
        target = declared.target
        if target.kind == "packed":
            is_key = 0 <= evaluate(target.placed, here) < target.num_keys // target.group
            return is_key and self._is_apart(source, here)
        rank, slot = evaluate(target.rank, here), evaluate(target.slot, here)
        if not (0 <= rank < len(self.lengths) and 0 <= slot < self.lengths[rank]):
            return False
        if (rank, slot) in given.taken or not self._is_apart(source, here):
            return False
        given.taken.add((rank, slot))
        for cell in read:
            given.slots[cell].add((rank, slot))
        return True

    def _is_apart(self, source: int, here: Scope) -> bool:
        """Whether a segment is no other one's cells, where a way back forbids that."""
        declared = self.shuffle.declared
        if not self.shuffle.program.relation.apart:
            return True
        place = source, *(evaluate(each.start, here) for each in declared.source.subscripts)
        names = [index.name for index in declared.domain[: declared.num_source_dims]]
        segment = tuple(here.indices[name] for name in names)
        return self.given.segments.setdefault(place, segment) == segment

    def _drop(self, here: Scope, read: Sequence[Cell]) -> None:
        """Make -1 of what a point reads and no other one has a slot by, or else of all of it."""
        given = self.given
        for cell in [each for each in read if each not in given.cells] or read:
            _, name, entry = cell
            here.inputs[name][entry] = -1
            gone = given.slots.pop(cell, set())
            given.taken -= gone
            for slots in given.slots.values():
                slots -= gone
        given.cells.update(read)
