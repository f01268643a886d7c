"""Where segments go: packed by key, or to a slot and a rank that the spec names."""

from __future__ import annotations

from dataclasses import dataclass

from fuscoc.diagnostics import Label
from fuscoc.lang import ast
from fuscoc.lang.accesses import right_arity
from fuscoc.lang.bounds import stays_inside
from fuscoc.lang.checked import BinaryOp, Const, DenseTarget, Load, PackedTarget, Scalar
from fuscoc.lang.context import DESTINATION
from fuscoc.lang.declarations import is_ragged
from fuscoc.lang.fold import fold, too_large
from fuscoc.lang.scalars import extents, loads
from fuscoc.lang.scope import INDEX, LAYOUT, ROUTE, VIEW, LayoutInfo, Scope


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
        _find_unknown_names(access, on, scope)
    if layout is None or not right_arity(access, len(layout.dims), layout.ident, scope):
        return NOTHING
    for subscript in access.subscripts:
        if isinstance(subscript, ast.Range):
            scope.sink.report(
                "FSC036", subscript.span, "a segment goes to one slot, not to a range"
            )
            return NOTHING
    if layout.packed:
        return _packed(access, layout, on, scope)
    return _dense(access, layout, on, scope)


def _find_unknown_names(access: ast.Access, on: ast.On | None, scope: Scope) -> None:
    """Fold the expressions of a target that is wrong anyway, for the reports alone."""
    for subscript in access.subscripts:
        if not isinstance(subscript, ast.Range | ast.Wildcard):
            fold(subscript, DESTINATION, scope)
    if on is not None:
        fold(on.rank, DESTINATION, scope)


def _packed(access: ast.Access, layout: LayoutInfo, on: ast.On | None, scope: Scope) -> TargetInfo:
    key_expr, slot = access.subscripts
    if on is not None:
        scope.sink.report(
            "FSC044",
            on.span,
            "the rank follows from the placement of the key",
            secondary=[Label(layout.ident.span, "packed by key")],
            help="leave out the `on` clause",
        )
    if not isinstance(slot, ast.Wildcard):
        scope.sink.report(
            "FSC036",
            slot.span,
            f"the slots of `{layout.ident.name}` are assigned, not chosen",
            secondary=[Label(layout.ident.span, "packed")],
            help="write `*`",
        )
    if isinstance(key_expr, ast.Range | ast.Wildcard):
        scope.sink.report("FSC036", key_expr.span, "a key is needed here")
        return NOTHING
    key_index = layout.dims[0]
    num_keys = layout.extents[0]
    if not isinstance(num_keys, Const):
        scope.sink.report(
            "FSC020",
            scope.symbols[key_index].span,
            f"`{layout.ident.name}` is packed by `{key_index}`, so its extent must be a constant",
            secondary=[Label(layout.ident.span, "declared here")],
            help=scope.similar_constant(next(iter(extents(num_keys)), key_index)),
        )
    elif num_keys.value > MAX_KEYS:
        span = scope.symbols[key_index].span
        too_large("the number of keys", num_keys.value, MAX_KEYS, span, scope)
    placement = scope.placements.get(key_index)
    if placement is None:
        scope.sink.report(
            "FSC040",
            access.span,
            f"nothing says which rank owns which `{key_index}`",
            secondary=[Label(scope.symbols[key_index].span, "declared here")],
            help=f"add `place {key_index} on rank by block`",
        )
    key = _routed(key_expr, "a key", scope)
    if key is None:
        return NOTHING
    load, result = key
    if result != key_index:
        scope.sink.report(
            "FSC045",
            key_expr.span,
            f"this gives `{result}`, and `{layout.ident.name}` is keyed by `{key_index}`",
            secondary=[Label(layout.ident.span, "declared here")],
        )
        return NOTHING
    if not isinstance(num_keys, Const) or placement is None:
        return TargetInfo(None, (load,))
    checked = PackedTarget(
        layout=layout.ident.name,
        key=load,
        num_keys=num_keys.value,
        align=layout.align,
        capacity=layout.capacity,
        placement=placement,
        span=access.span,
    )
    return TargetInfo(checked, (load,))


def _dense(access: ast.Access, layout: LayoutInfo, on: ast.On | None, scope: Scope) -> TargetInfo:
    slot, length = _slot(access, layout, scope), layout.extents[0]
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


def _slot(access: ast.Access, layout: LayoutInfo, scope: Scope) -> Scalar | None:
    """The row-major slot that the subscripts of a dense target name.

    All but the outermost have to be shown to stay inside: a slot that leaves the target is an error
    when the shuffle runs, but one that runs over into the next row would be a wrong one.
    """
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
    good = True
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
        value = fold(subscript, DESTINATION, scope)
        if value is None:
            good = False
        elif position == 0:
            slot = value
        elif not stays_inside(value, 1, extent, scope.extents):
            _may_leave(subscript, layout, position, scope)
            good = False
        elif slot is not None:
            slot = BinaryOp("+", _product(slot, extent), value)
    return slot if good else None


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
    """A rank: a route's result, or an expression that reads no route."""
    call = expr.call if isinstance(expr, ast.Member) else expr
    symbol = scope.symbols.get(call.function.name) if isinstance(call, ast.Call) else None
    if isinstance(call, ast.Call) and (symbol is None or symbol.kind == ROUTE):
        routed = _routed(expr, "a rank", scope)
        return None if routed is None else _not_an_index(*routed, expr, scope)
    rank = fold(expr, DESTINATION, scope)
    if rank is None or all(load.input in scope.sizes for load in loads(rank)):
        return rank
    scope.sink.report(
        "FSC060",
        expr.span,
        "not yet supported: a rank that is computed from a route",
        "a route's result alone, or no route, is needed here",
    )
    return None


def _not_an_index(load: Load, result: str, expr: ast.Expr, scope: Scope) -> Load | None:
    symbol = scope.symbols.get(result)
    if symbol is None or symbol.kind != INDEX:
        return load
    scope.sink.report(
        "FSC044",
        expr.span,
        f"this gives `{result}`, which is an index and not a rank",
        secondary=[Label(symbol.span, "declared here")],
        help="a rank is a result with a name of its own, such as `rank`",
    )
    return None


def _routed(expr: ast.Expr, what: str, scope: Scope) -> tuple[Load, str] | None:
    """An element of a route's input, and the name of the result that it is."""
    call = expr.call if isinstance(expr, ast.Member) else expr
    symbol = scope.symbols.get(call.function.name) if isinstance(call, ast.Call) else None
    if isinstance(call, ast.Call) and (symbol is None or symbol.kind == ROUTE):
        folded = fold(expr, DESTINATION, scope)
        if not isinstance(folded, Load):
            return None
        results = scope.routes[call.function.name].results
        return folded, expr.result.name if isinstance(expr, ast.Member) else results[0]
    scope.sink.report(
        "FSC060",
        expr.span,
        f"not yet supported: {what} that is computed",
        "a route's result is needed here",
    )
    return None
