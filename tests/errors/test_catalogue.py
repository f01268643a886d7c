"""Explanations: every code has one, its examples are what they say, and the page is up to date."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fuscoc import errors
from fuscoc.diagnostics import CATALOGUE
from fuscoc.errors.reference import reference, said
from fuscoc_runtime.errors import ERRORS

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"


@pytest.mark.parametrize("code", CATALOGUE)
def test_examples(code: str) -> None:
    found = errors.explain(code)
    assert found.wrong is not None
    assert found.right is not None
    assert [each.code for each in said(found.wrong)] == [code]
    assert said(found.right) == ()
    assert found.text.endswith(".")
    assert found.text.isprintable() or "\n" in found.text


def test_every_file_explains_a_code() -> None:
    pages = {path.stem for path in Path(errors.__file__).parent.glob("*.md")}
    assert pages == CATALOGUE.keys()


def test_the_page_is_up_to_date() -> None:
    """``make docs`` rewrites it."""
    if os.environ.get("FUSCOC_UPDATE_GOLDEN") == "1":
        PAGE.write_text(reference(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == reference()


def test_errors_of_the_runtime_are_explained_by_their_docstrings() -> None:
    found = errors.explain("FSR010")
    assert found.title == "a routing value that names no key, no rank, or nothing to look up"
    assert found.text.startswith("`position` is where in `input` it stands;")
    titles = errors.titles()
    assert titles.keys() == CATALOGUE.keys() | ERRORS.keys()
    assert len(set(titles.values())) == len(titles)


@pytest.mark.parametrize(
    ("given", "code"),
    [("FSC012", "FSC012"), ("fsc12", "FSC012"), ("12", "FSC012"), ("fsr1", "FSR001")],
)
def test_codes_may_be_abbreviated(given: str, code: str) -> None:
    assert errors.normal(given) == code


@pytest.mark.parametrize(
    ("given", "like"), [("FSX034", "FSC034"), ("FSCO34", "FSC034"), ("FSR999", "FSR090")]
)
def test_an_unknown_code_gets_the_nearest(given: str, like: str) -> None:
    with pytest.raises(errors.UnknownCodeError, match=rf"no code `{given}`; did you mean {like}\?"):
        errors.normal(given)


def test_a_word_is_no_code() -> None:
    with pytest.raises(errors.UnknownCodeError, match=r"there is no code `layout`$"):
        errors.normal("layout")
