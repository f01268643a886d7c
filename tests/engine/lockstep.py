"""Run made-up or given data through the lockstep engine and compare with the reference."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from fuscoc_runtime.demo.memory import memory_arguments
from fuscoc_runtime.demo.verify import (
    Expected,
    by_slot,
    check_result,
    check_rows,
    expect,
    slot_keys,
    work_on,
)
from fuscoc_runtime.engine.dispatch import Dispatched
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.manifest.program import LaunchStep
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.topology import Topology
from tests.engine.specs import artifact


@cache
def lockstep(text: str, topology: str, num_programs: int = 2) -> LockstepShuffle:
    """Kept from test to test: windows still hold what earlier calls wrote, and epochs go on."""
    return LockstepShuffle(
        artifact(text), topology=Topology.parse(topology), num_programs=num_programs
    )


def launches_by_list(spec: ShuffleSpec) -> dict[str, LaunchStep]:
    """The launches of a dispatch, each by the list that it takes."""
    return {step.list: step for step in spec.program.dispatch.launches}


def inputs_of(spec: ShuffleSpec, data: RankData, *, weights: bool) -> dict[str, Any]:
    """The weights that combine takes, or what dispatch takes beside the source."""
    named: dict[str, Any] = {
        item.name: data.inputs[item.name]
        for item in spec.inputs
        if (item.role == "weight") == weights
    }
    return named if weights else {**named, **data.extents, **memory_arguments(spec, data)}


def dispatch(shuffle: LockstepShuffle, ranks: Sequence[RankData]) -> list[Dispatched]:
    positional = [list(data.source.values()) for data in ranks]
    named = [inputs_of(shuffle.spec, data, weights=False) for data in ranks]
    return shuffle.dispatch(positional, named)


def round_trip(shuffle: LockstepShuffle, ranks: Sequence[RankData]) -> list[Dispatched]:
    """Dispatch, check every row, work on the rows, combine, check every result."""
    spec = shuffle.spec
    expected: Expected = expect(spec, ranks)
    dispatched = dispatch(shuffle, ranks)
    for wanted, found in zip(expected.rows, dispatched, strict=True):
        check_rows(wanted, found.rows, found.handle)
    if expected.results is None:
        return dispatched
    worked = [
        work_on(spec, by_slot(found.rows, found.handle), wanted.written, slot_keys(wanted))
        for wanted, found in zip(expected.rows, dispatched, strict=True)
    ]
    handles = [found.handle for found in dispatched]
    weights = [inputs_of(spec, data, weights=True) for data in ranks]
    results = shuffle.combine(worked, handles, weights)
    for wanted_result, result in zip(expected.results, results, strict=True):
        check_result(wanted_result, result)
    return dispatched
