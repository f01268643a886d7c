"""Diagnostics as text: what is underlined, in which columns, with and without colour."""

from __future__ import annotations

import pickle
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuscoc.diagnostics import (
    CATALOGUE,
    CompileError,
    Diagnostic,
    DiagnosticSink,
    InternalError,
    Label,
    nearest,
    render,
)
from fuscoc.rendering import MOST_COLUMNS
from fuscoc.source import SourceFile, Span

PACKAGE = Path(__file__).parents[2] / "fuscoc"


def shown(text: str, start: int, end: int, **parts: object) -> list[str]:
    diagnostic = Diagnostic("FSC011", "message", Label(Span(start, end), "label"), **parts)  # type: ignore[arg-type]
    return render(diagnostic, SourceFile("a.fsc", text)).splitlines()


@given(st.text("ab \u6f22", min_size=1, max_size=900), st.data())
def test_of_a_long_line_the_part_about_the_mark_is_shown(filler: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(filler)))
    _, _, _, line, marks = shown(filler[:at] + "MARK" + filler[at:], at, at + 4)
    line, marks = line.removeprefix("1 | "), marks.removeprefix("  | ")
    columns = [2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in line]
    # An underline may reach over an ellipsis at either end, and the mark is never cut.
    assert sum(columns) <= MOST_COLUMNS + 2
    begin = line.index("MARK")
    assert sum(columns[:begin]) == marks.index("^^^^ label")
    cut = line.startswith("\u2026"), line.endswith("\u2026")
    assert line.strip("\u2026") in (filler[:at] + "MARK" + filler[at:])
    assert any(cut) == (line != (filler[:at] + "MARK" + filler[at:]).rstrip())


def test_all_parts() -> None:
    text = "one\ntwo three\n\nfour\n"
    assert shown(
        text,
        8,
        13,
        secondary=(Label(Span(0, 3), "before"), Label(Span(15, 19))),
        notes=("a note",),
        help="a fix",
    ) == [
        "error[FSC011]: message",
        " --> a.fsc:2:5",
        "  |",
        "1 | one",
        "  | --- before",
        "2 | two three",
        "  |     ^^^^^ label",
        "...",
        "4 | four",
        "  | ----",
        "  = note: a note",
        "  = help: a fix",
    ]


@pytest.mark.parametrize(
    ("text", "start", "end", "line", "marks"),
    [
        ("\tab", 1, 3, "    ab", "    ^^"),  # tabs are expanded
        ("a\tb", 2, 3, "a   b", "    ^"),
        ("中文x", 2, 3, "中文x", "    ^"),  # wide characters take two columns
        ("中文x", 0, 1, "中文x", "^^"),
        ("a\x1b[31mb", 6, 7, "a\N{REPLACEMENT CHARACTER}[31mb", "      ^"),
        ("ab\r\ncd", 0, 2, "ab", "^^"),
        ("ab\ncd", 1, 4, "ab", " ^"),  # only the first line of several
        ("ab", 2, 2, "ab", "  ^"),  # the end of the file
        ("", 0, 0, "", "^"),
        ("x" * 160, 0, 1, "x" * 160, "^"),
        ("x" * 161, 0, 1, "x" * 160 + "…", "^"),
        ("x" * 160 + "\r\n", 0, 1, "x" * 160, "^"),
    ],
)
def test_underlines(text: str, start: int, end: int, line: str, marks: str) -> None:
    rows = shown(text, start, end)
    assert rows[3:5] == [f"1 | {line}".rstrip(), f"  | {marks} label"]


def test_colour_changes_no_character() -> None:
    source = SourceFile("a.fsc", "one two")
    diagnostic = Diagnostic("FSC090", "message", Label(Span(4, 7)), (Label(Span(0, 3), "x"),))
    coloured = render(diagnostic, source, colour=True)
    assert "\033[" in coloured
    assert re.sub(r"\033\[[\d;]*m", "", coloured) == render(diagnostic, source)
    assert diagnostic.severity == "warning"


def test_compile_error_shows_all() -> None:
    source = SourceFile("a.fsc", "one two")
    sink = DiagnosticSink(source)
    sink.raise_errors()
    sink.report("FSC012", Span(4, 7), "second")
    sink.report("FSC011", Span(0, 3), "first")
    sink.report("FSC011", Span(0, 3), "the same again")
    sink.report("FSC090", Span(0, 7), "a warning")
    with pytest.raises(CompileError) as caught:
        sink.raise_errors()
    assert re.findall(r"\[(FSC\d+)\]: (.*)", str(caught.value)) == [
        ("FSC011", "first"),
        ("FSC012", "second"),
    ]
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_internal_errors_are_located() -> None:
    source = SourceFile("a.fsc", "one\ntwo")
    assert str(InternalError("oops", source, Span(4, 5))).startswith(
        "a.fsc:2:1: internal error: oops"
    )
    assert str(InternalError("oops")).startswith("internal error: oops")
    with pytest.raises(InternalError):
        Diagnostic("FSC999", "message", Label(Span(0, 0)))


def test_catalogue_and_code_agree() -> None:
    used = {
        code
        for path in PACKAGE.rglob("*.py")
        if path.name != "diagnostics.py"
        for code in re.findall(r'"(FSC\d{3})"', path.read_text(encoding="utf-8"))
    }
    assert used == CATALOGUE.keys()
    assert list(CATALOGUE) == sorted(CATALOGUE)
    assert len(set(CATALOGUE.values())) == len(CATALOGUE)


def test_nearest() -> None:
    assert nearest("hiden", ["hidden", "experts"]) == "hidden"
    assert nearest("zzz", ["hidden", "experts"]) is None


@given(st.text(alphabet="ab\n\r中", max_size=30), st.data())
def test_lines_and_columns(text: str, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, len(text)))
    source = SourceFile("a.fsc", text)
    line, column = source.line_column(offset)
    before = text[:offset]
    assert line == before.count("\n") + 1
    assert column == len(before) - (before.rfind("\n") + 1) + 1
    assert source.line_text(line) == text.split("\n")[line - 1].removesuffix("\r")
