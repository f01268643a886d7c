"""The regions of a shuffle -> kernels that evaluate them, one point a lane.

``<shuffle>_extents`` runs the domain region for every outer index of a ragged shuffle;
``<shuffle>_relation`` runs the relation region for every point of the domain, and
``<shuffle>_into`` that of ``fsc.into``.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any

from fuscoc.codegen.arguments import (
    Argument,
    Values,
    array,
    body_of,
    constant,
    kernel,
    named,
    of_spec,
    scalar,
)
from fuscoc.codegen.language import OUT_OF_RANGE, RaggedLanguage
from fuscoc.codegen.regions import Region, divisors, is_packed, routed
from fuscoc.dialect.base import terminator
from fuscoc.dialect.l3 import ForEachPoint
from fuscoc.dialect.l3_values import LoadScalar, StoreScalar
from fuscoc.dialect.mlir import arith, ir
from fuscoc.dialect.relation import (
    Apart,
    Domain,
    Extent,
    Lookup,
    Point,
    Relate,
    must_be_apart,
)

BLOCK = 512
NUM_WARPS = 8
# Bits of an outer index's status.
INEXACT = 1
NEGATIVE = 2
EXCESS = 4
MOST = 2**61
"""Points, or cells, of all outer indices beyond which they are not counted: integers would wrap."""


def build_extents(shuffle: Any) -> str:
    """The kernel that counts points and cells of every outer index, and looks whether there can be
    so many.

    Returns its name.
    """
    domain = terminator(shuffle, 0, Domain)
    roots = [*list(domain.extents)[1:], *domain.cells]
    arguments = [
        scalar("num_outer"),
        *(array(name) for name in ("points", "cells", "status")),
    ]
    spec = of_spec(_spec_arguments(shuffle, roots), arguments)
    arguments[1:1] = spec
    name = f"{shuffle.read('sym_name')}_extents"
    with kernel(name, arguments, NUM_WARPS) as values:
        loop = ForEachPoint.build(values["num_outer"], block=BLOCK)
        block = body_of(loop, shuffle.read("indices")[0])
        with ir.InsertionPoint(block):
            outer = block.arguments[0]
            with named("most"):
                most = arith.divsi(constant(MOST), values["num_outer"])
            language = _Sizes(values, most)
            region = Region(language, {shuffle.domain.blocks[0].arguments[0]: outer})
            extents = region.extents(shuffle.read("indices")[1:], roots[:-1])
            cells = region.value(roots[-1])
            points = language.fold("muli", extents or [constant(1)])
            zero = constant(0)
            inexact = [language.compare("ne", arith.remsi(*pair), zero) for pair in region.exact]
            for size in (*extents, cells):
                language.at_least_0(size)
            for size in (points, cells):
                language.at_most(size)
            flags = [
                _flag("inexact", inexact, INEXACT),
                _flag("negative", list(language.negative.values()), NEGATIVE),
                _flag("excess", list(language.excess.values()), EXCESS),
            ]
            status = reduce(arith.addi, flags)
            for output, value in (("points", points), ("cells", cells), ("status", status)):
                StoreScalar.build(values[output], outer, value)
    return name


def build_relation(shuffle: Any) -> str:
    """The kernel that says, for every point, where its segment lies and where it goes.

    Returns its name.
    """
    point = terminator(shuffle, 1, Point)
    packed = is_packed(shuffle)
    results = {
        "src_offset": point.src_offset,
        **{f"src_stride{i}": stride for i, stride in enumerate(point.src_strides)},
        "rank": point.rank,
        "key" if packed else "slot": point.place,
    }
    arguments = [scalar("num_points"), scalar("num_ranks")]
    if shuffle.read("ragged"):
        arguments += [array("outer"), array("point_offset"), array("cell_offset")]
    if packed:
        arguments.append(array("key_to_rank"))
    arguments += [array(name) for name in ("source", *results)]
    roots = [*divisors(shuffle), *results.values(), *routed(point)]
    arguments[2:2] = of_spec(_spec_arguments(shuffle, roots), arguments)
    name = f"{shuffle.read('sym_name')}_relation"
    with kernel(name, arguments, NUM_WARPS) as values:
        if must_be_apart(point):
            Apart.build()
        loop = ForEachPoint.build(values["num_points"], block=BLOCK)
        block = body_of(loop, "point")
        with ir.InsertionPoint(block):
            at = block.arguments[0]
            indices = _indices(shuffle, values, at)
            arguments_of = shuffle.relation.blocks[0].arguments
            region = Region(_Kernel(values), dict(zip(arguments_of, indices, strict=True)))
            stored = {name: region.value(value) for name, value in results.items()}
            ends = region.destination(point, values["num_ranks"], packed)
            stored |= zip(("rank", "key" if packed else "slot"), ends, strict=True)
            fanout = constant(shuffle.read("fanout"))
            if shuffle.read("every_rank"):
                fanout = arith.muli(values["num_ranks"], fanout)
            is_one = shuffle.read("fanout") == 1 and not shuffle.read("every_rank")
            stored["source"] = at if is_one else arith.divsi(at, fanout)
            for output in ("source", *results):
                StoreScalar.build(values[output], at, stored[output])
    return name


def build_places(into: Any, shuffle: str) -> str:
    """The kernel that says, for every part of a row, its place in memory of the caller's, which has
    ``num_places``: DROPPED if it has none, OUT_OF_RANGE if that does not exist.

    Returns its name.
    """
    relate = terminator(into, 1, Relate)
    roots = [*divisors(into), relate.rank, relate.place, *routed(relate)]
    arguments = [scalar("num_points"), scalar("num_ranks"), scalar("num_places"), array("place")]
    arguments[3:3] = of_spec(_spec_arguments(into, roots), arguments)
    name = f"{shuffle}_into"
    with kernel(name, arguments, NUM_WARPS) as values:
        loop = ForEachPoint.build(values["num_points"], block=BLOCK)
        block = body_of(loop, "point")
        with ir.InsertionPoint(block):
            at, language = block.arguments[0], _Kernel(values)
            indices = _indices(into, values, at)
            inside = into.relation.blocks[0].arguments
            region = Region(language, dict(zip(inside, indices, strict=True)))
            rank, place = region.destination(relate, values["num_ranks"], packed=False)
            exists = language.between("exists", place, 0, values["num_places"])
            place = language.select(exists, place, constant(OUT_OF_RANGE))
            goes = language.compare("sge", rank, constant(0))
            StoreScalar.build(values["place"], at, language.select(goes, place, rank))
    return name


def _indices(shuffle: Any, values: Values, point: Any) -> list[Any]:
    """The domain's indices at a point, which counts the domain row by row."""
    names, language = shuffle.read("indices"), _Kernel(values)
    if not shuffle.read("ragged"):
        region = Region(language, {})
        return region.row_major(point, names, region.extents(names[1:], divisors(shuffle)))
    with named(names[0]):
        outer = _load(values["outer"], point)
    (argument,) = shuffle.domain.blocks[0].arguments
    region = Region(language, {argument: outer})
    # Where there are fewer points than the launch is for, the others repeat the last one of their
    # outer index: inputs are read there, too. If it has none, all other indices are 0.
    counted = region.extents(names[2:], divisors(shuffle))
    extents = [_at_least(1, n, f"num_{name}") for name, n in zip(names[2:], counted, strict=True)]
    first = _load(values["point_offset"], outer)
    next_outer = arith.addi(outer, constant(1))
    with named("end"):
        end = _load(values["point_offset"], next_outer)
    is_there = language.compare("slt", point, end)
    point = language.select(is_there, point, arith.subi(end, constant(1)))
    inner = _at_least(0, arith.subi(point, first), "inner")
    return [outer, *region.row_major(inner, names[1:], extents)]


