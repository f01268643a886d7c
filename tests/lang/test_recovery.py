"""After a syntax error the rest is checked, and nothing is said that follows from the error."""

from __future__ import annotations

import re

from hypothesis import given

from fuscoc.diagnostics import CompileError, Diagnostic
from fuscoc.lang.check import check_file
from fuscoc.source import SourceFile
from tests.lang.mistakes import EXAMPLES, code, spoilt

MOE = next(text for text in EXAMPLES if "shuffle moe" in text)
SYNTAX = {"FSC001", "FSC002", "FSC003"}
DECLARATION = re.compile(
    r"^ *(const|index|segment|layout|view|place|route|weight|dispatch|combine)\b", re.MULTILINE
)


def errors(text: str) -> list[Diagnostic]:
    try:
        check_file(SourceFile("test.fsc", text))
    except CompileError as error:
        return list(error.diagnostics)
    return []


def declarations(text: str) -> list[tuple[int, int]]:
    """Where the declarations of a spec with one on each line stand."""
    plain = code(text)
    starts = [match.start(1) for match in DECLARATION.finditer(plain)]
    ends = [*starts[1:], plain.rindex("}")]
    return [
        (start, start + len(plain[start:end].rstrip()))
        for start, end in zip(starts, ends, strict=True)
    ]


@given(spoilt(most=1))
def test_one_syntax_error_is_all_that_is_reported(text: str) -> None:
    """Nothing else is wrong, so nothing of the check may come along."""
    found = errors(text)
    if any(each.code in SYNTAX for each in found):
        assert {each.code for each in found} <= SYNTAX, found
