"""Parsing, verifying and comparing IR in tests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fuscoc.dialect import new_context
from fuscoc.dialect.mlir import ir

# One of everything that a shuffle can refer to; cases are appended to it.
DECLARATIONS = """
"fsc.def_extent"() {sym_name = "spec.rows"} : () -> ()
"fsc.def_input"() {role = "route", sym_name = "spec.keys", type = tensor<?x2xi64>} : () -> ()
"fsc.def_input"() {role = "weight", sym_name = "spec.factors", type = tensor<?x2xf32>} : () -> ()
"fsc.def_input"() {role = "placement", sym_name = "spec.table", type = tensor<16xi64>} : () -> ()
"fsc.def_segment"() {fields = [{name = "x", type = tensor<4xf32>}], sym_name = "spec.row"} :
  () -> ()
"fsc.def_layout"() {cells = [{name = "x", type = tensor<4xf32>}],
  sym_name = "spec.by_row"} : () -> ()
"fsc.def_placement"() {kind = "block", num_keys = 16 : i64, sym_name = "spec.place"} : () -> ()
"fsc.def_packed"() {align = 1 : i64, compact = 0 : i64, padding = "fewest",
  placement = @spec.place, segment = @spec.row, sym_name = "spec.by_key"} : () -> ()
"""
SHUFFLE = """
"fsc.shuffle"() ({
^bb0(%r: i64):
  %two = arith.constant 2 : i64
  %rows = "fsc.extent"() {extent = @spec.rows} : () -> i64
  "fsc.domain"(%rows, %two) {operandSegmentSizes = array<i32: 0, 2>} : (i64, i64) -> ()
}, {
^bb0(%r: i64, %c: i64):
  %two = arith.constant 2 : i64
  %start = arith.muli %r, %two : i64
  %at = arith.addi %start, %c : i64
  %key = "fsc.lookup"(%at) {input = @spec.keys} : (i64) -> i64
  %rank = "fsc.owner"(%key) {placement = @spec.place} : (i64) -> i64
  "fsc.relate"(%rank, %key, %r) {lengths = [1],
    operandSegmentSizes = array<i32: 1, 1, 1, 0>} : (i64, i64, i64) -> ()
}) {fanout = 2 : i64, indices = ["r", "c"], num_source_dims = 1 : i64, ragged = 0 : i64,
  segment = @spec.row, source = @spec.by_row, sym_name = "s", target = @spec.by_key} : () -> ()
"""
PRELUDE = DECLARATIONS + SHUFFLE


def edited(text: str, *edits: tuple[str, str]) -> str:
    """``text`` with other parts, each of which it has."""
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    return text


@contextmanager
def fresh_context() -> Iterator[Any]:
    """A context of its own, with a location for operations that are built without one."""
    with new_context() as context, ir.Location.unknown():
        yield context


def parse(text: str) -> Any:
    """The module of ``text``, verified; raises ``ir.MLIRError``."""
    module = ir.Module.parse(text)
    module.operation.verify()
    return module


def error_of(text: str) -> str:
    """What the verifier says about ``text``; empty if it accepts it."""
    with fresh_context():
        try:
            parse(text)
        except ir.MLIRError as error:
            return str(error)
    return ""


def round_trips(text: str) -> bool:
    """Whether printed IR parses, in a context of its own, to what prints the same."""
    with fresh_context():
        return str(parse(text)) == text


def printed(text: str) -> str:
    """How ``text`` prints; raises ``ir.MLIRError`` for invalid IR."""
    with fresh_context():
        return str(parse(text))


def check_golden(path: Path, actual: str) -> None:
    """Compare with a golden file; with FUSCOC_UPDATE_GOLDEN=1 write it instead."""
    if os.environ.get("FUSCOC_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(actual, encoding="utf-8")
    assert path.exists(), f"no {path.name}: `make golden` writes it"
    assert actual == path.read_text(encoding="utf-8")


def check_goldens(folder: Path, name: str, texts: Mapping[str, str]) -> None:
    """The same for the files ``name`` + suffix, by suffix; there are no others of that name."""
    for suffix, text in texts.items():
        check_golden(folder / f"{name}{suffix}", text)
    assert {path.name for path in folder.glob(f"{name}.*")} == {name + each for each in texts}
