"""Diagnostics for programs: one JSON document, or SARIF 2.1.0 (``docs/diagnostics.md``)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

import fuscoc
from fuscoc.diagnostics import CATALOGUE, Diagnostic, Fix, Label, severity_of
from fuscoc.source import SourceFile, Span

SCHEMA = "fuscoc.diagnostics/1"
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

Object = dict[str, Any]


@dataclass(frozen=True)
class FileReport:
    """What is said about one file; ``shuffles`` are the names of a file without errors."""

    source: SourceFile
    diagnostics: tuple[Diagnostic, ...]
    shuffles: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return all(each.severity != "error" for each in self.diagnostics)


def as_json(reports: Sequence[FileReport]) -> str:
    """The document of ``--format json``: every file, and every diagnostic in the order of the text.

    Lines and columns count from 1, offsets from 0, all in characters; an end is the first character
    after.
    """
    document = {
        "schema": SCHEMA,
        "compiler": fuscoc.__version__,
        "files": [
            {"path": each.source.path, "ok": each.ok, "shuffles": list(each.shuffles)}
            for each in reports
        ],
        "diagnostics": [
            _diagnostic(found, report.source) for report in reports for found in report.diagnostics
        ],
    }
    return _text(document)


def _diagnostic(found: Diagnostic, source: SourceFile) -> Object:
    fix = found.fix
    return {
        "code": found.code,
        "title": CATALOGUE[found.code],
        "severity": found.severity,
        "message": found.message,
        "path": source.path,
        "range": _range(found.primary.span, source),
        "label": found.primary.text,
        "related": [
            {"range": _range(label.span, source), "label": label.text} for label in found.secondary
        ],
        "notes": list(found.notes),
        "help": found.help,
        "fix": None
        if fix is None
        else {
            "title": fix.title,
            "safe": fix.safe,
            "range": _range(fix.span, source),
            "replacement": fix.replacement,
        },
    }


def _range(span: Span, source: SourceFile) -> Object:
    return {"start": _position(span.start, source), "end": _position(span.end, source)}


def _position(offset: int, source: SourceFile) -> Object:
    line, column = source.line_column(offset)
    return {"line": line, "column": column, "offset": offset}


def as_sarif(reports: Sequence[FileReport]) -> str:
    """The document of ``--format sarif``; its rules are the codes that occur in it."""
    codes = sorted({found.code for report in reports for found in report.diagnostics})
    rules = [
        {
            "id": code,
            "shortDescription": {"text": CATALOGUE[code]},
            "defaultConfiguration": {"level": severity_of(code)},
        }
        for code in codes
    ]
    run = {
        "tool": {
            "driver": {"name": "fuscoc", "semanticVersion": fuscoc.__version__, "rules": rules}
        },
        "columnKind": "unicodeCodePoints",
        "artifacts": [{"location": _artifact(report.source)} for report in reports],
        "results": [
            _result(found, report.source, codes)
            for report in reports
            for found in report.diagnostics
        ],
    }
    return _text({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]})


def _result(found: Diagnostic, source: SourceFile, codes: list[str]) -> Object:
    sentences = [found.message, found.primary.text, *found.notes, found.help or ""]
    result: Object = {
        "ruleId": found.code,
        "ruleIndex": codes.index(found.code),
        "level": found.severity,
        "message": {"text": "\n".join(each for each in sentences if each)},
        "locations": [_location(found.primary, source)],
    }
    if found.secondary:
        result["relatedLocations"] = [_location(label, source) for label in found.secondary]
    if found.fix is not None:
        result["fixes"] = [_sarif_fix(found.fix, source)]
    return result


def _sarif_fix(fix: Fix, source: SourceFile) -> Object:
    replacement: Object = {"deletedRegion": _region(fix.span, source)}
    if fix.replacement:
        replacement["insertedContent"] = {"text": fix.replacement}
    return {
        "description": {"text": fix.title},
        "artifactChanges": [{"artifactLocation": _artifact(source), "replacements": [replacement]}],
    }


def _location(label: Label, source: SourceFile) -> Object:
    physical = {
        "artifactLocation": _artifact(source),
        "region": _region(label.span, source),
    }
    text = {"message": {"text": label.text}} if label.text else {}
    return {"physicalLocation": physical, **text}


def _region(span: Span, source: SourceFile) -> Object:
    line, column = source.line_column(span.start)
    end_line, end_column = source.line_column(span.end)
    return {
        "startLine": line,
        "startColumn": column,
        "endLine": end_line,
        "endColumn": end_column,
        "charOffset": span.start,
        "charLength": span.end - span.start,
    }


def _artifact(source: SourceFile) -> Object:
    """Where a file is: a relative path as given, an absolute one as a ``file`` URI."""
    path = PurePath(source.path)
    return {"uri": path.as_uri() if path.is_absolute() else quote(os.fsencode(path.as_posix()))}


def _text(document: Object) -> str:
    return json.dumps(document, indent=2) + "\n"


WRITERS = {"json": as_json, "sarif": as_sarif}


def fixable(reports: Iterable[FileReport]) -> int:
    """How many of the diagnostics ``--fix`` would settle."""
    found = (each.fix for report in reports for each in report.diagnostics)
    return sum(fix is not None and fix.safe for fix in found)
