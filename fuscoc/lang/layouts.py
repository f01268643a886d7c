"""Layouts: what they hold, how far they reach, and who assigns the slots."""

from __future__ import annotations

from math import prod

from fuscoc.diagnostics import Fix, Label, spelling
from fuscoc.lang import ast, dtypes
from fuscoc.lang.checked import Const, Field, Scalar
from fuscoc.lang.context import DIM_EXTENT
from fuscoc.lang.declarations import check_field, is_ragged
from fuscoc.lang.fold import fold_constant, fold_extent, too_large
from fuscoc.lang.padding import DEFAULT_PADDING, check_align
from fuscoc.lang.scalars import indices
from fuscoc.lang.scope import INDEX, SEGMENT, LayoutInfo, Scope, plural
from fuscoc.source import Span

MAX_CAPACITY = 2**32
MAX_CELLS = 2**40


def check_layout(layout: ast.Layout, scope: Scope) -> None:
    """``layout by_expert[e, s] of token packed(s) align 128``."""
    element = _element(layout.element, scope)
    distinct = scope.distinct(layout.dims)
    packed = scope.single(layout.clauses, ast.Packed, "packed")
    dense = scope.single(layout.clauses, ast.Dense, "dense")
    compact = scope.single(layout.clauses, ast.Compact, "compact")
    distinct_keys = scope.single(layout.clauses, ast.Distinct, "distinct")
    align = scope.single(layout.clauses, ast.Align, "align")
    capacity = scope.single(layout.clauses, ast.Capacity, "capacity")
    padding, alignment, limit = DEFAULT_PADDING, None, None
    if align is not None:
        padding, alignment = check_align(align, scope)
    if capacity is not None and capacity.limit is not None:
        limit = fold_constant(capacity.limit, scope, "a capacity", MAX_CAPACITY)

    if packed is not None and dense is not None:
        scope.sink.report(
            "FSC032",
            dense.span,
            "a layout is either packed or dense",
            secondary=[Label(packed.span, "packed here")],
        )
        return
    if packed is not None:
        extents = _packed_extents(layout, packed, scope)
    else:
        extents = _dense_extents(layout, dense, scope)
        said = {ast.Compact: "is compact", ast.Distinct: "has distinct keys"}
        for clause in (compact, distinct_keys, align, capacity):
            if clause is not None:
                what = said.get(type(clause), "has an alignment or a capacity")
                scope.sink.report(
                    "FSC032",
                    clause.span,
                    f"only a packed layout {what}",
                    secondary=[Label(layout.ident.span, "dense, since it is not `packed(…)`")],
                )
    if element is None or extents is None or not distinct:
        return
    cells = prod(extent.value for extent in extents if isinstance(extent, Const))
    if cells > MAX_CELLS:
        too_large("the size of a layout", cells, MAX_CELLS, layout.ident.span, scope)
        return
    info = LayoutInfo(
        ident=layout.ident,
        dims=tuple(dim.name for dim in layout.dims),
        extents=extents,
        segment=element[0],
        fields=element[1],
        packed=packed is not None,
        align=alignment or 1,
        padding=padding,
        capacity=limit,
        compact=compact.span if compact is not None else None,
        distinct=distinct_keys.span if distinct_keys is not None else None,
    )
    scope.layouts.setdefault(layout.ident.name, info)


def _element(type: ast.Type, scope: Scope) -> tuple[str | None, tuple[Field, ...]] | None:
    """A segment with its fields, or one nameless field of an element type."""
    name = type.name.name
    if name in scope.symbols:
        if scope.find(type.name, {SEGMENT}, "a segment or an element type") is None:
            return None
        if type.shape:
            scope.sink.report(
                "FSC012",
                type.span,
                f"the segment `{name}` takes no shape",
                fix=Fix(Span(type.name.span.end, type.span.end), "", "leave out its shape"),
            )
        fields = scope.segments.get(name)
        return None if fields is None else (name, fields)
    if dtypes.normal(name) is not None:
        field = check_field(type.name, type, scope)
        return None if field is None else (None, (field,))
    if scope.may_declare(name):
        return None
    segments = {n for n, symbol in scope.symbols.items() if symbol.kind == SEGMENT}
    fix = spelling(name, type.name.span, segments | dtypes.NAMES)
    similar = scope.symbols.get(fix.replacement) if fix is not None else None
    scope.sink.report(
        "FSC011",
        type.name.span,
        f"there is no segment or element type `{name}`",
        secondary=[Label(similar.span, "a similar name")] if similar is not None else (),
        fix=fix,
    )
    return None


