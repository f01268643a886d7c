"""Which attributes count: the search, and the list of those that do not yet.

``python -m tests.gate.survey`` writes the list anew, and tells how long each operation takes.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from fuscoc.dialect import (
    fused,
    into,
    l0,
    l1,
    l2,
    l3,
    l3_values,
    node,
    node_tiles,
    path,
    piece_tiles,
    pieces,
    relation,
    row_fields,
)
from fuscoc.dialect.attrs import attributes_remembered
from fuscoc.dialect.base import Op
from tests.gate.effects import BOUNDARIES, Objection, Outcome, Subject
from tests.gate.examples import EXAMPLES, Example
from tests.gate.flips import Flip, flips, operations, present
from tests.gate.observe import Program
from tests.gate.values import Names

LIST = Path(__file__).with_name("without_effect.txt")
LEVELS = ("L0", "L1", "L2", "L3")
_ROOMS = {
    l0: "L0", into: "L0", relation: "L0", l1: "L1", path: "L1", l2: "L2", fused: "L2", node: "L2",
    node_tiles: "L2", piece_tiles: "L2", pieces: "L2", row_fields: "L2", l3: "L3", l3_values: "L3",
}  # fmt: skip


class Pair(NamedTuple):
    """An attribute of an operation at a level, or something inside it."""

    level: str
    name: str
    path: Names

    def __str__(self) -> str:
        return f"{self.level} {self.name.removeprefix('fsc.')} {'.'.join(self.path)}"


def defined_in(room: ModuleType) -> dict[str, Any]:
    """The operations that a module of the dialect defines, by name."""
    return {
        each.OPERATION_NAME: each
        for each in vars(room).values()
        if isinstance(each, type) and issubclass(each, Op) and each.__module__ == room.__name__
        if hasattr(each, "OPERATION_NAME")
    }


OPERATIONS = {name: each for room in _ROOMS for name, each in defined_in(room).items()}
HOMES = {name: level for room, level in _ROOMS.items() for name in defined_in(room)}
"""Every operation of the dialect, and the level that it belongs to."""


@cache
def subject_of(example: Example) -> Subject:
    """An example, compiled once."""
    return Subject(example)


def subjects() -> list[Subject]:
    """The examples, in the order in which they are tried."""
    return [subject_of(example) for example in EXAMPLES]


def without_effect(level: str, name: str, known: Collection[Names] = ()) -> set[Names]:
    """The attributes of an operation that count nowhere at a level.

    Of those that are ``known`` not to, one flip is tried at each boundary of each example, not all.
    """
    pairs: set[Names] = set()
    counted: set[Names] = set()
    for subject in subjects():
        with subject.context, attributes_remembered():
            for at, (_, here) in enumerate(BOUNDARIES):
                if here == level:
                    _survey(subject, at, name, pairs, counted, dict.fromkeys(known, 1))
    return pairs - counted


def _survey(
    subject: Subject,
    at: int,
    name: str,
    pairs: set[Names],
    counted: set[Names],
    tries: dict[Names, int],
) -> None:
    """Add the attributes that there are at one boundary of one example, and those that count.

    ``tries``: how many flips to try of some of them.
    """
    for number, op in enumerate(operations(subject.modules[at])):
        if op.operation.name != name:
            continue
        pairs |= present(op)
        barren: set[Names] = set()
        for flip in flips(number, op, but=counted):
            pairs.add(flip.names)
            if flip.names in counted or (flip.plant and flip.names in barren):
                continue
            if flip.names in tries:
                tries[flip.names] -= 1
            if tries.get(flip.names, 0) < 0:
                continue
            before = _before(subject, at, flip)
            if isinstance(before, Objection):
                barren.add(flip.names)  # what cannot be planted as it is need not be changed
            elif _counts(subject, before, at, flip):
                counted.add(flip.names)


def _before(subject: Subject, at: int, flip: Flip) -> Outcome:
    if flip.plant is None:
        return subject.unflipped
    return subject.outcome(at, flip.planted(subject.modules[at]))


def _counts(subject: Subject, before: Program, at: int, flip: Flip) -> bool:
    after = subject.outcome(at, flip.flipped(subject.modules[at]))
    if isinstance(after, Objection):
        return not after.crashed
    return subject.differ(before, after)


def listed() -> list[Pair]:
    """The attributes that count nowhere yet."""
    lines = LIST.read_text(encoding="utf-8").splitlines()
    words = [line.split() for line in lines if line and not line.startswith("#")]
    return [Pair(level, f"fsc.{name}", tuple(path.split("."))) for level, name, path in words]


_HEADER = """\
# Attributes that do not count: no flip of them is objected to or changes what is executed.
# Level, operation, attribute; `?` is whether it is there at all. This list only shrinks.
"""


def main() -> None:
    """Write the list."""
    found: list[Pair] = []
    for name, home in HOMES.items():
        for level in LEVELS[LEVELS.index(home) :]:
            started = time.perf_counter()
            pairs = [Pair(level, name, path) for path in without_effect(level, name)]
            took = time.perf_counter() - started
            if took > 0.3 or pairs:
                print(f"{took:5.1f} s  {level} {name}: {len(pairs)}", flush=True)
            found += pairs
    LIST.write_text(_HEADER + "".join(f"{pair}\n" for pair in sorted(found)), encoding="utf-8")


if __name__ == "__main__":
    main()
