"""Memory of the caller's in the IR: what verifiers refuse."""

from __future__ import annotations

import pytest

from fuscoc.pipeline import compile_to_ir
from tests import specs
from tests.dialect.support import edited, error_of, round_trips

PUT = '"fsc.put"'


@pytest.fixture(scope="module")
def text() -> str:
    return compile_to_ir(specs.checked_example("kv_cache"), after="form-slices").text


def test_round_trips(text: str) -> None:
    assert round_trips(text)
    assert not error_of(text)


def test_puts_come_last(text: str) -> None:
    [put] = [line for line in text.splitlines() if PUT in line]
    assert "needs fsc.put exactly where its module has fsc.into" in error_of(
        edited(text, (put, ""))
    )
    tokens = put[put.index("(") : put.index(")") + 1]
    first = tokens.split(",")[0] + ")"
    early = put.replace(tokens, first).replace("i32: 3", "i32: 1")
    early = early.replace("(!fsc.token, !fsc.token, !fsc.token)", "(!fsc.token)")
    assert "that reads target unsignalled" in error_of(edited(text, (put, early)))


def test_one_place_for_each_part(text: str) -> None:
    start = text.index('"fsc.into"')
    end = text.index('"fsc.path"')
    into = text[start:end]
    assert "must be the only one of its module" in error_of(edited(text, (into, into + into)))
    fewer = into.replace("num_source_dims = 2", "num_source_dims = 1")
    assert "needs a place for each part of rows" in error_of(edited(text, (into, fewer)))
    turned = into.replace("%5, %arg0, %arg1, %c32_i64", "%5, %arg1, %arg0, %c32_i64")
    assert "needs parts in the order of its indices" in error_of(edited(text, (into, turned)))
    split = into.replace("tensor<16x2x8x128xbf16>", "tensor<16x3x8x128xbf16>")
    assert "must cut all fields of a row into as many parts" in error_of(
        edited(text, (into, split))
    )
    other = into.replace("x128xbf16>", "x128xf16>")
    assert "needs parts of the fields that arrive" in error_of(edited(text, (into, other)))
