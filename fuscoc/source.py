"""Source text and spans: where in a ``.fsc`` file something stands."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open range ``[start, end)`` of character offsets in one source file."""

    start: int
    end: int

    def to(self, other: Span) -> Span:
        """The smallest span that covers both."""
        return Span(min(self.start, other.start), max(self.end, other.end))


@dataclass(frozen=True)
class SourceFile:
    """One ``.fsc`` text and the path that names it in messages."""

    path: str
    text: str = field(repr=False)

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0] + [i + 1 for i, char in enumerate(self.text) if char == "\n"]

    def line_column(self, offset: int) -> tuple[int, int]:
        """1-based line and column of a character offset."""
        line = bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1

    def line_text(self, line: int) -> str:
        """The text of a 1-based line, without its newline."""
        return self.text.split("\n")[line - 1].removesuffix("\r")
