"""Evaluates the regions of a shuffle one point at a time, with Python integers.

It shares nothing with the code generator, and reads the IR as text would be read: operation by
operation.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

BINARY: dict[str, Callable[[int, int], int]] = {
    "arith.addi": operator.add,
    "arith.subi": operator.sub,
    "arith.muli": operator.mul,
    "arith.divsi": operator.floordiv,
    "arith.remsi": operator.mod,
    "fsc.exact_div": operator.floordiv,
}


@dataclass(frozen=True)
class Rank:
    """What one rank knows: its extents, its inputs, the first cell of each outer entry."""

    extents: Mapping[str, int]
    inputs: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    cell_offset: tuple[int, ...] = ()
    owner: Callable[[int], int] = int


def evaluate(region: Any, arguments: tuple[int, ...], rank: Rank) -> dict[str, list[int]]:
    """The operands of the region's terminator, by name."""
    (block,) = region
    values = dict(zip(block.arguments, arguments, strict=True))
    dropped = False
    for op in block:
        name = op.operation.name
        operands = [values[operand] for operand in op.operands]
        if name in BINARY:
            result = BINARY[name](*operands)
        elif name == "arith.constant":
            result = op.attributes["value"].value
        elif name == "fsc.extent":
            result = rank.extents[op.read("extent")]
        elif name == "fsc.lookup":
            result = int(rank.inputs[op.read("input")].reshape(-1)[operands[0]])
        elif name == "fsc.owner":
            result = rank.owner(operands[0])
        elif name == "fsc.cell_base":
            result = rank.cell_offset[operands[0]]
        elif name == "fsc.drop":
            dropped |= operands[0] == -1
            continue
        elif name == "fsc.domain":
            return {"cells": operands[:1], "extents": operands[1:]}
        elif name == "fsc.point":
            offset, rank_, place, *strides = operands
            rank_ = -1 if dropped else rank_
            return {"offset": [offset], "rank": [rank_], "place": [place], "strides": strides}
        else:
            raise AssertionError(f"unknown operation {name}")
        values[op.result] = result
    raise AssertionError("the region has no terminator")
