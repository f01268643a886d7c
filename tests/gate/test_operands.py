"""Whatever the operations of ``fsc.node`` take counts: with another value of its type they are
objected to, or other kernels come out. The relation has tests of its own, which run it."""

from __future__ import annotations

from typing import Any

import pytest

from fuscoc.dialect.attrs import attributes_remembered
from fuscoc.pipeline import PASS_NAMES
from tests.gate.effects import Objection
from tests.gate.examples import EXAMPLES, Example
from tests.gate.flips import operations
from tests.gate.survey import subject_of

RELATIONS = {"fsc.node_points", "fsc.node_pieces", "fsc.node_given"}


# By day every other example, as each takes a second.
@pytest.mark.parametrize(
    "example",
    [
        pytest.param(example, id=example.name, marks=[pytest.mark.nightly] * (number % 2))
        for number, example in enumerate(EXAMPLES)
    ],
)
def test_every_operand_counts(example: Example) -> None:
    subject, at = subject_of(example), PASS_NAMES.index("choose-tiles")
    with subject.context, attributes_remembered():
        module = subject.modules[at]
        for number, op in enumerate(operations(module)):
            if not _is_in_node(op):
                continue
            for place, operand in enumerate(op.operands):
                for other, value in enumerate(_earlier(op)):
                    if value == operand or value.type != operand.type:
                        continue
                    copy = module.operation.clone()  # it owns its operations
                    changed = operations(copy)[number]
                    changed.operation.operands[place] = _earlier(changed)[other]
                    after = subject.outcome(at, copy)
                    counts = (
                        not after.crashed
                        if isinstance(after, Objection)
                        else subject.differ(subject.unflipped, after)
                    )
                    assert counts, f"operand {place} of {op} may be {value}"


def _is_in_node(op: Any) -> bool:
    """Whether it is one of the operations that work on rows, or stands in one's region."""
    above = []
    parent = op.operation.parent
    while parent is not None:
        above.append(parent.name)
        parent = parent.parent
    return "fsc.node" in above and not RELATIONS.intersection(above)


def _earlier(op: Any) -> list[Any]:
    """What an operation might take: arguments of its block, and results of those before it."""
    block = op.operation.block
    values = list(block.arguments)
    for each in block:
        if each.operation == op.operation:
            break
        values += each.operation.results
    return values
