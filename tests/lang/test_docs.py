"""The specs of the language reference: each is right, or wrong with the code beside it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fuscoc.diagnostics import CATALOGUE, CompileError
from fuscoc.lang import dtypes
from fuscoc.lang.check import check_file
from fuscoc.lang.policy import CHOICES
from fuscoc.source import SourceFile

REFERENCE = (Path(__file__).parents[2] / "docs" / "language.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```fsc *(.*?)\n(.*?)^```$", REFERENCE, re.MULTILINE | re.DOTALL)


def test_there_are_specs() -> None:
    assert len(BLOCKS) == REFERENCE.count("```fsc") > 3


@pytest.mark.parametrize(("expected", "text"), BLOCKS, ids=lambda part: part.split("{")[0].strip())
def test_spec(expected: str, text: str) -> None:
    try:
        found = check_file(SourceFile("language.md", text)).warnings
    except CompileError as error:
        found = error.diagnostics
    assert [diagnostic.code for diagnostic in found] == expected.split()


def test_every_unsupported_construct_is_listed() -> None:
    listed = REFERENCE.partition("\n## Not yet\n")[2]
    assert re.findall(r"^\| (FSC\d+) \|", listed, re.MULTILINE) == sorted(
        code for code, title in CATALOGUE.items() if title.startswith("not yet supported")
    )


def test_element_types_and_options_are_listed() -> None:
    assert " ".join(dtypes.TYPES) in REFERENCE
    for knob, choices in CHOICES.items():
        assert f"`{knob} {choices[0]}`" in REFERENCE
        for other in choices[1:]:
            assert f"`{other}`" in REFERENCE
