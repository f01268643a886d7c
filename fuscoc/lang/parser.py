"""Text -> syntax tree. The grammar is in ``grammar.lark``; errors are worded in ``syntax.py``.

The parser calls the tree builder's methods, one for each rule of the grammar, bottom-up while it
reads, so no intermediate tree is built and deep nesting costs no Python stack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any, TypeVar

from lark import Lark, Token
from lark.exceptions import UnexpectedInput

from fuscoc.diagnostics import DiagnosticSink
from fuscoc.lang import ast
from fuscoc.lang.tables import load_parser
from fuscoc.source import SourceFile, Span

MAX_DIGITS = 30  # as written; what a number may be worth is decided when it is folded

T = TypeVar("T")


def _span(children: list[Any]) -> Span:
    """From the first to the last child; a rule's tokens are among its children."""
    ends = [
        Span(child.start_pos, child.end_pos) if isinstance(child, Token) else child.span
        for child in (children[0], children[-1])
    ]
    return ends[0].to(ends[1])


def _rule(build: Callable[..., T]) -> Callable[[TreeBuilder, list[Any]], T]:
    """A method that gets the span and the node children; tokens are left out."""

    def method(self: TreeBuilder, children: list[Any]) -> T:
        nodes = [child for child in children if not isinstance(child, Token)]
        return build(_span(children), *nodes)

    return method


def _node(make: Callable[..., T], repeated_from: int | None = None) -> Any:
    """A method that makes a node of its child nodes, those from a position on as one tuple."""

    def build(span: Span, *nodes: Any) -> T:
        if repeated_from is None:
            return make(*nodes, span=span)
        return make(*nodes[:repeated_from], nodes[repeated_from:], span=span)

    return _rule(build)


class TreeBuilder:
    """The callbacks of the parser; see the grammar for what each rule reads."""

    def start(self, shuffles: list[ast.Shuffle]) -> tuple[ast.Shuffle, ...]:
        return tuple(shuffles)

    shuffle = _node(ast.Shuffle, repeated_from=1)
    const = _node(ast.Const, repeated_from=0)
    binding = _node(ast.Binding)
    index = _node(ast.Index)
    segment = _node(ast.Segment, repeated_from=1)
    field = _node(ast.FieldDecl)
    type = _rule(lambda span, name, shape=(): ast.Type(name, shape, span=span))

    layout = _node(ast.Layout, repeated_from=3)
    packed = _node(ast.Packed)
    dense = _node(ast.Dense)
    compact = _node(ast.Compact)
    distinct = _node(ast.Distinct)
    align = _node(ast.Align)
    capacity = _rule(lambda span, limit=None: ast.Capacity(limit, span=span))
    view = _node(ast.View)
    order = _node(ast.Order)

    route = _node(ast.Route)
    computed = _node(ast.ComputedRelation, repeated_from=0)
    weight = _node(ast.WeightDecl)

    dispatch = _node(ast.Dispatch, repeated_from=2)
    on = _node(ast.On)
    clip = _node(ast.Clip)
    partial = _node(ast.Partial)
    dedup = _node(ast.Dedup)
    slice = _node(ast.Slice)
    cast = _node(ast.Cast, repeated_from=0)
    into = _node(ast.Into)
    cast_item = _rule(lambda span, value, scale=None: ast.CastItem(value, scale, span=span))

    access = _node(ast.Access, repeated_from=1)
    range = _node(ast.Range)
    wildcard = _node(ast.Wildcard)

    def idents(self, children: list[Any]) -> tuple[ast.Ident, ...]:
        return tuple(child for child in children if not isinstance(child, Token))

    exprs = idents
    results = idents

    def relation(self, children: list[Any]) -> ast.InputRelation:
        _, name, _, type = children
        return ast.InputRelation(name, type, span=_span(children))

    def place(self, children: list[Any]) -> ast.Place:
        _, index, _, _, _, kind, *table = children
        return ast.Place(index, kind.value, table[0] if table else None, span=_span(children))

    def choice(self, children: list[Any]) -> ast.Choice:
        knob, value = children
        return ast.Choice(knob.value, value, span=_span(children))

    def combine(self, children: list[Any]) -> ast.Combine:
        nodes = [child for child in children if not isinstance(child, Token)]
        paths = [node for node in nodes if isinstance(node, ast.Access)]
        reduces = [node for node in nodes if isinstance(node, ast.Reduce)]
        return ast.Combine(
            (paths[0], paths[1]) if paths else None,
            reduces[0] if reduces else None,
            span=_span(children),
        )

    reply = _node(ast.Reply)

    def reduce(self, children: list[Any]) -> ast.Reduce:
        _, op, *rest = children
        found = next((child for child in rest if not isinstance(child, Token)), None)
        weight = indices = None
        if isinstance(found, ast.Ident):
            weight = found
        elif found is not None:
            called = isinstance(found, ast.Call)
            weight = found.function if called else found.layout
            listed = found.args if called else found.subscripts
            indices = ast.Indices(listed, span=Span(weight.span.end, found.span.end))
        return ast.Reduce(op, weight, indices, span=_span(children))

    def sum(self, children: list[Any]) -> ast.Binary:
        lhs, op, rhs = children
        return _shallow(ast.Binary(op.value, lhs, rhs, span=_span(children)))

    product = sum

    def group(self, children: list[Any]) -> ast.Expr:
        """Parentheses leave no node of their own; the one inside them covers them."""
        _, inner, _ = children
        grouped: ast.Expr = replace(inner, span=_span(children))
        return grouped

    def number(self, children: list[Token]) -> ast.Number:
        return ast.Number(int(_digits(children)), span=_span(children))

    def decimal(self, children: list[Token]) -> ast.Decimal:
        return ast.Decimal(Fraction(_digits(children)), span=_span(children))

    def values(self, children: list[Any]) -> ast.Values:
        _, items, _ = children
        return _shallow(ast.Values(items, span=_span(children)))

    def name(self, children: list[ast.Ident]) -> ast.Name:
        return ast.Name(children[0].name, span=children[0].span)

    def call(self, children: list[Any]) -> ast.Call:
        function, _, args, _ = children
        return _shallow(ast.Call(function, args, span=_span(children)))

    member = _node(ast.Member)

    def ident(self, children: list[Token]) -> ast.Ident:
        return ast.Ident(children[0].value, span=_span(children))


