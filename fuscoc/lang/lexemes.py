"""What a text is made of, whether it is right or not, and how a message names it.

The names, numbers and marks of a text that need not be right, and where declarations start; the
terminals of the grammar as a user would write them; and characters that the language does not have.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from fuscoc.diagnostics import Fix
from fuscoc.source import Span

DECLARATIONS = (
    *("const", "index", "segment", "layout", "view"),
    *("place", "route", "weight", "dispatch", "combine", "reply"),
)
RESERVED = frozenset([*DECLARATIONS, "shuffle"])
CLOSERS = {"[": "]", "(": ")", "{": "}"}
_MARKS = frozenset(["->", "..", *"[](){},:=.+-*/%"])
_WORD = re.compile(r"[A-Za-z_]")
# Marks of other languages are read as a whole, so that none is taken for a part of it. No right
# text has one: its parts never stand side by side. A row of dashes is gone through once, from its
# first one on.
_FOREIGN = r"<-+>*|(?<!-)--+>+|->>+|=+>+|==+|[<>!]=|:=|::+|\.\.\.+|\.\.[=<]|\*\*+"
_NUMBER = r"[0-9][0-9_]*(?:\.[0-9][0-9_]*)?"
_LEXEME = re.compile(rf"//[^\n]*|[A-Za-z_][A-Za-z0-9_]*|{_NUMBER}|{_FOREIGN}|->|\.\.|[^ \t\r\n]")


@dataclass(frozen=True)
class Lexeme:
    """A name, a number or a mark where it stands."""

    text: str
    start: int
    end: int
    starts_line: bool

    @property
    def span(self) -> Span:
        return Span(self.start, self.end)

    @property
    def is_word(self) -> bool:
        """Whether it could be a name or a keyword."""
        return _WORD.match(self.text) is not None

    @property
    def is_number(self) -> bool:
        return "0" <= self.text[0] <= "9"

    @property
    def is_foreign(self) -> bool:
        """Whether no place of the language takes it."""
        return not self.is_word and not self.is_number and self.text not in _MARKS


def lexemes(text: str) -> list[Lexeme]:
    """All of a text but its comments."""
    found: list[Lexeme] = []
    last = 0
    for match in _LEXEME.finditer(text):
        if not match.group().startswith("//"):
            starts_line = not found or "\n" in text[last : match.start()]
            found.append(Lexeme(match.group(), *match.span(), starts_line))
            last = match.end()
    return found


def starts_declaration(found: Sequence[Lexeme], i: int) -> bool:
    """A reserved word before a name, or alone on its line; elsewhere it is a misuse of the word."""
    if found[i].text not in RESERVED:
        return False
    following = found[i + 1].text if i + 1 < len(found) else "}"
    if following == "}" or following in RESERVED:
        return found[i].starts_line
    return found[i + 1].is_word


def unclosed(found: Iterable[Lexeme]) -> Lexeme | None:
    """The innermost bracket that is still open after these lexemes."""
    open_brackets: list[Lexeme] = []
    for lexeme in found:
        if lexeme.text in CLOSERS:
            open_brackets.append(lexeme)
        elif lexeme.text in CLOSERS.values() and open_brackets:
            open_brackets.pop()
    return open_brackets[-1] if open_brackets else None


# Keywords are their own lower case.
SYMBOLS = {
    "LSQB": "[",
    "RSQB": "]",
    "LPAR": "(",
    "RPAR": ")",
    "LBRACE": "{",
    "RBRACE": "}",
    "COMMA": ",",
    "COLON": ":",
    "EQUAL": "=",
    "ARROW": "->",
    "DOTS": "..",
    "DOT": ".",
    "PLUS": "+",
    "MINUS": "-",
    "STAR": "*",
    "SLASH": "/",
    "PERCENT": "%",
}
_SPECIAL = {
    "NAME": "a name",
    **dict.fromkeys(["INT", "DECIMAL"], "a number"),
    "$END": "the end of the file",
}
EXPRESSION = frozenset({"NAME", "INT", "DECIMAL", "LPAR", "LSQB"})
# Whatever goes on an expression that could as well end here: not worth listing.
_CONTINUATIONS = frozenset(
    {"PLUS", "MINUS", "STAR", "SLASH", "PERCENT", "LPAR", "DOT", "LSQB", "DOTS"}
)


def word(terminal: str) -> str:
    """One terminal: ``a name``, or what is written, in quotes."""
    return _SPECIAL.get(terminal) or f"`{SYMBOLS.get(terminal, terminal.lower())}`"


def keywords(accepted: Collection[str]) -> set[str]:
    """The keywords among terminals."""
    return {terminal.lower() for terminal in accepted if terminal not in {*SYMBOLS, *_SPECIAL}}


def expected(accepted: Collection[str]) -> str:
    """What may stand at a place, with an expression and a declaration each as one."""
    rest = set(accepted)
    words = []
    if rest >= EXPRESSION:
        words.append("an expression")
        rest -= EXPRESSION | {"STAR"}
    if rest - _CONTINUATIONS:
        rest -= _CONTINUATIONS
    declarations = {keyword.upper() for keyword in DECLARATIONS}
    if rest >= declarations:
        words.append("a declaration")
        rest -= declarations
    return _listed(words + sorted({*map(word, rest)}, key=_last_brackets))


def _last_brackets(word: str) -> tuple[bool, str]:
    return "`" in word and not word[1].isalpha(), word


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


COMMENTS = "comments start with `//`"
QUOTES = "\"'`\u2018\u2019\u201c\u201d"
_QUOTES = "names are written without quotes"
_RELATIONS = "a relation is written `->`, a range `start .. stop`"
_HELP = {
    "#": COMMENTS,
    **dict.fromkeys(QUOTES, _QUOTES),
    **dict.fromkeys("<>", _RELATIONS),
}
# What else stands for a character, and nothing but it can have been meant.
_MEANT = {
    "#": "//",
    "\u2192": "->",  # rightwards arrow
    "\u2026": "..",  # ellipsis
    "\u00d7": "*",  # multiplication sign
    "\u2212": "-",  # minus sign
    "\u2013": "-",  # en dash
}
_NOT_UTF8 = "the file is not UTF-8 here"
_FULL_WIDTH = range(0xFF01, 0xFF5F)
"""The ASCII characters from ``!`` on, as wide as ideographs."""


def named_character(char: str) -> str:
    """A character as a message names it, with its code point where it may look like another."""
    if char.isascii():
        return f"`{char if char.isprintable() else repr(char)[1:-1]}`"
    name = unicodedata.name(char, "").lower()
    code = f"U+{ord(char):04X}"
    shown = f"`{char}` " if char.isprintable() else ""
    return f"{shown}({', '.join(filter(None, (code, name)))})"


def help_with_character(char: str) -> str | None:
    """What to write in place of a character, or why it is there."""
    if char in _HELP:
        return _HELP[char]
    if char == "\ufffd":
        return _NOT_UTF8
    meant = _meant(char)
    if meant is not None:
        return {"": "leave it out", " ": "write a plain space"}.get(meant, f"write `{meant}`")
    return None if char.isascii() else "names are of ASCII letters, digits and `_`"


def fix_of_characters(text: str, offset: int) -> Fix | None:
    """What was meant by the foreign character at an offset and those right behind it, if plain.

    That is safe but where words would be joined: what stands between them may be a space.
    """
    end = offset
    meant = ""
    while end < len(text) and (end == offset or not text[end].isascii()):
        plain = _meant(text[end])
        if plain is None:
            break
        meant += plain
        end += 1
    if end == offset:
        return None
    title = (
        help_with_character(text[offset]) if len({*text[offset:end]}) == 1 else f"write `{meant}`"
    )
    span = Span(offset, end)
    return Fix(span, meant, title or "", safe=bool(meant) or not joins_words(text, span))


def joins_words(text: str, span: Span) -> bool:
    """Whether two words become one without what stands between them."""
    between = text[max(span.start - 1, 0) : span.start], text[span.end : span.end + 1]
    return all(char.isascii() and (char.isalnum() or char == "_") for char in between)


def _meant(char: str) -> str | None:
    if char in _MEANT:
        return _MEANT[char]
    if ord(char) in _FULL_WIDTH:
        return chr(ord(char) - _FULL_WIDTH.start + ord("!"))
    kind = unicodedata.category(char)
    return {"Zs": " ", "Cf": ""}.get(kind)
