"""Diagnostics as text: the source lines with the places underlined, then notes and the fix.

error[FSC011]: `by_tokn` is not declared
  --> moe.fsc:18:12
   |
18 |   dispatch by_tokn[t] -> by_expert[r(t, k), *]
   |            ^^^^^^^ a layout or a view is needed here
   = help: did you mean `by_token`?
   |
18 |   dispatch by_token[t] -> by_expert[r(t, k), *]
   |            ~~~~~~~~
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING
from unicodedata import east_asian_width

from fuscoc.source import SourceFile

if TYPE_CHECKING:
    from fuscoc.diagnostics import Diagnostic, Fix, Label

TAB = 4
MOST_COLUMNS = 160
"""Of a source line that are shown: a generated spec may hold it all in one line."""
_STYLES = {
    "error": "\033[1;31m",
    "warning": "\033[1;33m",
    "place": "\033[1;34m",
    "fix": "\033[1;32m",
}
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

    fixed = _fixed_lines(diagnostic.fix, source) if diagnostic.fix is not None else []
    width = len(str(max([*by_line, *(number for number, _, _ in fixed)])))
    gutter = style(f"{' ' * width} |", "place")
    line, column = source.line_column(diagnostic.primary.span.start)
    rows = [
        style(f"{severity}[{diagnostic.code}]", severity) + f": {diagnostic.message}",
        style(f"{' ' * width}-->", "place") + f" {_shown(source.path)}:{line}:{column}",
        gutter,
    ]
    previous = None
    for number, on_line in sorted(by_line.items()):
        if previous is not None and number > previous + 1:
            rows.append(style("...", "place"))
        first = on_line[0][0].span.start
        part, at = _part_of_line(source, first)
        marks = [
            _underline(part, at + label.span.start - first, label, "^" if is_primary else "-")
            for label, is_primary in on_line
        ]
        text, marks = _cropped(_shown(part), marks)
        rows.append(f"{style(f'{number:>{width}} |', 'place')} {text}")
        for (label, is_primary), underline in zip(on_line, marks, strict=True):
            note = f" {label.text}" if label.text else ""
            marked = style(underline.lstrip() + note, severity if is_primary else "place")
            rows.append(f"{gutter} {' ' * (len(underline) - len(underline.lstrip()))}{marked}")
        previous = number
    equals = style(f"{' ' * width} =", "place")
    rows += [f"{equals} note: {note}" for note in diagnostic.notes]
    if diagnostic.help is not None:
        rows.append(f"{equals} help: {diagnostic.help}")
    for number, written, new in fixed:
        if number == fixed[0][0]:
            rows.append(gutter)
        text, [underline] = _cropped(written, [new])
        rows.append(f"{style(f'{number:>{width}} |', 'place')} {text}")
        indent = " " * (len(underline) - len(underline.lstrip()))
        rows.append(f"{gutter} {indent}{style(underline.lstrip(), 'fix')}")
    return "".join(f"{row.rstrip()}\n" for row in rows)


def _cropped(text: str, marks: list[str]) -> tuple[str, list[str]]:
    """The part of a long line about its first mark, with the marks moved along.

    What a mark has beyond that part is left out; one that lies beyond it stands at the end.
    """
    ends: Sequence[int] = range(1, len(text) + 1)
    if not text.isascii():
        ends = list(accumulate(map(_columns, text)))
    if not ends or ends[-1] <= MOST_COLUMNS:
        return text, marks
    first = min(len(each) - len(each.lstrip()) for each in marks)
    begin = bisect_right(ends, max(0, first - MOST_COLUMNS // 4))
    skipped = ends[begin - 1] if begin else 0
    end = bisect_right(ends, skipped + MOST_COLUMNS)
    shown = ("…" if begin else "") + text[begin:end] + ("…" if end < len(text) else "")
    moved = [each[skipped:][:MOST_COLUMNS] for each in marks]
    behind = " " * MOST_COLUMNS
    return shown, [
        " " * bool(begin) + (there if there.strip() else behind + each[-1])
        for there, each in zip(moved, marks, strict=True)
    ]


def _part_of_line(source: SourceFile, offset: int) -> tuple[str, int]:
    """The line of an offset, and the offset in it; of a long line what is about it, which
    ``_cropped`` crops further: the work for an error does not grow with its line."""
    _, column = source.line_column(offset)
    begin = offset - min(column - 1, MOST_COLUMNS)
    # One column too many, by which `_cropped` sees that there are more.
    text, _, _ = source.text[begin : offset + MOST_COLUMNS + 1].partition("\n")
    return text.removesuffix("\r"), offset - begin


def _underline(text: str, at: int, label: Label, mark: str) -> str:
    """The marks under a label that begins at a place of ``text``, aligned with ``_shown``."""
    before = text[:at]
    covered = text[at : at + label.span.end - label.span.start].rstrip()
    indent = _columns(_shown(before))
    length = _columns(_shown(before + covered)) - indent
    return " " * indent + mark * max(length, 1)


def _fixed_lines(fix: Fix, source: SourceFile) -> list[tuple[int, str, str]]:
    """The lines that a fix writes, as (number, text, marks under what is new); none if it removes.

    ``~`` marks what stands in place of something, ``+`` what is added.
    """
    first, _ = source.line_column(fix.span.start)
    text, at = _part_of_line(source, fix.span.start)
    before = text[:at]
    text, at = _part_of_line(source, fix.span.end)
    after = text[at:]
    mark = "~" if fix.span.end > fix.span.start else "+"
    new = fix.replacement.split("\n")
    found = []
    for number, text in enumerate(new, first):
        left = before if number == first else ""
        right = after if number == first + len(new) - 1 else ""
        if text.strip():
            indent = _columns(_shown(left + text[: len(text) - len(text.lstrip())]))
            marks = " " * indent + mark * _columns(_shown(text.strip()))
            found.append((number, _shown(left + text + right), marks))
    return found


def _shown(text: str) -> str:
    """A source line as printed: tabs expanded, control characters made visible."""
    text = text.expandtabs(TAB)
    if text.isprintable():  # as nearly all lines are, which may be long
        return text
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def _columns(text: str) -> int:
    """Columns that the text takes in a terminal: wide characters count twice."""
    if text.isascii():
        return len(text)
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in text)
