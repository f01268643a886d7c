"""Calls in expressions: ``r(t, k)``, ``where(n).offset`` and ``height(n)`` -> scalars."""

from __future__ import annotations

from collections.abc import Callable

from fuscoc.diagnostics import Fix, Label, spelling
from fuscoc.lang import ast
from fuscoc.lang.checked import IndexRef, Inside, Load, Operator, Scalar
from fuscoc.lang.context import POINT, Context, check_indices, is_index, report_misplaced
from fuscoc.lang.inside import must_stay_inside
from fuscoc.lang.scalars import is_routed, substitute
from fuscoc.lang.scope import INDEX, ROUTE, SIZE, RouteInfo, Scope, SizeInfo, plural
from fuscoc.source import Span

Fold = Callable[[ast.Expr, Context, Scope], Scalar | None]


def fold_call(
    call: ast.Call, result: ast.Ident | None, context: Context, scope: Scope, fold: Fold
) -> Scalar | None:
    """The scalar that a call means; ``result`` says which, if a route has several.

    ``fold`` is for the arguments of routes.
    """
    function = call.function
    symbol = scope.symbols.get(function.name)
    if symbol is None and scope.may_declare(function.name):
        return None
    is_function = function.name in FUNCTIONS or function.name in OPERATIONS
    if symbol is None and is_function and not _is_size(call, context, scope):
        refuse(call, context, scope)
        for arg in call.args:  # which may introduce names, or be wrong itself
            fold(arg, context, scope)
        return None
    if symbol is None and context.declares and result is None:
        return _declare_size(call, scope)
    if symbol is None and not context.kinds:
        scope.sink.report(
            "FSC020",
            call.span,
            f"`{scope.text(call.span)}` is no constant",
            "a constant is needed here",
            notes=context.why,
        )
        return None
    if symbol is not None and symbol.kind in {ROUTE, SIZE} - context.kinds:
        scope.used.add(function.name)
        report_misplaced(call.span, function.name, symbol.kind, context, scope)
        return None
    kind = scope.find(function, context.kinds & {ROUTE, SIZE} or {SIZE}, "a route or an input")
    if kind == ROUTE:
        return _fold_route(call, result, context, scope, fold)
    if kind == SIZE and result is not None:
        _no_result(call, result, f"`{function.name}` is one number for each index", scope)
        return None
    if kind == SIZE:
        size = scope.sizes.get(function.name)
        if size is None:
            return None
        args = _arguments(call, (size.index,), scope)
        return None if args is None else Load(function.name, args)
    return None


def computes(call: ast.Call, context: Context, scope: Scope) -> Operator | None:
    """The operator that a call spells: ``min``, ``max`` or ``cdiv``, unless the name is declared.

    A call with another number of arguments than two is reported by ``fold_call``.
    """
    name = call.function.name
    if name in scope.symbols or scope.may_declare(name) or len(call.args) != 2:
        return None
    return OPERATIONS.get(name)


def _is_size(call: ast.Call, context: Context, scope: Scope) -> bool:
    """Whether a call is meant as an input of sizes, which may have any name.

    It may be where an extent introduces one, and is where a constant should be, if it is of an
    index: that a size varies with it matters more there than that no function is called `len`.
    """
    match call.args:
        case (ast.Name(name=name),):
            return context.declares or (not context.kinds and is_index(name, scope))
    return False


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
    is_index = scope.find(arg, {INDEX}, "an index") is not None
    if not scope.declare(call.function, SIZE) or not is_index:
        return None
    scope.used.add(call.function.name)
    scope.sizes[call.function.name] = SizeInfo(arg.name, call.span)
    return Load(call.function.name, (IndexRef(arg.name),))


def _fold_route(
    call: ast.Call, result: ast.Ident | None, context: Context, scope: Scope, fold: Fold
) -> Scalar | None:
    route = scope.routes.get(call.function.name)
    if route is None:
        if call.function.name in scope.uncomputed:
            scope.sink.report(
                "FSC011",
                call.span,
                f"`{call.function.name}` has no value yet",
                "routes are computed in the order of the text",
                secondary=[Label(scope.symbols[call.function.name].span, "declared here")],
            )
        return None
    args = _arguments(call, route.params, scope, fold)
    position = _result_position(route, call, result, context, scope)
    if args is None or position is None:
        return None
    return substitute(route.values[position], dict(zip(route.params, args, strict=True)))


