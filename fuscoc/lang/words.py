"""The words of a text as the parser reads them, each with its rule and the comments around it.

The syntax tree has neither comments nor parentheses; what shows a text as it was written (the
formatter, the language server) works on its words instead. They come from the same grammar, so a
construct that is new there needs nothing here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import TypeAlias

from lark import Token, Tree

from fuscoc.diagnostics import DiagnosticSink
from fuscoc.lang.parser import parse
from fuscoc.lang.tables import load_parser
from fuscoc.source import SourceFile, Span

_COMMENT = re.compile(r"//[^\n]*")


@dataclass(frozen=True)
class Comment:
    """``// …`` without the space behind it; ``blank`` says that an empty line stands before it."""

    text: str
    start: int
    blank: bool


@dataclass
class Word:
    """A name, number, keyword or symbol.

    ``kind`` is its terminal and ``rules`` are the rules around it, from its own to that of the
    declaration (where they nest deeply, without some of those between). ``above`` are comments on
    lines of their own right before it, ``beside`` is one behind it on its line.
    """

    text: str
    kind: str
    span: Span
    rules: tuple[str, ...]
    above: list[Comment] = field(default_factory=list)
    beside: Comment | None = None
    blank: bool = False

    @property
    def rule(self) -> str:
        return self.rules[0]


@dataclass(frozen=True)
class Shuffle:
    """The words up to the opening brace, those of each declaration, and the closing brace."""

    header: list[Word]
    declarations: list[list[Word]]
    closing: Word


@dataclass(frozen=True)
class File:
    """The shuffles of a text and the comments behind the last of them."""

    shuffles: list[Shuffle]
    rest: list[Comment]


_Tree: TypeAlias = Tree[Token]
# Rules nest as deeply as parentheses do; of those around a word, the outer ones are of interest.
_KEPT_RULES = 5


def read_words(source: SourceFile) -> File:
    """The words of a text without syntax errors.

    Raises:
        CompileError: with every syntax error of the text.
    """
    sink = DiagnosticSink(source)
    parse(source, sink)
    sink.raise_errors()
    shuffles = [_shuffle(tree) for tree in _token_trees().parse(source.text).children]
    words = [
        word
        for shuffle in shuffles
        for part in (shuffle.header, *shuffle.declarations, [shuffle.closing])
        for word in part
    ]
    return File(shuffles, _attach_comments(source.text, words))


_token_trees = cache(load_parser)


def _shuffle(tree: Token | _Tree) -> Shuffle:
    assert isinstance(tree, Tree)
    keyword, name, brace, *declarations, closing = tree.children
    header = [word for part in (keyword, name, brace) for word in _words(part, ("shuffle",))]
    (last,) = _words(closing, ("shuffle",))
    return Shuffle(header, [list(_words(each)) for each in declarations], last)


def _words(part: Token | _Tree, rules: tuple[str, ...] = ()) -> Iterator[Word]:
    """The words of a part of the tree, in order. Parts may nest deeper than Python's stack."""
    stack: list[tuple[Token | _Tree, tuple[str, ...]]] = [(part, rules)]
    while stack:
        node, rules = stack.pop()
        if isinstance(node, Token):
            assert node.start_pos is not None
            assert node.end_pos is not None
            yield Word(str(node), node.type, Span(node.start_pos, node.end_pos), rules)
        else:
            around = (str(node.data), *rules)
            if len(around) > _KEPT_RULES:
                around = (around[0], *around[2:])
            stack += [(child, around) for child in reversed(node.children)]


def _attach_comments(text: str, words: list[Word]) -> list[Comment]:
    """Give every comment to a word; those behind the last word are returned."""
    previous: Word | None = None
    for word in words:
        start = previous.span.end if previous else 0
        word.above, word.blank = _between(text, start, word.span.start, previous)
        previous = word
    end = previous.span.end if previous else 0
    rest, _ = _between(text, end, len(text), previous)
    return rest


def _between(text: str, start: int, stop: int, previous: Word | None) -> tuple[list[Comment], bool]:
    """The comments between two words, and whether an empty line is right before the second.

    One on the line of ``previous`` becomes its own.
    """
    above = []
    at = start
    for match in _COMMENT.finditer(text, start, stop):
        newlines = text.count("\n", at, match.start())
        comment = Comment(match.group().rstrip(), match.start(), newlines > 1)
        if previous is not None and not newlines and at == start:
            previous.beside = comment
        else:
            above.append(comment)
        at = match.end()
    return above, text.count("\n", at, stop) > 1
