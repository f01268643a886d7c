"""Where outer indices of a ragged source begin, under the interpreter, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc_runtime.engine.node.ragged import ADDED_UP, LEFT_OUT, POINTS_AT_ONCE, SPREAD
from fuscoc_runtime.engine.node.rings import DROPPED, USES
from fuscoc_runtime.engine.node.state import BAD_SIZES, EXCESS, STATE_WORDS, TROUBLES
from fuscoc_runtime.kernels.loader import load_device_kernel
from tests.codegen.memory import filled, int64s, zeros

UNTOUCHED = -99


def launch(name: str, arguments: tuple[str, ...], num_programs: int = 1, **given: Any) -> None:
    values = {key: getattr(each, "ctypes", None) for key, each in given.items()}
    addresses = {key: given[key] if at is None else at.data for key, at in values.items()}
    load_device_kernel("ragged", name, arguments, interpreted=True).launch(addresses, num_programs)


def added_up(
    points: list[int], cells: list[int], status: list[int], room: int, told: tuple[int, int]
) -> tuple[Any, Any, Any]:
    """Offsets [2, num_outer + 1], totals and the state."""
    table = filled(int64s([points, cells, status]))
    offsets = filled(np.full((2, len(points) + 1), UNTOUCHED))
    totals, state = filled(int64s([UNTOUCHED] * 2)), zeros(STATE_WORDS, np.int32)
    launch(
        "add_up", ADDED_UP, num_outer=len(points), least_cells=told[0], most_cells=told[1],
        room=room, fanout=2, table=table, offsets=offsets, totals=totals, state=state,
    )  # fmt: skip
    return offsets, totals, state


def offsets_of(counts: list[int]) -> list[int]:
    return [0, *np.cumsum(counts).tolist()]


@settings(max_examples=40)
@given(
    counts=st.one_of(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=20),
        st.integers(1023, 1026).map(lambda n: [(i % 3, i % 7) for i in range(n)]),
    ),
    room=st.integers(1, 20).map(lambda n: 2 * n),
    is_told=st.booleans(),
)
def test_offsets(counts: list[tuple[int, int]], room: int, is_told: bool) -> None:
    points, cells = [2 * each for each, _ in counts], [each for _, each in counts]
    told = (sum(cells),) * 2 if is_told else (-1, -1)
    offsets, totals, state = added_up(points, cells, [0] * len(counts), room, told)
    assert offsets.tolist() == [offsets_of(points), offsets_of(cells)]
    excess = max(sum(points) - room, 0)
    assert totals.tolist() == [min(sum(points), room), excess]
    assert state.nonzero()[0].tolist() == ([TROUBLES, EXCESS] if excess else [])
    assert state[EXCESS] == state[TROUBLES] == excess // 2


@pytest.mark.parametrize("num_outer", [1, 2, 1500])
@pytest.mark.parametrize("fault", ["status", "fewer cells", "more cells", "another field's"])
def test_sizes_that_cannot_be(num_outer: int, fault: str) -> None:
    status = [0] * num_outer
    all_cells = 3 * num_outer
    told = {
        "fewer cells": (all_cells + 1,) * 2,
        "more cells": (all_cells - 1,) * 2,
        "another field's": (all_cells, all_cells + 1),
    }.get(fault, (all_cells, all_cells))
    if fault == "status":
        status[-1] = 4
    offsets, totals, state = added_up([2] * num_outer, [3] * num_outer, status, 1 << 20, told)
    assert not offsets.any()
    assert not totals.any()
    assert {at: state[at] for at in state.nonzero()[0].tolist()} == {TROUBLES: 1, BAD_SIZES: 1}


@settings(max_examples=40)
@given(
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=30),
    room=st.sampled_from([1, 7, 64, POINTS_AT_ONCE + 1]),
)
def test_outer_index_of_points(counts: list[int], room: int) -> None:
    outer = filled(int64s([UNTOUCHED] * (room + 1)))
    launch(
        "spread", SPREAD, -(-room // POINTS_AT_ONCE), num_points=room, num_outer=len(counts),
        steps=len(counts).bit_length(), offsets=filled(int64s(offsets_of(counts))), outer=outer,
    )  # fmt: skip
    wanted = np.repeat(np.arange(len(counts)), counts).tolist() or [0]
    behind = [wanted[-1]] * room
    assert outer.tolist() == [*[*wanted, *behind][:room], UNTOUCHED]


@pytest.mark.parametrize("there", [0, 3, POINTS_AT_ONCE, POINTS_AT_ONCE + 5])
def test_points_that_there_are_not_go_nowhere(there: int) -> None:
    num = POINTS_AT_ONCE + 5
    first, second = filled(np.arange(num + 1)), filled(np.arange(num + 1) * 2)
    totals = filled(int64s([there, 0]))
    launch("leave_out", LEFT_OUT, 2, num_points=num, totals=totals, first=first, second=second)
    for column, step in ((first, 1), (second, 2)):
        kept = [step * point for point in range(there)]
        assert column.tolist() == [*kept, *[-1] * (num - there), step * num]


@pytest.mark.parametrize("use", [1, 2])
def test_dropped_points_are_of_the_latest_use(use: int) -> None:
    routing = zeros(DROPPED + 2, np.int32)
    routing[USES], routing[DROPPED], routing[DROPPED + 1] = use, 10, 20
    launch("drop", ("totals", "routing"), totals=filled(int64s([5, 7])), routing=routing)
    wanted = [10, 27] if use % 2 else [17, 20]
    assert routing[DROPPED:].tolist() == wanted
