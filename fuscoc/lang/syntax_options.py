"""A word behind a dispatch that is no option of it."""

from __future__ import annotations

import re

from fuscoc.diagnostics import ONE_SLIP, DiagnosticSink, spelling
from fuscoc.source import Span

OPTIONS = ("on", "dedup", "slice", "balance", "schedule", "backend", "cast")
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_ARGUMENT = re.compile(r"\s*\(\s*([A-Za-z_]\w*)", re.ASCII)


def report_no_option(
    found: str, offset: int, accepted: set[str], text: str, sink: DiagnosticSink
) -> bool:
    """Whether a word stands where only an option could, on the line of the dispatch; a report then.

    At the start of a line it may as well be meant as a declaration.
    """
    before = text[:offset].rsplit("\n", 1)[-1]
    could_be = accepted >= {option.upper() for option in OPTIONS}
    if not (could_be and before.strip() and _WORD.fullmatch(found)):
        return False
    span = Span(offset, offset + len(found))
    argument = _ARGUMENT.match(text, span.end)
    weight = argument and re.search(rf"\bweight\s+{argument[1]}\b", text) and argument[1]
    sink.report(
        "FSC001",
        span,
        f"`{found}` is no option of a dispatch",
        notes=[f"the options are {', '.join(f'`{option}`' for option in OPTIONS)}"],
        help=f"a weight is applied on the way back: `combine reverse reduce sum({weight})`"
        if weight
        else None,
        fix=None if weight else spelling(found, span, OPTIONS, ONE_SLIP),
    )
    return True
