"""The Pygments lexer and the TextMate grammar say the same, and what the parser's grammar says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pygments.lexers import get_lexer_by_name, get_lexer_for_filename
from pygments.token import (
    Comment,
    Error,
    Keyword,
    Name,
    Number,
    Operator,
    Punctuation,
    Token,
    Whitespace,
)

import fuscoc_runtime
from fuscoc.lang import dtypes
from fuscoc.lang.lexemes import RESERVED
from fuscoc.lang.parser import _parser
from fuscoc.lang.reductions import REDUCTIONS
from fuscoc.lexer import FuscocLexer, keywords
from tests.lang.grammar_texts import grammar_text

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(ROOT.glob("examples/*.fsc"))
TEXTMATE = json.loads((ROOT / "editors" / "fuscoc.tmLanguage.json").read_text())
# What the scopes of the TextMate grammar are in Pygments.
KINDS = {
    "comment.line.double-slash.fsc": Comment.Single,
    "keyword.declaration.fsc": Keyword.Declaration,
    "variable.other.fsc": Name.Variable,
    "storage.type.fsc": Keyword.Type,
    "keyword.other.fsc": Keyword,
    "entity.name.function.fsc": Name.Function,
    "constant.numeric.fsc": Number,
    "keyword.operator.fsc": Operator,
}
PLAIN = {Name, Whitespace, Punctuation}  # what a TextMate grammar leaves as it is


def by_pygments(text: str) -> Iterator[tuple[int, Token]]:
    """The kind of every character, that of plain ones as ``Name``."""
    for start, kind, value in FuscocLexer().get_tokens_unprocessed(text):
        for offset in range(len(value)):
            yield start + offset, Name if kind in PLAIN else kind


def by_textmate(text: str) -> Iterator[tuple[int, Token]]:
    """The same, found as editors do: at each place the first pattern that matches there."""
    rules = [TEXTMATE["repository"][rule["include"][1:]] for rule in TEXTMATE["patterns"]]
    patterns = [(re.compile(rule["match"], re.MULTILINE), KINDS[rule["name"]]) for rule in rules]
    at = 0
    while at < len(text):
        found = [(pattern.match(text, at), kind) for pattern, kind in patterns]
        match, kind = next(((m, k) for m, k in found if m), (None, Name))
        end = match.end() if match else at + 1
        yield from ((offset, kind) for offset in range(at, end))
        at = end


def test_keywords_are_those_of_the_grammar() -> None:
    reserved, others = keywords()
    terminals = {terminal.name.lower() for terminal in _parser().terminals if terminal.priority}
    assert reserved == RESERVED
    assert reserved | others == terminals
    assert not reserved & others


def test_the_textmate_grammar_is_not_stale() -> None:
    reserved, others = keywords()
    for name, expected in (
        ("declaration", reserved),
        ("keyword", others | REDUCTIONS.keys()),
        ("type", dtypes.NAMES),
    ):
        pattern = TEXTMATE["repository"][name]["match"]
        assert set(re.findall(r"\w+(?=[|)])", pattern.removeprefix(r"\b"))) == expected


@settings(max_examples=50)
@given(st.integers(0, 2**32))
def test_both_colour_every_character_alike(seed: int) -> None:
    text = grammar_text(seed, comments=0.1)
    assert dict(by_textmate(text)) == dict(by_pygments(text))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tokens = list(FuscocLexer().get_tokens_unprocessed(text))
    assert "".join(value for _, _, value in tokens) == text
    assert Error not in {kind for _, kind, _ in tokens}
    assert dict(by_textmate(text)) == dict(by_pygments(text))


def test_each_part_of_a_declaration_has_its_colour() -> None:
    text = "index i : height(n) / 14  // rows\n"
    tokens = list(FuscocLexer().get_tokens_unprocessed(text))
    assert [(value, kind) for _, kind, value in tokens if kind is not Whitespace] == [
        ("index", Keyword.Declaration),
        ("i", Name.Variable),
        (":", Punctuation),
        ("height", Name.Function),
        ("(", Punctuation),
        ("n", Name),
        (")", Punctuation),
        ("/", Operator),
        ("14", Number),
        ("// rows", Comment.Single),
    ]


def test_pygments_knows_it_by_name_and_by_file() -> None:
    assert isinstance(get_lexer_by_name("fsc"), FuscocLexer)
    assert isinstance(get_lexer_for_filename("moe.fsc"), FuscocLexer)


def test_the_extension_names_what_is_there() -> None:
    manifest = json.loads((ROOT / "editors" / "package.json").read_text())
    assert manifest["version"] == fuscoc_runtime.__version__
    (grammar,) = manifest["contributes"]["grammars"]
    (language,) = manifest["contributes"]["languages"]
    assert grammar["language"] == language["id"]
    assert grammar["scopeName"] == TEXTMATE["scopeName"]
    for path in (grammar["path"], language["configuration"]):
        assert (ROOT / "editors" / path).is_file()
