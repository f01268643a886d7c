"""How long a process waits for others, whom it blames, and what it leaves behind."""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast
from weakref import ref

import pytest
import torch

from fuscoc_runtime.comm import gather, group, process
from fuscoc_runtime.comm.crossings import UnderWay
from fuscoc_runtime.comm.process import ProcessComm
from fuscoc_runtime.comm.requests import Crossing, HeldWindows, Rows
from fuscoc_runtime.errors import HopTimeoutError

TIMEOUT = 60.0
SILENT = 2
"""Who does not answer where nobody is suspected."""


class Liveness:
    """Everybody is alive, as far as can be seen, if not ``ended``."""

    def __init__(self, *, ended: bool = False) -> None:
        self.ended = ended

    def someone_ended(self) -> bool:
        return self.ended

    def explain(
        self, hop: str, seconds: float, problem: object, suspect: int | None = None
    ) -> HopTimeoutError:
        return HopTimeoutError(1, hop, SILENT if suspect is None else suspect, seconds)


def rank(
    device: str, liveness: Liveness | None = None, timeout: float = TIMEOUT, **state: Any
) -> ProcessComm:
    """A rank's side of the collectives, without a group."""
    comm = object.__new__(ProcessComm)
    members = SimpleNamespace(
        device=torch.device(device), timeout=timeout, liveness=liveness or Liveness()
    )
    for name, value in {"members": members, "_crossings": [], **state}.items():
        setattr(comm, name, value)
    return comm


