"""Text -> syntax tree. The grammar is in ``grammar.lark``; errors are worded in ``syntax.py``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from lark import Lark
from lark.exceptions import UnexpectedInput

from fuscoc.diagnostics import DiagnosticSink
from fuscoc.lang import ast
from fuscoc.lang.builder import TooLargeError, TreeBuilder
from fuscoc.source import SourceFile, Span

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
        except (TooLargeError, UnexpectedInput) as error:
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
    return lark(transformer=TreeBuilder())


def lark(**options: Any) -> Lark:
    """A parser of the language with further ``options``; it keeps every token."""
    grammar = files("fuscoc.lang").joinpath("grammar.lark").read_text(encoding="utf-8")
    return Lark(
        grammar,
        parser="lalr",
        g_regex_flags=re.ASCII,  # so that a word ends before any other letter
        keep_all_tokens=True,
        maybe_placeholders=False,
        **options,
    )
