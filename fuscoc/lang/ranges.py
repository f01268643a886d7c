"""Ranges that were written as if they covered their stop: one cell short of what is wanted."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fuscoc.diagnostics import Fix, Label
from fuscoc.lang.checked import Field, Subscript
from fuscoc.lang.scope import Scope, plural


def report_short(
    message: str, subscripts: Sequence[Subscript], rest: tuple[int, ...], field: Field, scope: Scope
) -> bool:
    """Whether ranges that are one cell short are all that keeps a field from its shape.

    They are reported then, with ``message``. ``rest`` is the shape of a cell.
    """
    runs = [each for each in subscripts if each.length is not None]
    lengths = [each.length for each in runs]
    wanted = field.shape[: len(runs)]
    short = [run for run, count in zip(runs, wanted, strict=False) if run.length == count - 1]
    full = [count - (run in short) for run, count in zip(runs, wanted, strict=False)]
    if not short or lengths != full or field.shape[len(runs) :] != rest:
        return False
    for run in short:
        written = _one_more(scope.sink.source.text[run.span.start : run.span.end])
        scope.sink.report(
            "FSC035",
            run.span,
            message,
            f"{plural(run.length or 0, 'cell')}: a range ends before its stop",
            secondary=[Label(field.span, "declared here")],
            fix=Fix(run.span, written, f"write `{written}`"),
        )
    return True


def _one_more(written: str) -> str:
    """The text of a range with its stop one further."""
    less_one = re.search(r"\s*-\s*1$", written)
    if less_one is not None:
        return written[: less_one.start()]
    number = re.search(r"(?<=\.\.)(\s*)(\d+)$", written)
    if number is not None:
        return f"{written[: number.start(2)]}{int(number[2]) + 1}"
    return f"{written} + 1"