def _digits(children: list[Token]) -> str:
    """What a number is written with, refused if that is very long."""
    digits = str(children[0].value.replace("_", ""))
    count = len(digits.replace(".", ""))
    if count > MAX_DIGITS:
        raise ast.TooLargeError(f"a number of {count} digits", _span(children))
    return digits


def _shallow(expr: T) -> T:
    """The expression, refused if it nests too deeply; its parts have passed already."""
    assert isinstance(expr, ast.Binary | ast.Call | ast.Values)
    if ast.depth(expr) > ast.MAX_DEPTH:
        raise ast.TooLargeError(f"an expression of more than {ast.MAX_DEPTH} levels", expr.span)
    return expr


MAX_SYNTAX_ERRORS = 20


def parse(source: SourceFile, sink: DiagnosticSink) -> tuple[ast.Shuffle, ...]:
    """The shuffles of a file, with the reasons in ``sink`` why parts of them are missing.

    What holds an error is left out and the text is parsed again, so one run shows several syntax
    errors, and the rest can be checked. Of a text with very many there is no tree.
    """
    text = source.text
    broken: list[ast.Broken] = []
    for _ in range(MAX_SYNTAX_ERRORS):
        try:
            shuffles: tuple[ast.Shuffle, ...] = _parser().parse(text)
        except (ast.TooLargeError, UnexpectedInput) as error:
            from fuscoc.lang.recovery import read_on  # only needed once something is wrong

            text, left_out = read_on(error, text, sink, _parser().parse)
            if left_out is not None:
                broken.append(left_out)
        else:
            if not shuffles and not sink.errors:
                sink.report(
                    "FSC004",
                    Span(0, 0),
                    "the file declares no shuffle",
                    help="a file is a list of `shuffle name { … }`",
                )
            return tuple(_with_broken(shuffle, broken) for shuffle in shuffles)
    return ()


def _with_broken(shuffle: ast.Shuffle, broken: Iterable[ast.Broken]) -> ast.Shuffle:
    inside = (each for each in broken if shuffle.span.start < each.span.start < shuffle.span.end)
    return replace(shuffle, broken=tuple(inside))


@cache
def _parser() -> Lark:
    return load_parser(transformer=TreeBuilder())
