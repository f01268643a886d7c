"""Syntax errors in the user's words."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from fuscoc.diagnostics import ONE_SLIP, DiagnosticSink, Fix, Label, nearest, spelling
from fuscoc.lang.lexemes import (
    CLOSERS,
    COMMENTS,
    DECLARATIONS,
    RESERVED,
    Lexeme,
    expected,
    help_with_character,
    lexemes,
    named_character,
    unclosed,
)
from fuscoc.lang.stops import Parse, accepted_after, hint
from fuscoc.lang.syntax_fixes import (
    Advice,
    Place,
    advice,
    brace_too_many,
    fix_at,
    missing_comma,
    misspelt,
    misspelt_declaration,
)
from fuscoc.source import Span

OPTIONS = (
    *("on", "clip", "partial", "dedup", "slice"),
    *("balance", "schedule", "backend", "cast", "into"),
)


@dataclass(frozen=True)
class Stop:
    """Where reading stopped, for whoever reads on.

    ``complete`` says that the declaration before could have ended there, and ``alone`` that what
    stands there was meant as one of its own.
    """

    offset: int
    complete: bool = False
    alone: bool = False


def report_syntax_error(
    error: UnexpectedInput, text: str, sink: DiagnosticSink, parse: Parse
) -> Stop:
    """Put an error of the parser ``parse`` into ``sink``. Parts of ``text`` may be blanked out."""
    # A brace that was put behind the end of the source is none of it.
    written = [each for each in lexemes(text) if each.end <= len(sink.source.text)]
    place = _place(error, text, written, parse)
    word = _misspelt_declaration(place, error)
    if word is not None:
        _report_misspelt(word, "a declaration", misspelt_declaration(word, place), sink)
        return Stop(word.start, alone=True)
    word = _misspelt_reverse(place)
    if word is not None:
        _report_misspelt(word, "`reverse` or a path", misspelt(word, ["reverse"], place), sink)
        return Stop(word.start)
    offset = len(text)
    if isinstance(error, UnexpectedCharacters) and _is_lone(place.found):
        offset = int(error.pos_in_stream)
        _report_character(offset, place, sink)
    else:
        offset = place.found.start if place.found else len(text)
        if not _report_no_option(place, sink):
            _report_lexeme(place, sink)
    complete = "CONST" in place.accepted
    return Stop(offset, complete, complete and place.found is not None and place.found.starts_line)


def _is_lone(found: Lexeme | None) -> bool:
    """Whether a character is no part of a longer mark."""
    return found is None or len(found.text) == 1


def _place(error: UnexpectedInput, text: str, found: list[Lexeme], parse: Parse) -> Place:
    """The place of an error: of the whole lexeme, where the parser stopped inside of one."""
    if isinstance(error, UnexpectedToken):
        at_end = error.token.type == "$END"
        offset = len(text) if at_end else int(error.token.start_pos)
    else:
        offset = int(error.pos_in_stream)
    here = next((each for each in found if each.start <= offset < each.end), None)
    start = here.start if here else offset
    form = None
    if isinstance(error, UnexpectedToken) and start == offset:
        accepted = set(error.accepts or error.expected)
        form = hint(error, parse)
    else:
        accepted = accepted_after(text[:start], parse)
    before = [each for each in found if each.end <= start]
    after = [each for each in found if each.start > start]
    return Place(text, here, frozenset(accepted), form, before, after, parse)


def _report_misspelt(word: Lexeme, what: str, fix: Fix | None, sink: DiagnosticSink) -> None:
    sink.report("FSC001", word.span, f"expected {what}, found `{word.text}`", fix=fix)


def _report_character(offset: int, place: Place, sink: DiagnosticSink) -> None:
    char = place.text[offset]
    sink.report(
        "FSC002",
        Span(offset, offset + 1),
        f"unexpected character {named_character(char)}",
        help=help_with_character(char),
        fix=fix_at(place),
    )


def _report_no_option(place: Place, sink: DiagnosticSink) -> bool:
    """Whether a word stands where only an option could, on the line of the dispatch; a report then.

    At the start of a line it may as well be meant as a declaration, but for `reduce`.
    """
    found = place.found
    if found is None or not found.is_word or found.text in RESERVED:
        return False
    if found.starts_line and found.text != "reduce":
        return False
    if not place.accepted >= {option.upper() for option in OPTIONS}:
        return False
    help = _way_back(found, place)
    sink.report(
        "FSC001",
        found.span,
        f"`{found.text}` is no option of a dispatch",
        notes=[f"the options are {', '.join(f'`{option}`' for option in OPTIONS)}"],
        help=help,
        fix=None if help else place.tried(spelling(found.text, found.span, OPTIONS, ONE_SLIP)),
    )
    return True


def _way_back(found: Lexeme, place: Place) -> str | None:
    """What to write if a word is `reduce`, or has the name of a weight in parentheses behind it."""
    if found.text == "reduce":
        return "what comes back is reduced, by the combine: `combine reverse reduce sum(w)`"
    if [each.text for each in place.after[:1]] != ["("]:
        return None
    words = [each.text for each in (*place.before, *place.after)]
    name = words[len(place.before) + 1]
    if ("weight", name) not in pairwise(words):
        return None
    return f"a weight is applied on the way back: `combine reverse reduce sum({name})`"


def _report_lexeme(place: Place, sink: DiagnosticSink) -> None:
    found = place.found
    idiom = advice(place)
    known = idiom or Advice(_help(place))
    wanted = known.expected or expected(place.accepted)
    label, notes = f"expected {wanted}", list(known.notes)
    ends = found is None or (found.starts_line and found.text in {*RESERVED, "}"})
    if found is None or (ends and place.before):
        span = place.before[-1].span if place.before else Span(0, 0)
        label += " after this"
    else:
        span = found.span
        if found.text in RESERVED and "NAME" in place.accepted:
            notes.append(f"`{found.text}` starts a declaration and cannot be used as a name")
    sink.report(
        "FSC001",
        span,
        f"expected {wanted}, found {f'`{found.text}`' if found else 'the end of the file'}",
        label,
        secondary=_opened(place) if idiom is None else (),
        notes=notes,
        help=known.help,
        fix=known.fix or fix_at(place) or brace_too_many(place) or missing_comma(place),
    )


def _opened(place: Place) -> list[Label]:
    """The bracket that a closing one is missing for."""
    opener = unclosed(place.before)
    if opener is None or CLOSERS[opener.text] not in place.symbols:
        return []
    # Where a declaration may stand, the shuffle may go on: only its end proves a brace missing.
    if "CONST" in place.accepted and place.found is not None:
        return []
    return [Label(opener.span, "opened here")]


def _help(place: Place) -> str | None:
    if place.found is None:
        return place.form
    start = place.found.start
    if "/*" in place.text[max(start - 1, 0) : start + 2]:
        return COMMENTS
    if place.found.is_word and place.text[start - 1 : start].isdigit():
        return "numbers are decimal, and a name does not begin with one"
    return place.form


def _misspelt_declaration(place: Place, error: UnexpectedInput) -> Lexeme | None:
    """The word before the offending one, if a line starts with it and it is almost a keyword.

    It may have been taken for the end of the line before.
    """
    before = place.before
    if place.found is None or len(before) < 2 or not isinstance(error, UnexpectedToken):
        return None
    if "CONST" not in error.expected:
        return None
    word = before[-1]
    is_close = word.text not in RESERVED and nearest(word.text, DECLARATIONS) is not None
    return word if word.starts_line and not place.found.starts_line and is_close else None


def _misspelt_reverse(place: Place) -> Lexeme | None:
    """The word after `combine`, if no path can go on here and it is almost `reverse`."""
    before = place.before
    if place.accepted != {"LSQB"} or len(before) < 2 or before[-2].text != "combine":
        return None
    return before[-1] if nearest(before[-1].text, ["reverse"]) else None
