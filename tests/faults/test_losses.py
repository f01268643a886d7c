"""What ranks raise when another is lost: not before it is known which, and by every road."""

from __future__ import annotations

from threading import Event, Thread
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from fuscoc_runtime.comm import device_memory
from fuscoc_runtime.comm.rails import NETWORK
from fuscoc_runtime.engine.node import watch
from fuscoc_runtime.engine.node.engine import NodeEngine
from fuscoc_runtime.engine.node.state import BAD_KEYS, NUM_KINDS, new_state
from fuscoc_runtime.engine.node.watch import NodeWatch
from fuscoc_runtime.errors import (
    FuscoRuntimeError,
    HopTimeoutError,
    NetworkError,
    PreparationError,
    RefusedCallError,
)
from fuscoc_runtime.room import LEAST
from fuscoc_runtime.topology import Topology

CPU = torch.device("cpu")
RANK, PEER, VICTIM = 2, 0, 3
REFUSALS = BAD_KEYS + NUM_KINDS


class Rails:
    """Those of rank 2 of four nodes, which wait for an exchange."""

    peers, is_in_vain = {0: PEER, 1: 1, 3: VICTIM}, False

    def __init__(self) -> None:
        self.aborted: list[FuscoRuntimeError] = []

    def listen(self, listener: object) -> None:
        """Nobody is lost by others."""

    def under_way(self) -> int:
        return 5

    def abort(self, loss: FuscoRuntimeError) -> None:
        self.aborted.append(loss)


def test_nothing_is_raised_before_it_is_known_who_is_to_blame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor before what waits for it has been ended: the program may end when it is."""
    asked, known = Event(), Event()

    def find_missing(suspect: int, hop: str) -> int:
        assert hop == NETWORK
        asked.set()
        assert known.wait(60)
        return VICTIM

    monkeypatch.setattr(watch, "watch", lambda each: None)
    monkeypatch.setattr(watch, "GRACE_SECONDS", -1.0)

    def lost(hop: str, seconds: float, peer: int) -> HopTimeoutError:
        return HopTimeoutError(RANK, hop, peer, seconds)

    liveness = SimpleNamespace(someone_ended=lambda: True, find_missing=find_missing, lost=lost)
    members: Any = SimpleNamespace(
        topology=Topology(4, 1), rank=RANK, timeout=60.0, liveness=liveness
    )
    rails, (state, page) = Rails(), new_state(LEAST, CPU)
    node: Any = SimpleNamespace(limits=None, state=state, page=page, rails=rails)
    watched = NodeWatch(node, mock.Mock(), members)
    watched.look()
    looking = Thread(target=watched.look)
    looking.start()
    assert asked.wait(60)
    raised: list[tuple[int, int]] = []

    def call() -> None:
        with pytest.raises(HopTimeoutError) as caught:
            watched.raise_loss()
        raised.append((caught.value.peer, len(rails.aborted)))

    calling = Thread(target=call)
    calling.start()
    calling.join(0.2)
    assert calling.is_alive()
    assert not raised
    known.set()
    for each in (calling, looking):
        each.join()
    assert raised == [(VICTIM, 1)]


def watched_of(
    ended: int | None, monkeypatch: pytest.MonkeyPatch
) -> tuple[NodeWatch, Rails, torch.Tensor]:
    """What looks after the kernels of rank 2, which knows who has ended; and their state."""
    monkeypatch.setattr(watch, "watch", lambda each: None)

    def lost(hop: str, seconds: float, peer: int) -> HopTimeoutError:
        return HopTimeoutError(RANK, hop, peer, seconds)

    liveness = SimpleNamespace(
        find_ended=lambda: ended,
        find_missing=lambda suspect, hop: suspect,
        lost=lost,
        give_up=lambda: None,
    )
    members: Any = SimpleNamespace(rank=RANK, liveness=liveness)
    rails, (state, page) = Rails(), new_state(LEAST, CPU)
    node: Any = SimpleNamespace(limits=None, state=state, page=page, rails=rails)
    return NodeWatch(node, mock.Mock(), members), rails, state


@pytest.mark.parametrize("ended", [VICTIM, None])
def test_what_is_refused_for_want_of_who_ended(
    ended: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another rank went on without one that has ended, and could not add up what it was to: the
    loss is told, and not the refusal."""
    watched, rails, state = watched_of(ended, monkeypatch)
    state[REFUSALS + PEER] += 1
    kind = RefusedCallError if ended is None else HopTimeoutError
    with pytest.raises(kind) as caught:
        watched.raise_new()
    assert caught.value.peer == (PEER if ended is None else VICTIM)
    assert len(rails.aborted) == (ended is not None)


ILLEGAL = "CUDA error: an illegal memory access was encountered"


