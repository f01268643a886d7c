"""``reply sums[t] of pooled reduce sum(w)``: a way back whose rows are not those of the way out.

A reply is the combine of a shuffle of its own. That has the points, the slots and the owners of the
dispatch, and in the place of its source a dense layout, one row for each value of the first of the
source's indices. What other indices tell apart comes back to one row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from fuscoc.diagnostics import Label
from fuscoc.lang import ast
from fuscoc.lang.checked import (
    Combine,
    Const,
    Field,
    IndexRef,
    Inside,
    Load,
    PackedTarget,
    Scalar,
    Source,
    Subscript,
)
from fuscoc.lang.combine import check_combine, segments_apart
from fuscoc.lang.declarations import extent_not_constant
from fuscoc.lang.dispatch import MAX_FAN_OUT, Path
from fuscoc.lang.fold import too_large
from fuscoc.lang.proof import Proved
from fuscoc.lang.reductions import REDUCTIONS
from fuscoc.lang.scalars import loads, parts
from fuscoc.lang.scope import INDEX, SEGMENT, Scope


def check_reply(
    reply: ast.Reply, dispatch: ast.Dispatch, path: Path | None, scope: Scope
) -> tuple[Path, Combine] | None:
    """The path that a reply is the way back of, and how; ``path`` is that of the dispatch, None if
    it was reported already."""
    fields = fields_of(reply, scope)
    if path is None or fields is None or not _fits(reply, dispatch, path, scope):
        check_combine(reply, dispatch, None, scope)
        return None
    kept = path.domain[: len(reply.indices)]
    rows = Source(
        layout=reply.ident.name,
        fields=fields,
        dims=tuple(index.extent for index in kept),
        subscripts=tuple(
            Subscript(IndexRef(index.name), None, ident.span)
            for index, ident in zip(kept, reply.indices, strict=True)
        ),
        span=reply.span,
    )
    target = path.target
    if isinstance(target, PackedTarget):  # a row of it goes where several of the dispatch's have
        target = replace(target, distinct=False)
    back = replace(
        path,
        target=target,
        num_source_dims=len(kept),
        segment=reply.segment.name,
        fields=fields,
        source=rows,
        casts=(),
        dropping=tuple(_dropping(path, scope)),
    )
    combine = check_combine(reply, dispatch, back, scope)
    return None if combine is None else (back, combine)


def fields_of(reply: ast.Reply, scope: Scope) -> tuple[Field, ...] | None:
    """The fields of a reply's rows; None if something that it names was reported."""
    scope.used.add(reply.ident.name)
    known = scope.find(reply.segment, {SEGMENT}, "a segment") is not None
    found = [scope.find(index, {INDEX}, "an index") for index in reply.indices]
    good = scope.distinct(reply.indices) and known and None not in found
    return scope.segments.get(reply.segment.name) if good else None


def _dropping(path: Path, scope: Scope) -> Iterator[Scalar]:
    """What drops a point where it is -1, of what its source segment is found by."""
    for subscript in path.source.subscripts:
        for part in reversed([*parts(subscript.start)]):
            if isinstance(part, Inside):
                yield part.value
            elif isinstance(part, Load) and part.input not in scope.sizes:
                yield part


def is_one_for_one(path: Path, back: Path) -> bool:
    """Whether a reply has a row for every segment of the dispatch, at the same place: then all
    lists of a plan are those of the other."""
    sent = [(each.start, each.length) for each in path.source.subscripts]
    answered = [(each.start, each.length) for each in back.source.subscripts]
    return sent == answered and path.source.dims == back.source.dims


def gradient(path: Path, reply: ast.Reply, scope: Scope) -> Combine | None:
    """The way back of what was sent, if that can have a gradient: no user calls it.

    It sums the rows of a segment, or copies where there is one of them.
    """
    if not isinstance(segments_apart(path, scope), Proved):
        return None
    if len(path.domain) == path.num_source_dims:
        return Combine("copy", None, reply.span)
    summed = all(field.dtype in REDUCTIONS["sum"].dtypes for field in path.source.fields)
    return Combine("sum", None, reply.span) if summed else None


def _fits(reply: ast.Reply, dispatch: ast.Dispatch, path: Path, scope: Scope) -> bool:
    """Whether the indices of a reply say which rows come back to which of its own."""
    own = path.domain[: path.num_source_dims]
    if len(own) > len(dispatch.source.subscripts):
        scope.sink.report(
            "FSC063",
            reply.span,
            "not yet supported: a reply from the runs of a view",
            secondary=[Label(dispatch.target.span, "the view")],
        )
        return False
    names, given = [index.name for index in own], [index.name for index in reply.indices]
    if given != names[: len(given)]:
        ways = [f"`{reply.ident.name}[{', '.join(names[: i + 1])}]`" for i in range(len(names))]
        scope.sink.report(
            "FSC051",
            reply.indices[0].span.to(reply.indices[-1].span),
            f"`{reply.ident.name}` has a row for each ({', '.join(given)}), and the dispatch sends "
            f"one for each ({', '.join(names)})",
            "the first indices of the dispatch's source are needed here",
            secondary=[Label(dispatch.source.span, "what is sent")],
            help=f"write {' or '.join(ways)}",
        )
        return False
    varying = [index for index in own if loads(index.extent)]
    if varying:
        scope.sink.report(
            "FSC064",
            reply.span,
            f"not yet supported: a reply where the extent of `{varying[0].name}` varies",
            secondary=[Label(varying[0].span, "declared here")],
        )
        return False
    dropped = own[len(given) :]
    unknown = [index for index in dropped if not isinstance(index.extent, Const)]
    for index in unknown:
        why = f"`{reply.ident.name}` has one row for all `{index.name}`"
        where = Label(reply.span, f"no `{index.name}` among its indices")
        extent_not_constant(index.name, why, where, scope)
    sizes = [index.extent for index in path.domain[len(given) :]]
    rows = prod(size.value for size in sizes if isinstance(size, Const))
    if rows > MAX_FAN_OUT:
        too_large("the number of rows that come back to one", rows, MAX_FAN_OUT, reply.span, scope)
    return not unknown and rows <= MAX_FAN_OUT