def _packed_extents(
    layout: ast.Layout, packed: ast.Packed, scope: Scope
) -> tuple[Scalar, ...] | None:
    """The extents of a packed layout's keys: all dimensions but the last, which is packed."""
    slot = packed.dim
    if slot.name not in {dim.name for dim in layout.dims}:
        scope.sink.report(
            "FSC011",
            slot.span,
            f"`{slot.name}` is no dimension of `{layout.ident.name}`",
            fix=Fix(slot.span, layout.dims[-1].name, f"write `packed({layout.dims[-1].name})`"),
        )
        return None
    if slot.name in scope.symbols and slot.name not in scope.doubtful:
        scope.sink.report(
            "FSC031",
            slot.span,
            f"`{slot.name}` is packed, so it has no declared extent",
            secondary=[Label(scope.symbols[slot.name].span, "declared here")],
            help="give the slots a name of their own",
        )
        return None
    *keys, last = layout.dims
    if slot.name != last.name or not keys:
        scope.sink.report(
            "FSC069",
            packed.span,
            "not yet supported: a packed layout that is not its keys and then its slots",
            help=f"write `{layout.ident.name}[index, {slot.name}]`",
        )
        return None
    found = [scope.find(key, {INDEX}, "an index") is not None for key in keys]
    if not all(found) or not {key.name for key in keys} <= scope.extents.keys():
        return None
    return tuple(scope.extents[key.name] for key in keys)


def _dense_extents(
    layout: ast.Layout, dense: ast.Dense | None, scope: Scope
) -> tuple[Scalar, ...] | None:
    """The extents of all dimensions: those of the indices, or the trailing ones as given."""
    given = dense.extents if dense is not None else ()
    if dense is not None and len(given) > len(layout.dims):
        scope.sink.report(
            "FSC030",
            dense.span,
            f"`{layout.ident.name}` has {plural(len(layout.dims), 'dimension')}, "
            f"and {plural(len(given), 'extent')} are given",
        )
        return None
    num_leading = len(layout.dims) - len(given)
    extents = [_index_extent(dim, scope) for dim in layout.dims[:num_leading]]
    for dim, expr in zip(layout.dims[num_leading:], given, strict=True):
        extent = fold_extent(expr, DIM_EXTENT, scope)
        symbol = scope.symbols.get(dim.name)
        if symbol is not None:
            declared = _index_extent(dim, scope)
            if extent is not None and declared is not None and extent != declared:
                scope.sink.report(
                    "FSC031",
                    expr.span,
                    f"the extent of `{dim.name}` is declared differently",
                    secondary=[Label(symbol.span, "declared here")],
                )
                extent = None
        extents.append(extent)
    whole = [extent for extent in extents if extent is not None]
    if len(whole) != len(extents) or not _ragged_by_outermost(layout, whole, scope):
        return None
    return tuple(whole)


def _index_extent(dim: ast.Ident, scope: Scope) -> Scalar | None:
    if dim.name not in scope.symbols and scope.may_declare(dim.name):
        return None
    if dim.name not in scope.symbols:
        scope.sink.report(
            "FSC031",
            dim.span,
            f"the dimension `{dim.name}` has no extent",
            help=f"declare `index {dim.name} : …`, or give the trailing extents in `dense(…)`",
        )
        return None
    if scope.find(dim, {INDEX}, "an index") is None:
        return None
    return scope.extents.get(dim.name)


def _ragged_by_outermost(layout: ast.Layout, extents: list[Scalar], scope: Scope) -> bool:
    outermost = layout.dims[0].name
    for position, (dim, extent) in enumerate(zip(layout.dims, extents, strict=True)):
        if is_ragged(extent) and (position == 0 or set(indices(extent)) != {outermost}):
            scope.sink.report(
                "FSC064",
                dim.span,
                f"not yet supported: the extent of `{dim.name}` varies, but not with the "
                "layout's outermost index alone",
            )
            return False
    return True