class _Kernel(RaggedLanguage[Any]):
    """Values of a kernel, built at the insertion point."""

    def __init__(self, values: Values) -> None:
        self.values = values

    def constant(self, value: int) -> Any:
        return constant(value)

    def arithmetic(self, op: str, lhs: Any, rhs: Any) -> Any:
        if op != "floordivsi":
            return getattr(arith, op)(lhs, rhs)
        # Divisions of kernels truncate, or floor.
        truncated = self.compare("slt", arith.remsi(lhs, rhs), constant(0))
        excess = arith.select(truncated, constant(1), constant(0))
        return arith.subi(arith.divsi(lhs, rhs), excess)

    def compare(self, predicate: str, lhs: Any, rhs: Any) -> Any:
        return arith.cmpi(arith.CmpIPredicate[predicate], lhs, rhs)

    def select(self, condition: Any, then: Any, otherwise: Any) -> Any:
        return arith.select(condition, then, otherwise)

    def extent(self, name: str) -> Any:
        return self.values[f"extent.{name}"]

    def lookup(self, name: str, offset: Any) -> Any:
        return _load(self.values[f"input.{name}"], offset)

    def owner(self, key: Any) -> Any:
        return _load(self.values["key_to_rank"], key)

    def cell_base(self, outer: Any) -> Any:
        return _load(self.values["cell_offset"], outer)

    def named(self, name: str) -> Any:
        return named(name)

    def located(self, op: Any) -> Any:
        return op.location


