"""Constants, indices, segments, weights, placements and routes: one function for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from fuscoc.diagnostics import Fix, Label, spelling
from fuscoc.lang import ast, dtypes
from fuscoc.lang.checked import (
    Const,
    ExactNumbers,
    Field,
    GivenNumbers,
    IndexRef,
    Load,
    Placement,
    Scalar,
)
from fuscoc.lang.context import CONSTANT_VALUE, INDEX_EXTENT, POINT
from fuscoc.lang.fold import fold, fold_constant, fold_extent, fold_field_dim, in_range
from fuscoc.lang.normalising import Line, is_real, line
from fuscoc.lang.scalars import extents, indices, loads
from fuscoc.lang.scope import INDEX, RouteInfo, RouteInput, Scope, WeightInfo, plural

MAX_SEGMENT_BYTES = 2**31 - 1


def check_const(const: ast.Const, overrides: Mapping[str, int], scope: Scope) -> None:
    """``const a = 1, b = a * ranks``: each may use those before it, and the rank and its number."""
    for binding in const.bindings:
        name = binding.ident.name
        if isinstance(binding.value, ast.InputRelation):
            _check_numbers(binding.ident, binding.value, overrides, scope)
            continue
        if is_real(binding.value, scope):
            _check_real(binding.ident, binding.value, overrides, scope)
            continue
        value = fold(binding.value, CONSTANT_VALUE, scope)
        if name in overrides:
            value = in_range(overrides[name], binding.ident.span, scope)
        scope.constants.setdefault(name, value)


def _check_real(
    ident: ast.Ident, value: ast.Expr, overrides: Mapping[str, int], scope: Scope
) -> None:
    """``mean = [0.485, 0.456, 0.406]``: numbers that need not be whole, by channel or for all."""
    found = line(value, (), scope)
    assert not isinstance(found, Line)
    _name_numbers(ident, found, overrides, scope)


def _check_numbers(
    ident: ast.Ident, given: ast.InputRelation, overrides: Mapping[str, int], scope: Scope
) -> None:
    """``mean = input mean : f32[3]``: numbers that calls bring, by channel or for all."""
    scope.declare_input(given.input, ident)
    dtype = check_dtype(given.type.name, scope)
    shape = [fold_constant(dim, scope, positive="a dimension") for dim in given.type.shape]
    found = None
    if dtype is not None and (dtype != "f32" or len(shape) > 1):
        scope.sink.report(
            "FSC043",
            given.type.span,
            "numbers of a cast are f32, one for all channels or a list of one for each",
            help="write `f32`, or `f32[…]` with the last dimension of the field",
        )
    elif dtype is not None and None not in shape:
        count = next((dim for dim in shape if dim is not None), 1)
        found = GivenNumbers(given.input.name, count)
        scope.given.setdefault(given.input.name, given)
    _name_numbers(ident, found, overrides, scope)


def _name_numbers(
    ident: ast.Ident, found: ExactNumbers | None, overrides: Mapping[str, int], scope: Scope
) -> None:
    """Enter what a name stands for in casts; without ``found`` that was reported."""
    name = ident.name
    if name in overrides:
        problem = f"`{name}` is no whole number, and only those are overridden"
        scope.sink.report("FSC014", ident.span, problem)
    if found is not None and name not in scope.constants:
        scope.lists[name] = found
    scope.constants.setdefault(name, None)


def check_index(index: ast.Index, scope: Scope) -> None:
    """``index i : height(n) / p``; what the extent depends on is checked once all are known."""
    scope.extent_spans.setdefault(index.ident.name, index.extent.span)
    extent = fold_extent(index.extent, INDEX_EXTENT, scope)
    if extent is not None:
        scope.extents.setdefault(index.ident.name, extent)


def extent_not_constant(
    index: str, why: str, where: Label, scope: Scope, needed: str = "a constant"
) -> None:
    """Report an extent that is only known at run time, and how it becomes a constant."""
    new = [name for name in extents(scope.extents[index]) if name in scope.symbols]
    span = scope.extent_spans[index]
    fix = None
    if new and span.start <= (at := scope.symbols[new[0]].span).start < span.end:
        fix = scope.similar_constant(new[0], at, safe=True)
    scope.sink.report(
        "FSC020",
        span,
        f"{why}, so the extent of `{index}` must be {needed}",
        f"only known at run time: no `const` declares `{new[0]}`" if new else "known at run time",
        secondary=[where],
        help=f"declare it: `const {new[0]} = …`" if new else None,
        fix=fix,
    )


def check_sizes(indices: Sequence[ast.Index], scope: Scope) -> None:
    """Extents that are given for each point of an index need that index to be regular itself."""
    for index in indices:
        extent = scope.extents.get(index.ident.name)
        for load in loads(extent) if extent is not None else ():
            if is_ragged(scope.extents.get(size_index(load, scope))):
                scope.sink.report(
                    "FSC064",
                    index.extent.span,
                    f"not yet supported: `{load.input}` is given for each "
                    f"`{size_index(load, scope)}`, whose own extent varies",
                    notes=["extents may vary with an index of one extent for the whole rank"],
                )
                del scope.extents[index.ident.name]
                break


def size_index(load: Load, scope: Scope) -> str:
    """The index that an input of sizes is declared for."""
    return scope.sizes[load.input].index


def is_ragged(extent: Scalar | None) -> bool:
    """Whether the extent varies from point to point of an outer index."""
    return extent is not None and bool(loads(extent))


def check_segment(segment: ast.Segment, scope: Scope) -> None:
    """``segment token { x : bf16[hidden] }``."""
    name = segment.ident.name
    if name in dtypes.NAMES:
        scope.sink.report("FSC010", segment.ident.span, f"`{name}` is an element type already")
    scope.distinct([decl.ident for decl in segment.fields])
    found = [check_field(decl.ident, decl.type, scope) for decl in segment.fields]
    fields = [each for each in found if each is not None]
    if len(fields) != len(found):
        return
    if segment_bytes(fields) > MAX_SEGMENT_BYTES:
        scope.sink.report(
            "FSC023",
            segment.ident.span,
            f"a segment of {segment_bytes(fields)} bytes is larger than 2 GiB",
        )
        return
    scope.segments.setdefault(name, tuple(fields))


def segment_bytes(fields: Sequence[Field]) -> int:
    """The bytes of all fields together."""
    return sum(prod(each.shape) * dtypes.ITEM_BYTES[each.dtype] for each in fields)


def check_field(ident: ast.Ident, type: ast.Type, scope: Scope) -> Field | None:
    """A typed part: a known element type and positive constant dimensions."""
    dtype = check_dtype(type.name, scope)
    shape = [fold_field_dim(dim, scope) for dim in type.shape]
    dims = tuple(dim for dim in shape if dim is not None)
    if dtype is None or len(dims) != len(shape):
        return None
    if dtype in dtypes.COMPLEX:
        return Field(ident.name, dtypes.COMPLEX[dtype], (*dims, 2), ident.span, is_complex=True)
    return Field(ident.name, dtype, dims, ident.span)


def check_dtype(ident: ast.Ident, scope: Scope) -> str | None:
    """The normal name of an element type."""
    dtype = dtypes.normal(ident.name)
    if dtype is None and ident.name in scope.symbols:
        scope.find(ident, (), "an element type")
    elif dtype is None:
        scope.sink.report(
            "FSC024",
            ident.span,
            f"there is no element type `{ident.name}`",
            notes=[f"the element types are {', '.join(dtypes.TYPES)}"],
            help=f"write {meant}" if (meant := dtypes.meant(ident.name)) else None,
            fix=None if meant else spelling(ident.name, ident.span, dtypes.NAMES),
        )
    return dtype


def check_weight(weight: ast.WeightDecl, scope: Scope) -> None:
    """``weight w(t, k) : f32 = input topk_weights``."""
    params = index_params(weight.params, f"`{weight.ident.name}`", scope)
    scope.declare_input(weight.input, weight.ident)
    dtype = check_dtype(weight.type.name, scope)
    if weight.type.shape or (dtype is not None and dtype not in dtypes.SUMMABLE):
        scope.sink.report(
            "FSC043",
            weight.type.span,
            "a weight is one floating-point number",
            notes=[f"the element types of weights are {', '.join(sorted(dtypes.SUMMABLE))}"],
        )
    elif params is not None and dtype is not None:
        info = WeightInfo(weight.ident, params, weight.input, dtype)
        scope.weights.setdefault(weight.ident.name, info)


def index_params(idents: Sequence[ast.Ident], what: str, scope: Scope) -> tuple[str, ...] | None:
    """The indices that an input tensor is given for: each of one extent for the whole rank."""
    good = scope.distinct(idents)
    for ident in idents:
        if scope.find(ident, {INDEX}, "an index") is None:
            good = False
        elif is_ragged(scope.extents.get(ident.name)):
            scope.sink.report(
                "FSC064",
                ident.span,
                f"not yet supported: {what} is given for each `{ident.name}`, whose extent varies",
                secondary=[Label(scope.symbols[ident.name].span, "declared here")],
            )
            good = False
        elif ident.name not in scope.extents:
            good = False
    return tuple(ident.name for ident in idents) if good else None


def check_place(place: ast.Place, scope: Scope) -> None:
    """``place e on rank by block``."""
    if place.table is not None:
        scope.declare_input(place.table)
    if scope.find(place.index, {INDEX}, "an index") is None:
        scope.misplaced = True
        return
    name = place.index.name
    if name in scope.placements:
        scope.sink.report(
            "FSC013",
            place.span,
            f"`{name}` is placed twice",
            secondary=[Label(scope.placements[name].span, "first placed here")],
            fix=scope.removal(place, "leave out this `place`"),
        )
        return
    table = place.table.name if place.table is not None else None
    scope.placements[name] = Placement(place.kind, table, place.span)


def check_routes(routes: Iterable[ast.Route], scope: Scope) -> None:
    """All routes of a shuffle: those given as tensors first, so that others may use them."""
    routes = tuple(routes)
    scope.uncomputed = {
        route.ident.name for route in routes if isinstance(route.relation, ast.ComputedRelation)
    }
    for route in routes:
        if isinstance(route.relation, ast.InputRelation):
            _check_given(route, route.relation, scope)
    for route in routes:
        if isinstance(route.relation, ast.ComputedRelation):
            _check_computed(route, route.relation, scope)
            scope.uncomputed.discard(route.ident.name)


def _check_given(route: ast.Route, relation: ast.InputRelation, scope: Scope) -> None:
    """``route r(t, k) -> e = input topk_idx : int64``."""
    params = index_params(route.params, f"`{route.ident.name}`", scope)
    distinct = scope.distinct(route.results)
    scope.declare_input(relation.input, route.ident)
    type = relation.type
    dtype = check_dtype(type.name, scope)
    if dtype is not None and dtype not in dtypes.ROUTES:
        scope.sink.report(
            "FSC043",
            type.name.span,
            "a route is made of int32 or int64",
            fix=Fix(type.name.span, "int64", "write `int64`"),
        )
    shape = [fold_constant(dim, scope, positive="a dimension") for dim in type.shape]
    count = len(route.results)
    right = type.name.name + (f"[{count}]" if count > 1 else "")
    if None not in shape and shape != ([count] if count > 1 else []):
        scope.sink.report(
            "FSC042",
            type.span,
            f"`{route.ident.name}` has {plural(count, 'result')}, "
            f"and each is one number of the input",
            fix=Fix(type.span, right, f"write `{right}`"),
        )
    elif None not in shape and params is not None and distinct and dtype in dtypes.ROUTES:
        at: tuple[Scalar, ...] = tuple(IndexRef(param) for param in params)
        places = [(*at, Const(position)) for position in range(count)] if count > 1 else [at]
        info = RouteInfo(
            route.ident,
            params,
            tuple(result.name for result in route.results),
            tuple(Load(relation.input.name, place) for place in places),
            RouteInput(relation.input, dtype),
        )
        scope.routes.setdefault(route.ident.name, info)


def _check_computed(route: ast.Route, relation: ast.ComputedRelation, scope: Scope) -> None:
    """``route r(t) -> (rank, slot) = (t % ranks, t / ranks)``."""
    params = index_params(route.params, f"`{route.ident.name}`", scope)
    distinct = scope.distinct(route.results)
    values = [fold(value, POINT, scope) for value in relation.values]
    if len(relation.values) != len(route.results):
        scope.sink.report(
            "FSC042",
            relation.span,
            f"`{route.ident.name}` has {plural(len(route.results), 'result')}, "
            f"and this computes {len(relation.values)}",
            secondary=[Label(route.ident.span, "declared here")],
        )
        return
    if params is None or not distinct:
        return
    known = tuple(value for value in values if value is not None)
    for value, expr in zip(values, relation.values, strict=True):
        free = [name for name in indices(value) if name not in params] if value is not None else []
        if free:
            scope.sink.report(
                "FSC041",
                expr.span,
                f"this depends on `{free[0]}`, and `{route.ident.name}` is computed for "
                f"({', '.join(params)})",
                secondary=[Label(route.ident.span, "declared here")],
            )
            return
    if len(known) == len(values):
        results = tuple(result.name for result in route.results)
        scope.routes.setdefault(route.ident.name, RouteInfo(route.ident, params, results, known))
