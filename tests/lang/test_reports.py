"""Diagnostics for programs: the documents say what the diagnostics say, in the documented form."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from fuscoc.diagnostics import CompileError
from fuscoc.lang.check import check_file
from fuscoc.reports import FileReport, as_json, as_sarif, fixable
from fuscoc.source import SourceFile

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "diagnostics.schema.json").read_text())
DOCUMENT = (ROOT / "docs" / "diagnostics.md").read_text(encoding="utf-8")
SPECS = sorted(ROOT.glob("tests/errors/*.fsc")) + sorted(ROOT.glob("examples/*.fsc"))


@cache
def report_of(path: Path) -> FileReport:
    """Of a spec that is here; made when a test asks, as every worker imports this module."""
    return report(path.name, path.read_bytes().decode())


def report(path: str, text: str) -> FileReport:
    source = SourceFile(path, text)
    try:
        checked = check_file(source)
    except CompileError as error:
        return FileReport(source, error.diagnostics)
    return FileReport(source, checked.warnings, tuple(each.name for each in checked.shuffles))


some_reports = st.lists(st.sampled_from(SPECS), max_size=4, unique=True).map(
    lambda paths: [report_of(path) for path in paths]
)


def covered(text: str, found: dict[str, Any]) -> str:
    """The text of a range, found by its lines and columns alone."""
    lines = text.split("\n")
    ends = []
    for end in ("start", "end"):
        line, column = found[end]["line"], found[end]["column"]
        ends.append(sum(len(each) + 1 for each in lines[: line - 1]) + column - 1)
        assert ends[-1] == found[end]["offset"]
    return text[ends[0] : ends[1]]


@given(some_reports)
def test_json_says_everything(reports: list[FileReport]) -> None:
    document = json.loads(as_json(reports))
    Draft202012Validator(SCHEMA).validate(document)
    texts = {each.source.path: each.source.text for each in reports}
    assert [each["path"] for each in document["files"]] == [each.source.path for each in reports]
    assert [each["ok"] for each in document["files"]] == [each.ok for each in reports]
    expected = [(each, found) for each in reports for found in each.diagnostics]
    for (each, found), said in zip(expected, document["diagnostics"], strict=True):
        text = texts[said["path"]]
        assert said["path"] == each.source.path
        assert (said["code"], said["message"], said["help"]) == (
            found.code,
            found.message,
            found.help,
        )
        assert (
            covered(text, said["range"]) == text[found.primary.span.start : found.primary.span.end]
        )
        assert [covered(text, r["range"]) for r in said["related"]] == [
            text[label.span.start : label.span.end] for label in found.secondary
        ]
        assert (said["fix"] is None) == (found.fix is None)
        if found.fix is not None:
            covered(text, said["fix"]["range"])
            assert said["fix"]["safe"] == found.fix.safe


def without_ranges(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_ranges(item) for key, item in value.items() if key != "range"}
    return [without_ranges(item) for item in value] if isinstance(value, list) else value


def test_the_documented_example_is_what_is_written() -> None:
    """But for its places, which move with the comments of the example."""
    (example,) = re.findall(r"^```json\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    documented = json.loads(example)
    Draft202012Validator(SCHEMA).validate(documented)
    good = (ROOT / "examples" / "moe.fsc").read_text()
    written = json.loads(
        as_json([report("moe.fsc", good.replace("dispatch by_t", "dispatch by_", 1))])
    )
    assert written["diagnostics"][0].pop("message") == "`by_oken` is not declared"
    assert documented["diagnostics"][0].pop("message") == "`by_tokn` is not declared"
    assert without_ranges(written) == without_ranges(documented)


@given(some_reports)
def test_sarif(reports: list[FileReport]) -> None:
    """The parts of SARIF 2.1.0 that are used, with what the standard requires of them."""
    document = json.loads(as_sarif(reports))
    assert document["version"] == "2.1.0"
    (run,) = document["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "fuscoc"
    ids = [rule["id"] for rule in driver["rules"]]
    assert len(set(ids)) == len(ids)
    assert {result["ruleId"] for result in run["results"]} == set(ids)
    levels = {rule["id"]: rule["defaultConfiguration"]["level"] for rule in driver["rules"]}
    assert levels == {result["ruleId"]: result["level"] for result in run["results"]}
    expected = [(each.source, found) for each in reports for found in each.diagnostics]
    for (source, found), result in zip(expected, run["results"], strict=True):
        assert ids[result["ruleIndex"]] == result["ruleId"] == found.code
        assert result["level"] == found.severity
        assert result["message"]["text"].startswith(found.message)
        (location,) = result["locations"]
        physical = location["physicalLocation"]
        assert physical["artifactLocation"]["uri"] == source.path
        span, region = found.primary.span, physical["region"]
        assert (region["charOffset"], region["charLength"]) == (span.start, span.end - span.start)
        assert (region["startLine"], region["startColumn"]) == source.line_column(span.start)
        assert (region["endLine"], region["endColumn"]) == source.line_column(span.end)
        assert len(result.get("relatedLocations", [])) == len(found.secondary)
        for fix in result.get("fixes", []):
            (change,) = fix["artifactChanges"]
            (replacement,) = change["replacements"]
            inserted = replacement.get("insertedContent", {"text": ""})["text"]
            assert found.fix is not None
            assert inserted == found.fix.replacement


@pytest.mark.parametrize(
    ("path", "uri"),
    [("a b/ü.fsc", "a%20b/%C3%BC.fsc"), ("/x y.fsc", "file:///x%20y.fsc"), ("\udcff", "%FF")],
)
def test_paths_become_uris(path: str, uri: str) -> None:
    (run,) = json.loads(as_sarif([report(path, "")]))["runs"]
    assert [each["location"]["uri"] for each in run["artifacts"]] == [uri]


def test_fixable_counts_safe_fixes() -> None:
    by_name = {path.name: path for path in SPECS}
    repeated, whole, routes = (
        report_of(by_name[name])
        for name in ("repeated_clauses.fsc", "moe.fsc", "routes_placement.fsc")
    )
    assert fixable([repeated, whole]) == 3
    assert fixable([routes]) == 0
