"""Changes of a few characters that a syntax error asks for, each tried before it is proposed."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from fuscoc.diagnostics import Fix, spelling
from fuscoc.lang import characters, terminals
from fuscoc.lang.lexemes import DECLARATIONS, RESERVED, Lexeme
from fuscoc.lang.syntax_forms import ONE_MARK
from fuscoc.lang.trial import Parse, settles
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
        return {terminals.SYMBOLS[each] for each in self.accepted & terminals.SYMBOLS.keys()}

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
        keywords = terminals.keywords(place.accepted)
        yield spelling(found.text, found.span, keywords - {found.text})
    elif found.text in (";", ","):
        yield from _separators(found, place)
    elif found.text in _MEANT:
        for mark in place.symbols.intersection(_MEANT[found.text]):
            yield Fix(found.span, mark, place.form or f"write `{mark}`", safe=True)
    elif found.text in _CONFUSED and place.form in ONE_MARK and len(place.symbols) == 1:
        for mark in place.symbols & _CONFUSED:
            yield Fix(found.span, mark, place.form, safe=True)
    elif found.is_foreign:
        yield characters.fix_of(place.text, found.start)


def _separators(found: Lexeme, place: Place) -> Iterator[Fix]:
    """A comma where one belongs, else none: declarations have nothing between them."""
    if "," in place.symbols:
        yield Fix(found.span, ",", "write `,`", safe=True)
    if "CONST" in place.accepted or found.text == ";":
        safe = not characters.joins_words(place.text, found.span)
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
