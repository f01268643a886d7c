"""Dense targets of a dispatch, of which the spec names the slot and the rank, and what all targets
have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from fuscoc.diagnostics import Label
from fuscoc.lang import ast
from fuscoc.lang.accesses import right_arity
from fuscoc.lang.checked import (
    DIVISIONS,
    RANK,
    RANKS,
    BinaryOp,
    Const,
    DenseTarget,
    DomainIndex,
    Inside,
    PackedTarget,
    Scalar,
)
from fuscoc.lang.context import POINT, Context, check_indices
from fuscoc.lang.declarations import is_ragged
from fuscoc.lang.fold import fold
from fuscoc.lang.inside import is_seen_inside, must_stay_inside
from fuscoc.lang.scalars import extents, indices, is_routed, loads, on_rank, parts
from fuscoc.lang.scope import BUILTINS, INDEX, LayoutInfo, Scope


@dataclass(frozen=True)
class TargetInfo:
    """A target, or None after a report, and whatever is known to depend on the domain's indices."""

    checked: PackedTarget | DenseTarget | None
    scalars: tuple[Scalar, ...]
    places: tuple[Scalar, ...] = ()  # the subscripts of a dense target
    dims: tuple[Scalar, ...] = ()  # its extents on the rank that a segment goes to
    rank: Scalar | None = None  # that rank, also where the target is clipped
    element: LayoutInfo | None = None  # what a segment is in a view, and the view's extents in runs
    split: tuple[DomainIndex, ...] = ()  # the indices of its runs


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


def dense_target(
    dispatch: ast.Dispatch, layout: LayoutInfo, on: ast.On | None, scope: Scope
) -> TargetInfo:
    """The target, its slot and the rank that ``on`` gives."""
    access = dispatch.target
    if not right_arity(access, len(layout.dims), layout.ident, scope):
        return NOTHING
    rank = rank_of(dispatch, on, scope)
    taken = frozenset(ast.results(on)) if on is not None else frozenset()
    there = None if rank is None else tuple(on_rank(each, rank) for each in layout.extents)
    places = _places(dispatch, layout, there, replace(POINT, taken=taken), scope)
    length = of_extents(layout.extents)
    if on is None:
        without_rank(access, scope)
    clip = scope.single(dispatch.options, ast.Clip, "clip")
    if places is None or rank is None or there is None:
        return TargetInfo(None, (*(places or ()), *([] if rank is None else [rank])))
    if not has_one_stride(there[1:], rank, dispatch, layout, scope):
        return TargetInfo(None, (*places, rank))
    slot, end = row_major(places, there), rank
    if clip is not None:
        if not _can_clip(clip, (rank, *places), access, scope):
            return TargetInfo(None, (slot, rank))
        end = _clipped(rank, ((rank, RANKS), *zip(places, there, strict=True)))
    checked = DenseTarget(layout.ident.name, slot, end, length, access.span)
    return TargetInfo(checked, (slot, end), places, there, rank)


def rank_of(dispatch: ast.Dispatch, on: ast.On | None, scope: Scope) -> Scalar | None:
    """The rank that ``on`` gives."""
    if on is None:
        return None
    of_rank = replace(POINT, is_rank=True, taken=frozenset(ast.results(dispatch.target)))
    return _rank(on.rank, of_rank, scope)


def without_rank(access: ast.Access, scope: Scope) -> None:
    """Report that nothing gives the rank, unless what could not be read may say it."""
    if not scope.is_open:
        scope.sink.report(
            "FSC044",
            access.span,
            "nothing says which rank this goes to",
            help="add `on` and a rank, such as `on where(n).rank` or `on t % ranks`",
        )


def of_extents(sizes: Sequence[Scalar]) -> Scalar:
    """The product of a layout's extents."""
    return reduce(_product, sizes)


def _can_clip(clip: ast.Clip, computed: Sequence[Scalar], access: ast.Access, scope: Scope) -> bool:
    """A place that data names has to exist: to drop it would hide a mistake."""
    if not any(loads(each) for each in computed):
        return True
    scope.sink.report(
        "FSC032",
        clip.span,
        "only places that are computed of indices and extents alone are clipped",
        secondary=[Label(access.span, "an input says where this goes")],
        help="drop a point by a -1 of its route",
    )
    return False