@pytest.mark.parametrize("ended", [VICTIM, None])
@pytest.mark.parametrize(
    ("error", "is_blamed"),
    [
        (RuntimeError(ILLEGAL), True),
        (RuntimeError("cuLaunchKernelEx failed with CUDA error 700"), True),
        (RuntimeError("CUDA error: the MPS client was terminated by the server"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (RuntimeError("CUDA error: operation not permitted when stream is capturing"), False),
        (torch.OutOfMemoryError("CUDA out of memory"), False),
        (PreparationError(RANK, ILLEGAL), False),
        (IndexError("of the user's"), False),
    ],
)
def test_who_ended_takes_a_gpu_along(
    error: Exception, is_blamed: bool, ended: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under MPS. What else a call raises has nothing to do with it."""
    monkeypatch.setattr(watch, "END_SECONDS", 0.1)
    watched, rails, _ = watched_of(ended, monkeypatch)
    is_named = ended is not None and is_blamed
    with pytest.raises(HopTimeoutError if is_named else type(error)) as caught, watched.blaming():
        raise error
    assert len(rails.aborted) == is_named
    if not is_named:
        assert caught.value is error
        return
    assert caught.value.peer == VICTIM
    assert caught.value.__context__ is error
    with pytest.raises(HopTimeoutError) as again, watched.blaming():
        raise error
    assert again.value.peer == VICTIM


def test_a_killed_process_ends_behind_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.01)
    watched, _, _ = watched_of(None, monkeypatch)
    found = iter([None, None, VICTIM])
    monkeypatch.setattr(watched._members.liveness, "find_ended", lambda: next(found))
    with pytest.raises(HopTimeoutError) as caught, watched.blaming():
        raise RuntimeError(ILLEGAL)
    assert caught.value.peer == VICTIM
    assert [*found] == []


def test_who_ends_because_of_this_rank_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own kernels have failed, which the others are told, and end."""
    monkeypatch.setattr(watch, "END_SECONDS", 0.1)
    watched, _, _ = watched_of(None, monkeypatch)
    error = RuntimeError(ILLEGAL)

    def call() -> None:
        with watched.blaming(), watched.joined(mock.Mock(is_out_of_step=False)):
            raise error

    def peers_end() -> None:
        watched._members.liveness.find_ended = lambda: PEER

    monkeypatch.setattr(watched._members.liveness, "give_up", peers_end)
    with pytest.raises(RuntimeError) as caught:
        call()
    assert caught.value is error
    with pytest.raises(PreparationError):
        watched.raise_loss()


@pytest.mark.parametrize("captures", [True, False, None])
def test_the_others_hear_of_a_gpu_that_has_failed(
    captures: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA says no more whether a graph is captured, in which nothing would have been launched."""
    asked = mock.Mock(return_value=captures)
    if captures is None:
        asked.side_effect = RuntimeError(ILLEGAL)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", asked)
    engine: Any = object.__new__(NodeEngine)
    engine.members = SimpleNamespace(device=torch.device("cuda"))
    engine._watch, error = mock.Mock(), RuntimeError(ILLEGAL)
    engine.failed(error)
    assert engine._watch.leave.mock_calls == ([] if captures else [mock.call(error)])


def members_of(ended: bool, timeout: float) -> Any:
    def explain(hop: str, seconds: float, problem: object) -> FuscoRuntimeError:
        return HopTimeoutError(RANK, hop, VICTIM, seconds)

    liveness = SimpleNamespace(someone_ended=lambda: ended, explain=explain)
    return SimpleNamespace(timeout=timeout, liveness=liveness)


@pytest.mark.parametrize(("ended", "timeout"), [(False, 0.05), (True, 3600.0)])
def test_a_window_does_not_wait_for_who_does_not_come(
    ended: bool, timeout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as a rank may take, or until it is known that one has ended."""
    monkeypatch.setattr(device_memory, "GRACE_SECONDS", 0.05)
    store = HashStore()
    store.set("0", "")
    device_memory._wait_in_time(store, ["0"], members_of(ended, timeout))
    with pytest.raises(TimeoutError):
        device_memory._wait_in_time(store, ["0", "1"], members_of(ended, timeout))


@pytest.mark.parametrize("error", [RuntimeError, TimeoutError])
@pytest.mark.parametrize("ended", [True, False])
def test_a_store_that_is_gone_is_no_answer_of_a_gpu(
    ended: bool, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a rank has ended, or does not come, who that is is to be found out."""

    def gone(*_: object) -> list[str]:
        raise error("failed to recv, got 0 bytes")

    monkeypatch.setattr(device_memory, "_tell", gone)
    monkeypatch.setattr(device_memory.dist, "get_rank", lambda: RANK)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    empty = mock.Mock(return_value=torch.empty(8, dtype=torch.uint8))
    monkeypatch.setattr(device_memory._SymmetricMemory, "empty_strided_p2p", empty)
    is_named = ended or error is TimeoutError
    said = "rank 2 waited .* for rank 3 in the window allocation" if is_named else "got 0 bytes"
    with pytest.raises(HopTimeoutError if is_named else NetworkError, match=said):
        device_memory.allocate_symmetric(8, mock.Mock(size=lambda: 1), CPU, members_of(ended, 1.0))
