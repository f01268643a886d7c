"""Whatever the text, there is an answer: shuffles, or errors that point into the text."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from fuscoc.diagnostics import CompileError, Diagnostic, render
from fuscoc.lang.check import check_file
from fuscoc.source import SourceFile
from tests.fuzz.mutations import cases, words
from tests.lang.specs import keyed_specs, tiled_specs

ROOT = Path(__file__).parents[2]
GOOD = [path.read_text() for path in sorted(ROOT.glob("examples/*.fsc"))]
BAD = [path.read_text() for path in sorted(ROOT.glob("tests/errors/*.fsc"))]
texts = st.sampled_from(GOOD + BAD) | st.one_of(keyed_specs, tiled_specs).map(lambda s: s.text)


def answer(text: str) -> tuple[Diagnostic, ...]:
    """The errors or warnings about a text: it is either wrong, or declares shuffles."""
    try:
        checked = check_file(SourceFile("test.fsc", text))
    except CompileError as error:
        found = error.diagnostics
        wrong = True
    else:
        found = checked.warnings
        wrong = not checked.shuffles
    assert not wrong or found
    assert {diagnostic.severity for diagnostic in found} <= {"error" if wrong else "warning"}
    return found


def assert_answered(text: str) -> None:
    source = SourceFile("test.fsc", text)
    found = answer(text)
    for diagnostic in found:
        for label in (diagnostic.primary, *diagnostic.secondary):
            assert 0 <= label.span.start <= label.span.end <= len(text)
        shown = render(diagnostic, source)
        assert shown.endswith("\n")
        assert all(char == "\n" or char.isprintable() for char in shown)
    places = [(diagnostic.code, diagnostic.primary.span) for diagnostic in found]
    assert len(set(places)) == len(places)


@given(cases().map(lambda case: case.text))
@example(GOOD[0][:-3])
@example("shuffle a { index t : tokens } shuffle b { const c = }")
@example("shuffle a shuffle b { index t : 1 }")
@example("}")
@example("shuffle")
@example("shuffle a { const b = 1 / 0, c = b / b index t : c }")
@example("shuffle a { index t : f(t) }")
@example("shuffle a {\n  index t : 1\n  j : 1\n}index")
@example("shuffle a { index t : f(u) index u : f(t) }")
def test_mutated_specs_are_answered(text: str) -> None:
    assert_answered(text)


@given(st.text(max_size=60) | st.lists(words, max_size=40).map(" ".join))
def test_garbage_is_answered(text: str) -> None:
    assert_answered(text)


@given(st.lists(words, max_size=30).map(" ".join))
def test_garbage_in_a_shuffle_is_answered(text: str) -> None:
    assert_answered(f"shuffle a {{ {text} }}")


@given(st.sampled_from(GOOD), st.sampled_from("é@$"), st.booleans(), st.data())
def test_one_foreign_character_is_one_error(
    text: str, char: str, behind: bool, data: st.DataObject
) -> None:
    """Before or behind any word of a spec, its keywords included."""
    plain = re.sub("//.*", lambda comment: " " * len(comment[0]), text)
    word = data.draw(st.sampled_from(list(re.finditer(r"\d+\.\d+|\w+|->|\.\.|\S", plain))))
    at = word.end() if behind else word.start()
    (found,) = answer(text[:at] + char + text[at:])
    assert (found.code, found.primary.span.start) == ("FSC002", at)


@given(texts.filter(lambda text: text not in BAD), st.data())
def test_one_missing_name_is_found_where_it_is(text: str, data: st.DataObject) -> None:
    """A layout's segment, misspelt beyond recognition: the first error is right there."""
    at = data.draw(st.sampled_from([match.end() for match in re.finditer(r"\]\s+of ", text)]))
    name = re.match(r"\w+", text[at:])
    assert name is not None
    broken = text[:at] + "zzzzzzz" + text[at + name.end() :]
    first = answer(broken)[0]
    assert (first.code, first.primary.span.start) == ("FSC011", at)
