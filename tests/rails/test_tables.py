"""Keys that a table places, which ranks compare on the device: between nodes and inside one, with a
fixed capacity and with exact sizes."""

from __future__ import annotations

import pytest

from tests.engine import specs
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.rails import table_work

NIGHTLY = pytest.mark.nightly
RANKS = {"1x2": 2, "2x1": 2, "1x3": 3, "2x2": 4}
EXPANDED = specs.routed("f32", keys=7, placement="table owner")
COMPACT = specs.routed("f32", keys=11, placement="table owner", capacity="compact")
SHORT = specs.copied("f32", 4).replace("by block", "by table owner")
TEXTS = {"expanded": EXPANDED, "compact": COMPACT, "short": SHORT}


pool = pool_of(4)


def path(name: str) -> str:
    return str(specs.artifact(TEXTS[name]).path)


@pytest.mark.parametrize(
    ("name", "topology", "is_exact"),
    [
        ("expanded", "2x1", False),
        ("expanded", "2x1", True),
        ("compact", "2x2", False),
        pytest.param("compact", "2x2", True, marks=NIGHTLY),
        ("compact", "1x3", True),
        ("short", "1x2", True),
        ("short", "2x1", True),
    ],
)
def test_calls(pool: Pool, name: str, topology: str, is_exact: bool) -> None:
    num_ranks = RANKS[topology]
    batches = [(3, *[0] * (num_ranks - 1)), (1, 5, 2, 0)[:num_ranks], (0,) * num_ranks]
    pool.run(table_work.calls, num_ranks, path(name), topology, is_exact, batches)


@pytest.mark.parametrize(
    ("name", "topology", "who"),
    [
        ("expanded", "2x1", 1),
        ("compact", "2x2", 1),  # its own node has the same keys by another table
        pytest.param("expanded", "2x2", 2, marks=NIGHTLY),
        ("compact", "1x3", 2),
        ("short", "1x2", 0),
        pytest.param("short", "2x1", 0, marks=NIGHTLY),
    ],
)
def test_fixed_capacity_finds_another_table(pool: Pool, name: str, topology: str, who: int) -> None:
    """On every rank, and nothing is moved."""
    found = pool.run(table_work.another_table, RANKS[topology], path(name), topology, False, who)
    for rank, (said, num_points, dropped, rows) in enumerate(found):
        assert said[0].startswith("TablesDifferError: [FSR033] `owner` differed")
        assert f"in 1 dispatches of rank {rank}" in said[0]
        assert said[1:] == ["no error"] * 2
        assert (dropped, rows) == (num_points, 0)


@pytest.mark.parametrize(
    ("name", "topology", "who"),
    [
        ("expanded", "2x1", 0),
        pytest.param("compact", "2x2", 3, marks=NIGHTLY),
        ("compact", "1x3", 1),
        ("short", "1x2", 1),
    ],
)
def test_exact_sizes_raise_what_hosts_say(pool: Pool, name: str, topology: str, who: int) -> None:
    found = pool.run(table_work.another_table, RANKS[topology], path(name), topology, True, who)
    for said, *_ in found:
        assert said[0].startswith("PlacementMismatchError: [FSR015] `owner` on rank ")
        assert said[1:] == ["no error"] * 2


@pytest.mark.parametrize("topology", ["1x2", "2x1"])
def test_an_entry_that_is_no_rank(pool: Pool, topology: str) -> None:
    """Of a key that nothing goes to."""
    for said in pool.run(table_work.no_rank, RANKS[topology], path("expanded"), topology):
        assert said.startswith("IndexOutOfRangeError: [FSR")
        assert "owner[0]" in said


@pytest.mark.parametrize("topology", ["2x1", pytest.param("2x2", marks=NIGHTLY)])
def test_who_refuses_a_call_has_no_table(pool: Pool, topology: str) -> None:
    *found, [refused] = pool.run(
        table_work.one_refuses, RANKS[topology], path("expanded"), topology
    )
    assert "torch.float64" in refused
    for rank, [said] in enumerate(found):
        assert f"rank {RANKS[topology] - 1} refused 1 calls that rank {rank} had joined" in said


@pytest.mark.parametrize("topology", ["1x2", "2x1"])
def test_calls_that_repeat_but_for_the_table(pool: Pool, topology: str) -> None:
    pool.run(table_work.repeated, RANKS[topology], path("expanded"), topology)
