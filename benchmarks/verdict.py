"""A run in which somebody was wrong has measured nothing, and its exit code says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def exit_if_wrong(report: Sequence[Mapping[str, Any]]) -> None:
    """Raise ``SystemExit`` that names every contender whose rows or results are wrong."""
    wrong = [
        f"{entry['contender']} ({entry['routing']}, {entry['num_tokens']} tokens): {line}"
        for entry in report
        for line in entry["wrong"]
    ]
    if wrong:
        raise SystemExit("wrong: " + "; ".join(wrong))
