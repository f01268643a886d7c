"""Reading on after a syntax error: what is left out of the text, and what that declared.

Text is left out by blanks and added in place of blanks, so every other offset stays what it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest

from lark.exceptions import UnexpectedInput

from fuscoc.diagnostics import DiagnosticSink, Fix, nearest
from fuscoc.lang import ast
from fuscoc.lang.lexemes import (
    CLOSERS,
    DECLARATIONS,
    QUOTES,
    RESERVED,
    Lexeme,
    lexemes,
    starts_declaration,
)
from fuscoc.lang.stops import Parse, settles, stopped_at
from fuscoc.lang.syntax import Stop, report_syntax_error
from fuscoc.source import Span

# What a layout or a dispatch says beside its extents or its path; without it the rest means the
# same segments in the same places.
_MINOR = frozenset(
    {"dedup", "balance", "schedule", "backend", "slice", "compact", "distinct", "align", "capacity"}
)
_CLAUSES = _MINOR | {"on", "clip", "partial", "cast", "into", "packed", "dense", "order"}
_NAMELESS = frozenset({"place", "dispatch", "combine"})


def read_on(
    error: ast.TooLargeError | UnexpectedInput, text: str, sink: DiagnosticSink, parse: Parse
) -> tuple[str, ast.Broken | None]:
    """Report an error of the parser ``parse``; the text without it, and what it may declare."""
    if isinstance(error, UnexpectedInput):
        return _without(text, report_syntax_error(error, text, sink, parse), parse)
    sink.report("FSC003", error.span, str(error))
    return _without(text, Stop(error.span.start), parse)


def _without(text: str, stop: Stop, parse: Parse) -> tuple[str, ast.Broken | None]:
    """The text without what is wrong where the parser stopped, and what that may declare."""
    text = re.sub(r"//[^\n]*", lambda comment: " " * len(comment[0]), text)
    found = lexemes(text)
    count = sum(each.start < stop.offset for each in found)  # of those that are right
    if count < len(found) and (stray := _stray(text, found[count], parse)) is not None:
        hidden = [each for each in found if stray.start < each.start < stray.end]
        hides = count > 0 and bool(hidden) and hidden[0].text in DECLARATIONS
        return _blanked(text, stray), _broken(found, stray, count) if hides else None
    depth = sum((each.text == "{") - (each.text == "}") for each in found[:count])
    if depth <= 0:
        return _outside(text, found, count), None
    if count == len(found) or _starts_shuffle(found, count):
        return _closed(text, stop, found, count)
    for region in _regions(found, count, stop):
        blanked = _blanked(text, region)
        stopped = stopped_at(blanked, parse)
        if stopped is None or stopped >= region.end:
            break
    return blanked, _broken(found, region, count)


def _stray(text: str, lexeme: Lexeme, parse: Parse) -> Span | None:
    """A character without which the text goes on as it was meant; letters and quotes are none."""
    if lexeme.text == "#":  # meant as a comment
        end = text.find("\n", lexeme.start)
        return Span(lexeme.start, end if end >= 0 else len(text))
    is_letter = lexeme.text.isalpha() or lexeme.text in QUOTES
    is_mark = lexeme.is_foreign and len(lexeme.text) == 1 and not is_letter
    without = Fix(lexeme.span, " ", "leave it out")
    return lexeme.span if is_mark and settles(without, text, parse, ahead=2) else None


def _outside(text: str, found: list[Lexeme], count: int) -> str:
    """The text without an error that is in no shuffle's body."""
    if 0 < count < len(found) and found[count].text in DECLARATIONS:
        last = found[count - 1]
        if last.text == "}":  # one too many
            return _moved_brace(text, found, count)
        opened = _put("{", last.end, text)
        if count > 1 and found[count - 2].text == "shuffle" and opened is not None:
            return opened
    begin = count
    while begin > 0 and found[begin - 1].text != "}":  # a header that breaks off
        begin -= 1
    later = range(max(count, begin + 1), len(found))
    end = next((found[i].start for i in later if _starts_shuffle(found, i)), len(text))
    return _blanked(text, Span(found[begin].start if begin < len(found) else end, end))


def _moved_brace(text: str, found: list[Lexeme], count: int) -> str:
    """The text with the brace before a declaration behind all that follow in the shuffle."""
    shuffles = (i for i in range(count, len(found)) if _starts_shuffle(found, i))
    rest = found[count : next(shuffles, len(found))]
    text = _blanked(text, found[count - 1].span)
    is_closed = sum((each.text == "}") - (each.text == "{") for each in rest) > 0
    return text if is_closed else _put("}", rest[-1].end, text) or text


