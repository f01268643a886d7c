"""Where segments lie in a dense layout: accesses by subscripts, directly or through a view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fuscoc.diagnostics import Label, spelling
from fuscoc.lang import ast
from fuscoc.lang.algebra import constant_difference
from fuscoc.lang.checked import Const, IndexRef, Inside, Scalar, Subscript
from fuscoc.lang.context import POINT, check_indices
from fuscoc.lang.declarations import is_ragged
from fuscoc.lang.fold import fold, not_positive
from fuscoc.lang.inside import less, must_stay_inside
from fuscoc.lang.scalars import indices, is_routed, substitute
from fuscoc.lang.scope import INDEX, LAYOUT, VIEW, AccessInfo, LayoutInfo, Scope, plural


def check_view(view: ast.View, scope: Scope) -> None:
    """``view patches[n, i] = pictures[n, i*p .. i*p+p]``."""
    good = scope.distinct(view.dims)
    for dim in view.dims:
        if scope.find(dim, {INDEX}, "an index") is None or dim.name not in scope.extents:
            good = False
    if scope.find(view.access.layout, {LAYOUT, VIEW}, "a layout") == VIEW:
        scope.sink.report("FSC065", view.access.layout.span, "not yet supported: a view of a view")
        return
    dims = tuple(dim.name for dim in view.dims)
    access = check_access(view.access, scope, dims) if good else None
    if access is None:
        return
    used = {name for subscript in access.subscripts for name in indices(subscript.start)}
    for name in sorted(used - set(dims)):
        scope.sink.report(
            "FSC041",
            view.access.span,
            f"`{name}` is not one of the indices of `{view.ident.name}`",
            secondary=[Label(view.ident.span, "declared here")],
        )
        return
    order = _order(view, access, scope)
    if order is not None:
        scope.views.setdefault(view.ident.name, (dims, replace(access, order=order)))


def _order(view: ast.View, access: AccessInfo, scope: Scope) -> tuple[int, ...] | None:
    """The positions of a view's runs in the order that its segments have them in; none if that is
    the layout's."""
    if view.order is None:
        return ()
    layout = access.layout
    runs = [number for number, each in enumerate(access.subscripts) if each.length is not None]
    names = [layout.dims[number] for number in runs]
    given = [dim.name for dim in view.order.dims]
    for dim in view.order.dims:
        if dim.name not in names:
            where = "no dimension" if dim.name not in layout.dims else "a dimension without a range"
            scope.sink.report(
                "FSC011",
                dim.span,
                f"`{dim.name}` is {where} of `{layout.ident.name}` here",
                secondary=[Label(layout.ident.span, "declared here")],
                notes=[f"the ranges are in {', '.join(f'`{name}`' for name in names) or 'none'}"],
                fix=spelling(dim.name, dim.span, set(names) - set(given)),
            )
            return None
    if not scope.distinct(view.order.dims):
        return None
    missing = [name for name in names if name not in given]
    if missing:
        scope.sink.report(
            "FSC030",
            view.order.span,
            f"`order` names all dimensions with a range, and `{missing[0]}` is missing",
            secondary=[Label(layout.ident.span, "declared here")],
        )
        return None
    order = tuple(layout.dims.index(name) for name in given)
    return () if list(order) == runs else order


def reads_packed(access: ast.Access, scope: Scope) -> bool:
    """Whether segments are to be read from a packed layout, which is reported."""
    layout = scope.layouts.get(access.layout.name)
    if layout is None or not layout.packed:
        return False
    scope.sink.report("FSC069", access.span, "not yet supported: reading from a packed layout")
    return True


def check_access(
    access: ast.Access, scope: Scope, domain: Sequence[str] | None = None
) -> AccessInfo | None:
    """A block of cells in a dense layout: each subscript an index or a run, all inside.

    Those that come from a route are checked to be when the shuffle runs. ``domain`` are the
    indices of the expressions that they may be; without it they are plain indices.
    """
    layout = scope.layouts.get(access.layout.name)
    if layout is None or reads_packed(access, scope):
        return None
    if not right_arity(access, len(layout.dims), layout.ident, scope):
        return None
    found = [_subscript(subscript, scope) for subscript in access.subscripts]
    subscripts = [subscript for subscript in found if subscript is not None]
    same = check_indices(
        access.subscripts,
        layout.dims,
        layout.ident,
        scope,
        computed=domain is not None,
        domain=domain,
    )
    if not same or len(subscripts) != len(found):
        return None
    dims = _dims_at(layout, access, subscripts[0], scope)
    if dims is None:
        return None
    inside: list[Subscript] = []
    for subscript, dim, name in zip(subscripts, dims, layout.dims, strict=True):
        length = 1 if subscript.length is None else subscript.length
        limit = less(dim, length - 1)
        if is_routed(subscript.start, scope.sizes) and limit != Const(0):
            inside.append(replace(subscript, start=Inside(subscript.start, limit)))
        elif must_stay_inside(
            subscript.start,
            length,
            dim,
            layout.extents,
            f"`{name}` of `{layout.ident.name}`",
            Label(layout.ident.span, "declared here"),
            subscript.span,
            scope,
        ):
            inside.append(subscript)
    return AccessInfo(layout, dims, tuple(inside)) if len(inside) == len(dims) else None


def right_arity(access: ast.Access, count: int, ident: ast.Ident, scope: Scope) -> bool:
    """Whether an access has as many subscripts as the layout or view has dimensions."""
    if len(access.subscripts) == count:
        return True
    scope.sink.report(
        "FSC030",
        access.span,
        f"`{ident.name}` takes {plural(count, 'subscript')}, not {len(access.subscripts)}",
        secondary=[Label(ident.span, "declared here")],
    )
    return False


def _dims_at(
    layout: LayoutInfo, access: ast.Access, outermost: Subscript, scope: Scope
) -> tuple[Scalar, ...] | None:
    """The layout's extents, those that vary at the index which subscripts the outermost."""
    if not any(is_ragged(extent) for extent in layout.extents):
        return layout.extents
    if not isinstance(outermost.start, IndexRef) or outermost.length is not None:
        scope.sink.report(
            "FSC065",
            outermost.span,
            "not yet supported: a computed subscript here, since the other extents vary with it",
            secondary=[Label(layout.ident.span, "declared here")],
        )
        return None
    at = {layout.dims[0]: outermost.start}
    return tuple(substitute(extent, at) for extent in layout.extents)


def _subscript(subscript: ast.Subscript, scope: Scope) -> Subscript | None:
    if isinstance(subscript, ast.Wildcard):
        scope.sink.report("FSC036", subscript.span, "`*` stands for a slot of a packed target")
        return None
    if not isinstance(subscript, ast.Range):
        start = fold(subscript, POINT, scope)
        return None if start is None else Subscript(start, None, subscript.span)
    start = fold(subscript.start, POINT, scope)
    stop = fold(subscript.stop, POINT, scope)
    if start is None or stop is None:
        return None
    length = constant_difference(stop, start)
    if length is None:
        scope.sink.report(
            "FSC033",
            subscript.span,
            "the length of a range must be a constant",
            help="write `start .. start + length`",
        )
        return None
    if length <= 0:
        not_positive("the length of a range", length, subscript.span, scope)
        return None
    return Subscript(start, length, subscript.span)


def find_unknown_names(access: ast.Access, on: ast.On | None, scope: Scope) -> None:
    """Fold the expressions of an access that is wrong anyway, for the reports alone."""
    for subscript in access.subscripts:
        if not isinstance(subscript, ast.Range | ast.Wildcard):
            fold(subscript, POINT, scope)
    if on is not None:
        fold(on.rank, POINT, scope)
