"""Before a call without planning writes into a peer's memory, the node's ranks meet on their
devices, and all ranks agree."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from fuscoc_runtime.comm.lockstep import COLLECTIVES
from fuscoc_runtime.comm.requests import MeetNode, StartGather
from fuscoc_runtime.demo.generate import generate
from fuscoc_runtime.engine.dispatch import dispatch
from fuscoc_runtime.engine.lockstep import LockstepShuffle
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.errors import InputError
from fuscoc_runtime.topology import Topology
from tests.engine import specs
from tests.engine.lockstep import inputs_of

NODES = Topology(2, 2)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What all ranks do together, and every launch."""
    log: list[str] = []

    def noting(name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: (log.append(name), answer(*given))[1]

    monkeypatch.setitem(COLLECTIVES, MeetNode, noting("meet", COLLECTIVES[MeetNode]))
    monkeypatch.setitem(COLLECTIVES, StartGather, noting("agree", COLLECTIVES[StartGather]))
    monkeypatch.setattr(Machine, "launch", noting("launch", Machine.launch))
    return log


@pytest.mark.parametrize("wrong", [False, True], ids=["right", "one rank wrong"])
@pytest.mark.parametrize("direction", ["dispatch", "combine"])
def test_ranks_meet_first(seen: list[str], direction: str, wrong: bool) -> None:
    """Also those that have an error: the devices of the others wait for them."""
    shuffle = LockstepShuffle(specs.artifact(specs.routed("f32")), topology=NODES)
    ranks = generate(shuffle.spec, NODES, 5, 1)
    sources = [list(data.source.values()) for data in ranks]
    named = [inputs_of(shuffle.spec, each, weights=False) for each in ranks]
    done = shuffle.dispatch(sources, named)
    assert seen[0] == "launch"  # planning, where the gather of counts is the meeting
    handles = [each.handle for each in done]
    rows = [each.rows["x"].clone() for each in done]
    if wrong:
        rows[2], sources[2] = rows[2].double(), [each.double() for each in sources[2]]
    seen.clear()
    with pytest.raises(InputError, match="rank 2") if wrong else nullcontext():
        if direction == "combine":
            weights = [inputs_of(shuffle.spec, each, weights=True) for each in ranks]
            shuffle.combine(rows, handles, weights)
        else:
            calls = zip(shuffle.machines, sources, handles, strict=True)
            shuffle._run([dispatch(machine, x, {}, handle) for machine, x, handle in calls])
    assert seen[:2] == ["meet", "agree"]
    assert ("launch" in seen) is not wrong
