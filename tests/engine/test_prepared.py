"""Calls that differ in few numbers: what the driver is called with."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import pytest
import torch

from fuscoc_runtime.engine.node.prepared import Prepared
from fuscoc_runtime.errors import ClosedError, NetworkError
from fuscoc_runtime.kernels import nccl
from fuscoc_runtime.kernels.commands import CommandList, NativeList, Turn
from tests.engine.test_commands import BEGUN, STREAM, Recorded, Told, expected, made

CPU = torch.device("cpu")
KINDS: list[Any] = [
    (["a", "c"], "programs", False), Told([(8, 16, 1, True)]), (["a"], "programs", False),
]  # fmt: skip
VARIED = ["b.x", "a"]
VALUES = [{"c": 4, "programs": 2, "a": 99}, {"c": 5, "programs": 3, "a": 99}]


class Rail:
    """Whose group may be gone."""

    is_gone = False

    def check(self) -> None:
        if self.is_gone:
            raise ClosedError("the process group")

    def explained(self, error: nccl.NcclError) -> NetworkError:
        return NetworkError(0, "network", f"explained: {error}")


def prepared(rails: Any = None, good: int = 1 << 30) -> tuple[Prepared, Recorded]:
    commands, taken = made(KINDS, ctypes.c_int64(), [])
    driver, found = Recorded(taken, good), CommandList(CPU, commands, VARIED)
    found.native = NativeList(commands, found.names, driver.calls)
    return Prepared(found, VALUES, VARIED, rails), driver


def test_numbers_that_vary_come_first() -> None:
    """Those that a list has no use for, too."""
    commands, _ = made(KINDS, ctypes.c_int64(), [])
    found = CommandList(CPU, commands, VARIED)
    assert found.names == ("b.x", "a", "programs", "c")
    numbers = Prepared(found, VALUES, VARIED).fill(1, [6, 7])
    assert found.values(numbers) == {"b.x": 6, "a": 7, "programs": 3, "c": 5}


def test_calls_have_numbers_of_their_own() -> None:
    """And what is alike is that of an entry; a turn says what is awaited and recorded."""
    call, driver = prepared()
    for index, a in ((0, 7), (1, -8), (0, 1 << 62)):
        for turn in (Turn(STREAM), Turn(STREAM, before_on=4, before=3, awaited=5, ended=6, told=7)):
            driver.notes.clear()
            call.submit(index, turn, (3, a))
            whole = expected(KINDS, {**VALUES[index], "a": a}, 0)
            if turn.ended:
                whole = [*BEGUN, *whole, ("record", 6, STREAM), ("record", 7, STREAM)]
            assert driver.notes == whole


def test_a_turn_is_not_that_of_the_call_before() -> None:
    call, _ = prepared()
    call.submit(0, Turn(STREAM, awaited=5, ended=6), (3, 7))
    assert [*call.fill(0, [3, 8])[: len(Turn())]] == [*Turn()]


@pytest.mark.parametrize(("word", "error"), [(1 << 63, OverflowError), (None, TypeError)])
def test_what_is_no_word_is_not_handed_over(word: Any, error: type[Exception]) -> None:
    call, driver = prepared()
    with pytest.raises(error):
        call.submit(0, Turn(STREAM), (3, word))
    assert driver.notes == []


def test_other_threads_go_on() -> None:
    """While the driver takes its time, as where a stream is full."""
    _, driver = prepared()
    sleep = ctypes.CDLL(None).usleep
    driver.calls.record = ctypes.cast(sleep, ctypes.c_void_p).value
    found = CommandList(CPU, [], VARIED)
    found.native = NativeList([], found.names, driver.calls)
    call, turns, is_over = Prepared(found, [{}], VARIED), [0], threading.Event()

    def count() -> None:
        while not is_over.wait(1e-3):
            turns[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    before = turns[0]
    call.submit(0, Turn(STREAM, ended=300_000), (3, 7))
    meanwhile = turns[0] - before
    is_over.set()
    thread.join()
    assert meanwhile > 5


def test_what_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "reason", lambda status: f"NCCL says {status}")
    for rails, good, kind, said in (
        (None, 0, RuntimeError, "cuLaunchKernelEx failed with CUDA error 5"),
        (Rail(), 0, RuntimeError, "cuLaunchKernelEx failed with CUDA error 5"),
        (None, 2, nccl.NcclError, "NCCL says 5"),
        (Rail(), 2, NetworkError, "explained: NCCL says 5"),
    ):
        call, driver = prepared(rails, good)
        with pytest.raises(kind, match=said):
            call.submit(0, Turn(STREAM), (3, 7))
        assert driver.notes


def test_nothing_is_posted_to_a_group_that_is_gone() -> None:
    call, driver = prepared(rail := Rail())
    call.submit(0, Turn(STREAM), (3, 7))
    driver.notes.clear()
    rail.is_gone = True
    with pytest.raises(ClosedError):
        call.submit(0, Turn(STREAM), (3, 7))
    assert driver.notes == []
