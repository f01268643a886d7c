"""What a rail hands to NCCL, with a communicator that is none, and what becomes of errors."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any
from unittest import mock
from weakref import WeakSet, ref

import numpy as np
import pytest
import torch
from torch._C._distributed_c10d import HashStore

from fuscoc_runtime.comm import communicators, subgroups
from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.comm.liveness import Liveness, this_process
from fuscoc_runtime.comm.rails import TRANSFER, Rails
from fuscoc_runtime.comm.requests import Crossing, Rows
from fuscoc_runtime.errors import ClosedError, FuscoRuntimeError, HopTimeoutError, NetworkError
from fuscoc_runtime.kernels.commands import CommandList, Exchange, as_numbers
from fuscoc_runtime.kernels.loader import load_device_kernel
from fuscoc_runtime.kernels.nccl import NcclError
from fuscoc_runtime.topology import Topology

CPU = torch.device("cpu")
COMM = 0x5000
OPEN, POSTING = 0, 1  # as commands.c has it
LOSS = HopTimeoutError(1, "network", 3, 7.0)


class Group:
    """A group of torch's, and its own backend."""

    aborted = 0

    def _get_backend(self, device: torch.device) -> Group:
        return self

    def _comm_ptr(self) -> int:
        return COMM

    def abort(self) -> None:
        self.aborted += 1


class OneRail(Rails):
    """Rank 1 of four nodes of two, on its own."""

    def __init__(self, group: Any) -> None:
        self.known, store = group, HashStore()
        liveness = Liveness(store, 0, [this_process()])
        super().__init__(Membership(1, Topology(4, 2), None, CPU, store, liveness, 60.0))

    def exchange(self, what: Crossing, lane: int = 0) -> None:
        pass

    def group(self, lane: int = 0) -> Any:
        return self.known


def failing() -> None:
    raise NcclError("unhandled system error")


def test_all_rows_but_empty_ones() -> None:
    rail = OneRail(Group())
    sent, received = torch.zeros(4, 6, dtype=torch.int32), torch.zeros(4, 5, dtype=torch.float64)
    between, more = rail.between(sent, received), Rows(5, (sent[0, :0], sent[1]))
    made = rail._transfers(Crossing((*between.sends, more), between.receives))
    assert made.communicator.contents.comm == COMM
    assert [
        (each.at, each.num_bytes, each.peer, each.is_sent)
        for each in made.transfers[: made.num_transfers]
    ] == [
        *((received[node].data_ptr(), 40, 2 * node + 1, 0) for node in (1, 2, 3)),
        *((sent[node].data_ptr(), 24, 2 * node + 1, 1) for node in (1, 2, 3)),
        (sent[1].data_ptr(), 24, 5, 1),
    ]


