"""The regions of a shuffle -> kernels that evaluate them, one point a lane.

``<shuffle>_extents`` runs the domain region for every outer index of a ragged shuffle;
``<shuffle>_relation`` runs the relation region for every point of the domain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
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
from fuscoc.dialect.base import terminator
from fuscoc.dialect.l3 import ForEachPoint
from fuscoc.dialect.l3_values import LoadScalar, StoreScalar
from fuscoc.dialect.mlir import arith, ir
from fuscoc.dialect.relation import CellBase, Domain, ExactDiv, Extent, Inside, Lookup, Owner, Point

BLOCK = 512
NUM_WARPS = 8
DROPPED = -1
OUT_OF_RANGE = -2
# Bits of an outer index's status.
INEXACT = 1
NEGATIVE = 2


def build_extents(shuffle: Any) -> None:
    """The kernel that counts points and cells of every outer index, and checks its divisions."""
    domain = terminator(shuffle, 0, Domain)
    roots = [*list(domain.extents)[1:], domain.cells]
    arguments = [
        scalar("num_outer"),
        *(array(name) for name in ("points", "cells", "status")),
    ]
    spec = of_spec(_spec_arguments(shuffle, roots), arguments)
    arguments[1:1] = spec
    name = shuffle.read("sym_name")
    with kernel(f"{name}_extents", arguments, NUM_WARPS) as values:
        loop = ForEachPoint.build(values["num_outer"], block=BLOCK)
        block = body_of(loop, shuffle.read("indices")[0])
        with ir.InsertionPoint(block):
            outer = block.arguments[0]
            scalars = _Scalars(values, {shuffle.domain.blocks[0].arguments[0]: outer})
            extents = scalars.extents(shuffle.read("indices")[1:], roots[:-1])
            cells = scalars.lower(roots[-1])
            inexact = [_compare("ne", arith.remsi(*pair), 0) for pair in scalars.exact]
            negative = [_compare("slt", count, 0) for count in [*extents, cells]]
            flags = [_flag("inexact", inexact, INEXACT), _flag("negative", negative, NEGATIVE)]
            for output, value in (
                ("points", _product(extents)),
                ("cells", cells),
                ("status", arith.addi(*flags)),
            ):
                StoreScalar.build(values[output], outer, value)


def build_relation(shuffle: Any) -> None:
    """The kernel that says, for every point, where its segment lies and where it goes."""
    point = terminator(shuffle, 1, Point)
    packed = shuffle.follow("target").operation.name == "fsc.def_packed"
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
    roots = [*_divisors(shuffle), *results.values()]
    arguments[2:2] = of_spec(_spec_arguments(shuffle, roots), arguments)
    name = shuffle.read("sym_name")
    with kernel(f"{name}_relation", arguments, NUM_WARPS) as values:
        loop = ForEachPoint.build(values["num_points"], block=BLOCK)
        block = body_of(loop, "point")
        with ir.InsertionPoint(block):
            at = block.arguments[0]
            indices = _indices(shuffle, values, at)
            arguments_of = shuffle.relation.blocks[0].arguments
            scalars = _Scalars(values, dict(zip(arguments_of, indices, strict=True)))
            stored = {name: scalars.lower(value) for name, value in results.items()}
            rank = _checked_rank(stored["rank"], values["num_ranks"])
            stored["rank"] = _of_places("reached", rank, scalars.places)
            stored["source"] = _divide(at, shuffle.read("fanout"))
            for output in ("source", *results):
                StoreScalar.build(values[output], at, stored[output])


def _divisors(shuffle: Any) -> list[Any]:
    """The extents that divide a point into indices: all but that of the slowest counted index."""
    domain = terminator(shuffle, 0, Domain)
    return list(domain.extents)[2 if shuffle.read("ragged") else 1 :]


def _indices(shuffle: Any, values: Values, point: Any) -> list[Any]:
    """The domain's indices at a point, which counts the domain row by row."""
    names, divisors = shuffle.read("indices"), _divisors(shuffle)
    if not shuffle.read("ragged"):
        return _row_major(point, names, _Scalars(values, {}).extents(names[1:], divisors))
    with named(names[0]):
        outer = _load(values["outer"], point)
    (argument,) = shuffle.domain.blocks[0].arguments
    extents = _Scalars(values, {argument: outer}).extents(names[2:], divisors)
    first = _load(values["point_offset"], outer)
    with named("inner"):
        inner = arith.subi(point, first)
    return [outer, *_row_major(inner, names[1:], extents)]


def _row_major(place: Any, names: Sequence[str], extents: Sequence[Any]) -> list[Any]:
    """The indices at a place of a row-major array; ``extents`` are those of ``names[1:]``."""
    if not names:
        return []
    indices: list[Any] = []
    for position in reversed(range(1, len(names))):
        extent = extents[position - 1]
        with named(names[position]):
            indices.insert(0, arith.remsi(place, extent))
        with named(names[0] if position == 1 else "rest"):
            place = arith.divsi(place, extent)
    return [place, *indices]


