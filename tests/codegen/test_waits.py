"""Waiting for signals: what counts as arrived, who is named when it does not come, and that work
waits."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from triton.runtime.interpreter import _interpreter

from fuscoc.codegen.triton import POLLS_PER_LOOK
from tests.codegen.memory import filled, int64s, zeros
from tests.codegen.specs import built

ROW = np.arange(1, 49, dtype=np.uint8)
IN_VAIN = 1


def duplicate(
    words: Any,
    expected: tuple[int, int],
    abort: Any = IN_VAIN,
    late: int = 0,
    programs: int = 1,
) -> tuple[int, bool]:
    """Run a kernel that waits for slots 0 and 1; whom it has waited for in vain, and whether it did
    its work."""
    window = filled(np.asarray(words, np.int32)) if isinstance(words, list) else words
    target = filled(np.stack([ROW, np.zeros_like(ROW)]))
    told = filled(np.array([late], np.int32))
    built("moe").kernels.launch(
        "moe_duplicate",
        programs,
        num_descriptors=1,
        src_slot=int64s([0]),
        dst_slot=int64s([1]),
        x_src=target,
        x_dst=target,
        wait_base=window,
        num_peers=window.shape[1],
        expected_0=expected[0],
        expected_1=expected[1],
        abort=filled(np.array([abort], np.int32)) if isinstance(abort, int) else abort,
        late=told,
    )
    return int(told[0]), bool(np.array_equal(target[1], ROW))


@settings(max_examples=60)
@given(
    words=st.integers(1, 3).flatmap(
        lambda n: st.lists(
            st.lists(st.integers(0, 3), min_size=n, max_size=n), min_size=2, max_size=2
        )
    ),
    expected=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    programs=st.integers(1, 2),
)
def test_names_the_first_peer_that_is_behind(
    words: list[list[int]], expected: tuple[int, int], programs: int
) -> None:
    late = [
        1 + slot * len(words[0]) + peer
        for slot in range(2)
        for peer, word in enumerate(words[slot])
        if word < expected[slot]
    ]
    named, worked = duplicate(words, expected, programs=programs)
    assert named == (late[0] if late else 0)
    assert worked == (not late)


@pytest.mark.parametrize(("word", "worked"), [(-(2**31) + 4, False), (-(2**31) + 5, True)])
def test_counts_wrap(word: int, worked: bool) -> None:
    assert duplicate([[word], [word]], (2**31 + 5, 2**31 + 5)) == (0 if worked else 1, worked)


def test_who_was_named_before_stays() -> None:
    assert duplicate([[0], [0]], (1, 1), late=7) == (7, False)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One for every look at a word."""
    looked: list[int] = []
    look = _interpreter.atomic_rmw

    def counted(*arguments: Any) -> Any:
        looked.append(1)
        return look(*arguments)

    monkeypatch.setattr(_interpreter, "atomic_rmw", counted)
    return looked


def test_what_comes_after_a_wait_in_vain_is_not_waited_for(looks: list[int]) -> None:
    """Five of six words are late: all are looked at, and the first late one again until the host is
    asked twice; from the first time on the late word says so."""
    assert duplicate([[1, 0, 0], [0, 0, 0]], (1, 1)) == (2, False)
    assert len(looks) == 6 + 2 * POLLS_PER_LOOK


def test_who_is_known_to_be_late_is_waited_for_no_more(looks: list[int]) -> None:
    assert duplicate([[1, 0], [0, 0]], (1, 1), late=7) == (7, False)
    assert len(looks) == 4 + POLLS_PER_LOOK


def test_who_does_not_wait_is_not_told(looks: list[int]) -> None:
    """A stop that comes late is none: what has come has come."""
    assert duplicate([[1, 1], [1, 1]], (1, 1)) == (0, True)
    assert len(looks) == 4


def test_waits_until_the_signal_comes() -> None:
    window = zeros((2, 2), np.int32)
    window[0] = 1, 1
    window[1, 0] = 1

    def signal() -> None:
        window[1, 1] = 1

    peer = threading.Timer(0.05, signal)
    peer.start()
    assert duplicate(window, (1, 1), 0) == (0, True)
    peer.join()


def test_waits_until_it_is_stopped() -> None:
    abort = zeros(1, np.int32)

    def stop() -> None:
        abort[0] = IN_VAIN

    host = threading.Timer(0.05, stop)
    host.start()
    assert duplicate([[1, 1], [1, 0]], (1, 1), abort) == (4, False)
    host.join()
