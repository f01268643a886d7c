"""Dense targets: the spec names the slot and the rank."""

from __future__ import annotations

from dataclasses import replace

from fuscoc.diagnostics import Label
from fuscoc.lang import ast
from fuscoc.lang.accesses import right_arity
from fuscoc.lang.bounds import stays_inside
from fuscoc.lang.checked import BinaryOp, Const, DenseTarget, Scalar
from fuscoc.lang.context import POINT, Context
from fuscoc.lang.declarations import is_ragged
from fuscoc.lang.fold import fold
from fuscoc.lang.nominal import check_indices
from fuscoc.lang.scope import INDEX, LayoutInfo, Scope
from fuscoc.lang.target import NOTHING, TargetInfo, routed


def dense_target(
    dispatch: ast.Dispatch, layout: LayoutInfo, on: ast.On | None, scope: Scope
) -> TargetInfo:
    """The target, its slot and the rank that ``on`` gives."""
    access = dispatch.target
    if not right_arity(access, len(layout.dims), layout.ident, scope):
        return NOTHING
    taken = frozenset(ast.results(on)) if on is not None else frozenset()
    slot = _slot(dispatch, layout, replace(POINT, taken=taken), scope)
    length = layout.extents[0]
    for extent in layout.extents[1:]:
        length = _product(length, extent)
    if on is None:
        scope.sink.report(
            "FSC044",
            access.span,
            "nothing says which rank this goes to",
            help="add `on` and a rank, such as `on where(n).rank` or `on t % ranks`",
        )
    of_rank = replace(POINT, is_rank=True, taken=frozenset(ast.results(access)))
    rank = _rank(on.rank, of_rank, scope) if on is not None else None
    if slot is None or rank is None:
        return TargetInfo(None, tuple(scalar for scalar in (slot, rank) if scalar is not None))
    checked = DenseTarget(layout.ident.name, slot, rank, length, access.span)
    return TargetInfo(checked, (slot, rank))


def _slot(
    dispatch: ast.Dispatch, layout: LayoutInfo, context: Context, scope: Scope
) -> Scalar | None:
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
        value = fold(subscript, context, scope)
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


def _rank(expr: ast.Expr, context: Context, scope: Scope) -> Scalar | None:
    """A rank: a route's result, if it is not one that names an index, or an expression."""
    found = routed(expr, context, scope)
    if found is None:
        return None
    rank, result = found
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
