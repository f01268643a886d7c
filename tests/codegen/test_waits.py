"""Waiting for signals: what counts as arrived, who is named when it is not, and that work waits."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from triton.runtime.interpreter import InterpreterBuilder

from tests.codegen.memory import filled, int64s, zeros
from tests.codegen.specs import built

ROW = np.arange(1, 49, dtype=np.uint8)


def duplicate(
    words: Any, expected: tuple[int, int], *, max_spins: int = 2, error: int = 0, programs: int = 1
) -> tuple[int, bool]:
    """Run a kernel that waits for slots 0 and 1; its error word, and whether it did its work."""
    window = filled(np.asarray(words, np.int32)) if isinstance(words, list) else words
    target = filled(np.stack([ROW, np.zeros_like(ROW)]))
    errors = filled(np.array([error], np.int32))
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
        max_spins=max_spins,
        error=errors,
    )
    return int(errors[0]), bool(np.array_equal(target[1], ROW))


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
    error, worked = duplicate(words, expected, programs=programs)
    assert error == (late[0] if late else 0)
    assert worked == (not late)


@pytest.mark.parametrize(("word", "worked"), [(-(2**31) + 4, False), (-(2**31) + 5, True)])
def test_counts_wrap(word: int, worked: bool) -> None:
    assert duplicate([[word], [word]], (2**31 + 5, 2**31 + 5)) == (0 if worked else 1, worked)


def test_an_earlier_error_is_kept() -> None:
    assert duplicate([[0], [0]], (1, 1), error=7) == (7, False)


def test_a_late_word_is_the_last_that_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five words are late; a program that found one so looks once at each of the others."""
    looked = 0
    look = InterpreterBuilder.create_atomic_rmw

    def counted(*args: Any) -> Any:
        nonlocal looked
        looked += 1
        return look(*args)

    monkeypatch.setattr(InterpreterBuilder, "create_atomic_rmw", counted)
    assert duplicate([[1, 0, 0], [0, 0, 0]], (1, 1), max_spins=9) == (2, False)
    assert looked == 6 + 9 + 1  # every word, the first late one again and again, the error
    assert duplicate([[0, 0, 0], [0, 0, 0]], (1, 1), max_spins=1 << 40, error=7) == (7, False)


def test_waits_until_the_signal_comes() -> None:
    window = zeros((2, 2), np.int32)
    window[0] = 1, 1
    window[1, 0] = 1

    def signal() -> None:
        window[1, 1] = 1

    peer = threading.Timer(0.05, signal)
    peer.start()
    assert duplicate(window, (1, 1), max_spins=1 << 20) == (0, True)
    peer.join()