class _Sizes(_Kernel):
    """Those of sizes, which inputs say: what is looked up must not be ``negative``, and no value
    more than ``most``, nor less than its opposite, which is an ``excess``. Where none is, none has
    wrapped."""

    def __init__(self, values: Values, most: Any) -> None:
        super().__init__(values)
        self._most = most
        self.negative: dict[Any, Any] = {}
        self.excess: dict[Any, Any] = {}

    def at_least_0(self, value: Any) -> None:
        if value not in self.negative:
            self.negative[value] = self.compare("slt", value, constant(0))

    def at_most(self, value: Any) -> None:
        if value not in self.excess:
            self.excess[value] = self.compare("slt", self._most, value)

    def extent(self, name: str) -> Any:
        value = super().extent(name)
        self.at_most(value)
        return value

    def lookup(self, name: str, offset: Any) -> Any:
        value = super().lookup(name, offset)
        self.at_least_0(value)
        self.at_most(value)
        return value

    def arithmetic(self, op: str, lhs: Any, rhs: Any) -> Any:
        value = super().arithmetic(op, lhs, rhs)
        if op == "muli":
            room = arith.divsi(self._most, _at_least(1, self._magnitude(rhs), "times"))
            size = self._magnitude(lhs)
            with named("wraps"):
                self.excess[value] = self.compare("slt", room, size)
        elif op in ("addi", "subi"):
            self.excess[value] = self.compare("slt", self._most, self._magnitude(value))
        return value

    def _magnitude(self, value: Any) -> Any:
        opposite = arith.subi(constant(0), value)
        is_more = self.compare("sge", value, opposite)
        with named("size"):
            return self.select(is_more, value, opposite)


def _spec_arguments(shuffle: Any, roots: Iterable[Any]) -> list[Argument]:
    """The extents and inputs that ``roots`` depend on, in the order of their declaration."""
    used: dict[str, Argument] = {}
    seen: set[Any] = set()
    pending = [value.owner for value in roots]
    while pending:
        op = pending.pop()
        if isinstance(op, ir.Block) or op in seen:
            continue
        seen.add(op)
        pending += [operand.owner for operand in op.operands]
        if isinstance(op.opview, Extent):
            name = op.opview.read("extent")
            used[name] = Argument(name, "scalar", f"extent.{name}")
        elif isinstance(op.opview, Lookup):
            name = op.opview.read("input")
            dtype, _ = op.opview.follow("input").read("type")
            used[name] = Argument(name, "address", f"input.{name}", dtype)
    declared = [op.opview for op in shuffle.operation.parent.regions[0].blocks[0]]
    kinds = ("fsc.def_extent", "fsc.def_input")
    names = [d.read("sym_name") for kind in kinds for d in declared if d.operation.name == kind]
    return [used[name] for name in names if name in used]


def _at_least(least: int, value: Any, name: str) -> Any:
    bound = constant(least)
    is_more = arith.cmpi(arith.CmpIPredicate.sge, value, bound)
    with named(name):
        return arith.select(is_more, value, bound)


def _load(values: Any, index: Any) -> Any:
    return LoadScalar.build(values, index, ir.IntegerType.get_signless(64)).result


def _flag(name: str, conditions: list[Any], bit: int) -> Any:
    """``bit`` where any condition holds, else 0."""
    if not conditions:
        return constant(0)
    *others, last = conditions
    for condition in others[:-1]:
        others[-1] = arith.ori(condition, others[-1])
    with named(name):
        any_of = arith.ori(others[-1], last) if others else last
    return arith.select(any_of, constant(bit), constant(0))
