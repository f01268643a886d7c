"""Where segments go: packed by key, or to a slot and a rank that the spec names."""

from __future__ import annotations

from dataclasses import dataclass

from fuscoc.diagnostics import Fix, Label
from fuscoc.lang import ast
from fuscoc.lang.accesses import right_arity
from fuscoc.lang.bounds import stays_inside
from fuscoc.lang.checked import BinaryOp, Const, DenseTarget, PackedTarget, Scalar
from fuscoc.lang.context import POINT
from fuscoc.lang.declarations import is_ragged
from fuscoc.lang.fold import fold, too_large
from fuscoc.lang.nominal import check_indices
from fuscoc.lang.scope import INDEX, LAYOUT, VIEW, LayoutInfo, Scope


@dataclass(frozen=True)
class TargetInfo:
    """A target, or None after a report, and whatever is known to depend on the domain's indices."""

    checked: PackedTarget | DenseTarget | None
    scalars: tuple[Scalar, ...]


NOTHING = TargetInfo(None, ())
MAX_KEYS = 2**24


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
    if layout is None or not right_arity(access, len(layout.dims), layout.ident, scope):
        return NOTHING
    for subscript in access.subscripts:
        if isinstance(subscript, ast.Range):
            scope.sink.report(
                "FSC036", subscript.span, "a segment goes to one slot, not to a range"
            )
            return NOTHING
    if layout.packed:
        return _packed(dispatch, layout, on, scope)
    return _dense(dispatch, layout, on, scope)


def find_unknown_names(access: ast.Access, on: ast.On | None, scope: Scope) -> None:
    """Fold the expressions of an access that is wrong anyway, for the reports alone."""
    for subscript in access.subscripts:
        if not isinstance(subscript, ast.Range | ast.Wildcard):
            fold(subscript, POINT, scope)
    if on is not None:
        fold(on.rank, POINT, scope)


def _packed(
    dispatch: ast.Dispatch, layout: LayoutInfo, on: ast.On | None, scope: Scope
) -> TargetInfo:
    access = dispatch.target
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
            fix=Fix(slot.span, "*", "write `*`"),
        )
    if isinstance(key_expr, ast.Range | ast.Wildcard):
        scope.sink.report("FSC036", key_expr.span, "a key is needed here")
        return NOTHING
    _check_compact(dispatch, layout, scope)
    key_index = layout.dims[0]
    num_keys = layout.extents[0]
    if not isinstance(num_keys, Const):
        scope.sink.report(
            "FSC020",
            scope.symbols[key_index].span,
            f"`{layout.ident.name}` is packed by `{key_index}`, so its extent must be a constant",
            secondary=[Label(layout.ident.span, "declared here")],
            fix=scope.constant_extent(key_index),
        )
    elif num_keys.value > MAX_KEYS:
        span = scope.symbols[key_index].span
        too_large("the number of keys", num_keys.value, MAX_KEYS, span, scope)
    placement = scope.placements.get(key_index)
    if placement is None and not scope.misplaced:
        scope.sink.report(
            "FSC040",
            access.span,
            f"nothing says which rank owns which `{key_index}`",
            secondary=[Label(scope.symbols[key_index].span, "declared here")],
            fix=scope.declared_before(dispatch, f"place {key_index} on rank by block"),
        )
    routed = _routed(key_expr, scope)
    if routed is None:
        return NOTHING
    key, result = routed
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


def _dense(
    dispatch: ast.Dispatch, layout: LayoutInfo, on: ast.On | None, scope: Scope
) -> TargetInfo:
    access = dispatch.target
    slot, length = _slot(dispatch, layout, scope), layout.extents[0]
    for extent in layout.extents[1:]:
        length = _product(length, extent)
    if on is None:
        scope.sink.report(
            "FSC044",
            access.span,
            "nothing says which rank this goes to",
            help="add `on` and a rank, such as `on where(n).rank` or `on t % ranks`",
        )
    rank = _rank(on.rank, scope) if on is not None else None
    if slot is None or rank is None:
        return TargetInfo(None, tuple(scalar for scalar in (slot, rank) if scalar is not None))
    checked = DenseTarget(layout.ident.name, slot, rank, length, access.span)
    return TargetInfo(checked, (slot, rank))