def run_clock(monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    """Time flies, and ends some day."""
    ticks = iter(range(1000))
    time = SimpleNamespace(monotonic=lambda: next(ticks) / 4, sleep=lambda _: next(ticks))
    monkeypatch.setattr(module, "time", time)


@pytest.mark.parametrize(
    ("ended", "longest"),
    [(False, TIMEOUT), (True, process.LOOK_SECONDS + process.GRACE_SECONDS)],
    ids=["all are alive", "a rank has ended"],
)
def test_waits_end_in_time(monkeypatch: pytest.MonkeyPatch, ended: bool, longest: float) -> None:
    """And soon after a rank has ended, however often one looks."""
    run_clock(monkeypatch, process)
    with pytest.raises(TimeoutError, match="nothing for") as caught:
        rank("cpu", Liveness(ended=ended))._poll(lambda: False)
    waited = float(str(caught.value).split()[2])
    assert longest < waited <= longest + 1


class Never:
    """Work that does not end."""

    def is_completed(self) -> bool:
        return False


IN_TIME = pytest.mark.parametrize(
    ("ended", "longest"), [(False, 7.0), (True, gather.GRACE_SECONDS)]
)


@IN_TIME
def test_a_gather_on_gpus_ends_in_time(
    monkeypatch: pytest.MonkeyPatch, ended: bool, longest: float
) -> None:
    run_clock(monkeypatch, gather)
    monkeypatch.setattr(gather.dist, "get_world_size", lambda _: 2)
    monkeypatch.setattr(gather.dist, "all_gather", lambda *_, **__: Never())
    monkeypatch.setattr(gather.torch, "empty_like", lambda _: None)
    said = cast(Any, SimpleNamespace(device=torch.device("cuda")))
    with pytest.raises(TimeoutError, match="nothing for") as caught:
        gather.gather_in_time(said, cast(Any, None), 7.0, "a test", lambda: ended)
    waited = float(str(caught.value).split()[2])
    assert longest <= waited <= longest + 1


class Slow(Never):
    """Work of gloo that is waited for so often before it ends."""

    def __init__(self, often: float) -> None:
        self.often = often

    def wait(self, _: timedelta) -> None:
        self.often -= 1
        if self.often >= 0:
            raise RuntimeError("Operation timed out!")


@IN_TIME
@pytest.mark.parametrize("often", [(math.inf,), (20, math.inf)], ids=["frame", "rest"])
def test_a_gather_of_gloo_ends_in_time(
    monkeypatch: pytest.MonkeyPatch, often: tuple[float, ...], ended: bool, longest: float
) -> None:
    """Of what no frame holds, too, which travels behind it."""
    run_clock(monkeypatch, gather)
    works = iter([Slow(each if not ended else math.inf) for each in often])

    def sent(gathered: torch.Tensor, frame: torch.Tensor, _: Any) -> Any:
        gathered.view(2, -1)[:] = frame
        return next(works)

    group: Any = SimpleNamespace(size=lambda: 2, _allgather_base=sent)
    with pytest.raises(TimeoutError, match="nothing for") as caught:
        gather.gather_in_time(torch.ones(gather.FRAME_BYTES), group, 7.0, "a test", lambda: ended)
    waited = float(str(caught.value).split()[2])
    assert longest <= waited <= longest + 1
    gather._ended.clear()


@pytest.mark.parametrize("fails", [True, False])
def test_a_gather_that_ends_when_a_look_does(fails: bool) -> None:
    """It is asked how, once more."""
    waits: list[timedelta | None] = []

    def wait(limit: timedelta | None = None) -> None:
        waits.append(limit)
        if limit is not None or fails:
            raise RuntimeError("Operation timed out!" if limit else "connection closed by peer")

    work: Any = SimpleNamespace(wait=wait, is_completed=lambda: True)
    with pytest.raises(RuntimeError, match="closed by peer") if fails else nullcontext():
        gather.finish(work, gather.Deadline(7.0))
    assert len(waits) == 2
    gather._ended.clear()


def test_a_gather_of_gloo_outlasts_its_thread() -> None:
    """As other works do: the thread would else be the last to let go of Python's tensors."""
    work = SimpleNamespace(wait=lambda _: None)

    def sent(gathered: torch.Tensor, frame: torch.Tensor, _: Any) -> Any:
        gathered.view(2, -1)[:] = frame
        return work

    group: Any = SimpleNamespace(size=lambda: 2, _allgather_base=sent)
    assert gather.gather_in_time(torch.ones(1), group, 7.0, "a test").tolist() == [[1.0]] * 2
    assert gather._ended == [work]
    gather._ended.clear()


class Broken:
    """Work of gloo that fails, after so many seconds of the clock."""

    def wait(self, _: timedelta) -> None:
        raise RuntimeError("connection closed by peer")


@pytest.mark.parametrize(("timeout", "blamed"), [(TIMEOUT, SILENT), (0.0, 3)])
def test_a_connection_that_breaks_early_blames_nobody(timeout: float, blamed: int) -> None:
    """Whoever gives up breaks connections, too; who has let this rank wait in vain is late."""
    comm = rank("cpu", timeout=timeout)
    with pytest.raises(HopTimeoutError) as caught:
        comm._wait_for([(3, cast(Any, Broken()))], 0)
    assert (caught.value.hop, caught.value.peer) == ("network (stage 0)", blamed)
    gather._ended.clear()


@pytest.mark.parametrize("ends", [True, False])
def test_exchanges_are_forgotten_at_the_end_of_a_call(
    monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """Or an earlier call's would be blamed for a later one."""
    run_clock(monkeypatch, process)
    mark = SimpleNamespace(record=lambda: None, query=lambda: ends)
    comm = rank("cuda", timeout=0.0, _crossings=[UnderWay(0, mark, (3,))], _ended=mark)
    if ends:
        comm.synchronize("combine")
    else:
        with pytest.raises(HopTimeoutError, match="stage 0"):
            comm.synchronize("combine")
    assert not comm._crossings


class Nccl:
    """A process group that takes notes."""

    def __init__(self) -> None:
        self.notes: list[Any] = []

    def _start_coalescing(self, _: torch.device) -> None:
        self.notes.append("begin")

    def _end_coalescing(self, _: torch.device) -> Any:
        self.notes.append("end")
        return SimpleNamespace(wait=lambda: self.notes.append("waited for"))

    def send(self, tensors: list[Any], peer: int, _: int) -> None:
        self.notes += [("send", peer, each) for each in tensors]

    def recv(self, tensors: list[Any], peer: int, _: int) -> None:
        self.notes += [("recv", peer, each) for each in tensors]


def test_an_exchange_is_one_group_of_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which the stream waits for the end; one without rows is none."""
    monkeypatch.setattr(torch.cuda, "Event", lambda: SimpleNamespace(record=lambda: None))
    network = Nccl()
    comm = rank("cuda", _network=ref(network))
    a, b, c = (cast(Any, name) for name in "abc")
    comm._cross(Crossing((), (), stage=5))
    assert not network.notes
    comm._cross(Crossing((Rows(3, (a, b)),), (Rows(2, (c,)),), stage=6))
    operations = {("send", 3, "a"), ("send", 3, "b"), ("recv", 2, "c")}
    first, *posted, last, waited = network.notes
    assert (first, set(posted), len(posted), last, waited) == (
        "begin",
        operations,
        3,
        "end",
        "waited for",
    )
    assert [(each.stage, set(each.peers)) for each in comm._crossings] == [(6, {2, 3})]


def test_an_error_ends_what_a_rank_has_begun() -> None:
    """Such as being on another stream, and not only once nobody keeps the error any more."""
    comm, ended = rank("cpu", _windows=None), list[bool]()

    def work() -> Generator[Any, Any, None]:
        try:
            yield HeldWindows()
        finally:
            ended.append(True)

    with pytest.raises(AttributeError) as kept:
        comm.run(work())
    assert kept
    assert ended


def test_the_library_gives_up_after_this_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which names the rank that is missing."""
    limits: list[timedelta] = []
    monkeypatch.setattr(group.dist, "is_initialized", lambda: False)
    monkeypatch.setattr(group.dist, "init_process_group", lambda _, timeout: limits.append(timeout))
    group.join(7.0, torch.device("cpu"))
    assert limits[0] >= timedelta(seconds=7 + 2 * process.GRACE_SECONDS)


@pytest.mark.parametrize("limit", [4.0, 60.0, 600.0, 1800.0])
def test_by_default_too(monkeypatch: pytest.MonkeyPatch, limit: float) -> None:
    monkeypatch.setattr(group, "group_timeout", lambda *_: limit)
    ours = group.patience(None, torch.device("cpu"))
    assert limit / 2 < ours
    assert ours + min(limit / 4, 2 * process.GRACE_SECONDS) <= limit
