"""Evaluates the regions of a shuffle with Python integers, or with arrays of them at many points.

It shares nothing with the code generator, and reads the IR as text would be read: operation by
operation.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


def _truncated(lhs: Any, rhs: Any) -> Any:
    """The quotient, rounded towards 0."""
    return lhs // rhs + (((lhs < 0) != (rhs < 0)) & (lhs % rhs != 0))


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "arith.addi": operator.add,
    "arith.subi": operator.sub,
    "arith.muli": operator.mul,
    "arith.divsi": _truncated,
    "arith.remsi": lambda lhs, rhs: lhs - _truncated(lhs, rhs) * rhs,
    "arith.floordivsi": operator.floordiv,
    "arith.minsi": np.minimum,
    "arith.maxsi": np.maximum,
    "fsc.exact_div": operator.floordiv,
}


@dataclass(frozen=True)
class Rank:
    """What one rank knows: its extents, its inputs, the first cell of each outer entry."""

    extents: Mapping[str, int]
    inputs: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    cell_offset: Sequence[int] | np.ndarray[Any, Any] = ()
    owner: Callable[[Any], Any] = int


@dataclass(frozen=True)
class Piece:
    """The operands of a ``fsc.piece``: offset, rank and slot, and the steps of each of them."""

    place: list[Any]
    counts: list[Any]
    steps: list[list[Any]]
    strides: list[Any]


def evaluate(region: Any, arguments: Sequence[Any], rank: Rank) -> dict[str, list[Any]]:
    """The operands of the region's terminator, by name."""
    dropped: Any = False
    for op, operands in _walk(region, arguments, rank):
        name = op.operation.name
        if name == "fsc.drop":
            dropped = dropped | (operands[0] == -1)
        elif name == "fsc.domain":
            count = len(op.cells)
            return {"cells": operands[:count], "extents": operands[count:]}
        elif name == "fsc.point":
            offset, rank_, place, *strides = operands
            rank_ = np.where(dropped, -1, rank_) if np.ndim(dropped) else -1 if dropped else rank_
            return {"offset": [offset], "rank": [rank_], "place": [place], "strides": strides}
        else:
            raise AssertionError(f"unknown operation {name}")
    raise AssertionError("the region has no terminator")


def entry(region: Any, arguments: Sequence[Any], rank: Rank) -> tuple[Any, list[Piece]]:
    """Whether an entry of ``fsc.node_pieces`` is dropped, and its pieces."""
    dropped: Any = False
    pieces = []
    for op, operands in _walk(region, arguments, rank):
        if op.operation.name == "fsc.drop":
            dropped = dropped | (operands[0] == -1)
            continue
        assert op.operation.name == "fsc.piece", f"unknown operation {op.operation.name}"
        groups, left = [], operands
        for size in op.operation.attributes["operandSegmentSizes"]:
            groups.append(left[:size])
            left = left[size:]
        offset, rank_, slot, counts, *steps, strides = groups
        pieces.append(Piece([*offset, *rank_, *slot], counts, steps, strides))
    return dropped, pieces


def _walk(region: Any, arguments: Sequence[Any], rank: Rank) -> Iterator[tuple[Any, list[Any]]]:
    """Every operation without a result, with the values of its operands."""
    (block,) = region
    values = dict(zip(block.arguments, arguments, strict=True))
    for op in block:
        operands = [values[operand] for operand in op.operands]
        if op.operation.results:
            values[op.operation.results[0]] = _result(op, operands, rank)
        else:
            yield op, operands


def _result(op: Any, operands: list[Any], rank: Rank) -> Any:
    match op.operation.name:
        case name if name in BINARY:
            return BINARY[name](*operands)
        case "arith.constant":
            return op.attributes["value"].value
        case "fsc.extent":
            return rank.extents[op.read("extent")]
        case "fsc.lookup":
            found = rank.inputs[op.read("input")].reshape(-1)[operands[0]]
            return found if np.ndim(found) else int(found)
        case "fsc.owner":
            return rank.owner(operands[0])
        case "fsc.cell_base":
            return rank.cell_offset[operands[0]]
        case "fsc.inside":
            value, limit = operands
            assert np.all((value >= -1) & (value < limit)), "an input names a place outside"
            return value
        case name:
            raise AssertionError(f"unknown operation {name}")
