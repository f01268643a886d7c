"""Generated kernels on all ranks at once, in one process, against the references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fuscoc.planning.files import Routing
from fuscoc.testing.arrays import first, ints
from fuscoc.testing.points import points_of
from fuscoc.testing.routing import with_sources
from fuscoc.testing.spec import Spec
from fuscoc.testing.violations import PlanViolation
from fuscoc_runtime.demo.memory import memory_arguments
from fuscoc_runtime.demo.verify import (
    by_slot,
    check_memory,
    check_result,
    check_rows,
    expect,
    slot_keys,
    work_on,
)
from fuscoc_runtime.engine.dispatch import Dispatched
from fuscoc_runtime.engine.relation import evaluate_relation
from fuscoc_runtime.face.complexes import as_complex
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan import Points
from fuscoc_runtime.reference import RankData


@dataclass(frozen=True, eq=False)
class LockstepRun:
    """One dispatch on all ranks, in rank order, with the engine that combine can be called on.

    ``ranks``: the data of every rank, sources included. ``dispatched``: rows and handles.
    """

    shuffle: LockstepShuffle
    ranks: Sequence[RankData]
    dispatched: Sequence[Dispatched]

    def combine(self, rows: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
        """The way back of ``rows``, [num_slots, *field shape] by field, for every rank."""
        spec = self.shuffle.spec
        handles = [each.handle for each in self.dispatched]
        return self.shuffle.combine(
            rows, handles, [_inputs(spec, data, weights=True) for data in self.ranks]
        )


def run_lockstep_shuffle(
    artifact: Artifact | str | Path, routing: Routing, *, num_programs: int = 2
) -> LockstepRun:
    """Dispatch a routing on all of its ranks in this process, with made-up sources.

    Kernels run under Triton's interpreter and store into each other's windows; no processes and no
    GPU are needed.

    Raises:
        FuscoRuntimeError: as on a real cluster.
    """
    shuffle, ranks = _open(artifact, routing, num_programs)
    named = [_inputs(shuffle.spec, data, weights=False) for data in ranks]
    specs = shuffle.spec.declared.source.fields
    positional = [list(as_complex(specs, data.source).values()) for data in ranks]
    return LockstepRun(shuffle, ranks, shuffle.dispatch(positional, named))


def check_execution(artifact: Artifact | str | Path, spec: Spec, routing: Routing) -> None:
    """Dispatch and combine by the artifact's kernels give what ``spec`` says.

    Raises:
        PlanViolation: the relation kernel computes another destination or address.
        AssertionError: rows or results differ from the reference's.
    """
    check_relation(artifact, spec, routing)
    run = run_lockstep_shuffle(artifact, routing)
    expected = expect(spec.shuffle, run.ranks)
    worked = []
    for rank, (wanted, found) in enumerate(zip(expected.rows, run.dispatched, strict=True)):
        if expected.memory is not None:
            check_memory(expected.memory[rank], found.rows)
            held: Mapping[str, Tensor] = wanted.fields  # dispatch returns the memory
        else:
            check_rows(wanted, found.rows, found.handle)
            held = by_slot(found.rows, found.handle)
        worked.append(work_on(spec.shuffle, held, wanted.written, slot_keys(wanted)))
    if expected.results is not None:
        for result, got in zip(expected.results, run.combine(worked), strict=True):
            check_result(result, got)


def check_relation(artifact: Artifact | str | Path, spec: Spec, routing: Routing) -> None:
    """The relation kernel agrees with the spec about every point of every rank."""
    shuffle, ranks = _open(artifact, routing, 2)
    wanted = points_of(spec.shuffle, routing.topology, ranks)
    for rank, (machine, data) in enumerate(zip(shuffle.machines, ranks, strict=True)):
        named = _inputs(replace(shuffle.spec, into=None), data, weights=False)
        arguments = machine.checker.dispatch_arguments(list(data.source.values()), named)
        found = evaluate_relation(machine, arguments)
        _check_owners(rank, wanted[rank], found)
        for name, column in wanted[rank].columns.items():
            got, says = ints(found.columns[name]), ints(column)
            if len(got) != len(says):
                raise PlanViolation(
                    "check_relation", f"has {len(got)} points, not {len(says)}", rank=rank
                )
            at = first(got != says)
            if at is not None:
                raise PlanViolation(
                    "check_relation",
                    f"the kernel gives point {at} {name} {got[at]}; the spec says {says[at]}",
                    rank=rank,
                )


def _check_owners(rank: int, wanted: Points, found: Points) -> None:
    if wanted.key_to_rank is None or found.key_to_rank is None:
        return
    owners, says = ints(found.key_to_rank), ints(wanted.key_to_rank)
    at = first(owners != says)
    if at is not None:
        raise PlanViolation(
            "check_relation",
            f"the artifact places key {at} on rank {owners[at]}; the spec places it on rank "
            f"{says[at]}",
            rank=rank,
        )


def _open(
    artifact: Artifact | str | Path, routing: Routing, num_programs: int
) -> tuple[LockstepShuffle, list[RankData]]:
    shuffle = LockstepShuffle(
        artifact, routing.shuffle, topology=routing.topology, num_programs=num_programs
    )
    return shuffle, with_sources(shuffle.spec, routing)


def _inputs(spec: ShuffleSpec, data: RankData, *, weights: bool) -> dict[str, Any]:
    """The weights that combine takes, or what dispatch takes beside the source."""
    named: dict[str, Any] = {
        each.name: data.inputs[each.name]
        for each in spec.inputs
        if (each.role == "weight") == weights
    }
    extents = {name: data.extents[name] for name in spec.declared.extents}
    return named if weights else {**named, **extents, **memory_arguments(spec, data)}
