"""The tree says what the text says, its spans cut the text where it says it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuscoc.diagnostics import DiagnosticSink
from fuscoc.lang import ast
from fuscoc.lang.lexemes import SYMBOLS, word
from fuscoc.lang.parser import _parser, parse
from fuscoc.lang.tables import GRAMMAR, TABLES, made_of
from fuscoc.source import SourceFile
from tests.lang.specs import arithmetic, keyed_specs, tiled_specs

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.fsc"))
EVERYTHING = """
shuffle everything {
  const a = 1, b = (a + 2) * 3 - 4 / 2 % 2
  index t : tokens
  segment s { x : f8e4m3[a, b], y : f32[b / 2], z : i64, }
  layout l[t, u] of s packed(u) compact align a + 1 capacity max 100
  layout m[t] of u8[3] dense(tokens, f(t)) capacity exact
  view v[t] = m[t, a .. a + b, *]
  place t on rank by table owner
  route r(t) -> (rank, offset) = input x : int64[2]
  route q(t) -> e = t % 4
  route p(t) -> (rank, slot) = (t / 4, t % 4)
  weight w(t) : f32 = input ww
  dispatch v[t] -> l[r(t).offset, *] on r(t).rank dedup(node, rank) balance lpt schedule fast
    backend cuda slice 4 MiB cast(x by y, z, (u / 255 - m) * [0.5, 2])
  combine l[r(t).offset, *] -> v[t] reduce sum(w)
  combine reverse reduce max
}
"""
TEXTS = st.one_of(
    st.sampled_from([EVERYTHING, *(path.read_text() for path in EXAMPLES)]),
    keyed_specs.map(lambda spec: spec.text),
    tiled_specs.map(lambda spec: spec.text),
)
DECLARATIONS = (
    *(ast.Const, ast.Index, ast.Segment, ast.Layout, ast.View),
    *(ast.Place, ast.Route, ast.WeightDecl, ast.Dispatch, ast.Combine),
)
EXPRESSIONS = (ast.Number, ast.Decimal, ast.Values, ast.Name, ast.Call, ast.Member, ast.Binary)


def parsed(text: str) -> tuple[ast.Shuffle, ...]:
    sink = DiagnosticSink(SourceFile("test.fsc", text))
    shuffles = parse(sink.source, sink)
    assert not sink.diagnostics
    return shuffles


def expression(text: str) -> ast.Expr:
    (shuffle,) = parsed(f"shuffle a {{ const b = {text} }}")
    (const,) = shuffle.declarations
    assert isinstance(const, ast.Const)
    return const.bindings[0].value


def nodes(node: object) -> Iterator[ast.Node]:
    if isinstance(node, tuple):
        for item in node:
            yield from nodes(item)
    elif is_dataclass(node):
        assert isinstance(node, ast.Node)
        yield node
        for each in fields(node):
            if each.name != "span":
                yield from nodes(getattr(node, each.name))


@given(TEXTS)
def test_the_text_of_a_node_means_the_node(text: str) -> None:
    for node in nodes(parsed(text)):
        covered = text[node.span.start : node.span.end]
        assert covered == covered.strip()
        if isinstance(node, DECLARATIONS):
            (shuffle,) = parsed(f"shuffle a {{ {covered} }}")
            assert shuffle.declarations == (node,)
        elif isinstance(node, EXPRESSIONS):
            assert expression(covered) == node
        elif isinstance(node, ast.Ident):
            assert covered == node.name
        elif isinstance(node, ast.Shuffle):
            assert parsed(covered) == (node,)


@given(TEXTS)
def test_children_lie_inside_their_parents_and_in_order(text: str) -> None:
    for node in nodes(parsed(text)):
        for child in nodes(node):
            assert node.span.to(child.span) == node.span


@given(TEXTS, st.sampled_from([" ", "\n\n", " // a comment\n", "\t", "\r\n"]))
def test_space_between_words_means_nothing(text: str, space: str) -> None:
    assert parsed(text.replace("\n", space + "\n")) == parsed(text)


arithmetic_texts = st.recursive(
    st.integers(0, 50).map(str),
    lambda inner: (
        st.tuples(inner, st.sampled_from("+-*/%"), inner).map(" ".join)
        | inner.map(lambda text: f"({text})")
    ),
    max_leaves=12,
)


@given(arithmetic_texts)
def test_operators_bind_as_in_python(text: str) -> None:
    try:
        expected = eval(text.replace("/", "//"), {"__builtins__": {}})
    except ZeroDivisionError:
        return
    assert _value(expression(text)) == expected


def _value(expr: ast.Expr) -> int:
    if isinstance(expr, ast.Number):
        return expr.value
    assert isinstance(expr, ast.Binary)
    return arithmetic(expr.op, _value(expr.lhs), _value(expr.rhs))


def test_numbers_may_be_grouped() -> None:
    assert expression("1_000_000") == expression("1000000")


def test_parentheses_belong_to_the_expression_inside() -> None:
    text = "(1 + 2) * ((3))"
    product = expression(text)
    assert isinstance(product, ast.Binary)
    prefix = len("shuffle a { const b = ")
    assert (product.span.start - prefix, product.span.end - prefix) == (0, len(text))
    assert (product.rhs.span.start - prefix, product.rhs.span.end - prefix) == (10, len(text))


@pytest.mark.parametrize("levels", [ast.MAX_DEPTH - 1, ast.MAX_DEPTH, 5000])
def test_deep_expressions_are_refused_before_they_hurt(levels: int) -> None:
    for text in ("1" + " + 1" * levels, "f(" * levels + "1" + ")" * levels):
        sink = DiagnosticSink(SourceFile("deep.fsc", f"shuffle a {{ index t : {text} }}"))
        parse(sink.source, sink)
        found = [diagnostic.code for diagnostic in sink.diagnostics]
        assert found == ([] if levels < ast.MAX_DEPTH else ["FSC003"])


def test_parentheses_alone_may_nest_as_they_like() -> None:
    assert expression("(" * 5000 + "1" + ")" * 5000) == expression("1")


def test_tables_are_those_of_the_grammar() -> None:
    """``make golden`` writes them anew. Which lark has made them does not matter here: another one
    makes its own, and they are not asked."""
    _, grammar = made_of(GRAMMAR.read_text()).split(",")
    _, kept = json.loads(TABLES.read_text())["made_of"].split(",")
    assert kept == grammar


def test_every_terminal_has_a_word_for_users() -> None:
    for terminal in _parser().terminals:
        pattern = terminal.pattern.value
        if terminal.name in SYMBOLS:
            assert pattern == SYMBOLS[terminal.name]
        elif terminal.name not in {"NAME", "INT", "DECIMAL", "COMMENT"} | set(
            _parser().lexer_conf.ignore
        ):
            assert pattern == rf"{terminal.name.lower()}\b"
            assert word(terminal.name) == f"`{terminal.name.lower()}`"


def test_dump_shows_every_node_once() -> None:
    tree = parsed(EVERYTHING)
    lines = ast.dump(tree).splitlines()
    assert lines[:2] == ["Shuffle", "  Ident everything"]
    names = [line.split()[0] for line in lines]
    for kind in {type(node) for node in nodes(tree)}:
        count = sum(type(node) is kind for node in nodes(tree))
        assert names.count(kind.__name__) == count