def test_an_exchange_is_filled_in_before_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU what C reads, on the CPU what gloo carries; an empty one is of no bytes."""
    rail, memory = OneRail(Group()), torch.zeros(64, dtype=torch.uint8)
    on_cpu = rail.blank(memory)
    monkeypatch.setattr(rail, "_is_gpu", True)
    on_gpu = rail.blank(memory)
    posted: list[Crossing] = []
    monkeypatch.setattr(rail, "_wait_for", posted.append)
    at = memory.data_ptr()
    for rows in ([(at + 8, 16, 3, 0), (at, 4, 5, 1), (at + 4, 4, 5, 1)], [], [(at + 60, 4, 7, 1)]):
        table = np.array(rows, TRANSFER)
        on_gpu.fill(table)
        on_cpu.fill(table)
        made = on_gpu.command.transfers
        assert made is not None
        assert made.words == 0
        told = made.transfers[: made.num_transfers]
        assert [(each.at, each.num_bytes, each.peer, each.is_sent) for each in told] == rows
        on_cpu.command.carry_out({})
        what = posted.pop()
        for sides, is_sent in ((what.receives, 0), (what.sends, 1)):
            parts = [(each.peer, each.fields[0]) for each in sides]
            assert [(part.data_ptr(), part.nbytes, peer, is_sent) for peer, part in parts] == [
                each for each in rows if each[3] == is_sent
            ]


def test_rows_with_gaps_are_refused() -> None:
    gaps = torch.zeros(4, 6)[:, ::2]
    with pytest.raises(AssertionError):
        OneRail(Group())._transfers(Crossing((Rows(3, (gaps,)),), ()))


def test_who_tells_how_far_the_stream_is() -> None:
    rail, nothing = OneRail(Group()), Crossing((), ())
    assert rail._transfers(nothing).words == rail._words.address
    assert rail._transfers(nothing, is_told=True).words == 0
    rail._is_watched = True  # as on a GPU
    for words in (rail._words, rail._told):
        words.write(0, 7)
        assert rail.under_way() == 7
        words.write(1, 7)
        assert rail.under_way() == 0


@pytest.mark.parametrize("calls", [0, 1, 2**31 - 1, 2**31, 2**32 - 1])
def test_exchanges_of_no_call_are_told_between_calls(calls: int) -> None:
    """Of two, and of the call behind them, the host sees that each is under way."""
    tell = load_device_kernel("hop", "tell", ("told", "place"), interpreted=True)
    rail = OneRail(Group())
    for place in (0, 1):
        rail._told.write(place, calls)
    for _ in range(2):
        for place in (0, 1):
            tell.launch({"told": rail.told, "place": place}, 1)
            assert (rail._told[0] == rail._told[1]) == (place == 1)
    rail._told.write(0, calls + 1)
    assert rail._told[0] != rail._told[1]


def test_what_nccl_says_is_told() -> None:
    """And what it has not posted is not waited for."""
    rail = OneRail(Group())
    rail._is_watched = True
    rail._told.write(0, 7)
    with pytest.raises(NetworkError, match=r"network hop.*unhandled system error"):
        rail.submit(CommandList(CPU, [Exchange(None, failing, None)]), as_numbers(()))
    assert rail.under_way() == 0


def test_nothing_is_posted_to_a_group_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    rail, nothing = OneRail(Group()), CommandList(CPU, [])
    rail.submit(nothing, as_numbers(()))
    monkeypatch.setattr(OneRail, "group", Rails.group)
    with pytest.raises(ClosedError):
        rail.submit(nothing, as_numbers(()))


def aborting(group: Group) -> threading.Thread:
    """The one thread that is started to abort what the group has posted."""
    started, start = list[threading.Thread](), threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        started.append(thread)
        start(thread)

    with mock.patch.object(threading.Thread, "start", noted):
        communicators.abort(ref(group), CPU, LOSS)
        communicators.abort(ref(group), CPU, LOSS)  # another one who has found the same
    [thread] = started
    return thread


class Shuffle:
    """One of several whose rows travel by one group."""

    def __init__(self, group: Group) -> None:
        self.group, self.heard = group, list[tuple[object, int]]()
        communicators.listen(group, self)

    def hear(self, loss: FuscoRuntimeError) -> None:
        self.heard.append((loss, self.group.aborted))


def test_an_abort_is_for_all_who_post() -> None:
    """It waits for who is posting; torch frees the communicator, and lanes are made anew."""
    group, other = Group(), Group()
    communicator = communicators.communicator_of(group, CPU)
    assert communicators.communicator_of(group, CPU) is communicator
    shuffles, apart = [Shuffle(group), Shuffle(group)], Shuffle(other)
    communicator.state = POSTING
    thread = aborting(group)
    time.sleep(0.05)
    assert (group.aborted, communicators.is_aborted(group)) == (0, True)
    communicator.state = OPEN
    thread.join()
    assert group.aborted == 1
    assert [each.heard for each in shuffles] == [[(LOSS, 0)]] * 2  # before the GPU goes on
    assert not apart.heard
    assert not communicators.is_aborted(other)


@pytest.mark.parametrize("by_whom", ["this rank", "another rank"])
def test_lanes_are_made_anew_if_any_rank_has_lost_them(by_whom: str) -> None:
    """All ranks make them, though only one may have given up waiting."""
    job, lost, new = Group(), Group(), Group()
    said: list[bool] = []

    def agree(is_lost: bool) -> bool:
        said.append(is_lost)
        return is_lost or (by_whom == "another rank" and len(said) == 2)

    def lane(made: Group) -> list[object]:
        return subgroups._made_once(job, "lane", lambda: [made], agree)

    assert lane(lost) == [lost]
    assert lane(new) == [lost]
    if by_whom == "this rank":
        communicators.communicator_of(lost, CPU)
        aborting(lost).join()
    assert lane(new) == [new]
    assert lane(lost) == [new]
    assert said == [False, by_whom == "this rank", False]


def test_an_abort_gives_up_where_nobody_stops_posting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(communicators, "ABORT_SECONDS", 0.02)
    group = Group()
    communicators.communicator_of(group, CPU).state = POSTING
    aborting(group).join()
    assert (group.aborted, communicators.is_aborted(group)) == (0, True)


def test_the_end_of_a_process_waits_once_for_all_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """For aborts that come back, and no longer for several that do not than for one."""
    monkeypatch.setattr(communicators, "ABORT_SECONDS", 60.0)
    monkeypatch.setattr(communicators, "_aborting", WeakSet[threading.Thread]())
    now, waits = 0.0, list[float]()

    def join(thread: threading.Thread, seconds: float) -> None:
        nonlocal now
        waits.append(seconds)
        now += seconds

    clock = SimpleNamespace(monotonic=lambda: now, sleep=time.sleep)
    monkeypatch.setattr(communicators, "time", clock)
    groups = [Group() for _ in range(4)]
    for each in groups:
        communicators.communicator_of(each, CPU).state = POSTING
    threads = [aborting(each) for each in groups]
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "join", join)
        communicators._end()
    assert waits == [communicators.END_SECONDS, 0.0, 0.0, 0.0]
    assert all(each.is_alive() for each in threads)
    for each in groups:
        communicators.communicator_of(each, CPU).state = OPEN
    communicators._end()
    assert not any(each.is_alive() for each in threads)
    assert [each.aborted for each in groups] == [1] * 4
