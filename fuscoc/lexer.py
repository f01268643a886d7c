"""The language for Pygments: highlighted specs in documents, pages and ``fuscoc explain-error``.

Registered as ``fsc`` under ``pygments.lexers``. Its keywords are those of the grammar, and
the reductions.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import ClassVar

from pygments.lexer import RegexLexer, words
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, Whitespace

from fuscoc.lang import dtypes
from fuscoc.lang.reductions import REDUCTIONS

# A keyword of the grammar is a terminal with a priority; one that is reserved is kept from names.
_KEYWORD = re.compile(r"^[A-Z]+\.\d: /([a-z]+)\\b/$", re.MULTILINE)
_RESERVED = re.compile(r"^NAME: /\(\?!\(\?:([a-z|]+)\)\\b\)", re.MULTILINE)


@cache
def keywords() -> tuple[frozenset[str], frozenset[str]]:
    """The words that start a declaration, and the others, which may also be names."""
    grammar = files("fuscoc.lang").joinpath("grammar.lark").read_text(encoding="utf-8")
    found = _RESERVED.search(grammar)
    assert found is not None
    reserved = frozenset(found.group(1).split("|"))
    return reserved, frozenset(_KEYWORD.findall(grammar)) - reserved


def _words(names: frozenset[str]) -> words:
    return words(sorted(names), prefix=r"\b", suffix=r"\b")


class FuscocLexer(RegexLexer):
    """Tokens of ``.fsc`` texts."""

    name = "fuscoc"
    aliases: ClassVar = ["fsc", "fuscoc"]
    filenames: ClassVar = ["*.fsc"]
    mimetypes: ClassVar = ["text/x-fuscoc"]
    tokens: ClassVar = {
        "root": [
            (r"\s+", Whitespace),
            (r"//[^\n]*", Comment.Single),
            (_words(keywords()[0]), Keyword.Declaration),
            (r"[A-Za-z_]\w*(?=\s*:\s)", Name.Variable),
            (_words(dtypes.NAMES), Keyword.Type),
            (_words(keywords()[1] | REDUCTIONS.keys()), Keyword),
            (r"[A-Za-z_]\w*(?=\()", Name.Function),
            (r"[A-Za-z_]\w*", Name),
            (r"[0-9][0-9_]*(?:\.[0-9][0-9_]*)?", Number),
            (r"->|\.\.|[-+*/%=]", Operator),
            (r"[\[\](){},:.]", Punctuation),
        ]
    }
