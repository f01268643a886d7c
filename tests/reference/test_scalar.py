"""Scalar expressions: reading, evaluating, rendering."""

from __future__ import annotations

import json
import re
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fuscoc_runtime.scalar import (
    BinaryOp,
    Extent,
    Index,
    Inside,
    Load,
    Operator,
    Scalar,
    Scope,
    evaluate,
    parse,
    render,
    subexpressions,
)

leaves = st.one_of(
    st.integers(-5, 9), st.sampled_from([Index("n"), Index("i")]), st.just(Extent("images"))
)
scalars: st.SearchStrategy[Scalar] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(BinaryOp, st.sampled_from(get_args(Operator)), inner, inner),
        st.builds(Load, st.just("size"), st.tuples(inner)),
        st.builds(Inside, inner, inner),
    ),
    max_leaves=8,
)


def to_json(scalar: Scalar) -> Any:
    match scalar:
        case int():
            return scalar
        case Index(name):
            return {"index": name}
        case Extent(name):
            return {"extent": name}
        case Load(name, at):
            return {"load": name, "at": [to_json(each) for each in at]}
        case BinaryOp(op, lhs, rhs):
            return {"op": op, "args": [to_json(lhs), to_json(rhs)]}
        case Inside(value, limit):
            return {"inside": to_json(value), "limit": to_json(limit)}


@given(scalars)
def test_json_round_trip(scalar: Scalar) -> None:
    assert parse(json.loads(json.dumps(to_json(scalar)))) == scalar


@given(scalars, st.integers(0, 3), st.integers(0, 3))
def test_evaluation_is_python_arithmetic(scalar: Scalar, n: int, i: int) -> None:
    """The rendered text, read by Python, has the same value."""
    table = dict(zip(range(-5, 10), range(15), strict=True))
    scope = Scope({"images": 4}, {"size": _Table(table)}, {"n": n, "i": i})
    names = {"n": n, "i": i, "images": 4, "size": table}
    names |= {"min": min, "max": max, "cdiv": lambda lhs, rhs: -(-lhs // rhs)}
    try:
        expected = eval(re.sub(r"/+", "//", render(scalar)), {}, names)
    except (ZeroDivisionError, KeyError) as error:
        with pytest.raises(type(error)):
            evaluate(scalar, scope)
    else:
        assert evaluate(scalar, scope) == expected


class _Table:
    """A one-dimensional input that is indexed like a tensor, with a tuple."""

    def __init__(self, values: dict[int, int]) -> None:
        self._values = values

    def __getitem__(self, at: tuple[int]) -> int:
        return self._values[at[0]]


def test_loads_read_tensors() -> None:
    scope = Scope(inputs={"where": torch.tensor([[3, 4], [5, 6]])}, indices={"n": 1})
    assert evaluate(Load("where", (Index("n"), 0)), scope) == 5


def test_rendering() -> None:
    patch = BinaryOp("/", BinaryOp("*", Index("i"), Load("width", (Index("n"),))), 14)
    assert render(patch) == "(i * width[n]) / 14"
    assert render(patch, {"i": 2, "n": 0}) == "(2 * width[0]) / 14"
    assert next(subexpressions(patch)) is patch
    assert Index("n") in subexpressions(patch)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        1.5,
        "n",
        {"index": 3},
        {"index": "n", "more": 1},
        {"load": "x"},
        {"load": "x", "at": [None]},
        {"op": "^", "args": [1, 2]},
        {"op": "+", "args": [1]},
    ],
)
def test_no_scalars(value: Any) -> None:
    with pytest.raises(ValueError, match="not a scalar expression"):
        parse(value)
