"""DeepEP's calls on four CPU ranks, against torch; and what is refused."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fuscoc_runtime.deep_ep as deep_ep
from fuscoc_runtime.deep_ep.specs import FOLDER, find_artifact
from fuscoc_runtime.errors import AdapterError
from tests.deep_ep import rank_work
from tests.engine.pool import Pool

SIZES = [13, 0, 7, 11]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    processes = Pool(4)
    yield processes
    processes.close()


def test_normal_calls(pool: Pool) -> None:
    for wrong in pool.run(rank_work.normal, 4, "cpu", SIZES, {}):
        assert not wrong, "\n".join(wrong)


def test_low_latency_calls(pool: Pool) -> None:
    for wrong in pool.run(rank_work.low_latency, 4, "cpu", SIZES, {}):
        assert not wrong, "\n".join(wrong)


@pytest.mark.nightly
@pytest.mark.parametrize("topology", ["2x2", "4x1"])
def test_nodes(pool: Pool, topology: str) -> None:
    """``num_worst_tokens`` is of one node."""
    for wrong in pool.run(rank_work.low_latency, 4, "cpu", SIZES, {"topology": topology}):
        assert not wrong, "\n".join(wrong)


def test_what_is_not_here_is_refused_by_name(pool: Pool) -> None:
    for said in pool.run(rank_work.refusals, 4):
        for name, message in said.items():
            assert name in message
            assert message.startswith("[FSR030] deep_ep: ")
