"""CheckedShuffle -> L0 module: declarations, then the shuffle with its two regions.

Every operation carries the file, line and column range of the text it comes from.
"""

from __future__ import annotations

from typing import Any

from fuscoc.capabilities import NODE_KERNELS, find_fault
from fuscoc.dialect import l0, relation
from fuscoc.dialect.into import Into
from fuscoc.dialect.mlir import arith, ir
from fuscoc.lang.checked import (
    BinaryOp,
    Cast,
    CheckedShuffle,
    Const,
    DenseTarget,
    ExtentRef,
    Field,
    IndexRef,
    Input,
    Inside,
    Load,
    PackedTarget,
    Scalar,
)
from fuscoc.lang.distinct import repeats
from fuscoc.lang.scalars import loads, may_be_negative
from fuscoc.source import Span

_ARITH = {
    "+": arith.addi,
    "-": arith.subi,
    "*": arith.muli,
    "/": arith.divsi,
    "//": arith.divsi,
    "%": arith.remsi,
    "min": arith.minsi,
    "max": arith.maxsi,
}


def build_module(checked: CheckedShuffle) -> ir.Module:
    """The L0 module of a shuffle, in the current context; not yet verified."""
    return _Builder(checked).build()


class _Builder:
    def __init__(self, checked: CheckedShuffle) -> None:
        self.checked = checked
        self.ragged = any(
            loads(scalar)
            for scalar in [index.extent for index in checked.domain] + list(checked.source.dims)
        )

    def build(self) -> ir.Module:
        checked = self.checked
        module = ir.Module.create(self.loc(checked.span))
        with ir.InsertionPoint(module.body):
            self.declare()
            self.shuffle()
            self.into()
            policy = checked.policy
            l0.Dispatch.build(
                dedup=policy.dedup,
                balance=policy.balance,
                schedule=policy.schedule,
                slice_bytes=policy.slice_bytes,
                loc=self.loc(checked.dispatch_span),
            )
            if checked.combine is not None:
                weight = checked.combine.weight
                l0.Combine.build(
                    kind=checked.combine.kind,
                    weight=weight.input if weight else None,
                    loc=self.loc(checked.combine.span),
                )
        return module

    def loc(self, span: Span) -> ir.Location:
        """The range of a span; files go by their base name, so that IR is the same everywhere."""
        source = self.checked.source_file
        start, end = source.line_column(span.start), source.line_column(span.end)
        return ir.Location.file(source.plain_name, *start, *end)

    def declare(self) -> None:
        checked, source, target = self.checked, self.checked.source, self.checked.target
        for name in (*checked.extents, *checked.builtins):
            l0.DefExtent.build(sym_name=name, loc=self.loc(checked.span))
        for item in checked.inputs:
            self.define(item, item.role)
        if checked.into is not None:
            parts, known = checked.into.parts, {item.name for item in checked.inputs}
            for name in (*parts.extents, *parts.builtins):
                if name not in (*checked.extents, *checked.builtins):
                    l0.DefExtent.build(sym_name=name, into=True, loc=self.loc(checked.span))
            for item in parts.inputs:
                if item.name not in known:
                    self.define(item, "into")
        l0.DefSegment.build(
            sym_name=checked.segment,
            fields=_fields(checked.fields),
            loc=self.loc(checked.span),
        )
        l0.DefLayout.build(
            sym_name=source.layout,
            cells=_fields(source.fields),
            loc=self.loc(source.span),
        )
        if isinstance(target, DenseTarget):
            if target.layout != source.layout:
                l0.DefLayout.build(
                    sym_name=target.layout,
                    cells=_fields(checked.fields),
                    loc=self.loc(target.span),
                )
            return
        placement = f"{target.layout}.place"
        l0.DefPlacement.build(
            sym_name=placement,
            kind=target.placement.kind,
            num_keys=target.num_keys,
            group=target.group if target.group > 1 else None,
            table=target.placement.table,
            loc=self.loc(target.placement.span),
        )
        l0.DefPacked.build(
            sym_name=target.layout,
            segment=checked.segment,
            align=target.align,
            padding=target.padding,
            placement=placement,
            capacity=target.capacity,
            compact=target.compact,
            distinct=target.distinct or None,
            loc=self.loc(target.span),
        )

    def define(self, item: Input, role: str) -> None:
        l0.DefInput.build(
            sym_name=item.name,
            type=(item.dtype, [_known(extent) for extent in item.shape]),
            role=role,
            loc=self.loc(item.span),
        )

    def into(self) -> None:
        given = self.checked.into
        if given is None:
            return
        parts = _Builder(given.parts)
        op = Into.build(
            argument=given.layout,
            parts=_fields(given.parts.fields),
            kind=given.kind,
            indices=[index.name for index in given.parts.domain],
            num_source_dims=given.parts.num_source_dims,
            fanout=given.parts.fanout,
            ragged=parts.ragged,
            loc=self.loc(given.span),
        )
        parts.regions(op, given.span)

    def shuffle(self) -> None:
        checked = self.checked
        op = l0.Shuffle.build(
            sym_name=checked.name,
            segment=checked.segment,
            source=checked.source.layout,
            target=checked.target.layout,
            indices=[index.name for index in checked.domain],
            num_source_dims=checked.num_source_dims,
            fanout=checked.fanout,
            every_rank=(checked.every_rank is not None) or None,
            ragged=self.ragged,
            casts=tuple(map(_cast, checked.casts)),
            node=tuple(n for n, table in NODE_KERNELS.items() if not find_fault(checked, table)),
            loc=self.loc(checked.dispatch_span),
        )
        self.regions(op, checked.dispatch_span)

    def regions(self, op: Any, span: Span) -> None:
        """The regions of an operation that holds the relation."""
        i64, checked = ir.IntegerType.get_signless(64), self.checked
        spans = [self.loc(index.span) for index in checked.domain]
        domain = op.domain.blocks.append(i64, arg_locs=spans[:1])
        with ir.InsertionPoint(domain), self.loc(span):
            self.domain(_Scalars(checked, [domain.arguments[0]]))
        point = op.relation.blocks.append(*[i64] * len(spans), arg_locs=spans)
        with ir.InsertionPoint(point), self.loc(span):
            self.relation(_Scalars(checked, list(point.arguments)))

    def domain(self, scalars: _Scalars) -> None:
        extents = []
        for index in self.checked.domain:
            with self.loc(index.span):
                extents.append(scalars.extent(index.extent))
        relation.Domain.build([self.cells(scalars)] if self.ragged else [], extents)

    def cells(self, scalars: _Scalars) -> Any:
        """Those of an outer entry of the source."""
        first, *others = self.checked.source.dims[1:] or (Const(1),)
        with self.loc(self.checked.source.span):
            cells = scalars.extent(first)
            for dim in others:
                cells = arith.muli(cells, scalars.extent(dim))
        return cells

    def relation(self, scalars: _Scalars) -> None:
        checked, source, target = self.checked, self.checked.source, self.checked.target
        with self.loc(source.span):
            dims = [scalars.extent(dim) for dim in source.dims[1:]]
        starts = []
        for subscript in source.subscripts:
            with self.loc(subscript.span):
                starts.append(scalars.lower(subscript.start))
        with self.loc(target.span):
            if isinstance(target, PackedTarget):
                place = scalars.lower(target.key)
                if target.distinct:
                    before = repeats(target.key, checked.fan_out)
                    place = arith.addi(place, scalars.lower(Inside(before, Const(1))))
                rank = relation.Owner.build(place, placement=f"{target.layout}.place").result
            else:
                rank, place = scalars.lower(target.rank), scalars.lower(target.slot)
        ends = (target.key,) if isinstance(target, PackedTarget) else (target.rank, target.slot)
        for value in scalars.routed(*(each.start for each in source.subscripts), *ends):
            relation.Drop.build(value)
        # A key that is made of several is no -1 where the first of them is computed to be.
        is_one_of_several = isinstance(target, PackedTarget) and target.group > 1
        if is_one_of_several and not isinstance(target.placed, Load):
            relation.Drop.build(scalars.lower(target.placed))
        for value in dict.fromkeys(self.checked.dropping):
            relation.Drop.build(scalars.lower(value))
        if self.checked.combine is not None and self.checked.combine.checks_cells:
            relation.Apart.build()
        lengths = [1 if item.length is None else item.length for item in source.subscripts]
        order = tuple(dim for dim in source.order if lengths[dim] > 1)
        is_other = list(order) != sorted(order)
        ordered = {"order": order} if is_other else {}
        relation.Relate.build(rank, place, starts, dims, lengths=lengths, **ordered)