def _closed(
    text: str, stop: Stop, found: list[Lexeme], count: int
) -> tuple[str, ast.Broken | None]:
    """The text with a brace where a shuffle lacks its own. What it declares may lack as well."""
    end = found[count - 1].end
    begin = end if stop.complete else found[_last_declaration(found, count)].start
    closed = _put("}", end, _blanked(text, Span(begin, end)))
    if closed is None:
        shuffle = max(i for i in range(count) if _starts_shuffle(found, i))
        return _blanked(text, Span(found[shuffle].start, end)), None
    words = frozenset(each.text for each in found[:count] if each.start >= begin)
    return closed, ast.Broken((), words, False, span=Span(begin, end))


def _regions(found: list[Lexeme], count: int, stop: Stop) -> Iterator[Span]:
    """What may be left out for an error inside of a shuffle, the smallest first."""
    starts = (i for i in range(count, len(found)) if starts_declaration(found, i))
    end = next(starts, None)
    limit = len(found) if end is None else end
    if end is None or found[end].text == "shuffle":  # up to the brace of the shuffle
        limit = max((i for i in range(count, limit) if found[i].text == "}"), default=limit)
    stop_at = found[limit].start if limit < len(found) else found[-1].end
    begin = _last_declaration(found, count)
    if stop.alone or found[begin].text == "shuffle":
        yield Span(stop.offset, stop_at)
        return
    clauses = [i for i in range(begin + 1, count) if found[i].text in _CLAUSES]
    if clauses and found[clauses[-1]].text in _MINOR:
        following = (found[i].start for i in range(count, limit) if found[i].text in _CLAUSES)
        yield Span(found[clauses[-1]].start, next(following, stop_at))
    yield Span(found[begin].start, stop_at)


def _last_declaration(found: list[Lexeme], count: int) -> int:
    """The last of the lexemes that are right to start a declaration, or the shuffle around it."""
    return max(i for i in range(count) if found[i].text in RESERVED)


def _starts_shuffle(found: list[Lexeme], i: int) -> bool:
    return found[i].text == "shuffle" and starts_declaration(found, i)


def _broken(found: list[Lexeme], region: Span, count: int) -> ast.Broken:
    """What a part of a shuffle declares, as far as its words show; ``count`` lexemes are right."""
    inside = [e for e in found if region.start <= e.start < region.end and not e.is_foreign]
    declared = tuple(_declared(inside))
    words = frozenset(each.text for each in inside if each.is_word)
    if inside and inside[0].text in _MINOR:
        return ast.Broken((), words, True, span=region)
    words |= _meant(found, count)
    named = all(ident is not None or keyword in _NAMELESS for keyword, ident in declared)
    return ast.Broken(declared, words, named and bool(declared or not words), span=region)


def _meant(found: list[Lexeme], count: int) -> frozenset[str]:
    """Words that may have been meant by the one before the lexeme that is wrong."""
    before, wrong, *rest = found[count - 1 : count + 2]
    meant = set()
    if wrong.text in (",", *CLOSERS.values()):  # what opens a list is missing: `ro0, o1)`
        meant |= {before.text[:end] for end in range(1, len(before.text))}
    if rest and rest[0].is_word and (before.end, rest[0].start) == (wrong.start, wrong.end):
        meant.add(before.text + rest[0].text)
    return frozenset(meant)


def _declared(inside: list[Lexeme]) -> Iterator[tuple[str, ast.Ident | None]]:
    """The keywords of the declarations among some lexemes, each with the name behind it."""
    keyword = ""
    for lexeme, following in zip_longest(inside, inside[1:]):
        first = lexeme is inside[0]
        if lexeme.text in DECLARATIONS and (first or (following and following.is_word)):
            keyword = lexeme.text
            yield keyword, _ident(following)
        elif first and (similar := nearest(lexeme.text, DECLARATIONS)) and _ident(following):
            keyword = similar
            yield keyword, _ident(following)
        elif keyword == "const" and following is not None and following.text == "=":
            yield keyword, _ident(lexeme)


def _ident(lexeme: Lexeme | None) -> ast.Ident | None:
    """A lexeme as a name, if it can be one."""
    if lexeme is None or not lexeme.is_word or lexeme.text in RESERVED:
        return None
    return ast.Ident(lexeme.text, span=lexeme.span)


def _blanked(text: str, region: Span) -> str:
    blank = re.sub(r"[^\n]", " ", text[region.start : region.end])
    return text[: region.start] + blank + text[region.end :]


def _put(mark: str, at: int, text: str) -> str | None:
    """The text with a mark in place of the blank at an offset; None if there is no blank."""
    if text[at : at + 1].strip():
        return None
    return text[:at] + mark + text[at + 1 :]
