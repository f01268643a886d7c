"""Targets that are packed by key: the compiler assigns their slots."""

from __future__ import annotations

from dataclasses import replace

from fuscoc.diagnostics import Fix, Label
from fuscoc.lang import ast
from fuscoc.lang.accesses import right_arity
from fuscoc.lang.checked import Const, PackedTarget
from fuscoc.lang.context import POINT
from fuscoc.lang.declarations import extent_not_constant
from fuscoc.lang.fold import too_large
from fuscoc.lang.nominal import check_indices, is_index
from fuscoc.lang.scope import LayoutInfo, Scope
from fuscoc.lang.target import NOTHING, TargetInfo, routed
from fuscoc.source import Span

MAX_KEYS = 2**24


def packed_target(
    dispatch: ast.Dispatch, layout: LayoutInfo, on: ast.On | None, scope: Scope
) -> TargetInfo:
    """The target and its key; the rank follows from the placement."""
    access = with_slot(dispatch.target, layout, scope)
    if not right_arity(access, len(layout.dims), layout.ident, scope):
        return NOTHING
    key_expr, slot = access.subscripts
    if on is not None:
        scope.sink.report(
            "FSC044",
            on.span,
            "the rank follows from the placement of the key",
            secondary=[Label(layout.ident.span, "packed by key")],
            fix=scope.removal(on, "leave out the `on` clause"),
        )
    if not isinstance(slot, ast.Wildcard):
        scope.sink.report(
            "FSC036",
            slot.span,
            f"the slots of `{layout.ident.name}` are assigned, not chosen",
            secondary=[Label(layout.ident.span, "packed")],
            fix=Fix(slot.span, "*", "write `*`, the next free slot of the key"),
        )
    if isinstance(key_expr, ast.Range | ast.Wildcard):
        scope.sink.report("FSC036", key_expr.span, "a key is needed here")
        return NOTHING
    _check_compact(dispatch, layout, scope)
    key_index = layout.dims[0]
    num_keys = layout.extents[0]
    if not isinstance(num_keys, Const):
        extent_not_constant(
            key_index,
            f"`{layout.ident.name}` is packed by `{key_index}`",
            Label(layout.ident.span, "declared here"),
            scope,
        )
    elif num_keys.value > MAX_KEYS:
        span = scope.symbols[key_index].span
        too_large("the number of keys", num_keys.value, MAX_KEYS, span, scope)
    placement = scope.placements.get(key_index)
    if placement is None and not (scope.misplaced or scope.may_have("place")):
        scope.sink.report(
            "FSC040",
            access.span,
            f"nothing says which rank owns which `{key_index}`",
            secondary=[Label(scope.symbols[key_index].span, "declared here")],
            fix=scope.declared_before(dispatch, f"place {key_index} on rank by block"),
        )
    if _forgets_route(key_expr, dispatch, layout, scope):
        return NOTHING
    found = routed(key_expr, POINT, scope)
    if found is None:
        return NOTHING
    key, result = found
    if not check_indices([key_expr], [key_index], layout.ident, scope):
        return NOTHING
    if result not in (None, key_index):
        scope.sink.report(
            "FSC045",
            key_expr.span,
            f"this gives `{result}`, and `{layout.ident.name}` is keyed by `{key_index}`",
            secondary=[Label(layout.ident.span, "declared here")],
        )
        return NOTHING
    if not isinstance(num_keys, Const) or placement is None:
        return TargetInfo(None, (key,))
    checked = PackedTarget(
        layout=layout.ident.name,
        key=key,
        num_keys=num_keys.value,
        align=layout.align,
        capacity=layout.capacity,
        compact=layout.compact is not None,
        placement=placement,
        span=access.span,
    )
    return TargetInfo(checked, (key,))


def with_slot(access: ast.Access, layout: LayoutInfo, scope: Scope) -> ast.Access:
    """The access of a packed layout; if it has a key alone, which is reported, with the slot."""
    key = access.subscripts[0]
    if len(access.subscripts) != 1 or isinstance(key, ast.Range | ast.Wildcard):
        return access
    end = Span(key.span.end, key.span.end)
    scope.sink.report(
        "FSC030",
        access.span,
        f"`{layout.ident.name}` takes a key and a slot, and the slot is missing",
        secondary=[Label(layout.ident.span, "declared here")],
        fix=Fix(
            end,
            ", *",
            "write `*` for the slot: the next one of the key that is free",
            safe=isinstance(key, ast.Call | ast.Member),
        ),
    )
    return replace(access, subscripts=(key, ast.Wildcard(span=end)))


def _forgets_route(
    key: ast.Subscript, dispatch: ast.Dispatch, layout: LayoutInfo, scope: Scope
) -> bool:
    """Whether the key is an index, and the route that gives keys is used by nothing.

    Without such a route, the index of the keys means that every segment goes to every key.
    """
    index = layout.dims[0]
    source = {each.name for each in dispatch.source.subscripts if isinstance(each, ast.Name)}
    if not (isinstance(key, ast.Name) and is_index(key.name, scope)) or index in source:
        return False
    for name, route in scope.routes.items():
        if index in route.results and name not in scope.used:
            result = f".{index}" if len(route.results) > 1 else ""
            call = f"{name}({', '.join(route.params)}){result}"
            message = f"expected a key of `{layout.ident.name}`, found the index `{key.name}`"
            if key.name == index:
                message = f"`{index}` is free here, so each segment would go to every `{index}`"
            scope.sink.report(
                "FSC041",
                key.span,
                message,
                "a result of a route is needed here",
                secondary=[Label(route.ident.span, f"gives `{index}`, and nothing uses it")],
                fix=Fix(key.span, call, f"did you mean `{call}`?"),
            )
            return True
    return False


def _check_compact(dispatch: ast.Dispatch, layout: LayoutInfo, scope: Scope) -> None:
    """A compact target has one row for a rank, so segments have to arrive there once."""
    dedup = next((each for each in dispatch.options if isinstance(each, ast.Dedup)), None)
    if layout.compact is None or dedup is None:
        return
    levels = {level.name for level in dedup.levels}
    if levels <= {"none", "node"}:
        right = "dedup(node, rank)" if "node" in levels else "dedup(rank)"
        scope.sink.report(
            "FSC032",
            dedup.span,
            f"`{layout.ident.name}` is compact, so a segment is sent to a rank once",
            secondary=[Label(layout.compact, "declared here")],
            fix=Fix(dedup.span, right, f"write `{right}`"),
        )
