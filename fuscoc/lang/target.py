"""What is known about a target of a dispatch, and what its key or rank means."""

from __future__ import annotations

from dataclasses import dataclass

from fuscoc.lang import ast
from fuscoc.lang.checked import DenseTarget, PackedTarget, Scalar
from fuscoc.lang.context import POINT, Context
from fuscoc.lang.fold import fold
from fuscoc.lang.scope import Scope


@dataclass(frozen=True)
class TargetInfo:
    """A target, or None after a report, and whatever is known to depend on the domain's indices."""

    checked: PackedTarget | DenseTarget | None
    scalars: tuple[Scalar, ...]


NOTHING = TargetInfo(None, ())


def routed(expr: ast.Expr, context: Context, scope: Scope) -> tuple[Scalar, str | None] | None:
    """The scalar of a key or a rank, and the name of the result, if it is a route's."""
    folded = fold(expr, context, scope)
    if folded is None:
        return None
    call = expr.call if isinstance(expr, ast.Member) else expr
    if not isinstance(call, ast.Call) or call.function.name not in scope.routes:
        return folded, None
    results = scope.routes[call.function.name].results
    return folded, expr.result.name if isinstance(expr, ast.Member) else results[0]


def find_unknown_names(access: ast.Access, on: ast.On | None, scope: Scope) -> None:
    """Fold the expressions of an access that is wrong anyway, for the reports alone."""
    for subscript in access.subscripts:
        if not isinstance(subscript, ast.Range | ast.Wildcard):
            fold(subscript, POINT, scope)
    if on is not None:
        fold(on.rank, POINT, scope)
