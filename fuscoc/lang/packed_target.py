"""Targets whose slots the compiler assigns, by key: ``layout[key, *]``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from fuscoc.diagnostics import Fix, Label
from fuscoc.lang import ast
from fuscoc.lang.accesses import right_arity
from fuscoc.lang.checked import Bound, Const, Inside, PackedTarget, Placement, Scalar
from fuscoc.lang.context import POINT, check_indices, is_index
from fuscoc.lang.declarations import extent_not_constant
from fuscoc.lang.fold import too_large
from fuscoc.lang.scalars import extents, indices, is_routed
from fuscoc.lang.scope import LayoutInfo, Scope
from fuscoc.lang.target import NOTHING, TargetInfo, is_inside, routed, row_major
from fuscoc.source import Span

MAX_KEYS = 2**24


def packed_target(
    dispatch: ast.Dispatch, layout: LayoutInfo, on: ast.On | None, scope: Scope
) -> TargetInfo:
    """The target and its key; the rank follows from the placement."""
    access = with_slot(dispatch.target, layout, scope)
    if not right_arity(access, len(layout.dims), layout.ident, scope):
        return NOTHING
    *keys, slot = access.subscripts
    if on is not None:
        scope.sink.report(
            "FSC044",
            on.span,
            "the rank follows from the placement of the key",
            secondary=[Label(layout.ident.span, "packed by key")],
            fix=scope.removal(on, "leave out the `on` clause"),
        )
    for clause, word, problem in (
        (ast.Clip, "clip", "slots that are assigned always exist"),
        (ast.Partial, "partial", "slots that are assigned are those that segments go to"),
    ):
        written = scope.single(dispatch.options, clause, word)
        if written is not None:
            scope.sink.report(
                "FSC032",
                written.span,
                problem,
                secondary=[Label(layout.ident.span, "packed by key")],
                fix=scope.removal(written, f"leave out `{word}`"),
            )
    if not isinstance(slot, ast.Wildcard):
        scope.sink.report(
            "FSC036",
            slot.span,
            f"the slots of `{layout.ident.name}` are assigned, not chosen",
            secondary=[Label(layout.ident.span, "packed")],
            fix=Fix(slot.span, "*", "write `*`, the next free slot of the key"),
        )
    exprs = list[ast.Expr]()
    for key in keys:
        if isinstance(key, ast.Range | ast.Wildcard):
            scope.sink.report("FSC036", key.span, "a key is needed here")
            return NOTHING
        exprs.append(key)
    _check_compact(dispatch, layout, scope)
    num_keys = _num_keys(layout, scope)
    placement = _placement(dispatch, layout, scope)
    if _forgets_route(exprs[0], dispatch, layout, scope):
        return NOTHING
    found = _keys(exprs, layout, scope)
    if found is None:
        return NOTHING
    if num_keys is None or placement is None:
        return TargetInfo(None, tuple(found))
    sizes = [extent.value for extent in layout.extents if isinstance(extent, Const)]
    number = row_major(found, layout.extents)
    checked = PackedTarget(
        layout=layout.ident.name,
        key=number,
        placed=found[0],
        num_keys=num_keys,
        group=prod(sizes[1:]),
        align=layout.align,
        padding=layout.padding,
        capacity=layout.capacity,
        compact=layout.compact is not None,
        distinct=layout.distinct is not None,
        placement=placement,
        span=access.span,
    )
    return TargetInfo(checked, (number,))


def _num_keys(layout: LayoutInfo, scope: Scope) -> int | None:
    """How many keys a packed layout has, which is a constant."""
    good = True
    for index, extent in zip(layout.dims, layout.extents, strict=False):
        if not isinstance(extent, Const):
            why = f"`{layout.ident.name}` is packed by `{index}`"
            extent_not_constant(index, why, Label(layout.ident.span, "declared here"), scope)
            good = False
    if not good:
        return None
    count = prod(extent.value for extent in layout.extents if isinstance(extent, Const))
    if count > MAX_KEYS:
        first = scope.symbols[layout.dims[0]].span
        span = first if len(layout.extents) == 1 else layout.ident.span
        too_large("the number of keys", count, MAX_KEYS, span, scope)
    return count


def _placement(dispatch: ast.Dispatch, layout: LayoutInfo, scope: Scope) -> Placement | None:
    """Which rank owns a key: that of the first of its indices says so, and of no other."""
    first, *others = layout.dims[:-1]
    placement = scope.placements.get(first)
    if placement is None and not (scope.misplaced or scope.may_have("place")):
        scope.sink.report(
            "FSC040",
            dispatch.target.span,
            f"nothing says which rank owns which `{first}`",
            secondary=[Label(scope.symbols[first].span, "declared here")],
            fix=scope.declared_before(dispatch, f"place {first} on rank by block"),
        )
    for name in others:
        if name in scope.placements:
            scope.sink.report(
                "FSC040",
                scope.placements[name].span,
                f"`{layout.ident.name}` is placed by `{first}`, its first key",
                f"the keys of one `{first}` are on one rank",
                secondary=[Label(layout.ident.span, "declared here")],
                help=f"to place it by `{name}`, write that index first",
            )
            return None
    if placement is not None and placement.table is not None and others:
        scope.sink.report(
            "FSC069",
            placement.span,
            "not yet supported: several keys, the first of which a table places",
            secondary=[Label(layout.ident.span, "declared here")],
        )
        return None
    return placement


def _keys(exprs: Sequence[ast.Expr], layout: LayoutInfo, scope: Scope) -> list[Scalar] | None:
    """The keys of a point. All but the first have to stay inside their extents: one that runs over
    into the next value of the key before would be a wrong one.
    """
    keys = list[Scalar]()
    for position, expr in enumerate(exprs):
        index = layout.dims[position]
        found = routed(expr, POINT, scope)
        if found is None or not check_indices([expr], [index], layout.ident, scope):
            return None
        key, result = found
        if result not in (None, index):
            scope.sink.report(
                "FSC045",
                expr.span,
                f"this gives `{result}`, and `{layout.ident.name}` is keyed by `{index}`",
                secondary=[Label(layout.ident.span, "declared here")],
            )
            return None
        extent = layout.extents[position]
        if position and is_routed(key, scope.sizes):
            key = Inside(key, extent)
        elif position and extents(key) and not indices(key):
            scope.bounds.append(Bound(key, extent))  # how many ranks there are, a run knows
        elif position and not is_inside(
            key, extent, expr, layout, position, scope, help="a key is one of its index's values"
        ):
            return None
        keys.append(key)
    return keys


def with_slot(access: ast.Access, layout: LayoutInfo, scope: Scope) -> ast.Access:
    """The access of a packed layout; if it has a key alone, which is reported, with the slot."""
    key = access.subscripts[0]
    if (
        len(layout.dims) != 2
        or len(access.subscripts) != 1
        or isinstance(key, ast.Range | ast.Wildcard)
    ):
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
