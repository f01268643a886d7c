"""Text -> syntax tree. The grammar is in ``grammar.lark``; errors are worded in ``syntax.py``."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any

from lark import Lark
from lark.exceptions import UnexpectedInput

from fuscoc.diagnostics import DiagnosticSink
from fuscoc.lang import ast
from fuscoc.lang.builder import TooLargeError, TreeBuilder
from fuscoc.lang.syntax import blank_out, report_syntax_error
from fuscoc.source import SourceFile, Span

MAX_SYNTAX_ERRORS = 20


def parse(source: SourceFile, sink: DiagnosticSink) -> tuple[ast.Shuffle, ...]:
    """The shuffles of a file; empty, with the reasons in ``sink``, after a syntax error.

    After an error the declaration that holds it is blanked out, which keeps every other offset
    where it is, and the text is parsed again: so one run shows several syntax errors.
    """
    text = source.text
    for _ in range(MAX_SYNTAX_ERRORS):
        try:
            shuffles: tuple[ast.Shuffle, ...] = _parser().parse(text)
        except TooLargeError as error:
            sink.report("FSC003", error.span, str(error))
            offset = error.span.start
        except UnexpectedInput as error:
            offset = report_syntax_error(error, text, sink, _parser().parse)
        else:
            if sink.errors:
                break
            if not shuffles:
                sink.report(
                    "FSC004",
                    Span(0, 0),
                    "the file declares no shuffle",
                    help="a file is a list of `shuffle name { … }`",
                )
            return shuffles
        if not text[offset:].strip():
            break
        text = blank_out(text, offset)
    return ()


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
