"""One mistake, one message: what depends on something wrong says nothing about it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lang.found import errors
from tests.lang.mistakes import EXAMPLES, code, good

DECLARED = re.compile(r"\b(?:segment|layout|view|route|weight) +(\w+)|(?:const|,) *(\w+) = ")


def uses(text: str) -> list[tuple[int, int]]:
    """Where the names that a spec declares, but for indices and inputs, are used.

    In the extent of an index any name will do: it introduces a run-time extent.
    """
    code = re.sub(
        r"//[^\n]*|\bindex +\w+ *:[^\n]*|\bby (?:block|cyclic|table)\b",
        lambda found: " " * len(found[0]),
        text,
    )
    names = {match[1] or match[2] for match in DECLARED.finditer(code)}
    declared = {match.start(1) if match[1] else match.start(2) for match in DECLARED.finditer(code)}
    found = (match for name in names for match in re.finditer(rf"\b{name}\b(?! *:)", code))
    inputs = {match.start(1) for match in re.finditer(r"\binput +(\w+)", code)}
    return sorted(m.span() for m in found if m.start() not in declared | inputs)


@given(good, st.data())
def test_an_unknown_name_is_all_that_is_reported(text: str, data: st.DataObject) -> None:
    """Also where a whole chain of declarations hangs on it."""
    start, end = data.draw(st.sampled_from(uses(text)))
    found = errors(f"{text[:start]}zzzzzz{text[end:]}")
    assert [(each.code, each.primary.span.start) for each in found] == [("FSC011", start)]


@given(good, st.data())
def test_several_unknown_names_are_reported_and_nothing_else(
    text: str, data: st.DataObject
) -> None:
    chosen = data.draw(st.lists(st.sampled_from(uses(text)), min_size=2, max_size=4, unique=True))
    for start, end in sorted(chosen, reverse=True):
        text = f"{text[:start]}{'z' * (end - start)}{text[end:]}"
    found = errors(text)
    assert {each.code for each in found} == {"FSC011"}
    # One in a declaration may hide those in the declarations that depend on it.
    assert {each.primary.span.start for each in found} <= {start for start, _ in chosen}


# An expression, in which commas stand in parentheses or brackets.
VALUE = r"(?:[^,\n()\[\]]|\((?:[^()]|\([^()]*\))*\)|\[[^\]]*\])+"


@pytest.mark.parametrize("text", EXAMPLES, ids=lambda text: text.split("shuffle ")[1].split()[0])
def test_a_wrong_declaration_hides_its_users(text: str) -> None:
    """Each constant made zero: no layout, route or path that depends on it adds a message."""
    for name in re.findall(r"(?:const|,) *(\w+) = ", code(text)):
        broken = re.sub(rf"\b{name} = {VALUE}", f"{name} = 1 / 0", code(text), count=1)
        assert [each.code for each in errors(broken)] == ["FSC022"]
