"""Calls in expressions: ``r(t, k)``, ``where(n).offset`` and ``height(n)`` -> input elements."""

from __future__ import annotations

from fuscoc.diagnostics import Label, nearest
from fuscoc.lang import ast
from fuscoc.lang.checked import Const, IndexRef, Load, Scalar
from fuscoc.lang.context import Context, report_misplaced
from fuscoc.lang.scope import INDEX, ROUTE, SIZE, RouteInfo, Scope, SizeInfo, plural


def fold_call(
    call: ast.Call, result: ast.Ident | None, context: Context, scope: Scope
) -> Scalar | None:
    """The input element that a call names, or its ``result`` if the route has several."""
    function = call.function
    symbol = scope.symbols.get(function.name)
    if symbol is None and context.declares and result is None:
        return _declare_size(call, scope)
    if symbol is not None and symbol.kind in {ROUTE, SIZE} - context.kinds:
        scope.used.add(function.name)
        report_misplaced(call.span, function.name, symbol.kind, context, scope)
        return None
    kind = scope.find(function, context.kinds & {ROUTE, SIZE} or {SIZE}, "a route or an input")
    if kind == ROUTE:
        return _fold_route(call, result, scope)
    if kind == SIZE and result is not None:
        _no_result(result, f"`{function.name}` is one number for each index", scope)
        return None
    if kind == SIZE:
        size = scope.sizes.get(function.name)
        if size is None:
            return None
        args = _index_args(call, (size.index,), scope)
        return None if args is None else Load(function.name, args)
    return None


def _declare_size(call: ast.Call, scope: Scope) -> Scalar | None:
    """The first use of ``height(n)`` in an index's extent, which declares the input."""
    arg = call.args[0]
    if len(call.args) != 1 or not isinstance(arg, ast.Name):
        scope.sink.report(
            "FSC064",
            call.span,
            "not yet supported: an extent that is given for anything but each point of one index",
        )
        return None
    if scope.find(arg, {INDEX}, "an index") is None:
        return None
    if not scope.declare(call.function, SIZE):
        return None
    scope.used.add(call.function.name)
    scope.sizes[call.function.name] = SizeInfo(arg.name, call.span)
    return Load(call.function.name, (IndexRef(arg.name),))


def _fold_route(call: ast.Call, result: ast.Ident | None, scope: Scope) -> Scalar | None:
    route = scope.routes.get(call.function.name)
    if route is None:
        return None
    args = _index_args(call, route.params, scope)
    position = _result_position(route, call, result, scope)
    if args is None or position is None:
        return None
    return Load(route.input.name, (*args, Const(position)) if len(route.results) > 1 else args)


def _result_position(
    route: RouteInfo, call: ast.Call, result: ast.Ident | None, scope: Scope
) -> int | None:
    """Which of its results a use of a route names."""
    if result is None and len(route.results) == 1:
        return 0
    if result is None:
        first = route.results[0]
        scope.sink.report(
            "FSC042",
            call.span,
            f"`{route.ident.name}` has {len(route.results)} results; name one",
            secondary=[Label(route.ident.span, "declared here")],
            help=f"write `{scope.text(call.span)}.{first}`",
        )
        return None
    if len(route.results) == 1:
        _no_result(result, f"`{route.ident.name}` has one result, used without its name", scope)
        return None
    if result.name not in route.results:
        match = nearest(result.name, route.results)
        scope.sink.report(
            "FSC042",
            result.span,
            f"`{route.ident.name}` has no result `{result.name}`",
            f"it has {' and '.join(f'`{name}`' for name in route.results)}",
            help=f"did you mean `{match}`?" if match else None,
        )
        return None
    return route.results.index(result.name)


def _no_result(result: ast.Ident, reason: str, scope: Scope) -> None:
    scope.sink.report("FSC042", result.span, reason, help=f"leave out `.{result.name}`")


def _index_args(
    call: ast.Call, params: tuple[str, ...], scope: Scope
) -> tuple[IndexRef, ...] | None:
    """The arguments of a call: plain indices with the extents that the parameters have."""
    name = call.function.name
    if len(call.args) != len(params):
        scope.sink.report(
            "FSC041",
            call.span,
            f"`{name}` is given for {plural(len(params), 'index')}, not {len(call.args)}",
            secondary=[Label(scope.symbols[name].span, "declared here")],
        )
        return None
    args = []
    for arg, param in zip(call.args, params, strict=True):
        if not isinstance(arg, ast.Name):
            scope.sink.report(
                "FSC065",
                arg.span,
                f"not yet supported: a computed argument of `{name}`",
                "a plain index is needed here",
            )
        elif scope.find(arg, {INDEX}, "an index"):
            extent, wanted = scope.extents.get(arg.name), scope.extents.get(param)
            if extent == wanted or extent is None or wanted is None:
                args.append(IndexRef(arg.name))
            else:
                scope.sink.report(
                    "FSC041",
                    arg.span,
                    f"`{arg.name}` and `{param}` have different extents",
                    f"`{name}` is declared for `{param}`",
                    secondary=[Label(scope.symbols[index].span, "") for index in (arg.name, param)],
                )
    return tuple(args) if len(args) == len(params) else None
