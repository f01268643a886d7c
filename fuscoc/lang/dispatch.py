"""The way out: which segments a dispatch reads, over which domain, and where they go."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import prod

from fuscoc.diagnostics import Label
from fuscoc.lang import ast
from fuscoc.lang.accesses import check_access, find_unknown_names, reads_packed, right_arity
from fuscoc.lang.checked import (
    RANKS,
    Cast,
    Const,
    DenseTarget,
    DomainIndex,
    Field,
    PackedTarget,
    Scalar,
    Source,
)
from fuscoc.lang.context import check_indices
from fuscoc.lang.declarations import extent_not_constant, is_ragged
from fuscoc.lang.delivery import EMPTY, WRONG, Delivery, check_delivery
from fuscoc.lang.distinct import check_distinct
from fuscoc.lang.fields import match_fields
from fuscoc.lang.fold import too_large
from fuscoc.lang.packed_target import packed_target
from fuscoc.lang.scalars import indices
from fuscoc.lang.scope import INDEX, LAYOUT, VIEW, AccessInfo, Scope
from fuscoc.lang.target import NOTHING, TargetInfo, dense_target
from fuscoc.lang.view_target import as_segment, can_be_cut, unrolled, view_target

MAX_FAN_OUT = 2**16


@dataclass(frozen=True)
class Path:
    """A dispatch whose parts are all right; ``dropping`` as in `CheckedShuffle`."""

    domain: tuple[DomainIndex, ...]
    num_source_dims: int
    segment: str
    fields: tuple[Field, ...]
    source: Source
    target: PackedTarget | DenseTarget
    target_scalars: tuple[Scalar, ...]
    casts: tuple[Cast, ...]
    dropping: tuple[Scalar, ...] = ()


def check_dispatch(
    dispatch: ast.Dispatch, scope: Scope, *, codes: Collection[str] = WRONG
) -> Path | None:
    """The path of a dispatch; of what can be wrong with its slots, only ``codes`` are reported.
    Mistakes of source and target are reported independently."""
    source = _source(dispatch.source, scope)
    target = _target(dispatch, scope)
    layout = target.element or scope.layouts.get(dispatch.target.layout.name)
    if source is None or layout is None:
        return None
    source_indices, access = source
    if target.element is not None:
        layout = as_segment(layout, access, scope)
    domain = _domain(source_indices, access, target, dispatch, scope)
    matched = match_fields(access, layout, dispatch, scope)
    if domain is None or matched is None or target.checked is None:
        return None
    if not can_be_cut(access, target.split, dispatch, scope):
        return None
    if isinstance(target.checked, DenseTarget):
        assert target.rank is not None
        is_clipped = target.rank != target.checked.rank
        places = Delivery(
            domain, target.rank, target.places, target.dims, layout.extents, is_clipped
        )
        may_be_empty = _may_have_empty_slots(dispatch, scope)
        wrong = [code for code in codes if not (may_be_empty and code == EMPTY)]
        check_delivery(places, dispatch, layout, scope, codes=wrong)
    elif not check_distinct(target.checked, domain[len(source_indices) :], layout, scope):
        return None
    origin = Source(
        layout=access.layout.ident.name,
        fields=matched.cells,
        dims=access.dims,
        subscripts=access.subscripts,
        span=dispatch.source.span,
        order=access.order,
    )
    segments, fields = unrolled(origin, matched.fields, target.split)
    return Path(
        domain=domain,
        num_source_dims=len(source_indices) + len(target.split),
        segment=matched.segment,
        fields=fields,
        source=segments,
        target=target.checked,
        target_scalars=target.scalars,
        casts=matched.casts,
    )


def _may_have_empty_slots(dispatch: ast.Dispatch, scope: Scope) -> bool:
    """Whether slots without a segment are meant; what goes `into` memory leaves others alone."""
    partial = scope.single(dispatch.options, ast.Partial, "partial")
    return partial is not None or any(isinstance(each, ast.Into) for each in dispatch.options)


def _source(access: ast.Access, scope: Scope) -> tuple[tuple[str, ...], AccessInfo] | None:
    """The indices that enumerate the segments, outermost first, and where each segment lies."""
    kind = scope.find(access.layout, {LAYOUT, VIEW}, "a layout or a view")
    if reads_packed(access, scope):
        return None
    subscripts = [_source_index(subscript, scope) for subscript in access.subscripts]
    names = tuple(index.name for index in subscripts if index is not None)
    if kind is None or len(names) != len(subscripts):
        return None
    if not scope.distinct([ast.Ident(i.name, span=i.span) for i in subscripts if i is not None]):
        return None
    if kind == LAYOUT:
        info = check_access(access, scope)
        return None if info is None else (names, info)

    if access.layout.name not in scope.views:
        return None
    dims, info = scope.views[access.layout.name]
    view = ast.Ident(access.layout.name, span=scope.symbols[access.layout.name].span)
    if not right_arity(access, len(dims), view, scope):
        return None
    if not check_indices(access.subscripts, dims, view, scope, computed=False):
        return None
    return names, info


def _source_index(subscript: ast.Subscript, scope: Scope) -> ast.Name | None:
    """A subscript of the source, which has to be a plain index whose extent is known."""
    if isinstance(subscript, ast.Wildcard):
        scope.sink.report("FSC036", subscript.span, "`*` stands for a slot of a packed target")
        return None
    if isinstance(subscript, ast.Range):
        scope.sink.report(
            "FSC036",
            subscript.span,
            "a dispatch reads one segment for each value of its indices",
            help="declare what a segment covers as a `view`",
        )
        return None
    if not isinstance(subscript, ast.Name):
        scope.sink.report(
            "FSC065",
            subscript.span,
            "not yet supported: a computed subscript of a source",
            "a plain index is needed here",
            help="declare the segments as a `view` and dispatch that",
        )
        return None
    if scope.find(subscript, {INDEX}, "an index") is None or subscript.name not in scope.extents:
        return None
    return subscript


def _target(dispatch: ast.Dispatch, scope: Scope) -> TargetInfo:
    """The target of a dispatch, with its ``on`` clause."""
    access = dispatch.target
    on = scope.single(dispatch.options, ast.On, "on")
    kind = scope.find(access.layout, {LAYOUT, VIEW}, "a layout or a view")
    layout = scope.layouts.get(access.layout.name)
    if layout is None and access.layout.name not in scope.views:
        find_unknown_names(access, on, scope)
        return NOTHING
    for subscript in access.subscripts:
        if isinstance(subscript, ast.Range):
            scope.sink.report(
                "FSC036", subscript.span, "a segment goes to one slot, not to a range"
            )
            return NOTHING
    if layout is None or kind == VIEW:
        return view_target(dispatch, on, scope)
    return (packed_target if layout.packed else dense_target)(dispatch, layout, on, scope)


def _domain(
    source: tuple[str, ...],
    access: AccessInfo,
    target: TargetInfo,
    dispatch: ast.Dispatch,
    scope: Scope,
) -> tuple[DomainIndex, ...] | None:
    """The source's indices, then those of the target alone in the order of their declaration."""
    used = {name for scalar in target.scalars for name in indices(scalar)}
    fan_out = [name for name in scope.extents if name in used - set(source)]
    good = True
    varies_with = {name for dim in access.dims for name in indices(dim)}
    if not varies_with <= {source[0]}:
        scope.sink.report(
            "FSC064",
            dispatch.source.span,
            f"not yet supported: the extents of `{access.layout.ident.name}` vary, but not with "
            "the outermost index of the source",
            secondary=[Label(access.layout.ident.span, "declared here")],
        )
        good = False
    for name in source:
        extent = scope.extents[name]
        if is_ragged(extent) and (name == source[0] or set(indices(extent)) != {source[0]}):
            scope.sink.report(
                "FSC064",
                dispatch.source.span,
                f"not yet supported: the extent of `{name}` varies, but not with the outermost "
                "index of the source alone",
                secondary=[Label(scope.symbols[name].span, "declared here")],
            )
            good = False
    every_rank = [name for name in fan_out if scope.extents[name] == RANKS]
    for name in every_rank[1:]:
        scope.sink.report(
            "FSC020",
            scope.extent_spans[name],
            f"each segment goes out once for each `{every_rank[0]}` already, which are all ranks",
            "a constant is needed here",
            secondary=[Label(scope.symbols[every_rank[0]].span, "declared here")],
        )
        good = False
    for name in fan_out:
        if not isinstance(scope.extents[name], Const) and name not in every_rank:
            why = f"each segment goes out once for each `{name}`"
            where = Label(dispatch.source.span, f"no `{name}` among the source's indices")
            extent_not_constant(name, why, where, scope, "a constant, or `ranks`")
            good = False
    sizes = [scope.extents[name] for name in fan_out]
    copies = prod(size.value for size in sizes if isinstance(size, Const))
    if copies > MAX_FAN_OUT:
        what = "the number of destinations of a segment"
        too_large(what, copies, MAX_FAN_OUT, dispatch.target.span, scope)
        good = False
    if not good:
        return None
    own, others = (
        tuple(DomainIndex(name, scope.extents[name], scope.symbols[name].span) for name in names)
        for names in (source, fan_out)
    )
    return (*own, *target.split, *others)
