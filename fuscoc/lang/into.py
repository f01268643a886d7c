"""``into``: memory of the caller's, which rows go into from the slots that they have arrived in.

What it says is a dispatch of every rank to itself, out of the target's slots: so it is checked as
one, with the same words, proofs and counterexamples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fuscoc.diagnostics import Label
from fuscoc.lang import ast
from fuscoc.lang.aliasing import shared_cell
from fuscoc.lang.checked import CheckedShuffle, Into
from fuscoc.lang.combine import can_reduce
from fuscoc.lang.dispatch import Path, check_dispatch
from fuscoc.lang.policy import unknown_option
from fuscoc.lang.reductions import REDUCTIONS
from fuscoc.lang.scope import VIEW, LayoutInfo, Scope


@dataclass(frozen=True)
class IntoPath:
    """The caller's ``memory``, and where in it each part of a row goes."""

    memory: LayoutInfo
    path: Path
    clause: ast.Into

    def of(self, parts: CheckedShuffle) -> Into:
        """What later rooms see of it; ``parts`` is what is known of its path."""
        fields = self.memory.fields
        if self.memory.segment is None:
            fields = (replace(fields[0], name=parts.fields[0].name),)
        name, extents = self.memory.ident.name, self.memory.extents
        kind = "copy" if self.clause.reduce is None else self.clause.reduce.op.name
        return Into(name, extents, fields, parts, kind, self.clause.span)


def check_into(dispatch: ast.Dispatch, sends: Path | None, scope: Scope) -> IntoPath | None:
    """Where the ``into`` of a dispatch, whose path ``sends`` is, sends rows; None without one, or
    after a report."""
    clause = scope.single(dispatch.options, ast.Into, "into")
    if clause is None:
        return None
    memory = _memory(clause, scope)
    target = scope.layouts.get(dispatch.target.layout.name)
    if memory is None or not _has_slots(dispatch, target, clause, scope):
        return None
    assert target is not None
    source = _layout(dispatch.source, scope)
    what, notes = None, list[str]()
    if memory.packed:
        what = "its slots are assigned"
    elif memory.ident.name == target.ident.name:
        what = "rows come from there"
    elif source is not None and memory.ident.name == source.ident.name:
        what = "the dispatch reads it, and a row could be replaced before it is sent"
        keeps = check_dispatch(_of_itself(dispatch, target, clause), scope, codes=())
        if sends is not None and keeps is not None:
            cell = shared_cell(sends, keeps, len(target.dims))
            notes = [] if cell is None else [cell]
    if what is not None:
        scope.sink.report(
            "FSC063",
            clause.span,
            f"not yet supported: `{memory.ident.name}` as memory of the caller's: {what}",
            secondary=[Label(memory.ident.span, "declared here")],
            notes=notes,
        )
        return None
    if any(field.is_complex for field in memory.fields):
        message = "not yet supported: complex numbers in memory of the caller's"
        scope.sink.report("FSC063", clause.span, message)
        return None
    unnamed = next((dim for dim in target.dims if dim not in scope.symbols), None)
    if unnamed is not None:
        if not scope.may_declare(unnamed):
            scope.sink.report(
                "FSC011",
                clause.access.span,
                f"`{unnamed}` of `{target.ident.name}` is no index, by which rows could go on",
                secondary=[Label(target.ident.span, "declared here")],
                help=f"declare its slots as an index: `index {unnamed} : …`",
            )
        return None
    if clause.reduce is not None and not _adds(clause.reduce, memory, scope):
        return None
    # Some of the memory may stay as it is; rows that are added up may share a place.
    codes = ("FSC034",) if clause.reduce is not None else ("FSC034", "FSC059")
    path = check_dispatch(_of_itself(dispatch, target, clause), scope, codes=codes)
    if path is None:
        return None
    if path.num_source_dims != len(path.domain):
        name = path.domain[path.num_source_dims].name
        scope.sink.report(
            "FSC041",
            clause.access.span,
            f"`{name}` is none of the dimensions of `{target.ident.name}`, whose rows go on here",
            secondary=[Label(target.ident.span, "declared here")],
        )
        return None
    return IntoPath(memory, path, clause)


def _memory(clause: ast.Into, scope: Scope) -> LayoutInfo | None:
    """The layout that the clause names; None after a report."""
    symbol = scope.symbols.get(clause.access.layout.name)
    if symbol is None or symbol.kind != VIEW:
        scope.find(clause.access.layout, {"layout", VIEW}, "a layout or a view")
    return _layout(clause.access, scope)


def _layout(access: ast.Access, scope: Scope) -> LayoutInfo | None:
    """The layout of an access, itself or by a view, if it is known."""
    name = access.layout.name
    return scope.views[name][1].layout if name in scope.views else scope.layouts.get(name)


def _has_slots(
    dispatch: ast.Dispatch, target: LayoutInfo | None, clause: ast.Into, scope: Scope
) -> bool:
    """Whether rows have slots that the spec chooses, from which they may go on."""
    if target is not None and not target.packed:
        return True
    symbol = scope.symbols.get(dispatch.target.layout.name)
    if target is None and (symbol is None or symbol.kind != VIEW):
        return False  # reported
    what = "a view as the target" if target is None else "a packed target"
    scope.sink.report(
        "FSC063",
        clause.span,
        f"not yet supported: `into` beside {what}",
        secondary=[Label(dispatch.target.span, "the target")],
        help="dispatch to a dense layout, whose slots the spec computes",
    )
    return False


def _adds(reduce: ast.Reduce, memory: LayoutInfo, scope: Scope) -> bool:
    """Whether rows can be added to what is there."""
    if reduce.op.name not in REDUCTIONS:
        unknown_option(reduce.op, "reduce", ["sum"], scope)
        return False
    reduction = REDUCTIONS[reduce.op.name]
    if not reduction.sums or reduce.weight is not None:
        what = "a weighed sum" if reduction.sums else reduction.noun
        message = f"not yet supported: {what} of what goes into memory of the caller's"
        scope.sink.report("FSC063", reduce.span, message, help="write `reduce sum`")
        return False
    reducible = [can_reduce(reduce, reduction, field, scope) for field in memory.fields]
    return all(reducible)


def _of_itself(dispatch: ast.Dispatch, target: LayoutInfo, clause: ast.Into) -> ast.Dispatch:
    """``dispatch target[…] -> access on rank``."""
    here, there = dispatch.target.span, clause.access.span
    slots = tuple(ast.Name(dim, span=here) for dim in target.dims)
    source = ast.Access(ast.Ident(target.ident.name, span=here), slots, span=here)
    on = ast.On(ast.Name("rank", span=there), span=there)
    return ast.Dispatch(source, clause.access, (on,), span=clause.span)
