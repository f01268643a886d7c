"""The network hop on GPUs, with a communication library and streams that only take notes."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock
from weakref import WeakKeyDictionary, ref

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from fuscoc_runtime.comm import gather as gathering
from fuscoc_runtime.comm import group, process, subgroups, windows
from fuscoc_runtime.comm.crossings import UnderWay
from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.comm.requests import Window, Windows
from fuscoc_runtime.engine import process as engine_process
from fuscoc_runtime.engine.observer import Observer
from fuscoc_runtime.engine.streams import call_order
from fuscoc_runtime.errors import (
    ClosedError,
    HopTimeoutError,
    OptionError,
    TopologyError,
)
from fuscoc_runtime.face import executor
from fuscoc_runtime.plan.agree import agree
from fuscoc_runtime.topology import Topology

GPU = torch.device("cuda", 0)
LANES = 3


class Group:
    """A process group, and what torch tells of it."""

    limit = timedelta(minutes=3)

    def _get_backend(self, _: torch.device) -> SimpleNamespace:
        return SimpleNamespace(options=SimpleNamespace(_timeout=self.limit))


class Alive:
    """All ranks are."""

    def find_missing(self, suspect: int | None = None) -> int:
        return 2 if suspect is None else suspect

    def close(self) -> None:
        pass

    def someone_ended(self) -> bool:
        return False

    def explain(
        self, hop: str, seconds: float, problem: object, suspect: int | None = None
    ) -> HopTimeoutError:
        return HopTimeoutError(1, hop, self.find_missing(suspect), seconds)


GROUP, OTHER = Group(), Group()


def members(known: Group = GROUP, timeout: float = 7.0) -> Membership:
    known_group, liveness = cast(Any, ref(known)), cast(Any, Alive())
    return Membership(1, Topology(2, 2), known_group, GPU, HashStore(), liveness, timeout)


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> list[Group]:
    made: list[Group] = []

    def new_group(*_: Any, timeout: timedelta, **__: Any) -> Group:
        assert timeout == Group.limit  # torch has another one for groups that are given none
        made.append(Group())
        return made[-1]

    monkeypatch.setattr(subgroups, "_made", WeakKeyDictionary())
    monkeypatch.setattr(group.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(group.dist, "get_process_group_ranks", lambda _: [0, 1, 2, 3])
    monkeypatch.setattr(group.dist, "new_group", new_group)
    monkeypatch.setattr(group.torch, "tensor", lambda *_, **__: None)
    monkeypatch.setattr(group, "gather_in_time", lambda *_: GROUPS_OF_RANKS)
    return made


GROUPS_OF_RANKS = torch.tensor([[5], [5], [5], [5]])


def test_all_ranks_connect_every_lane(monkeypatch: pytest.MonkeyPatch, lanes: list[Group]) -> None:
    """In a first round with rows of some ranks only, the others would not come."""
    met: list[tuple[Group, float]] = []

    def gather(_: Any, where: Group, timeout: float, *__: Any) -> torch.Tensor:
        met.append((where, timeout))
        return GROUPS_OF_RANKS

    monkeypatch.setattr(group, "gather_in_time", gather)
    found = subgroups.network_groups(members(), LANES)
    assert len(lanes) == LANES
    assert [place for place in met if place[0] in lanes] == [(lane, 7.0) for lane in lanes]
    assert [known() for known in found if known is not None] == lanes


def test_shuffles_of_a_group_share_its_lanes(lanes: list[Group]) -> None:
    first, again = (subgroups.network_groups(members(), LANES) for _ in range(2))
    assert [known() for known in again if known is not None] == lanes  # no new ones
    assert first == again
    more = subgroups.network_groups(members(), LANES + 2)
    assert more[:LANES] == first
    assert len(lanes) == LANES + 2
    assert subgroups.network_groups(members(), 1) == first[:1]
    assert not set(subgroups.network_groups(members(OTHER), LANES)) & set(first)


def test_a_rank_that_does_not_connect(monkeypatch: pytest.MonkeyPatch, lanes: list[Group]) -> None:
    def late(_: Any, where: Group, *__: Any) -> torch.Tensor:
        if where is not GROUP:
            raise TimeoutError("nothing for 7 s")
        return GROUPS_OF_RANKS

    monkeypatch.setattr(group, "gather_in_time", late)
    with pytest.raises(HopTimeoutError, match="rank 2 in the connection hop"):
        subgroups.network_groups(members(), LANES)


def test_a_rank_that_ends_while_others_connect(
    monkeypatch: pytest.MonkeyPatch, lanes: list[Group]
) -> None:
    """NCCL says that it was a remote process, and not which."""
    lost = mock.Mock(side_effect=dist.DistBackendError("remote process exited"))
    monkeypatch.setattr(group.dist, "new_group", lost)
    with pytest.raises(HopTimeoutError, match="rank 2 in the connection hop"):
        subgroups.network_groups(members(), LANES)
    assert not lanes


def test_who_lacks_memory_blames_nobody(
    monkeypatch: pytest.MonkeyPatch, lanes: list[Group]
) -> None:
    none = mock.Mock(side_effect=torch.OutOfMemoryError("no memory"))
    monkeypatch.setattr(group, "gather_in_time", none)
    with pytest.raises(torch.OutOfMemoryError, match="no memory"):
        members().meet("a test")
    assert not lanes


def test_ranks_that_torch_would_let_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch, lanes: list[Group]
) -> None:
    """It names groups of a part of the job by how many there are on a rank."""
    several = GROUPS_OF_RANKS.clone()
    several[2] = 6
    monkeypatch.setattr(group, "gather_in_time", lambda *_: several)
    with pytest.raises(TopologyError, match="rank 2 is in 6 process groups where rank 0 is in 5"):
        subgroups.network_groups(members(), LANES)
    assert not lanes


def test_more_ranks_than_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some would join by NCCL, and wait for the others, which join by gloo."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(OptionError, match="`LOCAL_RANK` is 2, and this machine has 2 CUDA devices"):
        group.join(1.0)


class Mark:
    def __init__(self, ended: bool) -> None:
        self._ended = ended

    def record(self) -> None: ...

    def query(self) -> bool:
        return self._ended


def late(stage: int) -> UnderWay:
    return UnderWay(stage, Mark(ended=False), (3, 2))


@pytest.mark.parametrize(
    ("under_way", "hop", "suspect"),
    [
        ([UnderWay(1, Mark(ended=True), (0,)), late(2), late(3)], "network (stage 2)", 3),
        ([UnderWay(1, Mark(ended=True), (0,))], "combine", 2),
    ],
)
def test_the_first_exchange_that_is_late_is_named(
    under_way: list[UnderWay], hop: str, suspect: int
) -> None:
    comm = object.__new__(process.ProcessComm)
    comm.members, comm._ended = members(timeout=0.0), Mark(ended=False)
    comm._crossings = under_way
    with pytest.raises(HopTimeoutError) as caught:
        comm.synchronize("combine")
    assert (caught.value.hop, caught.value.peer) == (hop, suspect)


def test_a_host_sleeps_in_long_waits_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """It wakes up late: from a sleep of no time by Linux's timer slack, 50 us."""
    clock, slept = iter([0.0, 0.001, 0.019, 0.021, 0.022]), list[float]()
    time = SimpleNamespace(monotonic=lambda: next(clock), sleep=slept.append)
    monkeypatch.setattr(process, "time", time)
    comm, answers = object.__new__(process.ProcessComm), iter([False] * 4 + [True])
    comm.members = members()
    comm._poll(lambda: next(answers))
    assert slept == [process.POLL_SECONDS] * 2


