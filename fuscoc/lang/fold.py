"""Expressions -> scalars: names looked up, constants folded.

``/`` floors and ``%`` is its remainder. As soon as an operand is only known at run time, both need
a divisor that is a positive constant or made of run-time extents, which are checked when the
shuffle runs, and, in an extent, a dividend that is never negative.
"""

from __future__ import annotations

from fuscoc.diagnostics import Label
from fuscoc.lang import ast
from fuscoc.lang.algebra import never_negative
from fuscoc.lang.calls import computes, fold_call
from fuscoc.lang.checked import (
    DIVISIONS,
    BinaryOp,
    Const,
    ExtentRef,
    IndexRef,
    Load,
    Operator,
    Scalar,
    count_of,
)
from fuscoc.lang.context import FIELD_DIM, NUMBER, Context, report_misplaced
from fuscoc.lang.scalars import OPERATORS, depth, parts
from fuscoc.lang.scope import BUILTINS, CONSTANT, EXTENT, INDEX, ROUTE, SIZE, Scope
from fuscoc.source import Span

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
# Of one expression, computed routes written out: they may double it with every use.
MAX_OPERATIONS = 1000


def fold_field_dim(expr: ast.Expr, scope: Scope) -> int | None:
    """The length of a field along one dimension."""
    return fold_constant(expr, scope, FIELD_DIM.what, context=FIELD_DIM)


def fold_constant(
    expr: ast.Expr,
    scope: Scope,
    positive: str | None = None,
    most: int = INT64_MAX,
    context: Context = NUMBER,
) -> int | None:
    """The value of a constant expression; with ``positive`` that it must be, and what it is.

    ``most`` is the largest value that it may have.
    """
    folded = fold(expr, context, scope)
    if not isinstance(folded, Const):
        return None
    if positive is not None and folded.value <= 0:
        not_positive(positive, folded.value, expr.span, scope)
        return None
    if positive is not None and folded.value > most:
        too_large(positive, folded.value, most, expr.span, scope)
        return None
    return folded.value


def not_positive(what: str, value: int, span: Span, scope: Scope) -> None:
    scope.sink.report("FSC021", span, f"{what} must be positive, and this is {value}")


def too_large(what: str, value: int, most: int, span: Span, scope: Scope) -> None:
    scope.sink.report("FSC023", span, f"{what} is {most} at the most, and this is {value}")


def fold_extent(expr: ast.Expr, context: Context, scope: Scope) -> Scalar | None:
    """An extent: a positive constant, or a run-time value that cannot be negative."""
    folded = fold(expr, context, scope)
    if isinstance(folded, Const) and folded.value <= 0:
        not_positive(context.what, folded.value, expr.span, scope)
        return None
    if folded is not None and not never_negative(folded, scope.extents, scope.sizes):
        scope.sink.report(
            "FSC068", expr.span, f"not yet supported: {context.what} that may become negative"
        )
        return None
    return folded


def fold(expr: ast.Expr, context: Context, scope: Scope) -> Scalar | None:
    """The scalar that the expression means; None, with a report, if it means none there."""
    match expr:
        case ast.Number(value=value):
            return in_range(value, expr.span, scope)
        case ast.Decimal():
            _not_whole(expr.span, "no whole number", scope)
            return None
        case ast.Values():
            _not_whole(expr.span, "a list of numbers", scope)
            return None
        case ast.Name():
            return _fold_name(expr, context, scope)
        case ast.Call() | ast.Member():
            call, result = (
                (expr.call, expr.result) if isinstance(expr, ast.Member) else (expr, None)
            )
            op = computes(call, context, scope) if result is None else None
            if op is not None:
                left, right = call.args
                return _fold_operation(op, left, right, call, context, scope)
            found = fold_call(call, result, context, scope, fold)
            return None if found is None else _limited(found, expr.span, scope)
        case ast.Binary(op=op, lhs=lhs, rhs=rhs):
            return _fold_operation(op, lhs, rhs, expr, context, scope)


def _fold_name(name: ast.Name, context: Context, scope: Scope) -> Scalar | None:
    if name.name in BUILTINS:
        return _fold_builtin(name, context, scope)
    symbol = scope.symbols.get(name.name)
    if symbol is None and scope.may_declare(name.name):
        return None
    if symbol is None and context.declares:
        scope.declare(ast.Ident(name.name, span=name.span), EXTENT)
    elif symbol is not None and symbol.kind in {INDEX, EXTENT} - context.kinds:
        scope.used.add(name.name)
        report_misplaced(name.span, name.name, symbol.kind, context, scope)
        return None
    kind = scope.find(name, {CONSTANT} | context.kinds - {SIZE, ROUTE}, "a number")
    if kind == CONSTANT:
        if name.name in scope.lists:
            is_list = count_of(scope.lists[name.name]) > 1
            _not_whole(name.span, "a list of numbers" if is_list else "no whole number", scope)
            return None
        if name.name not in scope.constants:
            scope.sink.report(
                "FSC011",
                name.span,
                f"`{name.name}` has no value yet",
                "constants are computed in the order of the text",
                secondary=[Label(scope.symbols[name.name].span, "declared here")],
            )
            return None
        return _fold_constant(name, scope.constants[name.name], context, scope)
    if kind == INDEX:
        return IndexRef(name.name) if name.name in scope.extents else None
    return ExtentRef(name.name) if kind == EXTENT else None


