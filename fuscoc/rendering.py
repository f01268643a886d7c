"""Diagnostics as text: the source lines with the places underlined, then notes and the fix.

error[FSC011]: there is no layout or view `by_tokn`
  --> moe.fsc:18:12
   |
18 |   dispatch by_tokn[t] -> by_expert[r(t, k), *]
   |            ^^^^^^^
   = help: did you mean `by_token`?
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from unicodedata import east_asian_width

from fuscoc.source import SourceFile

if TYPE_CHECKING:
    from fuscoc.diagnostics import Diagnostic, Label

TAB = 4
_STYLES = {"error": "\033[1;31m", "warning": "\033[1;33m", "place": "\033[1;34m"}
_RESET = "\033[0m"


def render(diagnostic: Diagnostic, source: SourceFile, *, colour: bool = False) -> str:
    """The diagnostic as lines of text, ending in a newline; ANSI colours only when asked for."""

    def style(text: str, name: str) -> str:
        return f"{_STYLES[name]}{text}{_RESET}" if colour and text else text

    severity = diagnostic.severity
    labels = [(diagnostic.primary, True), *((label, False) for label in diagnostic.secondary)]
    by_line: dict[int, list[tuple[Label, bool]]] = {}
    for label, is_primary in sorted(labels, key=lambda item: item[0].span.start):
        line, _ = source.line_column(label.span.start)
        by_line.setdefault(line, []).append((label, is_primary))

    width = len(str(max(by_line)))
    gutter = style(f"{' ' * width} |", "place")
    line, column = source.line_column(diagnostic.primary.span.start)
    rows = [
        style(f"{severity}[{diagnostic.code}]", severity) + f": {diagnostic.message}",
        style(f"{' ' * width}-->", "place") + f" {source.path}:{line}:{column}",
        gutter,
    ]
    previous = None
    for number, on_line in sorted(by_line.items()):
        if previous is not None and number > previous + 1:
            rows.append(style("...", "place"))
        rows.append(f"{style(f'{number:>{width}} |', 'place')} {_shown(source.line_text(number))}")
        for label, is_primary in on_line:
            underline, text = _underline(label, source, "^" if is_primary else "-")
            marked = style(underline.lstrip() + text, severity if is_primary else "place")
            rows.append(f"{gutter} {' ' * (len(underline) - len(underline.lstrip()))}{marked}")
        previous = number
    equals = style(f"{' ' * width} =", "place")
    rows += [f"{equals} note: {note}" for note in diagnostic.notes]
    if diagnostic.help is not None:
        rows.append(f"{equals} help: {diagnostic.help}")
    return "".join(f"{row.rstrip()}\n" for row in rows)


def _underline(label: Label, source: SourceFile, mark: str) -> tuple[str, str]:
    """The marks under a label's first line, aligned with ``_shown``, and its text."""
    line, column = source.line_column(label.span.start)
    text = source.line_text(line)
    before = text[: column - 1]
    covered = text[column - 1 : column - 1 + label.span.end - label.span.start].rstrip()
    indent = _columns(_shown(before))
    length = _columns(_shown(before + covered)) - indent
    return " " * indent + mark * max(length, 1), f" {label.text}" if label.text else ""


def _shown(text: str) -> str:
    """A source line as printed: tabs expanded, control characters made visible."""
    text = text.expandtabs(TAB)
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def _columns(text: str) -> int:
    """Columns that the text takes in a terminal: wide characters count twice."""
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in text)