def _clipped(rank: Scalar, inside: Iterable[tuple[Scalar, Scalar]]) -> Scalar:
    """``rank``, or -1 if one of the values is not below its limit, or is negative."""
    one = Const(1)
    distance: Scalar = Const(0)
    for value, limit in inside:
        above = BinaryOp("-", value, BinaryOp("-", limit, one))
        beside = BinaryOp("max", BinaryOp("-", Const(0), value), above)
        distance = BinaryOp("+", distance, BinaryOp("max", beside, Const(0)))
    is_inside = BinaryOp("max", BinaryOp("-", one, distance), Const(0))
    return BinaryOp("-", BinaryOp("*", BinaryOp("+", rank, one), is_inside), one)


def _places(
    dispatch: ast.Dispatch,
    layout: LayoutInfo,
    there: tuple[Scalar, ...] | None,
    context: Context,
    scope: Scope,
) -> tuple[Scalar, ...] | None:
    """The subscripts of a dense target, whose extents are ``there`` on the rank that is meant, if
    that is known.

    All but the outermost have to stay inside: a slot that leaves the target is an error when the
    shuffle runs, but one that runs over into the next row would be a wrong one. Of those that an
    input gives, a run sees whether they do.
    """
    access = dispatch.target
    is_clipped = any(isinstance(option, ast.Clip) for option in dispatch.options)
    if any(is_ragged(extent) for extent in layout.extents):
        scope.sink.report(
            "FSC063",
            access.span,
            "not yet supported: a dense target whose extents vary",
            secondary=[Label(layout.ident.span, "declared here")],
            help="declare one dimension of slots and compute the slot",
        )
        return None
    if not all(_divides_alike(extent) for extent in (there or ())[1:]):
        scope.sink.report(
            "FSC063",
            access.span,
            "not yet supported: a dense target whose extents are divided by what depends on `rank`",
            secondary=[Label(layout.ident.span, "declared here")],
        )
        return None
    places = list[Scalar]()
    good = same = check_indices(
        access.subscripts, layout.dims, layout.ident, scope, domain=may_occur(dispatch, scope)
    )
    for position, subscript in enumerate(access.subscripts):
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
            continue
        if position and same and there is not None and not is_clipped:
            extent = there[position]
            if not is_routed(value, scope.sizes):
                good &= is_inside(value, extent, subscript, layout, position, scope)
            elif not is_seen_inside(value, extent, layout.extents, scope):
                value = Inside(value, extent)
        places.append(value)
    return tuple(places) if good else None


def _divides_alike(extent: Scalar) -> bool:
    """Whether what an extent is divided by is the same for all points."""
    return not any(
        isinstance(part, BinaryOp)
        and part.op in DIVISIONS
        and (indices(part.rhs) or loads(part.rhs))
        for part in parts(extent)
    )


def has_one_stride(
    inner: Sequence[Scalar], rank: Scalar, dispatch: ast.Dispatch, layout: LayoutInfo, scope: Scope
) -> bool:
    """Whether who sends to a layout with these inner extents knows its strides: every rank gives
    extents of its own with a call, and nobody compares them."""
    given = [name for each in inner for name in extents(each) if name not in BUILTINS]
    if not given or rank == RANK:
        return True
    scope.sink.report(
        "FSC063",
        dispatch.target.span,
        "not yet supported: a target whose inner extents are given with a call",
        f"`{given[0]}` may differ from rank to rank, and so may strides",
        secondary=[Label(layout.ident.span, "declared here")],
        help=f"declare it, `const {given[0]} = …`, or one dimension of slots, and compute the slot",
    )
    return False


def row_major(places: Sequence[Scalar], sizes: Sequence[Scalar]) -> Scalar:
    """The number of a slot in a layout with these extents."""
    slot, *inner = places
    for place, extent in zip(inner, sizes[1:], strict=True):
        slot = BinaryOp("+", _product(slot, extent), place)
    return slot


def may_occur(dispatch: ast.Dispatch, scope: Scope) -> set[str]:
    """The indices that the domain can have: the source's, and those that could fan out."""
    constant = {name for name, extent in scope.extents.items() if isinstance(extent, Const)}
    return constant | {
        each.name for each in dispatch.source.subscripts if isinstance(each, ast.Name)
    }


def is_inside(
    value: Scalar,
    extent: Scalar,
    subscript: ast.Expr,
    layout: LayoutInfo,
    position: int,
    scope: Scope,
    help: str = "declare one dimension of slots and compute the slot",
) -> bool:
    return must_stay_inside(
        value,
        1,
        extent,
        layout.extents,
        f"`{layout.dims[position]}` of `{layout.ident.name}`",
        Label(layout.ident.span, "declared here"),
        subscript.span,
        scope,
        help,
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
