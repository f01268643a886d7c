"""An illegal value never verifies, wherever it stands."""

from __future__ import annotations

from typing import Any

import pytest

from fuscoc.dialect.attrs import Text
from fuscoc.dialect.mlir import ir
from tests.gate.flips import operations
from tests.gate.survey import HOMES, OPERATIONS, subjects
from tests.gate.values import Names, declared, illegal, paths

# Texts that anything may stand in, because somebody else chose them: the user, or a pass whose
# list, argument or buffer it is. Of ``padding`` there is one word, to which additions may join
# others; the operation objects to all else.
NAMES = {
    "args.name",
    "args.value",
    "argument",
    "arriving.field",
    "bind.arg",
    "bind.buffer",
    "casts.field",
    "casts.scales",
    "cells.name",
    "columns",
    "field",
    "fields.field",
    "fields.name",
    "indices",
    "leaving.field",
    "moved.field",
    "padding",
    "parts.name",
    "rows.name",
    "runs.name",
    "summed.field",
    "sym_name",
    "terms",
    "words.field",
}


@pytest.mark.parametrize("name", HOMES)
def test_illegal_values(name: str) -> None:
    """Of every attribute of an operation, once."""
    seen: set[Names] = set()
    for subject in subjects():
        with subject.context:
            for module in subject.modules:
                for at, op in enumerate(operations(module)):
                    if op.operation.name == name:
                        _check(module, at, op, seen)


def _check(module: Any, at: int, op: Any, seen: set[Names]) -> None:
    for key, kind in op.attrs.items():
        if key not in op.attributes:
            continue
        new = {(key, *names) for names in paths(kind, op.attributes[key])} - seen
        seen |= new
        for names, value in illegal(kind, op, op.attributes[key]) if new else ():
            if (key, *names) in new:
                _check_refused(module, at, key, value)
        if not kind.optional and (key,) in new:
            _check_refused(module, at, key, None)


def _check_refused(module: Any, at: int, key: str, value: Any) -> None:
    copy = module.operation.clone()  # it owns its operations
    op = operations(copy)[at]
    if value is None:
        del op.attributes[key]
    else:
        op.attributes[key] = value
    with pytest.raises(ir.MLIRError):
        op.operation.verify()


def test_texts_are_names_or_have_choices() -> None:
    texts = {
        ".".join(names)
        for each in OPERATIONS.values()
        for key, kind in each.attrs.items()
        for names, inner in declared((key,), kind)
        if type(inner) is Text and not inner.choices
    }
    assert texts == NAMES