def test_nobody_agrees_with_itself_after_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """``destroy_process_group`` takes the lanes, too."""
    monkeypatch.setattr(process.torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(group.dist, "is_initialized", lambda: True)
    job, lane = Group(), Group()
    comm = object.__new__(process.ProcessComm)
    comm.members, comm._windows = members(job), windows.WindowPool(cast(Any, None))
    comm._network, comm._beside = cast(Any, ref(lane)), None
    comm._gathered = process.Landing()
    del job, lane
    with pytest.raises(ClosedError):
        comm.run(agree(None))


def test_no_window_grows_while_an_exchange_is_late() -> None:
    """A GPU's memory is mapped by calls that wait for it without a timeout."""
    asked: list[int] = []

    def allocate(nbytes: int) -> Window:
        asked.append(nbytes)
        return Window(torch.zeros(nbytes), torch.zeros(1))

    def ask(nbytes: int) -> Window:
        found = comm._answer(Windows({"target.x": nbytes}))
        return cast(Window, found["target.x"])

    comm = object.__new__(process.ProcessComm)
    comm.members, comm._windows = members(timeout=0.0), windows.WindowPool(allocate)
    comm._crossings, comm._ended = [UnderWay(0, Mark(ended=True), (3,))], Mark(ended=True)
    first = ask(4)
    comm._crossings.append(late(1))
    assert ask(4) is first
    with pytest.raises(HopTimeoutError) as caught:
        ask(5)
    assert (caught.value.hop, caught.value.peer) == ("network (stage 1)", 3)
    comm._crossings, comm._ended = [], Mark(ended=False)
    with pytest.raises(HopTimeoutError, match="window allocation"):
        ask(5)
    assert asked == [4]


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
    local, bases = Held(), Held()
    grown = Window(torch.zeros(1), torch.zeros(1))
    pool = windows.WindowPool(lambda _: grown)
    pool._windows["staging.x"] = Window(cast(Any, local), cast(Any, bases))
    assert pool.get({"staging.x": 256})["staging.x"].local is local
    assert local.outlasts == bases.outlasts == []
    assert pool.get({"staging.x": 257}) == {"staging.x": grown}
    assert local.outlasts == bases.outlasts == ["of the calls"]


@pytest.mark.parametrize("device", [GPU, torch.device("cpu")])
def test_windows_outlast_the_loss_of_a_rank_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    """To free them waits for kernels, and one may wait for that rank; a CPU has to let go."""

    class Comm:
        is_open, is_out_of_step, num_runs = True, False, 0

        def run(self, _: object) -> None:
            self.num_runs += 1
            raise HopTimeoutError(1, "network (stage 0)", 2, 7.0)

        def close(self) -> None:
            self.is_open = False

    kept: list[Any] = []
    monkeypatch.setattr(engine_process, "outlast_process", kept.append)
    engine = object.__new__(engine_process.ProcessEngine)
    comm, engine.reply = Comm(), None
    engine.members, engine.comm = replace(members(), device=device), cast(Any, comm)
    stops: list[bool] = []
    waits = SimpleNamespace(are_stopped=False, stop=lambda: stops.append(True))
    engine.machine = cast(Any, SimpleNamespace(current_device=nullcontext, waits=waits))
    engine._patience = engine_process.Patience(cast(Any, waits), engine.members)
    engine._order, engine._under_way = call_order(torch.device("cpu")), True
    for _ in range(2):
        with pytest.raises(HopTimeoutError, match="rank 2 in the network"):
            engine.run("combine", cast(Any, None))
    with pytest.raises(HopTimeoutError, match="rank 2 in the network"):
        engine.check()
    engine.settle()
    assert comm.num_runs == 1  # nothing was waited for again
    engine.close()
    assert comm.is_open == (device is GPU)
    assert kept == ([(comm, waits)] if device is GPU else [])
    assert len(stops) == len(kept)


@pytest.mark.parametrize("device", [GPU, torch.device("cpu")])
def test_windows_outlast_a_loss_that_another_shuffle_has_found(
    monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(engine_process, "outlast_process", kept.append)
    engine = object.__new__(engine_process.ProcessEngine)
    engine.members = replace(members(), device=device)
    waits, comm = SimpleNamespace(), SimpleNamespace()
    engine.machine, engine.comm = cast(Any, SimpleNamespace(waits=waits)), cast(Any, comm)
    for peer in (2, 3):
        engine.hear(HopTimeoutError(1, "network (stage 0)", peer, 7.0))
    assert "rank 2" in str(engine.loss)
    assert kept == ([(comm, waits)] if device is GPU else [])


@pytest.mark.parametrize(("work", "said"), [("pass", "freed\n"), ("outlast_process(held)", "")])
def test_what_outlasts_the_process_is_not_freed_at_its_end(work: str, said: str) -> None:
    program = f"""
from fuscoc_runtime.comm.windows import outlast_process

class Held:
    def __del__(self):
        print("freed")

held = Held()
{work}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == (said, 0)


def test_works_of_gloo_outlast_their_thread() -> None:
    """Which would need the interpreter to let go of Python's tensors, when that may be ending."""

    class Work:
        def wait(self, _: timedelta) -> None: ...

    gather, first, second = (cast(Any, Work()) for _ in range(3))
    comm = object.__new__(process.ProcessComm)
    comm.members = replace(members(), device=torch.device("cpu"))
    comm._finish(gather)
    assert gathering._ended == [gather]
    comm._wait_for([(3, first), (2, second)], 0)
    assert gathering._ended == [first, second]
    gathering._ended.clear()


class Lost(engine_process.ProcessEngine):
    """A rank of several, one of which has not come."""

    def __init__(self) -> None:
        self.members = members()

    def settle(self) -> None:
        self.loss = HopTimeoutError(1, "network (stage 0)", 2, 7.0)
        raise self.loss

    def close(self) -> None: ...


class GivenUp:
    """A node whose kernels have given up waiting."""

    members = members()
    is_stuck = False

    def settle(self) -> None:
        raise HopTimeoutError(1, "dispatch", 2, 7.0)

    def close(self) -> None: ...


@pytest.mark.parametrize("engine", [Lost, GivenUp])
def test_closing_waits_for_a_gpu_only_if_its_work_ends(
    monkeypatch: pytest.MonkeyPatch, engine: type[Lost | GivenUp]
) -> None:
    """And in neither case for the other ranks, one of which does not come."""
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    monkeypatch.setattr(executor, "current_device", lambda _: nullcontext())
    monkeypatch.setattr(Membership, "meet", lambda *_: pytest.fail("they met"))
    monkeypatch.setattr(executor.ops, "unregister", lambda _: None)
    held = object.__new__(executor.Executor)
    held.engine, held.key, held.back_key = cast(Any, engine()), cast(Any, None), cast(Any, None)
    held.into = None
    held.observer = Observer("closing")
    with pytest.raises(HopTimeoutError):
        held.close()
    assert waited == ([] if engine is Lost else [GPU])
