"""After a syntax error the rest is checked, and nothing is said that follows from the error."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuscoc.diagnostics import CompileError, Diagnostic
from fuscoc.lang.check import check_file
from fuscoc.lang.parser import MAX_SYNTAX_ERRORS
from fuscoc.source import SourceFile
from tests.lang.mistakes import EXAMPLES, code, good, spoilt

MOE = next(text for text in EXAMPLES if "shuffle moe" in text)
SYNTAX = {"FSC001", "FSC002", "FSC003"}


def errors(text: str) -> list[Diagnostic]:
    try:
        check_file(SourceFile("test.fsc", text))
    except CompileError as error:
        return list(error.diagnostics)
    return []


@given(spoilt(most=1).filter(lambda text: "#" not in code(text)))  # which hides a line
def test_one_syntax_error_is_all_that_is_reported(text: str) -> None:
    """Nothing else is wrong, so nothing of the check may come along."""
    found = errors(text)
    if any(each.code in SYNTAX for each in found):
        assert {each.code for each in found} <= SYNTAX, found


@given(good, st.sampled_from(["place", "weight", "combine", "dispatch"]), st.data())
def test_the_rest_is_checked(text: str, keyword: str, data: st.DataObject) -> None:
    """A layout of something unknown, while a declaration that it does not need is broken."""
    starts = [match.end() for match in re.finditer(rf"^ *{keyword} +\w+", code(text), re.MULTILINE)]
    elements = [match.span(1) for match in re.finditer(r"\] +of (\w+)", code(text))]
    if not starts:
        return
    at = data.draw(st.sampled_from(starts))
    start, end = data.draw(st.sampled_from(elements))
    text = f"{text[:start]}{'z' * (end - start)}{text[end:]}"
    found = errors(f"{text[:at]} ] {text[at:]}")
    shift = 3 if start > at else 0
    assert [(each.code, each.primary.span.start) for each in found] == (
        sorted([("FSC001", at + 1), ("FSC011", start + shift)], key=lambda place: place[1])
    )


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("index k : topk", "index k :"),
        ("index k : topk", "indx k : topk"),
        ("index t : tokens", "index : tokens"),
        ("const hidden = 7168", "const = 7168"),
        ("segment token {", "segment token "),
        ("segment token { x : bf16[hidden] }", "segment token { x : bf16[hidden] } }"),
        ("place   e on rank by block", "place e by block"),
        ("route   r(t, k) -> e ", "route r t, k -> e "),
        ("-> by_expert[r(t, k), *]  dedup", "=> by_expert[r(t, k), *]  dedup"),
        ("dedup(node, rank)", "dedup node, rank"),
        ("combine  by_expert[r(t, k), *] ->", "combine  by_expert ->"),
        ("shuffle moe {", "shuffle moe"),
        ("sum(w)\n}", "sum(w)\n"),
    ],
)
def test_a_broken_declaration_breaks_nothing_else(right: str, wrong: str) -> None:
    assert right in MOE
    found = errors(MOE.replace(right, wrong))
    assert [each.code for each in found] == ["FSC001"]


def test_the_shuffle_after_one_without_its_brace_is_checked() -> None:
    other = MOE.replace("shuffle moe", "shuffle other").replace(
        "of token  packed", "of tokn  packed"
    )
    found = errors(MOE.rstrip().removesuffix("}") + other)
    assert [each.code for each in found] == ["FSC001", "FSC011"]


def test_very_many_errors_end() -> None:
    found = errors("shuffle a {\n" + "  index t = 4\n" * 100 + "}\n")
    assert len(found) == MAX_SYNTAX_ERRORS
