"""A rank that fails amid a call, and lives on: the others are told, and it follows them no more."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from fuscoc_runtime.engine.node.static_engine import StaticEngine
from fuscoc_runtime.engine.process import ProcessEngine
from fuscoc_runtime.errors import HopTimeoutError
from tests.engine import specs
from tests.engine.pool import PATIENCE_SECONDS, Pool
from tests.faults import failing_work

SMALL = specs.routed("f32")
NIGHTLY = pytest.mark.nightly
NAMES = {"memory": "OutOfMemoryError", "interrupt": "KeyboardInterrupt"}


@pytest.mark.parametrize(
    ("engine", "where", "failure"),
    [
        # Where a call takes its turn, before anything is launched.
        ("fixed", "node.triton.TritonNode.launched", "memory"),
        ("fixed", "node.prepared.Prepared.submit", "memory"),
        pytest.param("fixed", "node.triton.TritonNode.combine", "memory", marks=NIGHTLY),
        # Behind its launches.
        pytest.param("fixed", "node.engine.NodeEngine.entered", "interrupt", marks=NIGHTLY),
        # Before that, but not by what ranks find wrong with arguments.
        pytest.param("fixed", "node.engine.NodeEngine._prepare", "interrupt", marks=NIGHTLY),
        ("exact", "node.exact_engine.ExactEngine._prepare", "interrupt"),
        ("general", "dispatch.PreparedPath", "interrupt"),
    ],
)
def test_a_rank_that_fails_amid_a_call(engine: str, where: str, failure: str) -> None:
    """Nobody waits for it until the time is up."""
    pool, last = Pool(2), 1
    try:
        work, options = failing_work.amid_a_call, (engine, where, failure, 2 * PATIENCE_SECONDS)
        first, second = pool.run(work, 2, str(specs.artifact(SMALL).path), *options)
    finally:
        pool.close()
    told = "HopTimeoutError: [FSR020] rank 0 waited"
    assert all(said.startswith(told) and f"for rank {last} in the" in said for said in first)
    assert second[0] == NAMES[failure]
    own = f"PreparationError: [FSR006] rank {last} could not prepare the call: {NAMES[failure]}"
    assert second[1].startswith(own)


def test_a_rank_that_fails_before_a_call() -> None:
    """It takes its turn all the same, and all go on."""
    pool = Pool(2)
    try:
        options = "fixed", "node.engine.NodeEngine._combine_rows", "memory", 2 * PATIENCE_SECONDS
        path = str(specs.artifact(SMALL).path)
        first, second = pool.run(failing_work.amid_a_call, 2, path, *options)
    finally:
        pool.close()
    own = "PreparationError: [FSR006] rank 1 could not prepare the call: OutOfMemoryError"
    assert second == [f"{own}: no memory", "no error"]
    assert first[0].startswith("RefusedCallError: [FSR022] rank 1 refused 1 calls")
    assert first[1] == "no error"


@pytest.mark.parametrize(
    ("work", "own"),
    [
        # It closes the shuffle without the others.
        (failing_work.leaves_by_an_error, "left"),
        (failing_work.amid_the_opening, "OutOfMemoryError"),
    ],
)
def test_a_rank_that_fails_beside_calls(work: Callable[..., str], own: str) -> None:
    """It tells the others."""
    pool = Pool(2)
    try:
        first, second = pool.run(work, 2, str(specs.artifact(SMALL).path), 2 * PATIENCE_SECONDS)
    finally:
        pool.close()
    assert second == own
    assert first.startswith("HopTimeoutError: [FSR020] rank 0 waited")
    assert "for rank 1 in the" in first


def test_what_another_engine_has_lost() -> None:
    """Calls by kernels are refused, and closing does not wait: on GPUs what NCCL has been given may
    never end."""
    pool = Pool(2)
    try:
        work, timeout = failing_work.amid_a_call_of_another_engine, 2 * PATIENCE_SECONDS
        found, failed = pool.run(work, 2, str(specs.artifact(SMALL).path), timeout)
    finally:
        pool.close()
    is_stuck, said, later, closed = found
    assert is_stuck
    assert "[FSR020] rank 0 waited" in said
    assert later == said
    assert closed == "no error"
    assert failed[2].startswith("PreparationError: [FSR006] rank 1 could not prepare the call")


def test_a_static_shuffle_knows_what_its_general_engine_has_lost() -> None:
    engine: Any = object.__new__(StaticEngine)
    engine.node, engine._has_opened = SimpleNamespace(rails=None, is_out_of_step=False), False
    engine._watch = SimpleNamespace(raise_loss=lambda: None)
    engine.check_can_follow()
    assert not engine.is_stuck
    general: Any = object.__new__(ProcessEngine)
    general.loss = HopTimeoutError(0, "direct", 1, 2.0)
    engine._general, engine._has_opened = general, True
    with pytest.raises(HopTimeoutError, match="rank 0 waited 2 s for rank 1"):
        engine.check_can_follow()
    assert engine.is_stuck
