"""The names, numbers and marks of a text that need not be right, and where declarations start."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fuscoc.source import Span

DECLARATIONS = (
    *("const", "index", "segment", "layout", "view"),
    *("place", "route", "weight", "dispatch", "combine"),
)
RESERVED = frozenset([*DECLARATIONS, "shuffle"])
CLOSERS = {"[": "]", "(": ")", "{": "}"}
_MARKS = frozenset(["->", "..", *"[](){},:=.+-*/%"])
_WORD = re.compile(r"[A-Za-z_]")
# Marks of other languages are read as a whole, so that none is taken for a part of it. No right
# text has one: its parts never stand side by side.
_FOREIGN = r"<-+>*|--+>+|->>+|=+>+|==+|[<>!]=|:=|::+|\.\.\.+|\.\.[=<]|\*\*+"
_LEXEME = re.compile(rf"//[^\n]*|[A-Za-z_][A-Za-z0-9_]*|[0-9][0-9_]*|{_FOREIGN}|->|\.\.|[^ \t\r\n]")


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