class _Scalars:
    """Lowers scalars in one region, each distinct one once."""

    def __init__(self, checked: CheckedShuffle, arguments: list[Any]) -> None:
        self.inputs = {item.name: item for item in checked.inputs}
        self.sizes = {item.name for item in checked.inputs if item.role == "extent"}
        self.routes = {item.name for item in checked.inputs if item.role == "route"}
        names = [index.name for index in checked.domain]
        self.indices = dict(zip(names, arguments, strict=False))
        self.values: dict[tuple[Scalar, bool], Any] = {}

    def extent(self, scalar: Scalar) -> Any:
        """The i64 value of an extent; the kernels check the divisions of one that varies."""
        return self.lower(scalar, exact=bool(loads(scalar)))

    def lower(self, scalar: Scalar, *, exact: bool = False) -> Any:
        """The i64 value of a scalar; with ``exact`` its divisions must leave no remainder."""
        key = scalar, exact and isinstance(scalar, BinaryOp)
        if key not in self.values:
            self.values[key] = self._lower(*key)
        return self.values[key]

    def routed(self, *roots: Scalar) -> list[Any]:
        """Every value of a route that ``roots`` depend on."""
        found = [load for root in roots for load in loads(root) if load.input in self.routes]
        return [self.lower(load) for load in dict.fromkeys(found)]

    def _lower(self, scalar: Scalar, exact: bool) -> Any:
        match scalar:
            case Const(value):
                return arith.constant(ir.IntegerType.get_signless(64), value)
            case IndexRef(name):
                return self.indices[name]
            case ExtentRef(name):
                return relation.Extent.build(extent=name).result
            case Load(name, at):
                return relation.Lookup.build(self.offset(name, at), input=name).result
            case BinaryOp(op, lhs, rhs):
                operands = self.lower(lhs, exact=exact), self.lower(rhs, exact=exact)
                if op == "/" and exact:
                    return relation.ExactDiv.build(*operands).result
                if op == "cdiv":
                    return self.rounded_up(lhs, *operands)
                if op in ("/", "//", "%") and may_be_negative(lhs, self.sizes):
                    return _floored(op, *operands)
                return _ARITH[op](*operands)
            case Inside(value, limit):
                return relation.Inside.build(self.lower(value), self.lower(limit)).result

    def rounded_up(self, lhs: Scalar, dividend: Any, divisor: Any) -> Any:
        """The floor of ``dividend + (divisor - 1)``."""
        rounding = arith.subi(divisor, self.lower(Const(1)))
        divide = arith.floordivsi if may_be_negative(lhs, self.sizes) else arith.divsi
        return divide(arith.addi(dividend, rounding), divisor)

    def offset(self, name: str, at: tuple[Scalar, ...]) -> Any:
        """The row-major offset of an element; the outermost extent of the input is not needed."""
        offset = at[0]
        for extent, index in zip(self.inputs[name].shape[1:], at[1:], strict=True):
            offset = BinaryOp("+", BinaryOp("*", offset, extent), index)
        return self.lower(offset)


def _floored(op: str, lhs: Any, rhs: Any) -> Any:
    """A division that floors, or its remainder."""
    quotient = arith.floordivsi(lhs, rhs)
    return arith.subi(lhs, arith.muli(quotient, rhs)) if op == "%" else quotient


def _fields(fields: tuple[Field, ...]) -> list[dict[str, Any]]:
    return [{"name": field.name, "type": (field.dtype, field.shape)} for field in fields]


def _cast(cast: Cast) -> dict[str, Any]:
    given = {"field": cast.field, "scales": cast.scales, "block": cast.block}
    if cast.normalise is None:
        return given
    if cast.given:
        return given | {"channels": cast.normalise.channels}
    return given | cast.normalise.constants


def _known(extent: Scalar) -> int | None:
    return extent.value if isinstance(extent, Const) else None
