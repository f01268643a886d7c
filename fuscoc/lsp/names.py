"""The names of a text: each place where one stands, and the place that declares it.

Found in the syntax tree alone, so that they are known while a spec is still wrong. What nothing
declares, such as a run-time extent, is declared where it stands first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass

from fuscoc.diagnostics import DiagnosticSink
from fuscoc.lang import ast, dtypes
from fuscoc.lang.normalising import leaves
from fuscoc.lang.parser import parse
from fuscoc.lang.scope import BUILTINS
from fuscoc.source import SourceFile, Span

_DECLARATIONS = (ast.Index, ast.Segment, ast.Layout, ast.View, ast.Route, ast.WeightDecl, ast.Reply)


@dataclass(frozen=True)
class Occurrence:
    """A name where it stands: of which shuffle, and where it is declared (None: built in).

    ``owner`` is the segment or the route that the name belongs to, if it belongs to one.
    """

    name: str
    span: Span
    declaration: Span | None
    shuffle: ast.Shuffle
    owner: str | None = None


def occurrence_at(source: SourceFile, offset: int) -> Occurrence | None:
    """The name at an offset, or right before it."""
    for shuffle in parse(source, DiagnosticSink(source)):
        if shuffle.span.start <= offset <= shuffle.span.end:
            found = (each for each in occurrences(shuffle) if _covers(each.span, offset))
            return next(found, None)
    return None


def _covers(span: Span, offset: int) -> bool:
    return span.start <= offset <= span.end


def occurrences(shuffle: ast.Shuffle) -> Iterator[Occurrence]:
    """Every name of a shuffle, in the order of the text, element types and options left out."""
    yield Occurrence(shuffle.ident.name, shuffle.ident.span, shuffle.ident.span, shuffle)
    declared = dict(_declared(shuffle))
    owned = dict(_owned(shuffle))
    for node, owner in _names(shuffle):
        name, span = node.name, node.span
        if (owner, name) in owned:
            yield Occurrence(name, span, owned[owner, name], shuffle, owner)
        elif owner is not None and name not in declared:
            continue  # a part that its owner does not have
        elif name in BUILTINS:
            yield Occurrence(name, span, None, shuffle)
        else:
            declaration = declared.setdefault(name, span)
            yield Occurrence(name, span, declaration, shuffle)


def _declared(shuffle: ast.Shuffle) -> Iterator[tuple[str, Span]]:
    for part in shuffle.broken:
        yield from ((ident.name, ident.span) for _, ident in part.declared if ident is not None)
    for each in reversed(shuffle.declarations):  # so that the first of two is the one that counts
        if isinstance(each, ast.Const):
            yield from ((b.ident.name, b.ident.span) for b in reversed(each.bindings))
        elif isinstance(each, _DECLARATIONS):
            yield each.ident.name, each.ident.span


def _owned(shuffle: ast.Shuffle) -> Iterator[tuple[tuple[str | None, str], Span]]:
    """The fields of segments and the results of routes, by owner and name."""
    for each in shuffle.declarations:
        if isinstance(each, ast.Segment):
            for field in each.fields:
                yield (each.ident.name, field.ident.name), field.ident.span
        elif isinstance(each, ast.Route) and len(each.results) > 1:
            for result in each.results:
                yield (each.ident.name, result.name), result.span


def _names(
    node: object, owner: str | None = None
) -> Iterator[tuple[ast.Ident | ast.Name, str | None]]:
    """The names below a node with their owners, in the order of the text."""
    match node:
        case tuple():
            for each in node:
                yield from _names(each, owner)
        case ast.Ident() | ast.Name():
            yield node, owner
        case ast.Shuffle():
            yield from _names(node.declarations)
        case ast.Segment():
            yield node.ident, None
            for field in node.fields:
                yield field.ident, node.ident.name
                yield from _names(field.type)
        case ast.Type():
            if node.name.name not in dtypes.NAMES:
                yield node.name, None
            yield from _names(node.shape)
        case ast.Route(results=results) if len(results) > 1:
            yield node.ident, None
            yield from _names(node.params)
            yield from _names(results, node.ident.name)
            yield from _names(node.relation)
        case ast.Member():
            yield from _names(node.call)
            yield node.result, node.call.function.name
        case ast.Dedup() | ast.Choice():
            return
        case ast.CastItem(value=value):  # whose fields nobody owns
            yield from ((each, "") for each in leaves(value) if isinstance(each, ast.Name))
        case ast.Slice():
            yield from _names(node.size)
        case _ if is_dataclass(node):
            for part in fields(node):
                yield from _names(getattr(node, part.name), owner)
