"""Before a call writes into a peer's memory, its node's ranks meet on their devices, and all ranks
agree; where a call plans, the gather of counts is both."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

from fuscoc_runtime.comm.lockstep import COLLECTIVES
from fuscoc_runtime.comm.requests import StartGather
from fuscoc_runtime.demo.generate import generate
from fuscoc_runtime.engine.dispatch import dispatch
from fuscoc_runtime.engine.machine import Late, Machine
from fuscoc_runtime.engine.meeting import meet_node
from fuscoc_runtime.errors import InputError
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.topology import Topology
from tests.engine import specs
from tests.engine.lockstep import inputs_of, launches_by_list
from tests.static import specs as static_specs

NODES = Topology(2, 2)

either_way = pytest.mark.parametrize("wrong", [False, True], ids=["right", "one rank wrong"])


class Call:
    """A shuffle, and what its ranks are given."""

    def __init__(self, artifact: Artifact, topology: Topology = NODES) -> None:
        self.shuffle = LockstepShuffle(artifact, topology=topology)
        spec = self.shuffle.spec
        ranks = generate(spec, topology, 5, 1)
        self.sources = [list(data.source.values()) for data in ranks]
        self.named = [inputs_of(spec, each, weights=False) for each in ranks]
        self.weights = [inputs_of(spec, each, weights=True) for each in ranks]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """That ranks agree, and the kernel of every launch; all as if calls returned early."""
    log: list[str] = []

    def noting(name: str | None, answer: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: (log.append(name or given[1]), answer(*given))[1]

    monkeypatch.setitem(COLLECTIVES, StartGather, noting("agree", COLLECTIVES[StartGather]))
    monkeypatch.setattr(Machine, "launch", noting(None, Machine.launch))
    monkeypatch.setattr(Machine, "is_asynchronous", True)
    return log


def meeting(spec: ShuffleSpec) -> list[str]:
    """Every rank signals, and then waits, before they agree."""
    steps = launches_by_list(spec)
    num_ranks = NODES.num_ranks
    return [steps["direct"].kernel] * num_ranks + [steps["local"].kernel] * num_ranks + ["agree"]


def raises_if(wrong: bool) -> AbstractContextManager[Any]:
    return pytest.raises(InputError, match="rank 2") if wrong else nullcontext()


@either_way
@pytest.mark.parametrize("direction", ["dispatch", "combine"])
def test_ranks_meet_first(seen: list[str], direction: str, wrong: bool) -> None:
    """Also those that have an error: the devices of the others wait for them."""
    call = Call(specs.artifact(specs.routed("f32")))
    shuffle, sources = call.shuffle, call.sources
    done = shuffle.dispatch(sources, call.named)
    handles = [each.handle for each in done]
    rows = [each.rows["x"].clone() for each in done]
    if wrong:
        rows[2], sources[2] = rows[2].double(), [each.double() for each in sources[2]]
    seen.clear()
    with raises_if(wrong):
        if direction == "combine":
            shuffle.combine(rows, handles, call.weights)
        else:
            calls = zip(shuffle.machines, sources, handles, strict=True)
            shuffle._run([dispatch(machine, x, {}, handle) for machine, x, handle in calls])
    first = meeting(shuffle.spec)
    assert seen[: len(first)] == first
    assert bool(seen[len(first) :]) is not wrong


def test_who_is_alone_on_a_node_meets_nobody(seen: list[str]) -> None:
    call = Call(specs.artifact(specs.routed("f32")), Topology(2, 1))
    done = call.shuffle.dispatch(call.sources, call.named)
    handles, rows = [each.handle for each in done], [each.rows["x"].clone() for each in done]
    seen.clear()
    call.shuffle.combine(rows, handles, call.weights)
    assert seen[0] == "agree"


@either_way
def test_planning_is_a_meeting(seen: list[str], wrong: bool) -> None:
    """Until the counts of all ranks are there, ranks only evaluate their relations."""
    call = Call(specs.artifact(specs.routed("f32")))
    relation = call.shuffle.spec.program.relation.kernel
    if wrong:
        call.sources[2] = [each.double() for each in call.sources[2]]
    with raises_if(wrong):
        call.shuffle.dispatch(call.sources, call.named)
    met = seen.index("agree")
    assert set(seen[:met]) == {relation}
    assert bool(seen[met + 1 :]) is not wrong


@either_way
def test_ranks_of_a_static_shuffle_meet_once_it_is_planned(seen: list[str], wrong: bool) -> None:
    call = Call(static_specs.artifact(static_specs.TRANSPOSE))
    call.shuffle.dispatch(call.sources, call.named)
    seen.clear()
    if wrong:
        call.sources[2] = [each.double() for each in call.sources[2]]
    with raises_if(wrong):
        call.shuffle.dispatch(call.sources, call.named)
    first = meeting(call.shuffle.spec)
    assert seen[: len(first)] == first
    assert bool(seen[len(first) :]) is not wrong


def test_ranks_meet_in_the_backward_pass(seen: list[str]) -> None:
    """Of both directions: gradients travel along routings that are there."""
    call = Call(specs.artifact(specs.routed("f32")))
    given = [[each.requires_grad_() for each in fields] for fields in call.sources]
    done = call.shuffle.dispatch(given, call.named)
    rows, handles = [each.rows["x"] for each in done], [each.handle for each in done]
    results = call.shuffle.combine(rows, handles, call.weights)
    seen.clear()
    torch.stack([each["x"].sum() for each in results]).sum().backward()
    first = meeting(call.shuffle.spec)
    assert seen[: len(first)] == first
    rest = seen[len(first) :]
    assert rest[rest.index("agree") - len(first) + 1 :][: len(first)] == first


def test_who_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the waits of kernels that are stopped; whoever comes late finds itself met."""
    monkeypatch.setattr(Machine, "is_asynchronous", True)
    call = Call(specs.artifact(specs.routed("f32")))
    call.shuffle.dispatch(call.sources, call.named)
    early, late = call.shuffle.machines[2:]
    windows = {
        machine: pool.held["signals"]
        for machine, pool in zip(call.shuffle.machines, call.shuffle._pools, strict=True)
    }
    for machine, wanted in ((early, Late("direct", 1)), (late, None)):
        list(meet_node(machine, windows[machine]))
        machine.waits.tell()
        assert machine.late() == wanted
