"""Whatever the text: an answer, in time, that is shuffles which compile or errors for a person.

What ``check`` accepts compiles, for any backend that the spec demands: an ``InternalError`` of a
pass or of a code generator fails a case like every other exception.

150 cases by default; ``make fuzz`` runs 10,000.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from hypothesis import HealthCheck, given, settings

from fuscoc import driver
from fuscoc.diagnostics import CompileError, Diagnostic, render
from fuscoc.fixing import fix_source
from fuscoc.lang.check import check_file
from fuscoc.source import SourceFile
from tests.fuzz.mutations import Case, cases

NUM_CASES = int(os.environ.get("FUSCOC_FUZZ", "150"))
HANGS_AFTER = 20.0  # seconds of computing, a hundred times what the slowest case takes


class HangError(Exception):
    """A case that did not end."""


@contextmanager
def watchdog() -> Iterator[None]:
    """Raise ``HangError`` in a body that goes on computing; waiting for others does not count."""

    def bark(number: int, frame: FrameType | None) -> None:
        raise HangError(f"still running after {HANGS_AFTER} s")

    before = signal.signal(signal.SIGVTALRM, bark)
    signal.setitimer(signal.ITIMER_VIRTUAL, HANGS_AFTER)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def found_in(source: SourceFile, case: Case) -> tuple[Diagnostic, ...]:
    """The errors or warnings about a text."""
    try:
        checked = check_file(source, case.defines)
    except CompileError as error:
        return error.diagnostics
    assert checked.shuffles
    return checked.warnings


@settings(
    max_examples=NUM_CASES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(cases())
def test_every_case_is_answered(case: Case) -> None:
    source = SourceFile("spec.fsc", case.text)
    with watchdog():
        found = found_in(source, case)
        assert all(render(each, source).endswith("\n") for each in found)
        fix_source(source, lambda text: found_in(text, case))
        if all(each.severity == "warning" for each in found):
            assert '"schema"' in driver.emit_files(source, case.defines, "manifest")
