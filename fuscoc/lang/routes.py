"""Routes: given as a tensor, or computed from the indices and from other routes."""

from __future__ import annotations

from collections.abc import Iterable

from fuscoc.diagnostics import Fix, Label
from fuscoc.lang import ast, dtypes
from fuscoc.lang.checked import Const, IndexRef, Load, Scalar
from fuscoc.lang.context import POINT
from fuscoc.lang.declarations import check_dtype, index_params
from fuscoc.lang.fold import fold, fold_constant
from fuscoc.lang.scalars import indices
from fuscoc.lang.scope import RouteInfo, RouteInput, Scope, plural


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
