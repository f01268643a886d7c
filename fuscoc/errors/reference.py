"""Writes ``docs/errors.md``: every code, with what the compiler says about the wrong example.

python -m fuscoc.errors.reference docs/errors.md
"""

from __future__ import annotations

import shlex
import sys
from argparse import ArgumentParser
from dataclasses import fields
from pathlib import Path

from fuscoc import driver
from fuscoc.diagnostics import CATALOGUE, CompileError, Diagnostic, render
from fuscoc.errors import Example, Explanation, explain
from fuscoc.source import SourceFile
from fuscoc_runtime.errors import ERRORS

HEAD = """# Errors

This page explains every error and warning. Each has a code that never changes its meaning. Codes
`FSC...` are about specs; each has a spec with the mistake, what the compiler says about it, and a
spec without. Codes `FSR...` are raised [while a shuffle runs](#while-a-shuffle-runs).

`fuscoc explain-error FSC012` prints what is said here. [Diagnostics](diagnostics.md) describes the
forms of errors for editors and other programs. The page is generated from the definitions by
`make docs`.
"""
RUNTIME = """# While a shuffle runs

These are Python exceptions, `fuscoc_runtime.errors.FuscoRuntimeError` with a `code`. They carry
what their message says as attributes.

- Without `max_sources`, what is wrong with a call is raised on all ranks.
- With `max_sources` it is raised by the call on the rank that is wrong. What kernels find (FSR017
  to FSR019, FSR022 to FSR028, FSR031 and FSR033) is raised by `check`, `stats` and `close`.
- Failures of ranks or of the network (FSR020, FSR021) are raised where they are noticed.
"""
SPEC = "spec.fsc"


def said(example: Example, path: str = SPEC) -> tuple[Diagnostic, ...]:
    """What ``fuscoc check`` finds in an example."""
    parser = ArgumentParser()
    parser.add_argument("-D", action="append", default=[])
    parser.add_argument("--topology", action="append", default=[])
    options = parser.parse_args(shlex.split(example.options))
    defines = {name: int(value) for name, value in (each.split("=") for each in options.D)}
    try:
        found = driver.check_source(SourceFile(path, example.text), defines, options.topology)
    except CompileError as error:
        return error.diagnostics
    return found.warnings


def reference() -> str:
    """The whole page."""
    specs = [_section(explain(code)) for code in CATALOGUE]
    runtime = [_runtime_section(explain(code)) for code in sorted(ERRORS)]
    return "\n".join([HEAD, *specs, RUNTIME, *runtime])


def _section(found: Explanation) -> str:
    assert found.wrong is not None
    assert found.right is not None
    source = SourceFile(SPEC, found.wrong.text)
    messages = "\n".join(render(each, source) for each in said(found.wrong))
    return (
        f"## {found.code}: {found.title}\n\n{found.text}\n\n"
        f"{found.wrong}\n```text\n{messages}```\n\nRight:\n\n{found.right}"
    )


def _runtime_section(found: Explanation) -> str:
    error = ERRORS[found.code]
    attributes = ", ".join(f"`{field.name}`" for field in fields(error))  # type: ignore[arg-type]
    text = f"{found.text}\n\n" if found.text else ""
    return f"## {found.code}: {found.title}\n\n{text}`{error.__name__}` with {attributes}.\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference(), encoding="utf-8")
