"""Source text and spans: where in a ``.fsc`` file something stands."""

from __future__ import annotations

import operator
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePath
from textwrap import shorten
from typing import Any


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

    @property
    def plain_name(self) -> str:
        """The file's name as it may stand in a comment or a docstring of generated code."""
        name = PurePath(self.path).name
        return "".join(c if c.isprintable() and c not in '\\"' else "_" for c in name)

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0] + [i + 1 for i, char in enumerate(self.text) if char == "\n"]

    def line_column(self, offset: int) -> tuple[int, int]:
        """1-based line and column of a character offset."""
        line = bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1

    def line_text(self, line: int) -> str:
        """The text of a 1-based line, without its newline."""
        begin = self._line_starts[line - 1]
        end = self.text.find("\n", begin)
        return self.text[begin : end if end >= 0 else None].removesuffix("\r")

    def lines(self, span: Span) -> range:
        """The 1-based lines that a span has characters of."""
        last = max(span.start, span.end - 1)
        return range(self.line_column(span.start)[0], self.line_column(last)[0] + 1)

    def quoted(self, lines: Iterable[int], mark: str) -> list[str]:
        """Lines as comments of generated code: ``# moe.fsc:18: dispatch …``, the spec's words."""
        words = {line: self.line_text(line).split("//")[0].split() for line in lines}
        return [
            shorten(f"{mark} {self.plain_name}:{line}: {' '.join(each)}", 100, placeholder=" ...")
            for line, each in words.items()
        ]

    def widened(self, span: Span) -> Span:
        """A piece of the text to remove, with the blanks before it, or its lines if it fills them.

        A comment behind it stays.
        """
        start = len(self.text[: span.start].rstrip(" \t"))
        if start > 0 and self.text[start - 1] != "\n":
            return Span(start, span.end)
        rest_of_line = re.match(r"[ \t]*\r?(\n|$)", self.text[span.end :])
        return Span(start, span.end + rest_of_line.end()) if rest_of_line else span


def read_source(path: Path) -> SourceFile:
    """The text of a ``.fsc`` file, which is UTF-8; the path as given names it in messages.

    Bytes that are not UTF-8 become characters that the language refuses, so that the parser can
    point at them.
    """
    return SourceFile(str(path), path.read_bytes().decode("utf-8-sig", errors="replace"))


def whole_numbers(defines: Mapping[str, Any]) -> dict[str, int]:
    """Constants as a Python caller gives them, also as numbers of numpy or PyTorch.

    Raises:
        TypeError: one is no whole number; says which.
    """
    numbers = {}
    for name, value in defines.items():
        try:
            number = operator.index(value)
        except TypeError:
            number = None
        if number is None or isinstance(value, bool):
            raise TypeError(f"the constant `{name}` is {value!r}, no whole number")
        numbers[name] = number
    return numbers


def as_source(spec: str | Path) -> SourceFile:
    """A spec given as a path or as its text; text is told by its newline or its brace."""
    if isinstance(spec, str) and ("\n" in spec or "{" in spec):
        return SourceFile("spec.fsc", spec)
    return read_source(Path(spec))