def _fold_constant(
    name: ast.Name, value: Scalar | None, context: Context, scope: Scope
) -> Scalar | None:
    """The value of a constant, if it may depend on the ranks here or does not."""
    if value is None or isinstance(value, Const) or EXTENT in context.kinds or context.builtin:
        return value
    scope.sink.report(
        "FSC020",
        name.span,
        f"`{name.name}` is only known at run time",
        "a number that is known when compiling is needed here",
        secondary=[Label(scope.symbols[name.name].span, "depends on the ranks")],
        notes=context.why,
    )
    return None


def _fold_builtin(name: ast.Name, context: Context, scope: Scope) -> Scalar | None:
    if EXTENT in context.kinds or context.builtin:
        return ExtentRef(name.name)
    scope.sink.report(
        "FSC020",
        name.span,
        f"`{name.name}` is only known at run time",
        "a constant is needed here",
        notes=[f"it is {BUILTINS[name.name]}", *context.why],
    )
    return None


def _fold_operation(
    op: Operator, left: ast.Expr, right: ast.Expr, expr: ast.Expr, context: Context, scope: Scope
) -> Scalar | None:
    lhs = fold(left, context, scope)
    rhs = fold(right, context, scope)
    if isinstance(rhs, Const) and rhs.value == 0 and op in DIVISIONS:
        scope.sink.report("FSC022", right.span, "division by zero")
        return None
    if lhs is None or rhs is None:
        return None
    if isinstance(lhs, Const) and isinstance(rhs, Const):
        if context.exact and op == "/" and lhs.value % rhs.value:
            scope.sink.report(
                "FSC025",
                expr.span,
                f"{rhs.value} does not divide {lhs.value}, and {context.what} has to come out even",
                f"leaves a remainder of {lhs.value % rhs.value}",
                help=f"write `cdiv({scope.text(left.span)}, {scope.text(right.span)})` if it is to "
                "be rounded up; in a constant, `/` floors",
            )
            return None
        return in_range(OPERATORS[op](lhs.value, rhs.value), expr.span, scope)
    if op in DIVISIONS:
        if not _may_divide(rhs):
            scope.sink.report(
                "FSC068",
                right.span,
                "not yet supported: dividing by anything but a positive constant or run-time "
                "extents",
            )
            return None
        if context.exact and not never_negative(lhs, scope.extents, scope.sizes):
            scope.sink.report(
                "FSC068",
                left.span,
                "not yet supported: dividing what may be negative",
                notes=["a difference and a routed value may be; an index and an extent may not"],
                help="put `max(…, 0)` around it if there is nothing below 0",
            )
            return None
    floors = op == "/" and context.builtin  # wherever the constant stands
    return _limited(BinaryOp("//" if floors else op, lhs, rhs), expr.span, scope)


def _not_whole(span: Span, what: str, scope: Scope) -> None:
    scope.sink.report(
        "FSC026",
        span,
        f"`{scope.text(span)}` is {what}",
        "a whole number is needed here",
        notes=["other numbers, and lists of them, are for what a `cast` computes"],
    )


def _limited(scalar: Scalar, span: Span, scope: Scope) -> Scalar | None:
    """The scalar, if it neither takes too long to compute nor nests too deeply for later stages."""
    operations, levels = sum(isinstance(part, BinaryOp) for part in parts(scalar)), depth(scalar)
    if operations <= MAX_OPERATIONS and levels <= ast.MAX_DEPTH:
        return scalar
    takes, most = f"takes {operations} operations", MAX_OPERATIONS
    if levels > ast.MAX_DEPTH:
        takes, most = f"nests {levels} levels deep", ast.MAX_DEPTH
    scope.sink.report(
        "FSC003",
        span,
        f"written out, this {takes}, and {most} are the most",
        notes=["the routes in it are written out at each use"],
    )
    return None


def _may_divide(divisor: Scalar) -> bool:
    """Whether a divisor is the same for a whole call, and not known to be negative."""
    if isinstance(divisor, Const):
        return divisor.value > 0
    return not any(isinstance(part, IndexRef | Load) for part in parts(divisor))


def in_range(value: int, span: Span, scope: Scope) -> Const | None:
    """The number as a constant, if it is one of 64 bits."""
    if INT64_MIN <= value <= INT64_MAX:
        return Const(value)
    scope.sink.report("FSC023", span, f"{value} does not fit in 64 bits")
    return None
