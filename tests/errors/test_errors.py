"""What users see: every bad spec beside this file and the exact text printed about it.

``FUSCOC_UPDATE_GOLDEN=1`` rewrites the ``.err`` files; read their diff before committing it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from fuscoc.diagnostics import CATALOGUE, CompileError, render
from fuscoc.lang.check import check_file
from fuscoc.source import SourceFile

HERE = Path(__file__).parent
SPECS = sorted(HERE.glob("*.fsc"))
UPDATE = os.environ.get("FUSCOC_UPDATE_GOLDEN") == "1"


def said_about(spec: Path) -> str:
    """Everything that ``fuscoc check`` prints about a spec."""
    source = SourceFile(spec.name, spec.read_text(encoding="utf-8"))
    try:
        checked = check_file(source)
    except CompileError as error:
        return str(error)
    return "\n".join(render(warning, source) for warning in checked.warnings)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.stem)
def test_message(spec: Path) -> None:
    golden = spec.with_suffix(".err")
    said = said_about(spec)
    assert said, "a spec in this folder has a mistake"
    if UPDATE:
        golden.write_text(said, encoding="utf-8")
    assert said == golden.read_text(encoding="utf-8")


def test_every_golden_file_has_its_spec() -> None:
    assert {path.stem for path in HERE.glob("*.err")} == {spec.stem for spec in SPECS}


def test_every_code_is_shown() -> None:
    shown = {code for spec in SPECS for code in re.findall(r"FSC\d{3}", said_about(spec))}
    # Overrides and topologies come from the command line, so no file can show their codes.
    assert shown == CATALOGUE.keys() - {"FSC014", "FSC057"}
