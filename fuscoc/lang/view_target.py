"""Views as targets: segments that arrive as runs of a layout's cells.

A run goes where it is written, so it is a segment of its own: the domain gets an index for every
range of the view, but for the innermost ones, which lie one behind the other in the target. What
is then left is a dense target whose slots are runs, or single cells where a run may begin amid
another. Nothing behind the checker knows of views as targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fuscoc.diagnostics import Label
from fuscoc.lang import ast
from fuscoc.lang.accesses import right_arity
from fuscoc.lang.checked import (
    BinaryOp,
    Const,
    DenseTarget,
    DomainIndex,
    Field,
    IndexRef,
    Inside,
    Scalar,
    Source,
    Subscript,
)
from fuscoc.lang.context import POINT, check_indices
from fuscoc.lang.declarations import is_ragged
from fuscoc.lang.fold import fold
from fuscoc.lang.inside import must_stay_inside
from fuscoc.lang.scalars import is_routed, on_rank, substitute
from fuscoc.lang.scope import AccessInfo, LayoutInfo, Scope
from fuscoc.lang.target import (
    NOTHING,
    TargetInfo,
    has_one_stride,
    may_occur,
    of_extents,
    rank_of,
    row_major,
    without_rank,
)


@dataclass(frozen=True)
class _Runs:
    """A block of cells in runs that each are a slot.

    ``places`` are in slots, and a slot is a block of ``shape`` cells. ``split`` are the indices of
    the runs of a segment, outermost first.
    """

    places: tuple[Scalar, ...]
    shape: tuple[int, ...]
    split: tuple[DomainIndex, ...]

    def sizes(self, dims: Sequence[Scalar]) -> tuple[Scalar, ...]:
        """The extents of a layout in slots."""
        found = [divided(dim, length) for dim, length in zip(dims, self.shape, strict=True)]
        return tuple(each for each in found if each is not None)


def view_target(dispatch: ast.Dispatch, on: ast.On | None, scope: Scope) -> TargetInfo:
    """The target of a dispatch into a view: slots that are runs, and the rank that ``on`` gives."""
    access = dispatch.target
    if access.layout.name not in scope.views:
        return NOTHING
    dims, block = scope.views[access.layout.name]
    view = ast.Ident(access.layout.name, span=scope.symbols[access.layout.name].span)
    if not right_arity(access, len(dims), view, scope):
        return NOTHING
    rank = rank_of(dispatch, on, scope)
    if on is None:
        without_rank(access, scope)
    if not _is_supported(dispatch, block, scope):
        return NOTHING
    at = None if rank is None else _arguments(dispatch, dims, view, block, rank, scope)
    if rank is None or at is None:
        return NOTHING
    there = [on_rank(extent, rank) for extent in block.dims]
    starts = [substitute(on_rank(each.start, rank), at) for each in block.subscripts]
    runs = _runs(starts, block, scope)
    if not has_one_stride(there[1:], rank, dispatch, block.layout, scope):
        return NOTHING
    sizes, own = runs.sizes(there), runs.sizes(block.dims)
    slot = row_major(runs.places, sizes)
    return TargetInfo(
        DenseTarget(block.layout.ident.name, slot, rank, of_extents(own), access.span),
        (slot, rank),
        runs.places,
        sizes,
        rank,
        replace(_element(block), extents=own),
        runs.split,
    )


def as_segment(element: LayoutInfo, source: AccessInfo, scope: Scope) -> LayoutInfo:
    """What arrives in a view, as the segment that moves: the source's or, where that is made of
    cells, too, one that is declared for such blocks."""
    moved = source.layout.segment
    if moved is None or any(each.length is not None for each in source.subscripts):
        named = element.segment is not None
        types = _types(element.fields, named)
        declared = scope.segments.items()
        moved = next((name for name, each in declared if _types(each, named) == types), None)
    fields = element.fields
    if moved is not None:
        scope.used.add(moved)
    if moved is not None and element.segment is None and len(scope.segments[moved]) == 1:
        fields = (replace(fields[0], name=scope.segments[moved][0].name),)
    return replace(element, segment=moved, fields=fields)


def _types(fields: Sequence[Field], named: bool) -> list[tuple[str, str]]:
    return [(field.name if named else "", field.spelled) for field in fields]


def can_be_cut(
    source: AccessInfo, split: Sequence[DomainIndex], dispatch: ast.Dispatch, scope: Scope
) -> bool:
    """Whether ``unrolled`` can cut segments: not in another order than they lie in, and not inside
    of cells that a call is given one after the other."""
    if split and source.order:
        _reordered(dispatch.source, scope)
        return False
    runs = [each for each in source.subscripts if each.length is not None]
    if len(split) <= len(runs) or not any(is_ragged(dim) for dim in source.dims):
        return True
    scope.sink.report(
        "FSC063",
        dispatch.target.span,
        f"not yet supported: a view as the target of `{source.layout.ident.name}`, "
        "whose extents vary",
        secondary=[Label(source.layout.ident.span, "declared here")],
    )
    return False


def unrolled(
    source: Source, fields: tuple[Field, ...], split: Sequence[DomainIndex]
) -> tuple[Source, tuple[Field, ...]]:
    """A source whose segments are cut along their outermost dimensions, one for each index of
    ``split``, and the fields of what arrives then."""
    subscripts, dims, left = list(source.subscripts), list(source.dims), list(split)
    for number, each in enumerate(subscripts):
        if each.length is not None and left:
            start = BinaryOp("+", each.start, IndexRef(left.pop(0).name))
            subscripts[number] = Subscript(start, None, each.span)
    for index in left:
        dims.append(index.extent)
        subscripts.append(Subscript(IndexRef(index.name), None, source.span))
    cells = tuple(replace(cell, shape=cell.shape[len(left) :]) for cell in source.fields)
    cut = replace(source, fields=cells, dims=tuple(dims), subscripts=tuple(subscripts))
    return cut, tuple(replace(each, shape=each.shape[len(split) :]) for each in fields)


def _runs(starts: Sequence[Scalar], block: AccessInfo, scope: Scope) -> _Runs:
    """The runs of a block of cells that begins at ``starts``.

    What is seen to divide an extent divides it on every rank.
    """
    places, shape, split = list[Scalar](), list[int](), list[DomainIndex]()
    is_contiguous = True
    cells = zip(starts, block.dims, block.subscripts, block.layout.dims, strict=True)
    for start, dim, subscript, name in reversed(list(cells)):
        place, width, length = start, 1, subscript.length
        first, end = divided(start, length or 1), divided(dim, length or 1)
        if length is not None and is_contiguous and first is not None and end is not None:
            place, width = first, length
            is_contiguous = end == Const(1)
        elif length is not None:
            index = _run_index(name, length, subscript, scope)
            split.insert(0, index)
            place, is_contiguous = BinaryOp("+", start, IndexRef(index.name)), False
        else:
            is_contiguous = False
        places.insert(0, place)
        shape.insert(0, width)
    return _Runs(tuple(places), tuple(shape), tuple(split))


def divided(scalar: Scalar, number: int) -> Scalar | None:
    """A scalar divided by a number, if that is seen to leave no remainder."""
    if number == 1:
        return scalar
    match scalar:
        case Const(value=value):
            return Const(value // number) if value % number == 0 else None
        case BinaryOp(op="*", lhs=lhs, rhs=rhs):
            left, right = divided(lhs, number), divided(rhs, number)
            if left is not None:
                return rhs if left == Const(1) else BinaryOp("*", left, rhs)
            if right is not None:
                return lhs if right == Const(1) else BinaryOp("*", lhs, right)
        case BinaryOp(op="+" | "-" | "min" | "max" as op, lhs=lhs, rhs=rhs):
            left, right = divided(lhs, number), divided(rhs, number)
            if left is not None and right is not None:
                return BinaryOp(op, left, right)
        case Inside(value=value) if divided(value, number) is not None:
            return BinaryOp("/", scalar, Const(number))
    return None


def _run_index(name: str, length: int, subscript: Subscript, scope: Scope) -> DomainIndex:
    run = f"run_{name}"
    while run in scope.symbols:
        run += "_"
    return DomainIndex(run, Const(length), subscript.span)


def _element(block: AccessInfo) -> LayoutInfo:
    """What a segment is in the target: the runs of the view, of each field of a cell."""
    runs = tuple(each.length for each in block.subscripts if each.length is not None)
    fields = tuple(replace(each, shape=(*runs, *each.shape)) for each in block.layout.fields)
    return replace(block.layout, fields=fields)


def _reordered(view: ast.Access, scope: Scope) -> None:
    message = "not yet supported: another `order` on the way into a view"
    scope.sink.report("FSC063", view.span, message, help="dispatch to a dense layout of segments")


def _is_supported(dispatch: ast.Dispatch, block: AccessInfo, scope: Scope) -> bool:
    layout = block.layout
    if block.order:
        _reordered(dispatch.target, scope)
        return False
    cast = next((each for each in dispatch.options if isinstance(each, ast.Cast | ast.Clip)), None)
    if cast is not None:
        what = "a cast" if isinstance(cast, ast.Cast) else "`clip`"
        scope.sink.report(
            "FSC063",
            cast.span,
            f"not yet supported: {what} on the way into a view",
            secondary=[Label(dispatch.target.span, "the view")],
        )
    if any(is_ragged(extent) for extent in layout.extents):
        scope.sink.report(
            "FSC063",
            dispatch.target.span,
            "not yet supported: a dense target whose extents vary",
            secondary=[Label(layout.ident.span, "declared here")],
        )
        return False
    return cast is None


def _arguments(
    dispatch: ast.Dispatch,
    dims: Sequence[str],
    view: ast.Ident,
    block: AccessInfo,
    rank: Scalar,
    scope: Scope,
) -> dict[str, Scalar] | None:
    """What the view's indices are at a point; each below its extent on ``rank``.

    One that is the outermost subscript itself may be any: if it leaves the layout, so does the
    slot, which its rank finds.
    """
    access, found, good = dispatch.target, dict[str, Scalar](), True
    outermost, *inner = (each.start for each in block.subscripts)
    for subscript, name in zip(access.subscripts, dims, strict=True):
        if isinstance(subscript, ast.Wildcard | ast.Range):
            scope.sink.report("FSC036", subscript.span, f"an index of `{view.name}` is needed here")
            good = False
            continue
        value, extent = fold(subscript, POINT, scope), scope.extents.get(name)
        if value is None or extent is None:
            good = False
            continue
        limit = on_rank(extent, rank)
        is_any = outermost == IndexRef(name) and not any(_uses(each, name) for each in inner)
        if value == IndexRef(name) and limit == extent:
            pass
        elif is_routed(value, scope.sizes):
            value = value if is_any else Inside(value, limit)
        elif not is_any:
            label = Label(scope.symbols[name].span, "declared here")
            what = f"`{name}` of `{view.name}`"
            good &= must_stay_inside(value, 1, limit, [extent], what, label, subscript.span, scope)
        found[name] = value
    same = check_indices(access.subscripts, dims, view, scope, domain=may_occur(dispatch, scope))
    return found if good and same else None


def _uses(scalar: Scalar, name: str) -> bool:
    return substitute(scalar, {name: Const(0)}) != scalar
