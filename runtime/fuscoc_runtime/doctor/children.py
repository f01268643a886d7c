"""Processes that may hang or crash, side by side, with one time for all of them.

A broken driver or file system can keep a process from ending even when it is killed: none is
waited for after that.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

SHOWN_OUTPUT = 400
"""Characters from the end of what a process that failed has said."""


@dataclass(frozen=True)
class Outcome:
    """How a process ended: what it wrote to standard output, or why it did not end well."""

    output: str
    problem: str | None


def run_python(
    arguments: Sequence[Sequence[str]],
    environments: Sequence[Mapping[str, str]],
    seconds: float,
) -> list[Outcome]:
    """Run Python with each of the ``arguments`` at once, at most so long; outcomes in order."""
    # What this process imports the children find at the same places.
    paths = os.pathsep.join(path for path in sys.path if path)
    deadline = time.monotonic() + seconds
    started = [
        _Child(each, {**environment, "PYTHONPATH": paths})
        for each, environment in zip(arguments, environments, strict=True)
    ]
    try:
        return [child.outcome(deadline, seconds) for child in started]
    finally:
        for child in started:
            child.kill()


class _Child:
    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        # Files and not pipes: whoever inherits a pipe can keep its reader waiting.
        self._output, self._errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._errors,
            start_new_session=True,
        )

    def outcome(self, deadline: float, seconds: float) -> Outcome:
        try:
            code = self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()
            return Outcome("", f"no answer within {seconds:g} s")
        if code == 0:
            return Outcome(_text(self._output), None)
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        said = _text(self._errors)[-SHOWN_OUTPUT:].strip()
        return Outcome("", f"it ended with {how}: {said}" if said else f"it ended with {how}")

    def kill(self) -> None:
        """The process and whatever it has started, if they still run."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
