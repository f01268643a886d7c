"""Text -> checked shuffles: every mistake of a file is found here, and nowhere later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from fuscoc.diagnostics import Diagnostic, DiagnosticSink, Label, nearest
from fuscoc.lang import ast
from fuscoc.lang.accesses import check_view
from fuscoc.lang.checked import Bound, CheckedShuffle, Combine, Const, Policy
from fuscoc.lang.combine import check_combine
from fuscoc.lang.declarations import (
    check_const,
    check_index,
    check_place,
    check_routes,
    check_segment,
    check_sizes,
    check_weight,
    segment_bytes,
)
from fuscoc.lang.dispatch import Path, check_dispatch
from fuscoc.lang.into import check_into
from fuscoc.lang.layouts import check_layout
from fuscoc.lang.parser import parse
from fuscoc.lang.policy import check_policy, option_spans
from fuscoc.lang.reply import check_reply, fields_of, gradient, is_one_for_one
from fuscoc.lang.scalars import indices
from fuscoc.lang.scope import (
    CONSTANT,
    INDEX,
    LAYOUT,
    REPLY,
    ROUTE,
    SEGMENT,
    VIEW,
    WEIGHT,
    Scope,
    Symbol,
)
from fuscoc.lang.usage import check_names, used_extents, used_inputs, warn
from fuscoc.source import SourceFile, Span

D = TypeVar("D", bound=ast.Declaration)


@dataclass(frozen=True)
class Checked:
    """The shuffles of a file without errors, and the warnings about it."""

    shuffles: tuple[CheckedShuffle, ...]
    warnings: tuple[Diagnostic, ...]


def check(
    source: SourceFile, overrides: Mapping[str, int] | None = None
) -> tuple[CheckedShuffle, ...]:
    """The shuffles of a file; see ``check_file``, which also tells the warnings."""
    return check_file(source, overrides).shuffles


def check_file(source: SourceFile, overrides: Mapping[str, int] | None = None) -> Checked:
    """Parse and check a file. ``overrides`` replaces the values of constants by name.

    Raises:
        CompileError: with every error of the file, in the order of its text.
    """
    overrides = overrides or {}
    sink = DiagnosticSink(source)
    shuffles = parse(source, sink)
    _check_names(shuffles, overrides, sink)
    checked = [_check_shuffle(shuffle, overrides, sink) for shuffle in shuffles]
    sink.raise_errors()
    return Checked(tuple(shuffle for shuffle in checked if shuffle is not None), sink.diagnostics)


def _check_names(
    shuffles: tuple[ast.Shuffle, ...], overrides: Mapping[str, int], sink: DiagnosticSink
) -> None:
    """Shuffles have different names, and every override names a constant of one of them."""
    is_whole = not sink.errors
    first: dict[str, tuple[Span, list[str]]] = {}
    constants = set()
    for shuffle in shuffles:
        named = [(shuffle.ident.name, shuffle.ident.span, list[str]())]
        own = [f"the reply of `{shuffle.ident.name}` is one of its own, `{reply_name(shuffle)}`"]
        named += [(reply_name(shuffle), each.ident.span, own) for each in _all(shuffle, ast.Reply)]
        for name, span, notes in named:
            if name in first:
                before, others = first[name]
                sink.report(
                    "FSC010",
                    span,
                    f"there are two shuffles `{name}`",
                    secondary=[Label(before, "the first")],
                    notes=[*others, *notes],
                )
            first.setdefault(name, (span, notes))
        constants |= {b.ident.name for const in _all(shuffle, ast.Const) for b in const.bindings}
    unknown = sorted(overrides.keys() - constants)
    if unknown and is_whole:
        similar = {match for name in unknown if (match := nearest(name, constants))}
        names = " and no constant ".join(f"`{name}`" for name in unknown)
        sink.report(
            "FSC014",
            shuffles[0].ident.span,
            f"there is no constant {names} to override",
            help=f"did you mean {' and '.join(f'`{name}`' for name in sorted(similar))}?"
            if similar
            else None,
        )


def reply_name(shuffle: ast.Shuffle) -> str:
    """What kernels and files of a shuffle's reply are named after."""
    return f"{shuffle.ident.name}_reply"


def _all(shuffle: ast.Shuffle, cls: type[D]) -> list[D]:
    return [each for each in shuffle.declarations if isinstance(each, cls)]


def _check_shuffle(
    shuffle: ast.Shuffle, overrides: Mapping[str, int], sink: DiagnosticSink
) -> CheckedShuffle | None:
    scope = declared(shuffle, overrides, sink)
    checked = _check_paths(shuffle, scope)
    if checked is not None:
        warn(shuffle, checked, scope)
    return checked


def declared(shuffle: ast.Shuffle, overrides: Mapping[str, int], sink: DiagnosticSink) -> Scope:
    """Everything that a shuffle declares, as far as it is right; what is not goes into ``sink``."""
    scope = Scope(sink)
    _declare(shuffle, scope)
    for const in _all(shuffle, ast.Const):
        check_const(const, overrides, scope)
    indices = _all(shuffle, ast.Index)
    for index in indices:
        check_index(index, scope)
    check_sizes(indices, scope)
    for segment in _all(shuffle, ast.Segment):
        check_segment(segment, scope)
    for layout in _all(shuffle, ast.Layout):
        check_layout(layout, scope)
    for place in _all(shuffle, ast.Place):
        check_place(place, scope)
    check_routes(_all(shuffle, ast.Route), scope)
    for view in _all(shuffle, ast.View):
        check_view(view, scope)
    for weight in _all(shuffle, ast.WeightDecl):
        check_weight(weight, scope)
    return scope


