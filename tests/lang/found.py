"""What is found in a spec, whether it compiles or not."""

from __future__ import annotations

from fuscoc.diagnostics import CompileError, Diagnostic
from fuscoc.lang.check import check_file
from fuscoc.source import SourceFile


def found_in(source: SourceFile) -> tuple[Diagnostic, ...]:
    """The errors of a file or, if it has none, its warnings."""
    try:
        return check_file(source).warnings
    except CompileError as error:
        return error.diagnostics


def errors(text: str) -> list[Diagnostic]:
    """The errors of a text, without warnings, in its order."""
    found = found_in(SourceFile("test.fsc", text))
    return [each for each in found if each.severity == "error"]
