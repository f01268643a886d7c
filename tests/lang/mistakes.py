"""Good specs, spoilt the way people spoil them, and the places in them where that can be done."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import strategies as st

from fuscoc.testing.texts import texts as generated
from tests.lang.specs import keyed_specs, tiled_specs

ROOT = Path(__file__).parents[2]
EXAMPLES = [path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("examples/*.fsc"))]
good = (
    st.sampled_from(EXAMPLES)
    | generated()
    | st.one_of(keyed_specs, tiled_specs).map(lambda spec: spec.text)
)
LEXEME = re.compile(r"[A-Za-z_]\w*|\d\w*|->|\.\.|[^\s\w]")
COMMENT = re.compile(r"//[^\n]*")
MARK = re.compile(r"->|\.\.|[^\s\w]")
WORD = re.compile(r"[A-Za-z_]\w{2,}")
# What is written in place of a mark by who thinks of another language or slips on the keyboard.
CONFUSED = {
    "->": ["=>", "-->", "->>", "==>", "<-", "\u2192", "- >", ">", "=", ":"],
    "=": [":", "==", ":=", "->", "=>"],
    ":": ["=", "::", ":=", ";"],
    "..": ["...", "..=", "..<", ":", "\u2026", "."],
    ",": [";", ",,", ".", "\uff0c", "\u3001"],
    "*": ["**", "\u00d7"],
    "-": ["\u2212", "\u2013", "--"],
    "[": ["(", "{", "\uff3b"],
    "]": [")", "}", "\uff3d"],
    "(": ["["],
    ")": ["]"],
    "{": ["(", "{{"],
    "}": [")", "}}", "};"],
}
STRANGE = [";", "#", "$", "@", "\u00a0", "\u200b", "\u00e9", "\u3000", ",", "\\", "//"]


def code(text: str) -> str:
    """The text with its comments blanked out."""
    return COMMENT.sub(lambda comment: " " * len(comment[0]), text)


@st.composite
def spoilt(draw: st.DrawFn, most: int = 3) -> str:
    """A spec with one mistake or a few."""
    text = draw(good)
    for _ in range(draw(st.integers(1, most))):
        change = draw(st.sampled_from([_confuse, _double, _leave_out, _misspell, _insert]))
        text = change(draw, text)
    return text


def _place(draw: st.DrawFn, pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    places = list(pattern.finditer(code(text)))
    return draw(st.sampled_from(places)) if places else None


def _replaced(text: str, place: re.Match[str], new: str) -> str:
    return text[: place.start()] + new + text[place.end() :]


def _confuse(draw: st.DrawFn, text: str) -> str:
    """One mark for another."""
    place = _place(draw, MARK, text)
    if place is None or place[0] not in CONFUSED:
        return text
    return _replaced(text, place, draw(st.sampled_from(CONFUSED[place[0]])))


def _double(draw: st.DrawFn, text: str) -> str:
    place = _place(draw, LEXEME, text)
    glue = draw(st.sampled_from(["", " "]))
    return text if place is None else _replaced(text, place, f"{place[0]}{glue}{place[0]}")


def _leave_out(draw: st.DrawFn, text: str) -> str:
    place = _place(draw, LEXEME, text)
    return text if place is None else _replaced(text, place, "")


def _misspell(draw: st.DrawFn, text: str) -> str:
    """A letter of a keyword or a name left out, doubled, or swapped with the next."""
    place = _place(draw, WORD, text)
    if place is None:
        return text
    word = place[0]
    at = draw(st.integers(0, len(word) - 2))
    one, two = word[at], word[at + 1]
    middle = draw(st.sampled_from([two, one + one + two, two + one]))
    return _replaced(text, place, word[:at] + middle + word[at + 2 :])


def _insert(draw: st.DrawFn, text: str) -> str:
    """A character that does not belong there, or a separator behind a line."""
    new = draw(st.sampled_from(STRANGE))
    ends = re.compile(r"(?<=\S)(?=[ \t]*\n)|(?=\S)") if new in ";," else LEXEME
    place = _place(draw, ends, text)
    return text if place is None else text[: place.start()] + new + text[place.start() :]
