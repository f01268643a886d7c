"""Characters that the language does not have: which one it is, and what was meant by it."""

from __future__ import annotations

import unicodedata

from fuscoc.diagnostics import Fix
from fuscoc.source import Span

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


def named(char: str) -> str:
    """A character as a message names it, with its code point where it may look like another."""
    if char.isascii():
        return f"`{char if char.isprintable() else repr(char)[1:-1]}`"
    name = unicodedata.name(char, "").lower()
    code = f"U+{ord(char):04X}"
    shown = f"`{char}` " if char.isprintable() else ""
    return f"{shown}({', '.join(filter(None, (code, name)))})"


def help_with(char: str) -> str | None:
    """What to write in place of a character, or why it is there."""
    if char in _HELP:
        return _HELP[char]
    if char == "\ufffd":
        return _NOT_UTF8
    meant = _meant(char)
    if meant is not None:
        return {"": "leave it out", " ": "write a plain space"}.get(meant, f"write `{meant}`")
    return None if char.isascii() else "names are of ASCII letters, digits and `_`"


def fix_of(text: str, offset: int) -> Fix | None:
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
    title = help_with(text[offset]) if len({*text[offset:end]}) == 1 else f"write `{meant}`"
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
