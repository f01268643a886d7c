"""Static shuffles without `max_sources`, interpreted: memory of a fixed size, and calls that
promise what those of exact sizes do, inside a node and between."""

from __future__ import annotations

import pytest

from fuscoc_runtime.topology import Topology
from tests.engine import specs
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.node_exact import static_work
from tests.node_triton.given_specs import EXAMPLES
from tests.rails import exact_pieces_work
from tests.rails.test_rails import check_that_the_last_is_named

NIGHTLY = pytest.mark.nightly
SHAPES = ["1x2", "2x1", pytest.param("2x2", marks=NIGHTLY)]
FFT = EXAMPLES["fft_transpose"].text
CLASH = """
shuffle clash {
  const rows = 8
  index i : rows
  segment row { x : f32[4] }
  layout mine[i] of row dense(rows)
  layout theirs[s] of row dense(rows)
  dispatch mine[i] -> theirs[%s] on (rank + 1) %% ranks partial
  combine reverse
}
"""

pool = pool_of(4)


def path(text: str) -> str:
    return str(specs.artifact(text).path)


@pytest.mark.parametrize("topology", SHAPES)
def test_handles_outlast_their_memory(pool: Pool, topology: str) -> None:
    num_ranks = Topology.parse(topology).num_ranks
    for both in pool.run(static_work.many_handles, num_ranks, path(FFT), topology):
        assert all("has put its own rows since" in said for said in both)


def test_the_host_waits_for_hosts_alone(pool: Pool) -> None:
    """Inside a node they agree in memory of theirs, and nothing of a GPU is read."""
    assert pool.run(exact_pieces_work.waits, 2, path(FFT), "1x2", [1, 1]) == [[[]] * 4] * 2


def test_calls_inside_a_node(pool: Pool) -> None:
    pool.run(exact_pieces_work.handles_last, 2, path(FFT), "1x2", [(1, 1), (1, 1)])
    pool.run(exact_pieces_work.gradients, 2, path(FFT), "1x2", (1, 1))


def test_mistakes_inside_a_node(pool: Pool) -> None:
    """All ranks raise what the general engine raises, and the calls between are whole."""
    names = ("no type", "a row less", "no argument", "missing", "no list")
    arguments = path(FFT), "1x2", (1, 1), names
    found = pool.run(exact_pieces_work.mistaken, 2, *arguments, True)
    assert found == pool.run(exact_pieces_work.mistaken, 2, *arguments, False)
    for said in found:
        assert said == found[0]
        assert [each == "no error" for each in said] == [False] * len(names) + [True]


def test_a_rank_that_dies_inside_a_node_is_named() -> None:
    check_that_the_last_is_named(exact_pieces_work.one_dies, 2, path(FFT), "1x2", [1, 1])


@pytest.mark.parametrize("slot", ["i * ((4 - ranks) / 2)", "i + ranks - 2"])
@pytest.mark.parametrize("topology", ["1x4", "2x2"])
def test_a_relation_that_cannot_be(pool: Pool, topology: str, slot: str) -> None:
    """Two rows to one slot, or one behind the last, on four ranks and not on two, or the compiler
    would have found it: every call says so on all ranks, as by the general engine."""
    num_ranks, artifact = Topology.parse(topology).num_ranks, path(CLASH % slot)
    found = pool.run(static_work.said, num_ranks, artifact, topology, True)
    assert found == pool.run(static_work.said, num_ranks, artifact, topology, False)
    for said in found:
        assert said == found[0]
        assert "no error" not in said
