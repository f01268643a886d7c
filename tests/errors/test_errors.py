"""What users see: every bad spec beside this file and the exact text printed about it.

``FUSCOC_UPDATE_GOLDEN=1`` rewrites the ``.err`` files; read their diff before committing it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from fuscoc.diagnostics import CATALOGUE, Diagnostic, render
from fuscoc.errors import Example
from fuscoc.errors.reference import said
from fuscoc.fixing import fix_source
from fuscoc.source import SourceFile

HERE = Path(__file__).parent
SPECS = sorted(HERE.glob("*.fsc"))
UPDATE = os.environ.get("FUSCOC_UPDATE_GOLDEN") == "1"


def read(spec: Path) -> SourceFile:
    return SourceFile(spec.name, spec.read_bytes().decode())


def found_in(source: SourceFile) -> tuple[Diagnostic, ...]:
    """What is found with the options of ``fuscoc check`` that a spec's first line may give."""
    options = re.match("// options: (.*)\n", source.text)
    return said(Example(source.text, options[1] if options else ""), source.path)


def said_about(spec: Path) -> str:
    """Everything that ``fuscoc check`` prints about a spec."""
    source = read(spec)
    return "\n".join(render(each, source) for each in found_in(source))


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.stem)
def test_message(spec: Path) -> None:
    golden = spec.with_suffix(".err")
    said = said_about(spec)
    assert said, "a spec in this folder has a mistake"
    if UPDATE:
        golden.write_text(said, encoding="utf-8")
    assert said == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.stem)
def test_safe_fixes_settle_what_they_are_for(spec: Path) -> None:
    """Whatever has a safe fix is gone after it, and no fix is left or makes another mistake."""
    source = read(spec)
    before = found_in(source)
    safe = [each for each in before if each.fix is not None and each.fix.safe]
    fixed, applied = fix_source(source, found_in)
    after = found_in(fixed)
    assert len(applied) >= len(safe)
    assert not [each for each in after if each.fix is not None and each.fix.safe]
    if not any(each.code.startswith("FSC00") for each in before):  # names were not checked before
        assert {(each.code, each.message) for each in after} <= {
            (each.code, each.message) for each in before if each not in safe
        }


def test_there_are_many() -> None:
    assert len(SPECS) >= 60
    assert {path.stem for path in HERE.glob("*.err")} == {spec.stem for spec in SPECS}


def test_every_code_is_shown() -> None:
    shown = {code for spec in SPECS for code in re.findall(r"FSC\d{3}", said_about(spec))}
    assert shown == CATALOGUE.keys()
