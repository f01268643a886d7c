"""TOML whose mistakes are diagnostics: the values of ``tomllib``, and where each of them stands.

Settings are what a cluster needs: numbers, words and truths in tables of one level. The places are
found by going through the lines, since ``tomllib`` gives values only.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fuscoc.diagnostics import CompileError, DiagnosticSink
from fuscoc.source import SourceFile, Span

_TABLE = re.compile(r"[ \t]*\[[ \t]*([A-Za-z0-9_-]+)[ \t]*\]")
_SETTING = re.compile(
    r"[ \t]*(?P<key>[A-Za-z0-9_-]+)[ \t]*=[ \t]*"
    r"(?P<value>\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|[^#\n]*?)[ \t]*(?:#|\r?$)",
    re.MULTILINE,
)
_PLACE = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)


@dataclass(frozen=True)
class Place:
    """Where a setting stands: its key and its value."""

    key: Span
    value: Span


@dataclass(frozen=True)
class Settings:
    """``values`` and ``places`` by (table, key); the table of settings before any is ``""``.
    ``tables``: where the name of each stands."""

    values: Mapping[tuple[str, str], Any]
    places: Mapping[tuple[str, str], Place]
    tables: Mapping[str, Span]


def read_settings(source: SourceFile) -> Settings:
    """The settings of a text.

    Raises:
        CompileError: it is no TOML, or has more levels than tables and their settings.
    """
    sink = DiagnosticSink(source)
    try:
        document = tomllib.loads(source.text)
    except tomllib.TOMLDecodeError as error:
        message, span = _syntax_error(source, str(error))
        sink.report("FSC001", span, message)
        raise CompileError(source, sink.diagnostics) from None
    places, tables = _places(source.text)
    values: dict[tuple[str, str], Any] = {}
    for name, value in document.items():
        is_table = isinstance(value, dict) and name in tables  # and not written as `name = {}`
        inner, table = (value.items(), name) if is_table else ([(name, value)], "")
        for key, found in inner:
            if (table, key) in places and not isinstance(found, (dict, list)):
                values[table, key] = found
                continue
            span = tables.get(table) or _first(source.text, key)
            sink.report(
                "FSC001", span, f"`{key}` is no setting",
                "a setting is `name = value` on a line of its own, in a table or before all",
            )  # fmt: skip
    sink.raise_errors()
    return Settings(values, places, tables)


def _places(text: str) -> tuple[dict[tuple[str, str], Place], dict[str, Span]]:
    places: dict[tuple[str, str], Place] = {}
    tables: dict[str, Span] = {}
    table, begin = "", 0
    for line in text.splitlines(keepends=True):
        if named := _TABLE.match(text, begin, begin + len(line)):
            table = named[1]
            tables[table] = Span(*named.span(1))
        elif setting := _SETTING.match(text, begin):
            place = Place(Span(*setting.span("key")), Span(*setting.span("value")))
            places[table, setting["key"]] = place
        begin += len(line)
    return places, tables


def _syntax_error(source: SourceFile, message: str) -> tuple[str, Span]:
    """tomllib's message without its place, which becomes a span."""
    found = _PLACE.fullmatch(message)
    words = found[1] if found else message
    if found is None or found[2] is None:
        at = len(source.text.rstrip())
    else:
        lines = source.text.split("\n")[: int(found[2]) - 1]
        at = min(sum(map(len, lines)) + len(lines) + int(found[3]) - 1, len(source.text))
    return f"{words[:1].lower()}{words[1:]}", Span(at, at + 1)


def _first(text: str, word: str) -> Span:
    at = max(text.find(word), 0)
    return Span(at, at + len(word))