def _declare(shuffle: ast.Shuffle, scope: Scope) -> None:
    """Enter every declared name, so that declarations may stand in any order."""
    kinds = {
        ast.Index: INDEX,
        ast.Segment: SEGMENT,
        ast.Layout: LAYOUT,
        ast.View: VIEW,
        ast.Route: ROUTE,
        ast.WeightDecl: WEIGHT,
        ast.Reply: REPLY,
    }
    for declaration in shuffle.declarations:
        if isinstance(declaration, ast.Const):
            for binding in declaration.bindings:
                scope.declare(binding.ident, CONSTANT)
        elif not isinstance(declaration, ast.Place | ast.Dispatch | ast.Combine):
            scope.declare(declaration.ident, kinds[type(declaration)])
    for broken in shuffle.broken:
        declare_broken(broken, scope)


def _check_paths(shuffle: ast.Shuffle, scope: Scope) -> CheckedShuffle | None:
    dispatch = scope.single(shuffle.declarations, ast.Dispatch, "dispatch")
    if dispatch is None and not shuffle.broken:
        scope.sink.report(
            "FSC050",
            shuffle.ident.span,
            f"the shuffle `{shuffle.ident.name}` has no dispatch",
            help="add `dispatch source[…] -> target[…]`, the way out",
        )
    if dispatch is None:
        for each in _all(shuffle, ast.Reply):
            fields_of(each, scope)
        return None
    path = check_dispatch(dispatch, scope)
    into = check_into(dispatch, path, scope)
    policy = check_policy(dispatch, segment_bytes(path.fields) if path else None, scope)
    combine, answered = _way_back(shuffle, dispatch, path, scope)
    if path is None or scope.sink.errors:
        return None
    checked = _checked(shuffle, dispatch, path, combine, policy, scope)
    inputs, extents = checked.inputs, checked.extents
    if into is not None:
        parts = _checked(shuffle, dispatch, into.path, None, policy, scope)
        inputs = (*inputs, *(each for each in parts.inputs if each not in inputs))
        extents = (*extents, *(each for each in parts.extents if each not in extents))
        checked = replace(checked, into=into.of(replace(parts, name=f"{checked.name}_into")))
    if answered is not None:
        reply = _checked(shuffle, dispatch, *answered, policy, scope)
        inputs = (*inputs, *(each for each in reply.inputs if each not in inputs))
        reply = replace(
            reply,
            name=reply_name(shuffle),
            bounds=(),
            is_reply=True,
            shares_plan=is_one_for_one(path, answered[0]),
        )
        checked = replace(checked, reply=reply)
    check_names(path, inputs, extents, scope, checked.into)
    if policy.backend != "auto":
        from fuscoc.capabilities import check_demanded

        check_demanded(checked, scope.sink)
    return checked


def _way_back(
    shuffle: ast.Shuffle, dispatch: ast.Dispatch, path: Path | None, scope: Scope
) -> tuple[Combine | None, tuple[Path, Combine] | None]:
    """The combine of a dispatch, and the path of its reply with the combine of that."""
    combine = scope.single(shuffle.declarations, ast.Combine, "combine")
    reply = scope.single(shuffle.declarations, ast.Reply, "reply")
    if combine is not None and reply is not None:
        scope.sink.report(
            "FSC013",
            reply.span,
            "there are two ways back",
            secondary=[Label(combine.span, "the other one")],
            help="a `reply` stands in place of the `combine`: it brings back rows of its own",
        )
    if reply is None:
        return (check_combine(combine, dispatch, path, scope) if combine else None), None
    answered = check_reply(reply, dispatch, path, scope)
    return (gradient(path, reply, scope) if path is not None else None), answered


def _checked(
    shuffle: ast.Shuffle,
    dispatch: ast.Dispatch,
    path: Path,
    combine: Combine | None,
    policy: Policy,
    scope: Scope,
) -> CheckedShuffle:
    """What is known of a path and its way back, as later rooms see it."""
    inputs = used_inputs(path, combine, scope)
    declared, builtins = used_extents(path, inputs, scope)
    return CheckedShuffle(
        name=shuffle.ident.name,
        source_file=scope.sink.source,
        span=shuffle.span,
        constants=tuple(
            (name, value.value)
            for name, value in scope.constants.items()
            if isinstance(value, Const)
        ),
        extents=declared,
        builtins=builtins,
        inputs=inputs,
        domain=path.domain,
        num_source_dims=path.num_source_dims,
        segment=path.segment,
        fields=path.fields,
        source=path.source,
        target=path.target,
        combine=combine,
        policy=policy,
        dispatch_span=dispatch.span,
        casts=path.casts,
        bounds=_bounds(path, scope),
        option_spans=option_spans(dispatch),
        dropping=path.dropping,
    )


def _bounds(path: Path, scope: Scope) -> tuple[Bound, ...]:
    """What a run has to check at the points of the domain."""
    domain = {index.name for index in path.domain}
    found = dict.fromkeys(scope.bounds)
    return tuple(each for each in found if {*indices(each.value), *indices(each.limit)} <= domain)


_KINDS = {
    "const": CONSTANT,
    "index": INDEX,
    "segment": SEGMENT,
    "layout": LAYOUT,
    "view": VIEW,
    "route": ROUTE,
    "weight": WEIGHT,
    "reply": REPLY,
}


def declare_broken(broken: ast.Broken, scope: Scope) -> None:
    """Enter what a part of a shuffle with a syntax error declares, as far as its words show."""
    scope.doubtful |= broken.words
    scope.used |= broken.words
    scope.is_open = scope.is_open or not broken.is_known
    for keyword, ident in broken.declared:
        scope.broken.add(keyword)
        if ident is not None and keyword in _KINDS:
            scope.symbols.setdefault(ident.name, Symbol(_KINDS[keyword], ident.span))
            if keyword == "const":
                scope.constants.setdefault(ident.name, None)
