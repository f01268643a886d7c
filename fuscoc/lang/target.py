"""Where segments go: packed by key, or to a slot and a rank that the spec names."""

from __future__ import annotations

from fuscoc.lang import ast
from fuscoc.lang.context import POINT
from fuscoc.lang.fold import fold
from fuscoc.lang.scope import LAYOUT, VIEW, Scope
from fuscoc.lang.target_dense import dense_target
from fuscoc.lang.target_info import NOTHING, TargetInfo
from fuscoc.lang.target_packed import packed_target


def check_target(dispatch: ast.Dispatch, scope: Scope) -> TargetInfo:
    """The target of a dispatch, with its ``on`` clause."""
    access = dispatch.target
    on = scope.single(dispatch.options, ast.On, "on")
    kind = scope.find(access.layout, {LAYOUT, VIEW}, "a layout")
    if kind == VIEW:
        scope.sink.report("FSC063", access.span, "not yet supported: a view as a target")
    layout = scope.layouts.get(access.layout.name)
    if layout is None:
        find_unknown_names(access, on, scope)
        return NOTHING
    for subscript in access.subscripts:
        if isinstance(subscript, ast.Range):
            scope.sink.report(
                "FSC036", subscript.span, "a segment goes to one slot, not to a range"
            )
            return NOTHING
    return (packed_target if layout.packed else dense_target)(dispatch, layout, on, scope)


def find_unknown_names(access: ast.Access, on: ast.On | None, scope: Scope) -> None:
    """Fold the expressions of an access that is wrong anyway, for the reports alone."""
    for subscript in access.subscripts:
        if not isinstance(subscript, ast.Range | ast.Wildcard):
            fold(subscript, POINT, scope)
    if on is not None:
        fold(on.rank, POINT, scope)
