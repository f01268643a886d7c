"""What a syntax error asks to change: a few characters, or an idiom of another language.

Each change is tried before it is proposed. The idioms: shapes without brackets, slices with a
colon, casts with a type, signs, other marks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from fuscoc.diagnostics import Fix, spelling
from fuscoc.lang import dtypes
from fuscoc.lang.lexemes import (
    CLOSERS,
    DECLARATIONS,
    EXPRESSION,
    RESERVED,
    SYMBOLS,
    Lexeme,
    fix_of_characters,
    joins_words,
    keywords,
    starts_declaration,
    unclosed,
)
from fuscoc.lang.stops import ONE_MARK, Parse, settles
from fuscoc.source import Span

SEPARATORS = "declarations need no separator"
# Marks of other languages, and what each can only stand for.
_MEANT = {
    **dict.fromkeys(["=>", "==>", "-->", "->>"], ("->",)),
    "==": ("=",),
    ":=": ("=", ":"),
    "::": (":",),
    "..<": ("..",),
}
_CONFUSED = {":", "=", "->"}


@dataclass(frozen=True)
class Place:
    """Where the parser stopped: at a lexeme, or at the end of the text.

    ``accepted`` are the terminals that may stand there, ``form`` says how what stands there is
    written, if that is known.
    """

    text: str
    found: Lexeme | None
    accepted: frozenset[str]
    form: str | None
    before: list[Lexeme]
    after: list[Lexeme]
    parse: Parse

    @property
    def symbols(self) -> set[str]:
        """The marks that may stand here."""
        return {SYMBOLS[each] for each in self.accepted & SYMBOLS.keys()}

    def tried(self, fix: Fix | None, ahead: int = 1) -> Fix | None:
        """The fix, if the parser gets past it."""
        if fix is None or not settles(fix, self.text, self.parse, ahead):
            return None
        return fix


def fix_at(place: Place) -> Fix | None:
    """The change that the lexeme of a place needs, if there is one."""
    return next(filter(None, map(place.tried, _candidates(place))), None)


def misspelt(word: Lexeme, words: Collection[str], place: Place) -> Fix | None:
    """The fix for a word that should be one of a few keywords."""
    return place.tried(spelling(word.text, word.span, words))


def misspelt_declaration(word: Lexeme, place: Place) -> Fix | None:
    """The fix for a word that should start a declaration; those before it may be wrong as well."""
    body = "shuffle s {".ljust(word.start) + place.text[word.start :]
    return misspelt(word, DECLARATIONS, replace(place, text=body))


def _candidates(place: Place) -> Iterator[Fix | None]:
    found = place.found
    if found is None:
        return
    if place.before and place.before[-1].text == "," and found.text in {*RESERVED, "}"}:
        yield Fix(place.before[-1].span, "", SEPARATORS, safe=True)
    elif found.is_word:
        others = keywords(place.accepted) - {found.text}
        yield spelling(found.text, found.span, others)
    elif found.text in (";", ","):
        yield from _separators(found, place)
    elif found.text in _MEANT:
        for mark in place.symbols.intersection(_MEANT[found.text]):
            yield Fix(found.span, mark, place.form or f"write `{mark}`", safe=True)
    elif found.text in _CONFUSED and place.form in ONE_MARK and len(place.symbols) == 1:
        for mark in place.symbols & _CONFUSED:
            yield Fix(found.span, mark, place.form, safe=True)
    elif found.is_foreign:
        yield fix_of_characters(place.text, found.start)


def _separators(found: Lexeme, place: Place) -> Iterator[Fix]:
    """A comma where one belongs, else none: declarations and shuffles have nothing between them."""
    if "," in place.symbols:
        needed = place.tried(Fix(found.span, " ", "leave it out"), ahead=2) is None
        yield Fix(found.span, ",", "write `,`", safe=needed)
    if place.accepted & {"CONST", "SHUFFLE"} or found.text == ";":
        safe = not joins_words(place.text, found.span)
        yield Fix(found.span, "", SEPARATORS, safe)
    elif place.before and place.before[-1].text == ",":
        yield Fix(found.span, "", "leave it out")


def missing_comma(place: Place) -> Fix | None:
    """A comma before a lexeme, if that is all that is missing."""
    found = place.found
    if found is None or not (found.is_word or found.is_number) or "," not in place.symbols:
        return None
    end = place.before[-1].end
    return place.tried(Fix(Span(end, end), ",", place.form or "add `,`"), ahead=2)


def brace_too_many(place: Place) -> Fix | None:
    """Leave out the brace behind which a declaration is found outside of a shuffle."""
    if "CONST" in place.accepted or "SHUFFLE" not in place.accepted or place.found is None:
        return None
    if place.found.text not in DECLARATIONS or not place.before:
        return None
    brace = place.before[-1]
    return place.tried(Fix(brace.span, "", "the shuffle ends here: leave out this `}`"))


_MARKS = {
    "**": "there are no powers: multiply",
    "..=": "a range ends before its stop: `start .. stop + 1` covers it",
    "...": "a range is written `start .. stop`, and ends before its stop",
    "<-": "paths are written from left to right: `source[t] -> target[…]`",
}


@dataclass(frozen=True)
class Advice:
    """How to write what was meant. ``expected`` takes the place of the list of what may stand."""

    help: str | None
    fix: Fix | None = None
    notes: tuple[str, ...] = ()
    expected: str | None = None


def advice(place: Place) -> Advice | None:
    """What to say about an idiom of another language, if one stands at a place."""
    if place.found is None or not place.before:
        return None
    for idiom in (_shape, _slice, _typed_cast, _sign, _mark):
        found = idiom(place, place.found)
        if found is not None:
            return found
    return None


def _shape(place: Place, found: Lexeme) -> Advice | None:
    """``bf16 64``, ``bf16(64)``."""
    type = place.before[-1]
    if "[" not in place.symbols or dtypes.normal(type.text) is None:
        return None
    inside, end = found.span, found.end
    if found.text == "(":
        close = next((each for each in place.after if each.text == ")"), None)
        if close is None:
            return None
        inside, end = Span(found.end, close.start), close.end
    elif not (found.is_number or found.is_word):
        return None
    shape = f"[{place.text[inside.start : inside.end].strip()}]"
    title = f"a shape stands in brackets: `{type.text}{shape}`"
    fix = place.tried(Fix(Span(type.end, end), shape, title), ahead=2)
    return Advice(title, fix, expected="`[`") if fix is not None else None


def _slice(place: Place, found: Lexeme) -> Advice | None:
    """``a[t, :64]``, ``a[i*p:i*p+p]``."""
    opener = unclosed(place.before)
    if not found.text.startswith(":") or opener is None or opener.text != "[":
        return None
    start, stop = _around(place, opener)
    first = place.text[start : found.start].strip() or "0"
    last = place.text[found.end : stop].strip()
    if found.text != ":" or not last or ":" in last:
        help = "a range is written `start .. stop`; the whole of a dimension is `0 .. ` its extent"
        return Advice(help.replace("`0 .. ` its extent", "`0 .. extent`"))
    written = f"{first} .. {last}"
    title = f"a range is written `{written}`"
    if _declaration(place.before) == "view":
        return Advice(title, place.tried(Fix(Span(start, stop), written, title)))
    source = place.before[place.before.index(opener) - 1].text
    around = place.text[opener.end : start] + written
    return Advice(f"{title}, and stands in a `view`: `view part[…] = {source}[{around}]`")


def _around(place: Place, opener: Lexeme) -> tuple[int, int]:
    """Where the subscript at a place starts and stops, inside of the bracket that opens it."""
    start, depth = opener.end, 0
    for each in place.before[place.before.index(opener) + 1 :]:
        depth += (each.text in CLOSERS) - (each.text in CLOSERS.values())
        if each.text == "," and depth == 0:
            start = each.end
    for each in place.after:
        if depth == 0 and each.text in ("]", ",", "}"):
            return _stripped(place.text, start, each.start)
        depth += (each.text in CLOSERS) - (each.text in CLOSERS.values())
    return _stripped(place.text, start, len(place.text))


def _stripped(text: str, start: int, stop: int) -> tuple[int, int]:
    """A piece of a text without the blanks at either end."""
    piece = text[start:stop]
    return start + len(piece) - len(piece.lstrip()), stop - len(piece) + len(piece.rstrip())


def _typed_cast(place: Place, found: Lexeme) -> Advice | None:
    """``cast(x to f8)``."""
    if not {"BY", "COMMA", "RPAR"} <= place.accepted or len(place.after) < 2:
        return None
    field, type = place.before[-1], place.after[0]
    if not type.is_word or type.text not in {*dtypes.NAMES, *dtypes.MEANT}:
        return None
    title = f"the segments say the types, so write `cast({field.text})`"
    fix = place.tried(Fix(Span(field.start, type.end), field.text, title))
    meant = dtypes.meant(type.text)
    notes = (f"there is no element type `{type.text}`: write {meant}",) if meant else ()
    return Advice(title, fix, notes)


def _sign(place: Place, found: Lexeme) -> Advice | None:
    """``-1`` where an expression begins."""
    if found.text != "-" or not place.accepted >= EXPRESSION:
        return None
    following = place.after[0] if place.after else found
    operand = following.text if following.is_number or following.is_word else "x"
    if place.before[-1].text == "on":
        return Advice("ranks count from 0, and there is no sign; the last rank is `ranks - 1`")
    return Advice(f"there is no sign; a difference is written `0 - {operand}`")


def _mark(place: Place, found: Lexeme) -> Advice | None:
    return Advice(_MARKS[found.text]) if found.text in _MARKS else None


def _declaration(before: list[Lexeme]) -> str:
    """The keyword of the declaration that lexemes end in."""
    starts = (i for i in reversed(range(len(before))) if starts_declaration(before, i))
    return next((before[i].text for i in starts), "")
