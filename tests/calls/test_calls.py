"""Calls good and bad in any order: every result is right, or its own error, and nothing dies."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fuscoc
from tests.calls import rank_work
from tests.engine import specs
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.gpus import torchrun

SHUFFLE = specs.routed("f32")
SEEDS = st.integers(0, 2**31)


pool = pool_of(3)


def run(pool: Pool, num_ranks: int, seed: int, num_calls: int) -> None:
    path = str(specs.artifact(SHUFFLE).path)
    assert pool.run(rank_work.random_calls, num_ranks, path, seed, num_calls) == [[]] * num_ranks


@given(num_ranks=st.sampled_from([2, 3]), seed=SEEDS)
@settings(max_examples=2, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_calls(pool: Pool, num_ranks: int, seed: int) -> None:
    run(pool, num_ranks, seed, 12)


@pytest.mark.nightly
@given(num_ranks=st.sampled_from([1, 2, 3]), seed=SEEDS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_many_random_calls(pool: Pool, num_ranks: int, seed: int) -> None:
    run(pool, num_ranks, seed, 60)


@pytest.mark.gpu(can_share=True)
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_random_calls_on_gpus(num_ranks: int, tmp_path: Path) -> None:
    """Eager, captured and replayed, on random streams, with ranks late by chance."""
    artifacts = []
    for backend in ("cuda", "triton"):
        spec = tmp_path / f"{backend}.fsc"
        spec.write_text(specs.routed("f32", options=f"dedup(node, rank) backend {backend}"))
        artifacts.append(fuscoc.compile(spec, tmp_path / backend))
    torchrun(num_ranks, "tests/calls/gpu_run.py", "--calls", "2000", *artifacts)