def _checked_rank(rank: Any, num_ranks: Any) -> Any:
    """The rank, or OUT_OF_RANGE if it is neither a rank nor DROPPED."""
    is_rank = _is_between("is_rank", rank, DROPPED, num_ranks)
    return arith.select(is_rank, rank, constant(OUT_OF_RANGE))


def _of_places(name: str, rank: Any, places: Sequence[tuple[Any, Any]]) -> Any:
    """The rank of a point that depends on ``places``, (value, whether it is inside): the first that
    is not drops the point if it is DROPPED, and else puts it out of range."""
    for value, is_inside in reversed(places):
        dropped = _compare("eq", value, DROPPED)
        absent = arith.select(dropped, constant(DROPPED), constant(OUT_OF_RANGE))
        with named(name):
            rank = arith.select(is_inside, rank, absent)
    return rank


class _Scalars:
    """Lowers values of a shuffle's region into a kernel, each one once and only if asked for.

    ``indices`` maps the arguments of the region's block; ``exact`` collects the operands of
    divisions that must leave no remainder, ``places`` values with whether they are inside.
    """

    def __init__(self, values: Values, indices: dict[Any, Any]) -> None:
        self.values = values
        self.lowered = dict(indices)
        self.exact: list[list[Any]] = []
        self.places: list[tuple[Any, Any]] = []

    def extents(self, names: Iterable[str], values: Iterable[Any]) -> list[Any]:
        """The extents of the indices ``names``."""
        pairs = zip(names, values, strict=True)
        return [self.lower(value, f"num_{name}") for name, value in pairs]

    def lower(self, value: Any, name: str | None = None) -> Any:
        if value not in self.lowered:
            op = value.owner
            operands = [self.lower(operand) for operand in op.operands]
            with op.location, named(name) if name else nullcontext():
                self.lowered[value] = self._lower(op.opview, operands)
        return self.lowered[value]

    def _lower(self, op: Any, operands: list[Any]) -> Any:
        match op:
            case Extent():
                return self.values[f"extent.{op.read('extent')[0]}"]
            case Lookup():
                return _load(self.values[f"input.{op.read('input')[0]}"], operands[0])
            case CellBase():
                return _load(self.values["cell_offset"], operands[0])
            case Owner():
                return self._owner(operands[0], op.follow("placement").read("num_keys"))
            case ExactDiv():
                self.exact.append(operands)
                return arith.divsi(*operands)
            case Inside():
                return self._inside(*operands)
            case arith.FloorDivSIOp():
                return _floor_divide(*operands)
        copy = op.operation.clone()
        for i, operand in enumerate(operands):
            copy.operands[i] = operand
        return copy.result

    def _inside(self, value: Any, limit: Any) -> Any:
        """The value, or 0 where it is not inside, so that it may be looked up."""
        is_inside = _is_between("is_inside", value, 0, limit)
        self.places.append((value, is_inside))
        return arith.select(is_inside, value, constant(0))

    def _owner(self, key: Any, num_keys: int) -> Any:
        """The owner of a key; only a key in range is looked up."""
        is_key = _is_between("is_key", key, 0, num_keys)
        safe = arith.select(is_key, key, constant(0))
        with named("key_owner"):
            owner = _load(self.values["key_to_rank"], safe)
        return _of_places("owner", owner, [(key, is_key)])


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
            name = op.opview.read("extent")[0]
            used[name] = Argument(name, "scalar", f"extent.{name}")
        elif isinstance(op.opview, Lookup):
            name = op.opview.read("input")[0]
            dtype, _ = op.opview.follow("input").read("type")
            used[name] = Argument(name, "address", f"input.{name}", dtype)
    declared = [op.opview for op in shuffle.operation.parent.regions[0].blocks[0]]
    kinds = ("fsc.def_extent", "fsc.def_input")
    names = [d.read("sym_name") for kind in kinds for d in declared if d.operation.name == kind]
    return [used[name] for name in names if name in used]


def _load(values: Any, index: Any) -> Any:
    return LoadScalar.build(values, index, ir.IntegerType.get_signless(64)).result


def _compare(predicate: str, lhs: Any, rhs: Any) -> Any:
    bound = constant(rhs) if isinstance(rhs, int) else rhs
    return arith.cmpi(arith.CmpIPredicate[predicate], lhs, bound)


def _is_between(name: str, value: Any, first: Any, end: Any) -> Any:
    """Whether ``first <= value < end``."""
    bounds = _compare("sge", value, first), _compare("slt", value, end)
    with named(name):
        return arith.andi(*bounds)


def _divide(value: Any, by: int) -> Any:
    return value if by == 1 else arith.divsi(value, constant(by))


def _floor_divide(lhs: Any, rhs: Any) -> Any:
    """A division by a positive number that floors; those of kernels truncate, or floor."""
    truncated = _compare("slt", arith.remsi(lhs, rhs), 0)
    return arith.subi(arith.divsi(lhs, rhs), arith.select(truncated, constant(1), constant(0)))


def _product(factors: list[Any]) -> Any:
    if not factors:
        return constant(1)
    product = factors[0]
    for factor in factors[1:]:
        product = arith.muli(product, factor)
    return product


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
