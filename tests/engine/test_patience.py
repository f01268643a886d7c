"""When a host stops the waits of its kernels, and when these may go on."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from fuscoc_runtime.engine import waits
from fuscoc_runtime.engine.waits import GRACE_SECONDS, LOOK_SECONDS, Patience, Waits
from fuscoc_runtime.kernels.stream_words import StreamWords

CPU = torch.device("cpu")
TIMEOUT = 60.0


class Rank:
    """A rank whose kernels and clock are ours."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits, self.now, self.someone_ended = Waits(["local", "reduce"], CPU), 1000.0, False
        liveness = SimpleNamespace(someone_ended=lambda: self.someone_ended)
        members = SimpleNamespace(timeout=TIMEOUT, liveness=liveness)
        self.patience = Patience(self.waits, cast(Any, members))
        monkeypatch.setattr(waits, "time", SimpleNamespace(monotonic=lambda: self.now))

    def is_stopped_after(self, seconds: float) -> bool:
        """A look now, and one so much later."""
        self.patience.look()
        self.now += seconds
        self.patience.look()
        return bool(self.waits.abort_word[0])


def words(waits: Waits) -> tuple[int, int]:
    """Whether kernels are to stop, and for whom one of them has waited."""
    return int(waits.abort_word[0]), int(waits.late_word[0])


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Rank:
    return Rank(monkeypatch)


def test_a_wait_may_take_the_timeout(rank: Rank) -> None:
    rank.waits.begin("local")
    assert not rank.is_stopped_after(TIMEOUT - 1)
    assert rank.is_stopped_after(2)


def test_every_launch_has_its_own_time(rank: Rank) -> None:
    """Also of the same kernel, and while another one waits."""
    rank.waits.begin("local")
    assert not rank.is_stopped_after(TIMEOUT - 1)
    rank.waits.end("local")
    rank.waits.begin("local")
    assert not rank.is_stopped_after(TIMEOUT / 2)
    rank.waits.begin("reduce")
    assert not rank.is_stopped_after(TIMEOUT / 2 - 1)
    rank.waits.end("local")
    assert not rank.is_stopped_after(TIMEOUT / 2)
    assert rank.is_stopped_after(2)


def test_what_has_ended_or_does_not_wait_has_time(rank: Rank) -> None:
    rank.waits.begin("send")
    rank.waits.begin("local")
    rank.waits.end("local")
    assert not rank.is_stopped_after(10 * TIMEOUT)
    rank.someone_ended = True
    assert not rank.is_stopped_after(10 * TIMEOUT)


def test_a_rank_that_has_ended_is_not_waited_for(rank: Rank) -> None:
    """But for what it has still sent; nor by later calls."""
    rank.waits.begin("local")
    assert not rank.is_stopped_after(TIMEOUT / 2)
    rank.someone_ended = True
    assert not rank.is_stopped_after(GRACE_SECONDS / 2)
    rank.waits.end("local")
    rank.waits.begin("reduce")
    assert not rank.is_stopped_after(LOOK_SECONDS / 2)
    assert rank.is_stopped_after(LOOK_SECONDS / 2)


def test_a_stop_that_came_too_late_for_a_launch_is_none(rank: Rank) -> None:
    """The launch has waited for nobody, only worked for long; one that has waited is lost."""
    waits = rank.waits
    waits.begin("local")
    assert rank.is_stopped_after(TIMEOUT + 1)
    waits.end("local")
    waits.begin("local")
    assert words(waits) == (0, 0)
    assert not rank.is_stopped_after(TIMEOUT - 1)
    assert rank.is_stopped_after(2)
    waits.late_word[0] = 4
    waits.end("local")
    waits.begin("reduce")
    assert words(waits) == (1, 4)
    waits.tell()
    assert waits.late() == 3
    waits.resume()
    assert waits.are_stopped


def test_any_thread_stops_what_was_made_in_any_mode() -> None:
    with torch.inference_mode():
        waits = Waits(["local"], CPU)
    thread = threading.Thread(target=waits.stop)
    thread.start()
    thread.join()
    assert words(waits) == (1, 0)


def test_numbers_of_launches_wrap() -> None:
    words = StreamWords(2, CPU)
    words.write(1, 2**32 + 5)
    assert (words[0], words[1]) == (0, 5)
