"""The regions of a shuffle in another language: one walk over their operations for all of them.

A language says how single operations are spelled: as values of a kernel (``points.py``), as C++
(``cuda_relation.py``), as arrays of numpy (``fuscoc/planning/points.py``). What takes several
operations is decided here for all: owners of keys, places that exist, and which points are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Generic

from fuscoc.codegen.language import DROPPED, OUT_OF_RANGE, Language, RaggedLanguage, Value
from fuscoc.dialect.base import ops_of, terminator
from fuscoc.dialect.l0 import Shuffle
from fuscoc.dialect.mlir import arith, ir
from fuscoc.dialect.relation import (
    CellBase,
    Domain,
    Drop,
    ExactDiv,
    Extent,
    Inside,
    Lookup,
    Owner,
    Point,
    Relate,
)


class Region(Generic[Value]):
    """Values of a shuffle's region in a language, each spelled once and only if asked for.

    ``arguments`` are those of the region's block. ``exact`` collects the operands of divisions that
    must leave no remainder, ``places`` every value of ``fsc.inside`` with whether it is inside.
    """

    def __init__(self, language: Language[Value], arguments: Mapping[Any, Value]) -> None:
        self.language = language
        self.exact: list[tuple[Value, Value]] = []
        self.places: dict[Any, Value] = {}
        self._known = dict(arguments)

    def value(self, value: Any, name: str | None = None) -> Value:
        """An SSA value, which the text may call ``name``."""
        if value not in self._known:
            op, language = value.owner, self.language
            operands = [self.value(operand) for operand in op.operands]
            with language.located(op), language.named(name) if name else nullcontext():
                self._known[value] = self._spelled(op.opview, *operands)
        spelled: Value = self._known[value]
        return spelled

    def extents(self, names: Iterable[str], values: Iterable[Any]) -> list[Value]:
        """The extents of the indices ``names``."""
        return [self.value(v, f"num_{name}") for name, v in zip(names, values, strict=True)]

    def row_major(
        self, place: Value, names: Sequence[str], extents: Sequence[Value]
    ) -> list[Value]:
        """The indices at a place of a row-major array; ``extents`` are those of ``names[1:]``."""
        if not names:
            return []
        language, indices = self.language, list[Value]()
        for position in reversed(range(1, len(names))):
            extent = extents[position - 1]
            with language.named(names[position]):
                indices.insert(0, language.arithmetic("remsi", place, extent))
            with language.named(names[0] if position == 1 else "rest"):
                place = language.arithmetic("divsi", place, extent)
        return [place, *indices]

    def destination(
        self, point: Point | Relate, num_ranks: Value, packed: bool
    ) -> tuple[Value, Value]:
        """The rank and the key or slot of a point.

        The rank is DROPPED if the point is, and OUT_OF_RANGE if it, the key or a place that the
        point looks up does not exist. A key is DROPPED too. ``destination`` comes after all values
        that the point depends on.
        """
        language = self.language
        rank, place = self.value(point.rank), self.value(point.place)
        is_rank = language.between("is_rank", rank, DROPPED, num_ranks)
        absent = language.constant(OUT_OF_RANGE)
        rank = language.select(is_rank, rank, absent)
        dropped = self.dropped(point, packed)
        if self.places:
            exist = language.fold("andi", list(self.places.values()))
            with language.named("reached"):
                rank = language.select(exist, rank, absent)
        if dropped is None:
            return rank, place
        nowhere = language.constant(DROPPED)
        rank = language.select(dropped, nowhere, rank)
        return rank, language.select(dropped, nowhere, place) if packed else place

    def dropped(self, point: Point | Relate, packed: bool) -> Value | None:
        """Whether a point is dropped, beyond what its key or rank says itself; None: never.

        That is the one rule: a value of a route, a place to look something up at, a key or a rank
        is -1, and what it was looked up by exists.
        """
        end = point.place if packed else point.rank
        values = routed(point)
        for value in values:
            self.value(value)
        values += [place.owner.operands[0] for place in self.places]
        tested = dict.fromkeys([*values, end])
        if not self.places:  # where one may be missing, the rank alone would not show the -1
            del tested[end]
        conditions = []
        for value in tested:
            known = [self.places[place] for place in _below(value, self.places)]
            is_dropped = self.language.is_dropped(self.value(value))
            conditions.append(self.language.fold("andi", [is_dropped, *known]))
        if not conditions:
            return None
        with self.language.named("dropped"):
            return self.language.fold("ori", conditions)

    def _spelled(self, op: Any, *operands: Value) -> Value:
        language = self.language
        match op:
            case Extent():
                return language.extent(op.read("extent"))
            case Lookup():
                return language.lookup(op.read("input"), *operands)
            case CellBase():
                assert isinstance(language, RaggedLanguage)
                base: Value = language.cell_base(*operands)
                return base
            case Owner():
                return self._owner(op.follow("placement").read("num_keys"), *operands)
            case ExactDiv():
                lhs, rhs = operands
                self.exact.append((lhs, rhs))
                return language.arithmetic("divsi", lhs, rhs)
            case Inside():
                return self._inside(op.result, *operands)
            case arith.ConstantOp():
                return language.constant(ir.IntegerAttr(op.value).value)
            case arith.MinSIOp() | arith.MaxSIOp():
                return language.bound("slt" if isinstance(op, arith.MinSIOp) else "sge", *operands)
        return language.arithmetic(op.operation.name.removeprefix("arith."), *operands)

    def _inside(self, result: Any, value: Value, limit: Value) -> Value:
        """The value, or 0 where it is not inside, so that it may be looked up."""
        language = self.language
        is_inside = self.places[result] = language.between("is_inside", value, 0, limit)
        return language.select(is_inside, value, language.constant(0))

    def _owner(self, num_keys: int, key: Value) -> Value:
        """The owner of a key; only a key in range is looked up."""
        language = self.language
        is_key = language.between("is_key", key, 0, language.constant(num_keys))
        safe = language.select(is_key, key, language.constant(0))
        with language.named("key_owner"):
            owner = language.owner(safe)
        nowhere = language.constant(DROPPED), language.constant(OUT_OF_RANGE)
        absent = language.select(language.is_dropped(key), *nowhere)
        with language.named("owner"):
            return language.select(is_key, owner, absent)


def regions_of(parent: Any, kind: Any = Shuffle) -> tuple[Any, Domain, Point]:
    """The operation of a kind that holds a relation, from coalesce-segments on, and the ends of
    its regions."""
    (op,) = ops_of(parent, kind)
    return op, terminator(op, 0, Domain), terminator(op, 1, Point)


def routed(point: Point | Relate) -> list[Any]:
    """The values of routes that drop a point where they are -1."""
    return [op.value for op in point.operation.block if isinstance(op, Drop)]


def divisors(shuffle: Any) -> list[Any]:
    """The extents that divide a point into indices: all but that of the slowest counted index."""
    return list(terminator(shuffle, 0, Domain).extents)[2 if shuffle.read("ragged") else 1 :]


def is_packed(shuffle: Shuffle) -> bool:
    return bool(shuffle.follow("target").operation.name == "fsc.def_packed")


def _below(value: Any, places: Mapping[Any, Any]) -> Iterator[Any]:
    """The places that a value was looked up by, at any depth."""
    pending, seen = [value], set()
    while pending:
        owner = pending.pop().owner
        if isinstance(owner, ir.Block):
            continue
        for operand in owner.operands:
            if operand not in seen:
                seen.add(operand)
                pending.append(operand)
                if operand in places:
                    yield operand
