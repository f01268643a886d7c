"""Long texts are answered as others are: the work grows as the text does.

Where it grew as its square, these took minutes, which is what the limits are for.
"""

from __future__ import annotations

import pytest

from fuscoc.diagnostics import render
from fuscoc.lang import scope
from fuscoc.lang.lexemes import lexemes
from fuscoc.source import SourceFile
from tests.lang.found import errors

pytestmark = pytest.mark.timeout(60)


def test_dashes_are_gone_through_once() -> None:
    found = lexemes("-" * 100_000 + " --> <-- ->>")
    assert [each.text for each in found[99_998:]] == ["-", "-", "-->", "<--", "->>"]
    assert [each.text for each in lexemes("a--->b - -> c")] == ["a", "--->", "b", "-", "->", "c"]


def test_many_errors_in_one_line() -> None:
    options = "balance greedy " * 10_000
    text = f"shuffle s {{ index t : 4 dispatch a[t] -> b[t] {options}}} // é"
    found = [each for each in errors(text) if each.code == "FSC013"]
    assert len(found) == 9_999
    source = SourceFile("test.fsc", text)
    assert all(" | " in render(each, source) for each in found)


def test_names_are_compared_with_so_many_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is told what may have been meant first is told that of all mistakes but the last."""
    declared = "const width = 1, height = 2, a = widht, b = heigth, c = widht"
    monkeypatch.setattr(scope, "MOST_COMPARED", 10)  # twice with all five
    meant = [each.fix and each.fix.replacement for each in errors(f"shuffle s {{ {declared} }}")]
    assert meant[-3:] == ["width", "height", None]
