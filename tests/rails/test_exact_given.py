"""Exact sizes between nodes, interpreted, where one node finds out for all whether rows move: slots
that the relation gives, and a capacity that a rank has."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuscoc_runtime.topology import Topology
from tests.engine import specs
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.node_triton.given_specs import EXAMPLES
from tests.node_triton.test_given_slots import FANNED, SHORT_PAGES, relations
from tests.rails import exact_given_work, exact_work
from tests.rails.test_given_slots import ONE_EACH, SUMMED, tables
from tests.rails.test_rails import check_that_the_last_is_named

NIGHTLY = pytest.mark.nightly
LARGER = pytest.param("2x2", marks=NIGHTLY)
LARGEST = pytest.param("3x2", marks=NIGHTLY)


pool = pool_of(6)


def path(text: str) -> str:
    return str(specs.artifact(text).path)


def ranks_of(topology: str) -> int:
    return Topology.parse(topology).num_ranks


@pytest.mark.parametrize("topology", ["2x1", LARGER, LARGEST])
@pytest.mark.parametrize("name", ["weighted", pytest.param("bf16", marks=NIGHTLY)])
def test_given_slots(pool: Pool, name: str, topology: str) -> None:
    """Some points are dropped; ranks have unlike numbers of segments and of slots."""
    num_ranks = ranks_of(topology)
    to = tables(num_ranks, 2 if name == "bf16" else 3)
    lengths = [[20 + rank for rank in range(num_ranks)]] * 2
    calls = [to, [table[:1] for table in to]]
    pool.run(exact_given_work.routed, num_ranks, path(FANNED[name]), topology, calls, lengths)


@pytest.mark.parametrize(
    ("text", "topology"),
    [
        pytest.param(specs.GRID, "2x1", id="grid", marks=NIGHTLY),
        pytest.param(EXAMPLES["reshard"].text, "2x1", id="short"),
        pytest.param(EXAMPLES["kv_pages"].text, "2x2", id="pages", marks=NIGHTLY),
    ],
)
def test_kinds_of_segments(pool: Pool, text: str, topology: str) -> None:
    num_ranks = ranks_of(topology)
    sizes = [each[:num_ranks] for each in [(2, 0, 3, 1), (0, 0, 0, 0), (1, 30, 0, 2)]]
    pool.run(exact_given_work.batches, num_ranks, path(text), topology, sizes, 1)


@NIGHTLY
@pytest.mark.parametrize("name", ["summed", "bf16", "weighted"])
@given(data=st.data())
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_relation(pool: Pool, name: str, data: st.DataObject) -> None:
    length, to = data.draw(relations(2 if name == "bf16" else 3))
    to += [[] for _ in range(2 - len(to))]
    topology = data.draw(st.sampled_from(["2x2"] if len(to) == 4 else [f"{len(to)}x1"]))
    lengths = [[length] * len(to)] * 2
    calls = [to, to[::-1]]
    pool.run(exact_given_work.routed, len(to), path(FANNED[name]), topology, calls, lengths)


@pytest.mark.parametrize("topology", ["2x1", LARGER])
def test_windows_that_are_too_small_to_look_at_slots(pool: Pool, topology: str) -> None:
    """Those of one node: all nodes plan once more, and nothing travels again."""
    num_ranks = ranks_of(topology)
    half, last = num_ranks // 2, num_ranks - 1
    to = [[[(last, rank), (0, rank), (-1, 0)]] for rank in range(num_ranks)]
    short, long = [6] * num_ranks, [6] * last + [60]
    found = pool.run(
        exact_given_work.routed, num_ranks, path(FANNED["summed"]), topology, [to] * 3,
        [short, long, long],
    )  # fmt: skip
    for rank, (_, second, third) in enumerate(found):
        assert second == (1, 1, int(rank >= half))
        assert third == (1, 0, 0)


def test_rounds(pool: Pool) -> None:
    """Rows that travel in several rounds, and move when all nodes say so."""
    to = [[[(1 - r, i), (r, 23 - i)] for i in range(12)] for r in range(2)]
    calls = [[table[:3] for table in to], to]
    work = exact_given_work.routed_in_rounds
    assert pool.run(work, 2, path(SUMMED), "2x1", calls, 24) == [3, 3]


@pytest.mark.parametrize("topology", ["2x1", LARGER])
def test_gradients(pool: Pool, topology: str) -> None:
    num_ranks = ranks_of(topology)
    to = tables(num_ranks, 3)
    pool.run(exact_given_work.gradients, num_ranks, path(FANNED["weighted"]), topology, to, 20)


RIGHT = [[(1, 0), (0, 3)], [(1, 2), (0, 0)]]
WRONG = {
    "behind the last": [[(1, 6), (0, 1)], [(0, 2)]],
    "twice by one rank": [[(1, 3), (1, 3)], [(0, 1)]],
    "twice by two nodes": [[(1, 3), (1, 2)], [(0, 1), (1, 3)]],
    "before the first": [[(1, 0)], [(1, -2)]],
    "no rank": [[(0, 0)], [(2, 0)]],
    "uncountable": [[(1, 2**40)], [(0, 2**32 + 1)]],
    "here": [[(0, 0)], [(1, 9), (1, 2)]],
}
BY_DAY = ("behind the last", "twice by two nodes")


def mistakes(num_ranks: int, names: Any) -> tuple[Any, list[Any]]:
    """Of two ranks, the second of which is the last here; the others have nothing to send."""

    def spread(to: list[Any]) -> list[Any]:
        last = num_ranks - 1
        first, second = (
            [(last if rank == 1 else num_ranks if rank > 1 else rank, slot) for rank, slot in each]
            for each in to
        )
        return [first, *[[]] * (num_ranks - 2), second]

    return spread(RIGHT), [spread(WRONG[name]) for name in names]


@pytest.mark.parametrize(
    ("topology", "names"),
    [
        ("2x1", BY_DAY),
        pytest.param("2x1", tuple(WRONG), marks=NIGHTLY, id="2x1, all"),
        pytest.param("2x2", tuple(WRONG), marks=NIGHTLY, id="2x2, all"),
        pytest.param("3x2", BY_DAY, marks=NIGHTLY),
    ],
)
def test_mistakes(pool: Pool, topology: str, names: tuple[str, ...]) -> None:
    """All ranks raise what the general engine raises, and nothing has moved."""
    num_ranks = ranks_of(topology)
    right, wrong = mistakes(num_ranks, names)
    work, given = exact_given_work.mistaken, (path(ONE_EACH), topology, right, wrong)
    found = pool.run(work, num_ranks, *given, True)
    assert found == pool.run(work, num_ranks, *given, False)
    assert all("no error" not in said for said in found)
    assert all(said == found[0] for said in found)


def test_pages_that_are_given_away_twice(pool: Pool) -> None:
    """Neither leaves; a call that is launched again has not given its pages away twice."""
    few = [[1], [2]], [[(0, 1)], [(0, 3)]]
    many = [[0, 2, -1, 4] + [-1] * 196, [1]], [[(1, n % 30) for n in range(200)], [(0, 1)]]
    twice = [[0, 2, 0], [1]], [[(0, 1), (1, 3), (1, 5)], [(0, 9)]]
    work, given = exact_given_work.pages, (path(SHORT_PAGES), "2x1", [few, many, twice, few])
    found = pool.run(work, 2, *given, True)
    assert found == pool.run(work, 2, *given, False)
    for said in found:
        assert [each == "no error" for each in said] == [True, True, False, True]
        assert said[2].startswith("SourceOverlapError: [FSR029] segments 0 and 2 of rank 0")


@pytest.mark.parametrize("topology", ["2x1", LARGER, LARGEST])
@pytest.mark.parametrize("align", [1, pytest.param(4, marks=NIGHTLY)])
def test_more_slots_than_a_rank_may_have(pool: Pool, topology: str, align: int) -> None:
    """All ranks raise what the general engine raises, wherever that rank is."""
    text = specs.routed("f32", align=align, capacity="capacity max 72")
    num_ranks = ranks_of(topology)
    work, given = exact_given_work.limited, (path(text), topology, 72)
    found = pool.run(work, num_ranks, *given, True)
    assert found == pool.run(work, num_ranks, *given, False)
    for said in found:
        assert said == found[0]
        assert [each == "no error" for each in said] == [True, True, True, False, False, True]


@pytest.mark.parametrize("topology", ["2x1", LARGER])
def test_calls_of_a_limited_capacity(pool: Pool, topology: str) -> None:
    text = specs.routed("bf16", hidden=40, capacity="capacity max 400")
    num_ranks = ranks_of(topology)
    sizes = [(3, *[0] * (num_ranks - 1)), (20, *[5] * (num_ranks - 1))]
    pool.run(exact_work.sizes, num_ranks, path(text), topology, sizes, 1)


@pytest.mark.parametrize("topology", ["2x1", LARGER])
def test_a_rank_that_dies_is_named(topology: str) -> None:
    text = specs.routed("f32", capacity="capacity max 400")
    work, num_ranks = exact_work.one_dies, ranks_of(topology)
    check_that_the_last_is_named(work, num_ranks, path(text), topology)
