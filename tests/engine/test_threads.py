"""Threads of one process, each with shuffles and specs of its own."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from triton.runtime.interpreter import InterpreterBuilder

import fuscoc
from fuscoc_runtime.demo.generate import generate
from fuscoc_runtime.demo.verify import check_rows, expect
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.topology import Topology
from tests.engine import specs

NUM_THREADS = 2


@pytest.fixture(autouse=True)
def impatience() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def in_threads(work: Callable[[int], None]) -> None:
    problems: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for problem in problems:
        raise problem


def test_rows_of_every_thread_are_right() -> None:
    """Triton's interpreter, and what is exact in it while we use it, is one for all threads."""
    conversion, topology = InterpreterBuilder.cast_impl, Topology(1, 2)
    shuffles = [
        LockstepShuffle(specs.artifact(specs.routed("bf16")), topology=topology)
        for _ in range(NUM_THREADS)
    ]

    def work(number: int) -> None:
        shuffle = shuffles[number]
        data = generate(shuffle.spec, topology, 3, number)
        routes = [{"idx": rank.inputs["idx"], **rank.extents} for rank in data]
        done = shuffle.dispatch([list(rank.source.values()) for rank in data], routes)
        for wanted, found in zip(expect(shuffle.spec, data).rows, done, strict=True):
            check_rows(wanted, found.rows, found.handle)

    in_threads(work)
    assert InterpreterBuilder.cast_impl is conversion


def test_specs_compile_in_threads(tmp_path: Path) -> None:
    """The MLIR bindings take the process down if two threads load a dialect at a time."""
    text = specs.routed("f32")
    in_threads(lambda number: fuscoc.compile(text, tmp_path / str(number)))
    made = {(tmp_path / str(i) / "manifest.json").read_bytes() for i in range(NUM_THREADS)}
    assert len(made) == 1
