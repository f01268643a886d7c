"""Places in a text as editors count them: lines, and units of the encoding that was agreed on."""

from __future__ import annotations

import re
from bisect import bisect_right

from lsprotocol.types import Position, PositionEncodingKind, Range

from fuscoc.source import Span

_LINE_END = re.compile(r"\r\n|\n|\r")
_UNIT_BYTES = {
    PositionEncodingKind.Utf8: ("utf-8", 1),
    PositionEncodingKind.Utf16: ("utf-16-le", 2),
    PositionEncodingKind.Utf32: ("utf-32-le", 4),
}


class Positions:
    """Between character offsets of a text and positions in it."""

    def __init__(self, text: str, encoding: PositionEncodingKind | str | None) -> None:
        self._text = text
        kind = PositionEncodingKind(encoding or PositionEncodingKind.Utf16)
        self._codec, self._unit_bytes = _UNIT_BYTES[kind]
        self._starts = [0, *(match.end() for match in _LINE_END.finditer(text))]

    def position(self, offset: int) -> Position:
        """The position of a character."""
        line = bisect_right(self._starts, offset) - 1
        return Position(line, self._units(self._text[self._starts[line] : offset]))

    def offset(self, position: Position) -> int:
        """The character at a position; that of the line's end for one behind it."""
        if position.line >= len(self._starts):
            return len(self._text)
        start = self._starts[position.line]
        end = _LINE_END.search(self._text, start)
        units = 0
        for offset in range(start, end.start() if end else len(self._text)):
            if units >= position.character:
                return offset
            units += self._units(self._text[offset])
        return end.start() if end else len(self._text)

    def range(self, span: Span) -> Range:
        """The range of a span."""
        return Range(self.position(span.start), self.position(span.end))

    def span(self, range: Range) -> Span:
        """The span of a range."""
        return Span(self.offset(range.start), self.offset(range.end))

    def _units(self, text: str) -> int:
        return len(text.encode(self._codec, "surrogatepass")) // self._unit_bytes