def _result_position(
    route: RouteInfo, call: ast.Call, result: ast.Ident | None, context: Context, scope: Scope
) -> int | None:
    """Which of its results a use of a route names."""
    if result is None and len(route.results) == 1:
        return 0
    if result is None:
        likely = context.likely(route.results)
        scope.sink.report(
            "FSC042",
            call.span,
            f"`{route.ident.name}` has {len(route.results)} results; name one",
            secondary=[Label(route.ident.span, "declared here")],
            fix=Fix(
                Span(call.span.end, call.span.end),
                f".{likely}",
                f"write `{scope.text(call.span)}.{likely}`",
            ),
        )
        return None
    if len(route.results) == 1:
        reason = f"`{route.ident.name}` has one result, used without its name"
        _no_result(call, result, reason, scope)
        return None
    if result.name not in route.results:
        scope.sink.report(
            "FSC042",
            result.span,
            f"`{route.ident.name}` has no result `{result.name}`",
            f"it has {' and '.join(f'`{name}`' for name in route.results)}",
            fix=spelling(result.name, result.span, route.results),
        )
        return None
    return route.results.index(result.name)


def _no_result(call: ast.Call, result: ast.Ident, reason: str, scope: Scope) -> None:
    member = Span(call.span.end, result.span.end)
    fix = Fix(member, "", f"leave out `.{result.name}`", safe=True)
    scope.sink.report("FSC042", result.span, reason, fix=fix)


def _arguments(
    call: ast.Call, params: tuple[str, ...], scope: Scope, fold: Fold | None = None
) -> tuple[Scalar, ...] | None:
    """The arguments of a call: the indices that it is declared for or, with ``fold``, values that
    are below their extents, or are checked to be when the shuffle runs."""
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
        if fold is not None and not (isinstance(arg, ast.Name) and is_index(arg.name, scope)):
            value = _value_argument(arg, param, scope, fold)
        else:
            value = _index_argument(arg, name, scope)
        if value is not None:
            args.append(value)
    owner = ast.Ident(name, span=scope.symbols[name].span)
    same = check_indices(call.args, params, owner, scope, computed=fold is not None)
    return tuple(args) if same and len(args) == len(params) else None


def _value_argument(arg: ast.Expr, param: str, scope: Scope, fold: Fold) -> Scalar | None:
    value, extent = fold(arg, POINT, scope), scope.extents.get(param)
    if value is None or extent is None:
        return None
    if is_routed(value, scope.sizes):
        return Inside(value, extent)
    declared = Label(scope.symbols[param].span, "declared here")
    inside = must_stay_inside(value, 1, extent, [extent], f"`{param}`", declared, arg.span, scope)
    return value if inside else None


def _index_argument(arg: ast.Expr, name: str, scope: Scope) -> Scalar | None:
    if not isinstance(arg, ast.Name):
        scope.sink.report(
            "FSC065",
            arg.span,
            f"not yet supported: a computed argument of `{name}`",
            "a plain index is needed here",
        )
        return None
    if scope.find(arg, {INDEX}, "an index") is None or arg.name not in scope.extents:
        return None
    return IndexRef(arg.name)


OPERATIONS: dict[str, Operator] = {"min": "min", "max": "max", "cdiv": "cdiv"}

# What other languages compute by a function, with what does the same here if an operator does.
FUNCTIONS: dict[str, str | None] = {
    **dict.fromkeys(["abs", "int", "len", "log2", "pow", "round", "select", "sqrt", "sum"]),
    "clamp": "write `min(max(a, least), most)`",
    **dict.fromkeys(["ceil", "ceildiv"], "`cdiv(a, b)` divides and rounds up"),
    **dict.fromkeys(["div", "floor"], "write `a / b`, which floors"),
    **dict.fromkeys(["mod", "rem"], "write `a % b`"),
}


def refuse(call: ast.Call, context: Context, scope: Scope) -> None:
    """Report a call of a function that other languages have, or with other arguments."""
    name = call.function.name
    if name in OPERATIONS:
        scope.sink.report("FSC072", call.span, f"`{name}` takes two numbers, not {len(call.args)}")
        return
    help = FUNCTIONS[name]
    if help is None and ROUTE in context.kinds:
        help = "compute it before the call, and give it as a route: `… = input name : int64`"
    scope.sink.report(
        "FSC072",
        call.span,
        f"not yet supported: the function `{name}`",
        "only routes, and inputs that are given for an index, take arguments",
        notes=["expressions are made of `+ - * / %`, `min`, `max`, `cdiv` and parentheses"],
        help=help,
    )
