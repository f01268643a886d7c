"""What people bring along from other languages, and how it is written here.

Shapes without brackets, slices with a colon, casts with a type, signs, other marks.
"""

from __future__ import annotations

from dataclasses import dataclass

from fuscoc.diagnostics import Fix
from fuscoc.lang import dtypes
from fuscoc.lang.lexemes import CLOSERS, Lexeme, starts_declaration, unclosed
from fuscoc.lang.syntax_fixes import Place
from fuscoc.lang.terminals import EXPRESSION
from fuscoc.source import Span

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