def _slot(dispatch: ast.Dispatch, layout: LayoutInfo, scope: Scope) -> Scalar | None:
    """The row-major slot that the subscripts of a dense target name.

    All but the outermost have to be shown to stay inside: a slot that leaves the target is an error
    when the shuffle runs, but one that runs over into the next row would be a wrong one.
    """
    access = dispatch.target
    if any(is_ragged(extent) for extent in layout.extents):
        scope.sink.report(
            "FSC063",
            access.span,
            "not yet supported: a dense target whose extents vary",
            secondary=[Label(layout.ident.span, "declared here")],
            help="declare one dimension of slots and compute the slot",
        )
        return None
    slot: Scalar | None = None
    good = same = check_indices(
        access.subscripts, layout.dims, layout.ident, scope, domain=_may_occur(dispatch, scope)
    )
    for position, (subscript, extent) in enumerate(
        zip(access.subscripts, layout.extents, strict=True)
    ):
        if isinstance(subscript, ast.Wildcard | ast.Range):
            scope.sink.report(
                "FSC036",
                subscript.span,
                f"the slots of `{layout.ident.name}` are chosen by the spec",
                secondary=[Label(layout.ident.span, "dense, since it is not `packed(…)`")],
            )
            good = False
            continue
        value = fold(subscript, POINT, scope)
        if value is None:
            good = False
        elif position == 0:
            slot = value
        elif same and not stays_inside(value, 1, extent, scope.extents):
            _may_leave(subscript, layout, position, scope)
            good = False
        elif slot is not None:
            slot = BinaryOp("+", _product(slot, extent), value)
    return slot if good else None


def _may_occur(dispatch: ast.Dispatch, scope: Scope) -> set[str]:
    """The indices that the domain can have: the source's, and those that could fan out."""
    constant = {name for name, extent in scope.extents.items() if isinstance(extent, Const)}
    return constant | {
        each.name for each in dispatch.source.subscripts if isinstance(each, ast.Name)
    }


def _may_leave(subscript: ast.Expr, layout: LayoutInfo, position: int, scope: Scope) -> None:
    scope.sink.report(
        "FSC034",
        subscript.span,
        f"cannot show that this stays inside `{layout.dims[position]}` of `{layout.ident.name}`",
        secondary=[Label(layout.ident.span, "declared here")],
        notes=["only the outermost subscript of a target is checked when the shuffle runs"],
        help="declare one dimension of slots and compute the slot",
    )


def _product(lhs: Scalar, rhs: Scalar) -> Scalar:
    if isinstance(lhs, Const) and isinstance(rhs, Const):
        return Const(lhs.value * rhs.value)
    return BinaryOp("*", lhs, rhs)


def _rank(expr: ast.Expr, scope: Scope) -> Scalar | None:
    """A rank: a route's result, if it is not one that names an index, or an expression."""
    routed = _routed(expr, scope)
    if routed is None:
        return None
    rank, result = routed
    symbol = scope.symbols.get(result) if result is not None else None
    if symbol is None or symbol.kind != INDEX:
        return rank
    scope.sink.report(
        "FSC044",
        expr.span,
        f"this gives `{result}`, which is an index and not a rank",
        secondary=[Label(symbol.span, "declared here")],
        help="a rank is a result with a name of its own, such as `rank`",
    )
    return None


def _routed(expr: ast.Expr, scope: Scope) -> tuple[Scalar, str | None] | None:
    """The scalar of a key or a rank, and the name of the result, if it is a route's."""
    folded = fold(expr, POINT, scope)
    if folded is None:
        return None
    call = expr.call if isinstance(expr, ast.Member) else expr
    if not isinstance(call, ast.Call) or call.function.name not in scope.routes:
        return folded, None
    results = scope.routes[call.function.name].results
    return folded, expr.result.name if isinstance(expr, ast.Member) else results[0]
