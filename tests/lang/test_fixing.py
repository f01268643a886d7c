"""Safe fixes: what they restore, that they end, and how files are written."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuscoc.diagnostics import Diagnostic, Fix, Label, spelling
from fuscoc.fixing import MAX_ROUNDS, FileChangedError, apply, diff, fix_source, write_source
from fuscoc.rendering import render
from fuscoc.source import SourceFile, Span
from tests.lang.found import found_in

ROOT = Path(__file__).parents[2]
GOOD = [path.read_text() for path in sorted(ROOT.glob("examples/*.fsc"))]


def uses(text: str) -> list[tuple[int, int]]:
    """Where names of five letters and more are used that are declared once, layouts above all."""
    names = re.findall(r"\b(?:layout|view|const) +(\w{5,})", text)
    code = re.sub(r"//[^\n]*", lambda comment: " " * len(comment[0]), text)
    found = [m.span() for name in names for m in re.finditer(rf"\b{name}\b", code)]
    declared = {m.start(1) for m in re.finditer(r"\b(?:layout|view|const) +(\w+)", code)}
    return sorted(span for span in found if span[0] not in declared)


@given(st.sampled_from([text for text in GOOD if uses(text)]), st.data())
def test_a_letter_left_out_of_a_name_is_put_back(text: str, data: st.DataObject) -> None:
    start, end = data.draw(st.sampled_from(uses(text)))
    at = data.draw(st.integers(start + 1, end - 1))
    broken = SourceFile("test.fsc", text[:at] + text[at + 1 :])
    left = text[start:at] + text[at + 1 : end]
    if re.search(rf"\bsegment +{left}\b", text):
        return  # which is a name, of something else
    first = found_in(broken)
    if not first or first[0].severity == "warning":
        return  # the extent of an index may be any name
    fixed, applied = fix_source(broken, found_in)
    if first[0].fix is not None and "` or `" in first[0].fix.title:
        assert not applied, "several names may be meant"
        assert fixed.text == broken.text
        return
    assert len(applied) == 1
    assert fixed.text == text


@given(st.lists(st.sampled_from(range(8)), unique=True, max_size=8), st.text("xyz\n", max_size=3))
def test_fixes_are_made_where_they_stand(at: list[int], new: str) -> None:
    text = "abcdefgh"
    fixes = [Fix(Span(i, i + 1), new, "") for i in at]
    assert apply(text, fixes) == "".join(new if i in at else c for i, c in enumerate(text))


def test_overlapping_fixes_wait_for_the_next_round() -> None:
    def find(source: SourceFile) -> list[Diagnostic]:
        return [
            Diagnostic("FSC011", "", Label(m), fix=Fix(m, "bb", "", safe=True))
            for i in range(len(source.text) - 1)
            if source.text[i : i + 2] == "aa"
            for m in [Span(i, i + 2)]
        ]

    fixed, applied = fix_source(SourceFile("test.fsc", "aaaaa"), find)
    assert (fixed.text, len(applied)) == ("bbabb", 2)


def test_fixes_that_undo_each_other_end() -> None:
    def find(source: SourceFile) -> list[Diagnostic]:
        other = "a" if source.text == "b" else "b"
        span = Span(0, 1)
        return [Diagnostic("FSC011", "", Label(span), fix=Fix(span, other, "", safe=True))]

    assert len(fix_source(SourceFile("test.fsc", "a"), find)[1]) == MAX_ROUNDS


def test_what_may_be_meant_otherwise_is_left_alone() -> None:
    text = (
        GOOD[0]
        .replace("place   e on rank by block", "")
        .replace("const hidden", "const spare = 1, hidden")
    )
    fixed, applied = fix_source(SourceFile("test.fsc", text), found_in)
    assert (fixed.text, applied) == (text, ())


@pytest.mark.parametrize(
    ("name", "candidates", "replacement", "safe"),
    [
        ("hiden", ["hidden", "experts"], "hidden", True),
        ("source_c", ["source_a", "source_b"], "source_b", False),  # which of them?
        ("hidn", ["hidden"], "hidden", True),
        ("hdn", ["hidden"], "hidden", False),  # too far
        ("ex", ["e"], "e", False),  # too short
        ("zzz", ["hidden"], None, False),
    ],
)
def test_spelling(name: str, candidates: list[str], replacement: str | None, safe: bool) -> None:
    fix = spelling(name, Span(0, len(name)), candidates)
    assert (fix.replacement if fix else None, bool(fix and fix.safe)) == (replacement, safe)


@pytest.mark.parametrize(
    ("span", "replacement", "shown"),
    [
        ((4, 7), "2", ["2 | two three", "  |     ^^^", "1 | one 2 four", "  |     ~"]),
        ((4, 4), "1 ", ["1 | one 1 two", "  |     +"]),
        ((4, 8), "", []),
        ((4, 4), "x\n", ["1 | one x", "  |     +"]),
    ],
)
def test_the_fixed_line_is_shown(span: tuple[int, int], replacement: str, shown: list[str]) -> None:
    source = SourceFile("test.fsc", "one two\nthree four\n" if span != (4, 7) else "one two four\n")
    fix = Fix(Span(*span), replacement, "so")
    rows = render(Diagnostic("FSC011", "", Label(Span(0, 3)), help="so", fix=fix), source)
    after = rows.split("= help: so\n")[1].splitlines()
    assert after == (["  |", *shown[-2:]] if shown else [])


def test_files_are_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "spec.fsc"
    link = tmp_path / "link.fsc"
    link.symlink_to(path)
    path.write_bytes(b"\xef\xbb\xbfone\r\n")
    path.chmod(0o640)
    before, after = SourceFile(str(link), "one\r\n"), SourceFile(str(link), "two\r\n")
    write_source(before, after)
    assert link.is_symlink()
    assert path.read_bytes() == b"\xef\xbb\xbftwo\r\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    with pytest.raises(FileChangedError):
        write_source(before, after)
    assert sorted(os.listdir(tmp_path)) == ["link.fsc", "spec.fsc"]


def test_a_failed_write_leaves_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "spec.fsc"
    path.write_text("one")

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        write_source(SourceFile(str(path), "one"), SourceFile(str(path), "two"))
    assert path.read_text() == "one"
    assert os.listdir(tmp_path) == ["spec.fsc"]


def test_a_diff_is_one_that_patch_takes() -> None:
    before, after = SourceFile("a.fsc", "one\ntwo"), SourceFile("a.fsc", "one\nthree")
    assert diff(before, after) == (
        "--- a.fsc\n+++ a.fsc\n@@ -1,2 +1,2 @@\n one\n"
        "-two\n\\ No newline at end of file\n+three\n\\ No newline at end of file\n"
    )
    assert diff(before, before) == ""


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("a\n  X\nb", "a\nb"),  # a line of its own
        ("a\r\n  X \t\r\nb", "a\r\nb"),
        ("a\n  X", "a\n"),
        ("X\nb", "b"),
        ("a  X b", "a b"),  # part of a line
        ("a X\nb", "a\nb"),
        ("a\n  X b", "a\n   b"),
        ("a\n  X  // why\nb", "a\n    // why\nb"),  # a comment stays
    ],
)
def test_what_a_removal_takes_with_it(text: str, left: str) -> None:
    at = text.index("X")
    span = SourceFile("test.fsc", text).widened(Span(at, at + 1))
    assert text[: span.start] + text[span.end :] == left
