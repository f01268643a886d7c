"""Safe fixes of whatever mistakes: none leaves an error where it was made, or spoils a file."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fuscoc.diagnostics import Diagnostic, DiagnosticSink, Fix
from fuscoc.fixing import MAX_ROUNDS, apply, fix_source
from fuscoc.lang.parser import parse
from fuscoc.source import SourceFile
from tests.drawn import at_night
from tests.lang.found import found_in
from tests.lang.mistakes import EXAMPLES, LEXEME, code, good, spoilt

MOE = next(text for text in EXAMPLES if "shuffle moe" in text)
PENCIL = next(text for text in EXAMPLES if "shuffle x_to_y" in text)
FFT = next(text for text in EXAMPLES if "shuffle fft_transpose" in text)
SYNTAX = {"FSC001", "FSC002"}
QUOTED = re.compile(r"`(\S+)`")


def found(text: str) -> tuple[Diagnostic, ...]:
    return found_in(SourceFile("test.fsc", text))


def safe_fixes(text: str) -> list[Fix]:
    return [each.fix for each in found(text) if each.fix is not None and each.fix.safe]


def num_declarations(text: str) -> int:
    """How many declarations of a text can be read."""
    source = SourceFile("test.fsc", text)
    shuffles = parse(source, DiagnosticSink(source))
    return sum(len(shuffle.declarations) for shuffle in shuffles)


def errors_of(fix: Fix, text: str) -> list[Diagnostic]:
    """The errors in what a fix has written."""
    written = range(fix.span.start, fix.span.start + len(fix.replacement))
    return [each for each in found(apply(text, [fix])) if each.primary.span.start in written]


def errors_behind(fix: Fix, text: str) -> list[Diagnostic]:
    """The syntax errors at the lexeme behind what a fix has written that were not there before."""
    fixed, end = apply(text, [fix]), fix.span.start + len(fix.replacement)
    behind = next((m.start() for m in LEXEME.finditer(code(fixed)) if m.start() >= end), -1)
    before = {(each.code, each.primary.span.start + grown(fix)) for each in found(text)}
    return [
        each
        for each in found(fixed)
        if each.primary.span.start == behind
        and each.code in SYNTAX
        and (each.code, behind) not in before
    ]


def grown(fix: Fix) -> int:
    return len(fix.replacement) - (fix.span.end - fix.span.start)


def is_hidden(error: Diagnostic, fix: Fix, text: str) -> bool:
    """Whether an error of a fix, or behind it, is another mistake of the text, which the fixed one
    has hidden: something is missing there, or is in the way. Without that mistake the fix is the
    same and leaves no error."""
    fixed = apply(text, [fix])
    strange = [each.primary.span.start for each in found(fixed) if each.code == "FSC002"]
    behind = max(error.primary.span.end, fix.span.start + len(fix.replacement))
    end, mended = behind - grown(fix), list[str]()
    if error.primary.text.endswith(" after this"):
        missing = QUOTED.findall(error.primary.text)
        mended = [f"{text[:end]} {each} {text[end:]}" for each in missing]
    # A character that no lexeme has, and that the fix has not written.
    following = len(fixed) - len(fixed[behind:].lstrip())
    for each in {error.primary.span.start, following}.intersection(strange):
        at = each - grown(fix)
        if at >= fix.span.end:
            mended.append(text[:at] + text[at + 1 :])
    return any(
        fix in safe_fixes(each) and not errors_of(fix, each) and not errors_behind(fix, each)
        for each in mended
    )


@settings(max_examples=at_night(100))
@given(spoilt())
@example(MOE.replace("by_token[t] ->", "by_token[t] =>"))
@example(MOE.replace("bf16[hidden] }", "bf16[64]; s : f32 }"))
@example(MOE.replace("const hidden = 7168,", "const hidden = 7168 cost = 2,"))
@example(FFT.replace("shuffle fft_transpose {", "huffle fft_transpose "))
@example("huffle fft_transpose")
@example(PENCIL.replace("  layout  all_y", "  #layout  all_y"))
@example(FFT.replace("shuffle fft_transpose", "huffle $fft_transpose"))
@example(FFT.replace("shuffle fft_transpose", "huffle #fft_transpose"))
def test_what_a_safe_fix_writes_is_right(text: str) -> None:
    """No error is left in it, and none that it makes is at the lexeme behind it."""
    for fix in safe_fixes(text):
        left = errors_of(fix, text) + errors_behind(fix, text)
        assert all(is_hidden(each, fix, text) for each in left)


@settings(max_examples=at_night(100))
@given(spoilt())
@example(MOE.replace("by_expert[r(t", "by_expert[r;(t"))
def test_fixing_ends_and_no_round_makes_it_worse(text: str) -> None:
    source = SourceFile("test.fsc", text)
    fixed, applied = fix_source(source, found_in)
    assert len(applied) < MAX_ROUNDS
    assert not safe_fixes(fixed.text)
    stages = [*dict.fromkeys(each.source.text for each in applied), fixed.text]
    for stage, following in pairwise(stages):
        assert num_declarations(following) >= num_declarations(stage)


RESTORED = {
    "->": ["=>", "-->", "->>", "==>", "\u2192"],
    "..": ["..<", "\u2026"],
    ",": [";", "\uff0c"],
    "*": ["\u00d7"],
    "-": ["\u2212"],
    "[": ["\uff3b"],
}


@settings(max_examples=at_night(100))
@given(good, st.data())
def test_what_can_only_mean_one_thing_is_restored(text: str, data: st.DataObject) -> None:
    pattern = re.compile("|".join(re.escape(mark) for mark in RESTORED))
    place = data.draw(st.sampled_from(list(pattern.finditer(code(text)))))
    wrong = data.draw(st.sampled_from(RESTORED[place[0]]))
    broken = text[: place.start()] + wrong + text[place.end() :]
    fixed, applied = fix_source(SourceFile("test.fsc", broken), found_in)
    assert fixed.text == text
    assert len(applied) == 1


ENDS = re.compile(r"(?<=[\w\])}])[ \t]*\n(?=\s*(?:\w|}))")
"""Where a line ends behind a declaration or a shuffle, and another one or a brace follows."""


def leaves_out(mark: str, at: int, text: str) -> bool:
    """Whether a separator at a place of a text is mended."""
    fixed, _ = fix_source(SourceFile("test.fsc", text[:at] + mark + text[at:]), found_in)
    return found(fixed.text) == found(text)


@settings(max_examples=at_night(100))
@given(good, st.data())
def test_separators_are_left_out(text: str, data: st.DataObject) -> None:
    """Behind any declaration that a line ends in."""
    at = data.draw(st.sampled_from([m.start() for m in ENDS.finditer(code(text))]))
    assert leaves_out(data.draw(st.sampled_from(";,")), at, text)


@pytest.mark.parametrize("mark", [";", ","])
def test_separators_between_shuffles_are_left_out(mark: str) -> None:
    assert leaves_out(mark, PENCIL.index("\n}\n") + 2, PENCIL)
