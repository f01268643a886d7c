"""Traces of calls that are lists of commands, interpreted: what ranks really run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.node_triton.given_specs import EXAMPLES
from tests.rails import trace_work
from tests.rails.test_exact import RANKS, path
from tests.rails.test_flows import BALANCED
from tests.rails.test_rails import SMALL

HALO = EXAMPLES["halo"].text

pool = pool_of(4)


@pytest.mark.parametrize(
    ("text", "kind", "topology"),
    [
        pytest.param(SMALL, "exact", "2x1", id="exact"),
        pytest.param(SMALL, "fixed", "2x1", id="fixed"),
        pytest.param(SMALL, "exact", "1x2", id="exact inside a node"),
        pytest.param(SMALL, "fixed", "1x2", id="fixed inside a node"),
        pytest.param(HALO, "exact", "2x1", id="static"),
        pytest.param(BALANCED, "exact", "2x2", id="a policy", marks=pytest.mark.nightly),
    ],
)
def test_every_command_is_a_span(
    pool: Pool, tmp_path: Path, text: str, kind: str, topology: str
) -> None:
    """Once, in order, and rows are right; slabs and windows grow meanwhile where sizes are
    exact."""
    num_ranks = RANKS.get(topology, 2)
    batches = [(3, *[2] * (num_ranks - 1)), (2, *[9] * (num_ranks - 1))]
    given = path(text), kind, topology, batches, str(tmp_path / "trace.json")
    for names in pool.run(trace_work.calls, num_ranks, *given):
        assert names


def test_a_call_of_the_general_engine(pool: Pool) -> None:
    for lanes in pool.run(trace_work.general, 2, path(SMALL), "2x1"):
        assert {"host", "plan", "net send", "wire"} <= set(lanes)


@pytest.mark.parametrize("kind", ["exact", "fixed"])
def test_nothing_is_there_without_a_trace(pool: Pool, kind: str) -> None:
    assert pool.run(trace_work.untraced, 2, path(SMALL), kind, "2x1") == [["Kernel"]] * 2
