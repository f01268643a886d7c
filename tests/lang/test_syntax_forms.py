"""Hints for syntax errors: each place has one, and the hint's own spec is right."""

from __future__ import annotations

import re

import pytest
from lark.exceptions import UnexpectedInput

from fuscoc.diagnostics import CompileError
from fuscoc.lang import parser
from fuscoc.lang.check import check_file
from fuscoc.lang.stops import FORMS, TOKENS, hint, stop
from fuscoc.source import SourceFile

PARSE = parser._parser().parse
HINTS = {**FORMS, **TOKENS}
PLACES = [
    "@",
    "shuffle s { @ }",
    "shuffle s { segment p { @ } }",
    "shuffle s { const a = @ }",
    "shuffle s { layout l[e, s] of t @ }",
    "shuffle s { view v[t] = l[@] }",
    "shuffle s { route r(t) -> e @ }",
    "shuffle s { route r(t) -> e = @ }",
    "shuffle s { weight w(t) : f32 @ }",
    "shuffle s { dispatch @ -> b[t] }",
    "shuffle s { dispatch a[t] -> b[t] @ }",
]


def helps(text: str) -> list[str | None]:
    with pytest.raises(CompileError) as caught:
        check_file(SourceFile("test.fsc", text))
    return [each.help for each in caught.value.diagnostics]


@pytest.mark.parametrize("example", HINTS)
def test_each_example_gets_its_own_hint(example: str) -> None:
    assert hint(stop(example, PARSE), PARSE) == HINTS[example]
    assert HINTS[example] in helps(example)


@pytest.mark.parametrize("form", sorted(set(re.findall(r"`([^`]+)`", " ".join(HINTS.values())))))
def test_what_a_hint_writes_is_right(form: str) -> None:
    """It is a shuffle, a declaration or the part of one for which a place is listed above."""
    form = form.replace("{ … }", "{ }").replace("…", "s")
    for place in PLACES:
        try:
            PARSE(place.replace("@", form))
        except UnexpectedInput:
            continue
        return
    pytest.fail(f"`{form}` is no part of any declaration")


@pytest.mark.parametrize(
    ("text", "fixed"),
    [
        ("const n : 4", "const n = 4"),
        ("index t = tokens", "index t : tokens"),
        ("segment p { x = u8 }", "segment p { x : u8 }"),
        ("view v[t] : l[t]", "view v[t] = l[t]"),
        ("dispatch a[t] = b[t]", "dispatch a[t] -> b[t]"),
        ("weight w(t) = input g", None),
        ("route r(t) -> e : i64", None),
    ],
)
def test_one_mark_for_another_is_safe_to_fix(text: str, fixed: str | None) -> None:
    whole = f"shuffle s {{\n  {text}\n}}\n"
    with pytest.raises(CompileError) as caught:
        check_file(SourceFile("test.fsc", whole))
    fix = caught.value.diagnostics[0].fix
    if fixed is None:
        assert fix is None
    else:
        assert fix is not None
        assert fix.safe
        start, end = fix.span.start, fix.span.end
        assert whole[:start] + fix.replacement + whole[end:] == f"shuffle s {{\n  {fixed}\n}}\n"
