"""Functions, which expressions do not have yet."""

from __future__ import annotations

from fuscoc.lang import ast
from fuscoc.lang.context import Context
from fuscoc.lang.scope import ROUTE, Scope

# What other languages compute by a function, with what does the same here if an operator does.
FUNCTIONS: dict[str, str | None] = {
    **dict.fromkeys(["abs", "clamp", "int", "len", "log2", "max", "min", "pow", "round", "sum"]),
    **dict.fromkeys(["select", "sqrt"]),
    **dict.fromkeys(["cdiv", "ceil", "ceildiv"], "division floors: `(a + b - 1) / b` rounds up"),
    **dict.fromkeys(["div", "floor"], "write `a / b`, which floors"),
    **dict.fromkeys(["mod", "rem"], "write `a % b`"),
}


def refuse(call: ast.Call, context: Context, scope: Scope) -> None:
    """Report a call of a function that other languages have."""
    help = FUNCTIONS[call.function.name]
    if help is None and ROUTE in context.kinds:
        help = "compute it before the call, and give it as a route: `… = input name : int64`"
    scope.sink.report(
        "FSC072",
        call.span,
        f"not yet supported: the function `{call.function.name}`",
        "only routes, and inputs that are given for an index, take arguments",
        notes=["expressions are made of `+`, `-`, `*`, `/`, `%` and parentheses"],
        help=help,
    )
