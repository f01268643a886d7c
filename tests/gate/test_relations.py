"""Whatever is computed of a relation counts at every level: one more of any value is objected to,
or other kernels come out. What ``fsc.node`` does with points is tested in ``test_operands.py``.

Two things are handed on for those who read them, and count where they do:

- the outermost extent of a domain. Pieces are made of it, and ``fuscoc plan`` and ``--topology``
  read it at L0; calls have their sizes from what the spec declares;
- the points of ``fsc.node`` at L3 where slots follow from pieces. Until then they have to be those
  of the shuffle.
"""

from __future__ import annotations

from typing import Any

import pytest

from fuscoc.dialect.attrs import attributes_remembered
from fuscoc.dialect.base import ops_of
from fuscoc.dialect.expressions import expression
from fuscoc.dialect.fused import NodePieces
from fuscoc.dialect.mlir import arith, ir
from fuscoc.dialect.node import Node
from tests.gate.effects import BOUNDARIES, Objection, Subject
from tests.gate.examples import EXAMPLES, Example
from tests.gate.survey import subject_of

HOLDERS = {"fsc.shuffle", "fsc.into", "fsc.node_points", "fsc.node_pieces"}
# The first changes nothing, and what the second leaves over goes with the pass behind it.
BETWEEN = ("check-relations", "coalesce-segments")
# Each takes half a minute: packed keys, memory of the caller's, and slots from pieces.
BY_DAY = ("compact", "kept", "pages")


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(each, id=each.name, marks=[pytest.mark.nightly] * (each.name not in BY_DAY))
        for each in EXAMPLES
    ],
)
def test_every_value_counts(example: Example) -> None:
    subject = subject_of(example)
    with subject.context, attributes_remembered():
        has_pieces = any(ops_of(each, NodePieces) for each in ops_of(subject.modules[-1], Node))
        for at, (name, level) in enumerate(BOUNDARIES):
            if name in BETWEEN:
                continue
            for number, op in enumerate(_computed(subject.modules[at])):
                if has_pieces and (level, op.operation.parent.name) == ("L3", "fsc.node_points"):
                    continue
                for place in range(len(op.operands)):
                    if not has_pieces and _is_outermost(op, place):
                        continue
                    if _is_zero(op, place):
                        continue
                    assert _counts(subject, at, number, place), f"{name}: operand {place} of {op}"


def _computed(module: Any) -> list[Any]:
    """All operations in the regions of a relation."""
    found: list[Any] = []
    for region in module.operation.regions:
        for block in region:
            for op in block:
                if module.operation.name in HOLDERS:
                    found.append(op)
                found += _computed(op)
    return found


def _is_outermost(op: Any, place: int) -> bool:
    return bool(op.operation.name == "fsc.domain" and place == len(op.cells))


def _is_zero(op: Any, place: int) -> bool:
    """Whether an operand is multiplied by 0, until simplify-scalars."""
    others = [*op.operands][:place] + [*op.operands][place + 1 :]
    return op.operation.name == "arith.muli" and expression(others[0]) == 0


def _counts(subject: Subject, at: int, number: int, place: int) -> bool:
    """Whether one more than an operand is noticed."""
    copy = subject.modules[at].operation.clone()
    op = _computed(copy)[number].operation
    with ir.InsertionPoint(op), ir.Location.unknown():
        one = arith.constant(ir.IntegerType.get_signless(64), 1)
        op.operands[place] = arith.addi(op.operands[place], one)
    after = subject.outcome(at, copy)
    if isinstance(after, Objection):
        return not after.crashed
    return subject.differ(subject.unflipped, after)
