"""The network hop on GPUs, with a communication library and streams that only take notes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from fuscoc_runtime.comm import group, process, windows
from fuscoc_runtime.comm.requests import LANES, Window
from fuscoc_runtime.engine.lockstep import LockstepShuffle
from fuscoc_runtime.errors import HopTimeoutError, NetworkError
from fuscoc_runtime.topology import Topology
from tests.engine import specs

GPU = torch.device("cuda", 0)


class Group:
    """A process group."""


def members() -> Any:
    return SimpleNamespace(
        rank=1, group=Group(), known_group=None, device=GPU, topology=Topology(2, 2)
    )


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> list[Group]:
    made: list[Group] = []

    def new_group(*_: Any, **__: Any) -> Group:
        made.append(Group())
        return made[-1]

    monkeypatch.setattr(group.dist, "get_process_group_ranks", lambda _: [0, 1, 2, 3])
    monkeypatch.setattr(group.dist, "new_group", new_group)
    monkeypatch.setattr(group.torch, "zeros", lambda *_, **__: None)
    return made


def test_all_ranks_connect_every_lane(monkeypatch: pytest.MonkeyPatch, lanes: list[Group]) -> None:
    """In a first round with rows of some ranks only, the others would not come."""
    met: list[tuple[Group, float]] = []
    monkeypatch.setattr(
        group, "_gather_in_time", lambda _, lane, timeout: met.append((lane, timeout))
    )
    found = group.network_groups(members(), 7.0)
    assert len(lanes) == LANES
    assert met == [(lane, 7.0) for lane in lanes]
    assert [known() for known in found if known is not None] == lanes


def test_shuffles_of_a_group_share_its_lanes(
    monkeypatch: pytest.MonkeyPatch, lanes: list[Group]
) -> None:
    monkeypatch.setattr(group, "_gather_in_time", lambda *_: None)
    mine, others = members(), members()
    first, again = (group.network_groups(mine, 7.0) for _ in range(2))
    assert [known() for known in again if known is not None] == lanes  # no new ones
    assert first == again
    assert not set(group.network_groups(others, 7.0)) & set(first)


def test_a_rank_that_does_not_connect(monkeypatch: pytest.MonkeyPatch, lanes: list[Group]) -> None:
    def late(*_: Any) -> None:
        raise TimeoutError("nothing for 7 s")

    monkeypatch.setattr(group, "_gather_in_time", late)
    with pytest.raises(NetworkError, match=r"connecting the nodes.*nothing for 7 s"):
        group.network_groups(members(), 7.0)


class Mark:
    def __init__(self, ended: bool) -> None:
        self._ended = ended

    def record(self) -> None: ...

    def query(self) -> bool:
        return self._ended


@pytest.mark.parametrize(
    ("peers", "hop", "suspect"),
    [([(), (), (3, 2)], "network (slice 2)", 3), ([(), ()], "combine", None)],
)
def test_a_round_without_peers_is_not_to_blame(
    peers: list[tuple[int, ...]], hop: str, suspect: int | None
) -> None:
    """It ends late if what its stream did before is late."""
    comm = object.__new__(process.ProcessComm)
    comm.members, comm.timeout, comm._copied = members(), 0.0, Mark(ended=False)
    comm._liveness = cast(
        Any,
        SimpleNamespace(
            find_missing=lambda suspected: 2 if suspected is None else suspected,
            someone_ended=lambda: False,
        ),
    )
    comm._rounds = {
        number: process.Round([], Mark(ended=False), each) for number, each in enumerate(peers)
    }
    with pytest.raises(HopTimeoutError) as caught:
        comm.synchronize("combine")
    assert (caught.value.hop, caught.value.peer) == (hop, 2 if suspect is None else suspect)


class Held:
    """Memory of a GPU: which streams it must outlast when it is let go."""

    is_cuda, device, shape = True, GPU, (8, 256)

    def __init__(self) -> None:
        self.outlasts: list[str] = []

    def record_stream(self, stream: str) -> None:
        self.outlasts.append(stream)

    def numel(self) -> int:
        return 256


def test_outgrown_memory_outlasts_the_calls_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may not have ended, and the memory may belong to another stream than theirs."""
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: "of the calls")
    local, bases, ring = Held(), Held(), Held()
    grown = Window(torch.zeros(1), torch.zeros(1))
    pool = windows.WindowPool(lambda _: grown)
    pool._windows["staging.x"] = Window(cast(Any, local), cast(Any, bases))
    assert pool.get({"staging.x": 256})["staging.x"].local is local
    assert local.outlasts == bases.outlasts == []
    assert pool.get({"staging.x": 257}) == {"staging.x": grown}
    assert local.outlasts == bases.outlasts == ["of the calls"]

    shuffle = LockstepShuffle(specs.artifact(specs.routed("f32")), topology=Topology(2, 1))
    machine = shuffle.machines[0]
    machine._rings["slices.x"] = cast(Any, ring)
    assert machine.ring("slices.x", 512).shape[1] >= 512
    assert ring.outlasts == ["of the calls"]
