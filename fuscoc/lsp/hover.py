"""What a name is, in Markdown: its declaration, and the types and sizes that follow from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fuscoc.diagnostics import DiagnosticSink
from fuscoc.explain.formula import Formula, of_checked, product, text
from fuscoc.lang import ast
from fuscoc.lang.check import declared
from fuscoc.lang.checked import ExactNumbers, Field, GivenNumbers
from fuscoc.lang.declarations import segment_bytes
from fuscoc.lang.scope import BUILTINS, EXTENT, LayoutInfo, Scope
from fuscoc.lsp.names import Occurrence
from fuscoc.source import SourceFile


def hover(source: SourceFile, found: Occurrence) -> str:
    """The hover text of a name."""
    if found.declaration is None:
        return f"`{found.name}`: {BUILTINS[found.name]}"
    scope = declared(found.shuffle, {}, DiagnosticSink(source))
    code = " ".join(_declaration(source, found).split())
    facts = "\n".join(f"- {line}" for line in _facts(found, scope))
    return f"```fsc\n{code}\n```\n{facts}".rstrip()


def _declaration(source: SourceFile, found: Occurrence) -> str:
    """The text of the declaration that a name comes from."""
    assert found.declaration is not None
    if found.declaration == found.shuffle.ident.span:
        return f"shuffle {found.name}"
    for each in found.shuffle.declarations:
        if each.span.start <= found.declaration.start < each.span.end:
            return source.text[each.span.start : each.span.end]
    return found.name


def _facts(found: Occurrence, scope: Scope) -> Iterable[str]:
    name, extent = found.name, (EXTENT, found.declaration)
    if found.owner is not None:
        yield from _part(name, found.owner, scope)
    elif (value := scope.constants.get(name)) is not None:
        yield f"`{name}` = {text(of_checked(value))}"
    elif name in scope.lists:
        yield _numbers(name, scope.lists[name])
    elif name in scope.extents:
        yield f"`{name}` runs from 0 up to {text(of_checked(scope.extents[name]))}"
    elif name in scope.segments:
        yield from _segment(scope.segments[name])
    elif name in scope.layouts:
        yield from _layout(scope.layouts[name], scope)
    elif name in scope.views:
        dims, access = scope.views[name]
        runs = f" of {' × '.join(map(str, access.lengths))} cells" if access.lengths else ""
        yield f"a segment{runs} of `{access.layout.ident.name}` for each {', '.join(dims)}"
    elif name in scope.routes:
        route = scope.routes[name]
        what = "computed"
        if route.input is not None:
            shape = [text(of_checked(scope.extents[each])) for each in route.params]
            shape += [str(len(route.results))] if len(route.results) > 1 else []
            what = f"input `{route.input.ident.name}`: {route.input.dtype}[{', '.join(shape)}]"
        yield f"{what}; results: {', '.join(route.results)}"
    elif name in scope.weights:
        weight = scope.weights[name]
        shape = [text(of_checked(scope.extents[each])) for each in weight.params]
        yield f"input `{weight.input.name}`: {weight.dtype}[{', '.join(shape)}]"
    elif name in scope.sizes:
        yield f"input `{name}`: i64, one for each `{scope.sizes[name].index}`"
    elif (reply := _reply(found)) is not None and reply.segment.name in scope.segments:
        row = segment_bytes(scope.segments[reply.segment.name])
        indices = ", ".join(f"`{index.name}`" for index in reply.indices)
        what = f"{row:,} bytes (segment `{reply.segment.name}`)"
        yield f"a row of {what} comes back for each {indices}"
    elif name in scope.inputs:
        yield "an input tensor, given with every call"
    elif (symbol := scope.symbols.get(name)) and (symbol.kind, symbol.span) == extent:
        yield "a run-time extent, given with every call"


def _numbers(name: str, numbers: ExactNumbers) -> str:
    if isinstance(numbers, tuple):
        return f"`{name}` = {', '.join(str(float(each)) for each in numbers)}"
    many = f"{numbers.count} numbers" if numbers.count > 1 else "a number"
    if isinstance(numbers, GivenNumbers):
        return f"input `{numbers.input}`: {many} of f32 for casts, given with every call"
    return f"{many} for casts, computed with every call"


def _reply(found: Occurrence) -> ast.Reply | None:
    """The reply of that name."""
    replies = (each for each in found.shuffle.declarations if isinstance(each, ast.Reply))
    return next((each for each in replies if each.ident.span == found.declaration), None)


def _part(name: str, owner: str, scope: Scope) -> Iterable[str]:
    for field in scope.segments.get(owner, ()):
        if field.name == name:
            yield f"{_type(field)}: {segment_bytes([field]):,} bytes"
    if owner in scope.routes:
        yield f"a result of the route `{owner}`"


def _segment(fields: Sequence[Field]) -> Iterable[str]:
    yield f"{segment_bytes(fields):,} bytes"
    if len(fields) > 1:
        yield from (f"`{each.name}`: {segment_bytes([each]):,} bytes" for each in fields)


def _layout(layout: LayoutInfo, scope: Scope) -> Iterable[str]:
    cell = segment_bytes(layout.fields)
    what = f"segment `{layout.segment}`" if layout.segment else _type(layout.fields[0])
    extents = [of_checked(extent) for extent in layout.extents]
    if layout.packed:
        keys = text(product(*extents))
        yield f"{keys} keys, each with slots of {cell:,} bytes ({what})"
        if len(extents) > 1:
            named = zip(layout.dims, extents, strict=False)
            sizes = " of ".join(f"{text(each)} `{dim}`" for dim, each in named)
            yield f"numbered by {sizes}, the last fastest"
        yield f"the first slot of a key is a multiple of {layout.align:,}"
        room = "what arrives" if layout.capacity is None else f"at most {layout.capacity:,}"
        yield f"slots of a rank: {room}"
        if layout.compact is not None:
            yield "compact: a rank holds a segment once, and its slots refer to it"
        if layout.distinct is not None:
            yield "distinct: a key holds a segment once"
        placement = scope.placements.get(layout.dims[0])
        if placement is not None:
            owner = f"as `{placement.table}` says" if placement.table else f"by {placement.kind}"
            yield f"keys are placed {owner}"
        return
    yield f"cells of {cell:,} bytes ({what})"
    for position, (dim, extent) in enumerate(zip(layout.dims, extents, strict=True)):
        stride = product(cell, *extents[position + 1 :])
        yield f"`{dim}`: {text(extent)}, stride {_bytes(stride)}"
    if all(isinstance(extent, int) for extent in extents):
        yield f"{_bytes(product(cell, *extents))} in all"


def _type(field: Field) -> str:
    return field.spelled


def _bytes(size: Formula) -> str:
    return f"{text(size)} bytes"
