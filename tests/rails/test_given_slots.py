"""Slots that the relation gives, between nodes, interpreted: the calls and mistakes that
`tests/node_triton/test_given_slots.py` has inside one."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuscoc_runtime.topology import Topology
from tests.engine import specs
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.node_triton import given_layers, given_mistakes, given_work
from tests.node_triton.given_specs import EXAMPLES
from tests.node_triton.test_given_slots import (
    FANNED,
    NO_SLOT,
    RIGHT,
    SHORT_PAGES,
    relations,
    to_slots,
)
from tests.rails import rail_work

ONE_EACH = to_slots(1, "f32", "reduce sum")
SUMMED = to_slots(2, "f32", "reduce sum")
LARGER = pytest.param("2x2", marks=pytest.mark.nightly)


pool = pool_of(4)


def path(text: str) -> str:
    return str(specs.artifact(text).path)


def tables(num_ranks: int, fan: int) -> list[list[list[tuple[int, int]]]]:
    """By rank, a rank and slot of every segment and fan-out: to all ranks in turn, some dropped."""
    slots = [(rank, slot) for slot in range(20) for rank in range(num_ranks)]
    slots[::5] = [(-1, -7)] * len(slots[::5])
    of_rank = 20 // fan
    return [
        [slots[(r * of_rank + i) * fan :][:fan] for i in range(of_rank - r)]
        for r in range(num_ranks)
    ]


@pytest.mark.parametrize("topology", ["2x1", LARGER])
@pytest.mark.parametrize("name", ["summed", "bf16", "weighted"])
def test_calls(pool: Pool, name: str, topology: str) -> None:
    num_ranks, fan = Topology.parse(topology).num_ranks, 2 if name == "bf16" else 3
    given = tables(num_ranks, fan)
    options = {"capacity": 21, "topology": topology}
    pool.run(given_work.routed, num_ranks, path(FANNED[name]), [given, given[::-1]], 20, options)


@pytest.mark.parametrize("topology", ["2x1", LARGER])
@pytest.mark.parametrize(
    ("text", "options"),
    [
        (specs.GRID, {"capacity": 99}),
        (EXAMPLES["reshard"].text, EXAMPLES["reshard"].options),
        (EXAMPLES["kv_pages"].text, EXAMPLES["kv_pages"].options),
        (EXAMPLES["vit_patches_normalised"].text, EXAMPLES["vit_patches_normalised"].options),
    ],
    ids=["grid", "short", "pages that come back", "ragged casts without a way back"],
)
def test_kinds_of_segments(pool: Pool, text: str, options: dict[str, Any], topology: str) -> None:
    """Scattered ones, and of ragged sources; on some ranks none."""
    num_ranks = Topology.parse(topology).num_ranks
    batches = [sizes[:num_ranks] for sizes in [(2, 0, 3, 1), (0, 0, 0, 0), (1, 3, 0, 2)]]
    options = {**options, "topology": topology}
    pool.run(given_work.epochs, num_ranks, path(text), batches, 1, options)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["summed", "bf16", "weighted"])
@given(data=st.data())
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_relation(pool: Pool, name: str, data: st.DataObject) -> None:
    length, given = data.draw(relations(2 if name == "bf16" else 3))
    given += [[] for _ in range(2 - len(given))]
    topology = data.draw(st.sampled_from(["2x2"] if len(given) == 4 else [f"{len(given)}x1"]))
    options = {"capacity": data.draw(st.integers(max(1, length), 24)), "topology": topology}
    calls = [given, given[::-1]]
    pool.run(given_work.routed, len(given), path(FANNED[name]), calls, length, options)


def test_rounds(pool: Pool) -> None:
    """Rows that travel in several rounds, of which points are told with the first."""
    given = [[[(1 - r, i), (r, 23 - i)] for i in range(12)] for r in range(2)]
    rounds = pool.run(rail_work.routed_in_rounds, 2, path(SUMMED), "2x1", [given], 24)
    assert rounds == [3, 3]


@pytest.mark.parametrize(
    ("wrong", "errors", "lost"),
    [
        (  # in the other node a slot behind the last, one before the first; here likewise
            [[(0, 0), (1, 4), (1, -2), (0, 4)], [(2, 0), (0, 2**26)]],
            [f"{NO_SLOT} 3 points of rank 0", f"{NO_SLOT} 2 points of rank 1"],
            [[1, 2, 3], [0, 1]],
        ),
        (  # one slot of the other node twice on a rank
            [[(0, 0), (1, 3), (1, 3)], [(0, 1)]],
            ["SlotClashError: [FSR024] rank 0 found 1 points", "no error"],
            None,
        ),
        (  # far beyond what 32 bits count, and what a slab does
            [[(1, 2**40), (0, 1), (1, 2**27 + 1)], [(0, 2**32 + 1)]],
            [f"{NO_SLOT} 2 points of rank 0", f"{NO_SLOT} 1 points of rank 1"],
            [[0, 2], [0]],
        ),
    ],
    ids=["out of range", "twice", "uncountable"],
)
def test_mistakes_are_counted(
    pool: Pool, wrong: Any, errors: list[str], lost: list[list[int]] | None
) -> None:
    """They are told once, on the rank that made them; all other rows are right."""
    work = partial(given_mistakes.mistaken, topology="2x1")
    found = pool.run(work, 2, path(ONE_EACH), wrong, RIGHT, 4)
    for rank, (said, zeros, dropped, _) in enumerate(found):
        assert said[0].startswith(errors[rank])
        assert set(said[1:]) <= {"no error"}
        assert dropped == len(zeros)
        assert lost is None or zeros == lost[rank]
    assert "`to[t, 0]` is no rank, `to[t, 1]` no slot" in found[0][0][0] or lost is None


@pytest.mark.parametrize("topology", ["2x1", LARGER])
def test_two_ranks_want_one_slot(pool: Pool, topology: str) -> None:
    """Of two nodes. One of them gets it, whichever it is; the other one is told."""
    num_ranks = Topology.parse(topology).num_ranks
    others: list[Any] = [[] for _ in range(num_ranks - 2)]
    wrong = [[(1, 2), (0, 1)], *others, [(1, 2), (0, 2)]]
    right = [RIGHT[0], *others, RIGHT[1]]
    work = partial(given_mistakes.mistaken, topology=topology)
    found = pool.run(work, num_ranks, path(ONE_EACH), wrong, right, 4)
    ends = [found[0], found[-1]]
    assert sorted(said[0][:14] for said, *_ in ends) == ["SlotClashError", "no error"]
    assert sorted(zeros for _, zeros, _, _ in ends) == [[], [0]]
    assert sorted(dropped for _, _, dropped, _ in ends) == [0, 1]
    assert [filled.tolist() for *_, filled in found[:2]] == [[1, 2], [2]]


def test_pages_that_are_given_away_twice(pool: Pool) -> None:
    """One of the two leaves, and the rank whose they are is told."""
    pages = [[0, 2, 0, -1, 4, 2], [1, 2, 3]]
    places = [[(0, 1), (1, 3), (1, 5), (0, 0), (0, 2), (0, 7)], [(0, 9), (1, 0), (0, 3)]]
    work = partial(given_mistakes.shared_pages, topology="2x1")
    found = pool.run(work, 2, path(SHORT_PAGES), pages, places)
    assert found[0][0][0].startswith("SourceClashError: [FSR031] rank 0 found 2 segments")
    assert found[0][0][1] == "no error"
    assert [dropped for _, dropped in found] == [2, 0]
    assert found[1][0] == ["no error"] * 2


def test_a_target_that_is_too_long(pool: Pool) -> None:
    """Its rank refuses the call, and cannot follow the others; they are told, and have their rows
    and sums, but for those that went there."""
    first, second, third = pool.run(rail_work.too_many_slots, 3, path(ONE_EACH), "3x1")
    assert "`length` on rank 1 is 7; the shuffle was loaded with a `capacity` of 6" in second[0]
    assert second[1].startswith("ProtocolError")
    for said in (first, third):
        assert said[0] == "no error"
        assert "rank 1 refused 1 calls" in said[1]


def test_handles_keep_where_segments_lie(pool: Pool) -> None:
    options = {"capacity": 400, "max_sources": 60, "topology": "2x1"}
    pool.run(given_work.older_handles, 2, path(specs.GRID), options)


@pytest.mark.parametrize("name", ["summed", "weighted"])
def test_gradients(pool: Pool, name: str) -> None:
    work = partial(given_layers.gradients, topology="2x1")
    pool.run(work, 2, path(FANNED[name]), tables(2, 3), 20)
