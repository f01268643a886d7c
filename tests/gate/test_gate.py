"""Every attribute counts: whoever flips one is objected to, or changes what is executed.

``without_effect.txt`` lists the attributes that do not count yet. It only shrinks: whatever counts
must leave it, and nothing joins it. ``python -m tests.gate.survey`` writes it anew. Of what is
listed, only a few flips are tried here, and all of them at night.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import pytest

import fuscoc.dialect
from tests.gate.effects import BOUNDARIES
from tests.gate.examples import EXAMPLES, Example
from tests.gate.flips import operations, present
from tests.gate.survey import (
    HOMES,
    LEVELS,
    OPERATIONS,
    defined_in,
    listed,
    subject_of,
    subjects,
    without_effect,
)
from tests.gate.values import Names, declared

CASES = [(level, name) for name, home in HOMES.items() for level in LEVELS if home <= level]
every_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)


@pytest.mark.parametrize(("level", "name"), CASES)
def test_every_attribute_counts(level: str, name: str) -> None:
    known = _listed(level, name)
    found = without_effect(level, name, known)
    assert not found - known, "no flip of these changes what is executed"
    assert not known - found, "these count: take them off the list"


@pytest.mark.nightly
@pytest.mark.parametrize(("level", "name"), CASES)
def test_whatever_is_listed_does_not_count(level: str, name: str) -> None:
    assert without_effect(level, name) == _listed(level, name)


def _listed(level: str, name: str) -> set[Names]:
    return {pair.path for pair in listed() if (pair.level, pair.name) == (level, name)}


def test_the_list_is_in_order() -> None:
    pairs = listed()
    assert pairs == sorted(set(pairs))
    assert {(pair.level, pair.name) for pair in pairs} <= set(CASES)


def test_every_operation_is_in_an_example() -> None:
    found = {
        (level, op.operation.name)
        for subject in subjects()
        for module, (_, level) in zip(subject.modules, BOUNDARIES, strict=True)
        for op in operations(module)
    }
    assert {(home, name) for name, home in HOMES.items()} <= found


def test_every_attribute_is_in_an_example() -> None:
    """Also what stands inside one, and what may be left out."""
    found = set()
    for subject in subjects():
        with subject.context:
            for module in subject.modules:
                for op in operations(module):
                    found |= {(op.operation.name, names) for names in present(op)}
    assert found == {
        (name, names)
        for name, each in OPERATIONS.items()
        for key, kind in each.attrs.items()
        for names, _ in declared((key,), kind)
    }


def test_every_operation_has_a_level() -> None:
    names: set[str] = set()
    for room in iter_modules(fuscoc.dialect.__path__):
        names |= defined_in(import_module(f"{fuscoc.dialect.__name__}.{room.name}")).keys()
    assert names == set(HOMES)


@every_example
def test_nothing_flipped_changes_nothing(example: Example) -> None:
    """From every boundary on the same comes out, and its runs are alike."""
    subject = subject_of(example)
    with subject.context:
        for at, module in enumerate(subject.modules):
            assert subject.outcome(at, module.operation.clone()) == subject.unflipped
    for topology in example.topologies:
        log = subject.logs.of(subject.unflipped, topology)
        assert log
        assert not subject.logs.run(subject.unflipped, topology, log).departed
