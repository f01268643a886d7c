"""Statistics, logging, memory, pools and closing, on one rank."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fuscoc_runtime import Pool, Shuffle
from fuscoc_runtime.errors import ClosedError, InputError, KeyRangeError
from fuscoc_runtime.face.executor import tell_at_exit
from tests.engine import specs

ROOT = Path(__file__).parents[2]
ROUTED = specs.routed("f32", keys=4, topk=2)
ENGINES = pytest.mark.parametrize("options", [{}, {"max_sources": 5}], ids=["exact", "fixed"])
IDX = torch.tensor([[0, 3], [3, -1], [3, 1]])
GIVEN = {"x": torch.ones(3, 24), "idx": IDX, "weights": torch.ones(3, 2)}


@ENGINES
def test_statistics(options: dict[str, Any]) -> None:
    shuffle = Shuffle(specs.artifact(ROUTED), **options)
    assert shuffle.stats() is None
    rows, handle = shuffle.dispatch(**GIVEN)
    shuffle.combine(rows, handle)
    stats = shuffle.stats()
    assert stats is not None
    assert (stats.num_sources, stats.num_rows, stats.num_slots) == (3, 5, len(rows))
    assert stats.rows_of_key == {0: 1, 1: 1, 2: 0, 3: 3}
    assert stats.rows_to_rank == (5,)
    assert (stats.network.rows, stats.nvlink.rows, stats.local.rows) == (0, 0, 5)
    assert stats.local.num_bytes == 5 * 24 * 4
    assert stats.key_imbalance == 3 / (5 / 4)
    assert (stats.num_dispatches, stats.num_combines) == (1, 1)
    assert stats.dispatch_ms > 0
    assert "3 segments to 5 slots" in str(stats)
    assert stats.nodes == "of no job"


@ENGINES
def test_messages(options: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.DEBUG, "fuscoc"),
        Shuffle(specs.artifact(ROUTED), **options) as shuffle,
    ):
        shuffle.dispatch(**GIVEN)
    *before, first, second, third = caplog.messages
    reason = "no CUDA kernels: the ranks do not compute on CUDA devices"
    assert before == [f"routed: {reason}"] * ("max_sources" in options)
    assert "routed on rank 0 of 1x1: opened" in first
    assert "dispatch 1" in second
    assert "closed after 1 dispatches" in third


def test_sizes_that_stay_exact_are_said(caplog: pytest.LogCaptureFixture) -> None:
    with Shuffle(specs.artifact(specs.routed(options="dedup(none)")), max_sources=5):
        pass
    [said] = (each for each in caplog.records if each.levelno == logging.WARNING)
    assert "routed: sizes are exact, and max_sources has no effect: " in said.message
    assert "it says `dedup(none)`" in said.message


@pytest.mark.parametrize(("level", "shown"), [("info", 1), ("INFO", 1), ("warning", 0), ("", 0)])
def test_the_variable(level: str, shown: int) -> None:
    code = (
        "import fuscoc_runtime, logging; logging.getLogger('fuscoc.runtime').info('hello');"
        "logging.getLogger('fuscoc.runtime').debug('no')"
    )
    done = _python(code, level)
    assert done.returncode == 0
    assert done.stderr.count("fuscoc.runtime: hello") == shown
    assert "no\n" not in done.stderr


def test_a_wrong_level() -> None:
    done = _python("import fuscoc_runtime", "loud")
    assert "FUSCOC_LOG is `loud`; it must be one of debug, info, warning" in done.stderr


def _python(code: str, level: str) -> subprocess.CompletedProcess[str]:
    environment = {"FUSCOC_LOG": level, "PYTHONPATH": str(ROOT / "runtime")}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )


def test_memory_of_a_fixed_size() -> None:
    """What is stated is what is taken, whatever is dispatched."""
    shuffle = Shuffle(specs.artifact(ROUTED), max_sources=5)
    before = shuffle.memory()
    row_bytes, capacity = 24 * 4, 2 * 5 + 4 * 3
    assert before.window_bytes >= capacity * row_bytes
    shuffle.dispatch(**GIVEN)
    assert shuffle.memory() == before


def test_a_pool_is_shared_and_given_back() -> None:
    pool, artifact = Pool(), specs.artifact(ROUTED)
    one, two = (Shuffle(artifact, max_sources=5, pool=pool) for _ in range(2))
    with Shuffle(artifact, max_sources=6, pool=pool):
        assert len(pool) == 2
    assert len(pool) == 1
    _, first = one.dispatch(**GIVEN)
    two.dispatch(**GIVEN)
    rows, latest = two.dispatch(**GIVEN)
    with pytest.raises(InputError, match="`handle` on rank 0 is outdated"):
        one.combine(rows, first)
    one.combine(rows, latest)  # they are one shuffle, after all
    one.close()
    one.close()
    assert len(pool) == 1
    two.dispatch(**GIVEN)
    two.close()
    assert len(pool) == 0
    for call in (lambda: two.dispatch(**GIVEN), two.stats, two.memory, two.check):
        with pytest.raises(ClosedError, match="the shuffle routed is closed"):
            call()
    assert repr(two) == "<Shuffle routed: closed>"


def test_closing_tells_what_went_wrong(caplog: pytest.LogCaptureFixture) -> None:
    """Once: after the memory is free, unless it has been raised; beside another error it is logged,
    and so it is at the end of the process."""
    wrong = GIVEN | {"idx": IDX + 9}
    shuffle = Shuffle(specs.artifact(ROUTED), max_sources=5)
    shuffle.dispatch(**wrong)
    with pytest.raises(KeyRangeError, match="FSR017"):
        shuffle.close()
    assert repr(shuffle) == "<Shuffle routed: closed>"
    shuffle.close()

    with Shuffle(specs.artifact(ROUTED), max_sources=5) as shuffle:
        shuffle.dispatch(**wrong)
        with pytest.raises(KeyRangeError):
            shuffle.check()

    def interrupted() -> None:
        with Shuffle(specs.artifact(ROUTED), max_sources=5) as shuffle:
            shuffle.dispatch(**wrong)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "routed: found while closing it: [FSR017]" in caplog.text

    shuffle = Shuffle(specs.artifact(ROUTED), max_sources=5)
    shuffle.dispatch(**wrong)
    caplog.clear()
    tell_at_exit()
    assert "routed on rank 0 of 1x1: [FSR017]" in caplog.text
    shuffle.close()
