"""The kernels that number rows of flows and say where these are, interpreted, for nodes of few and
of many ranks, against numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fuscoc_runtime.kernels.loader import address, device_module, launching
from fuscoc_runtime.room import LEAST, MOST, num_rank_words, num_row_bits, num_slot_bits, room_for

TAG = 5 << 32 | 9
ROOMS = [8, 16, 32, 64, 128]


@dataclass(frozen=True)
class Case:
    """``ranks``: [num_nodes, places, fanout], what each point of a slab goes to, -1 if nowhere. A
    place is that of ``answered`` so many segments."""

    room: int
    num_ranks: int
    own: int
    ranks: NDArray[np.int64]
    answered: int
    random: np.random.Generator


@st.composite
def cases(draw: st.DrawFn) -> Case:
    room = draw(st.sampled_from(ROOMS))
    num_ranks = draw(st.integers(1 if room == LEAST else room // 2 + 1, room))
    assert room_for(num_ranks) == room
    num_nodes, fanout = draw(st.integers(2, 3)), draw(st.integers(1, 4))
    answered = draw(st.sampled_from([each for each in (1, 2, 4) if fanout % each == 0]))
    places = draw(st.one_of(st.integers(1, 40), st.sampled_from([256, 300, 1025])))
    random = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    shape = num_nodes, places, fanout
    ranks = random.integers(0, draw(st.integers(1, num_ranks)), shape)
    ranks = np.where(random.random(shape) < draw(st.sampled_from([0, 0.5, 0.9])), -1, ranks)
    ranks[random.random(shape) < 0.05] = num_ranks - 1
    return Case(room, num_ranks, draw(st.integers(0, num_nodes - 1)), ranks, answered, random)


class Kernels:
    """Those of one rank of a case, whose slabs are both those that leave and those that land."""

    def __init__(self, case: Case, late: int) -> None:
        """The slab of node ``late`` is of another call."""
        self._case, (self._num_nodes, self._places, self._fanout) = case, case.ranks.shape
        self._module: Any = device_module("flows", interpreted=True, room=case.room)
        words, slabs = self._module.words, self._module.slabs
        points = case.ranks.copy()
        points[points >= 0] <<= num_slot_bits(case.room)
        points += case.random.integers(0, 7, points.shape) * (points >= 0)
        points += (case.random.integers(-9, 9, points.shape) << 32) * (points >= 0)
        header = slabs.HEADER_BYTES.value // 8
        self._slabs = torch.zeros(self._num_nodes, header + points[0].size, dtype=torch.int64)
        self._slabs[:, 0] = TAG
        self._slabs[late, 0] = TAG + 1
        self._slabs[:, header:] = torch.from_numpy(points).flatten(1)
        state = torch.zeros(words.PLAN_EPOCH.value + 1, dtype=torch.int32)
        self._table = torch.zeros(words.NUM_WORDS.value, dtype=torch.int64)
        for name, value in {
            "STATE": address(state), "NODE": case.own, "STRIDE": self._places * case.answered,
            "NUM_RANKS": case.num_ranks, "NUM_NODES": self._num_nodes, "CALL_TAG": TAG,
            "SLABS_IN": address(self._slabs), "SLABS_OUT": address(self._slabs),
            "SLAB_BYTES": self._slabs[0].nbytes,
        }.items():  # fmt: skip
            self._table[getattr(words, name).value] = value
        self._held = state

    def number(self, has_landed: bool, counts: torch.Tensor | None) -> torch.Tensor:
        numbers = torch.full((self._num_nodes, self._places), -7, dtype=torch.int32)
        num_words = 1 if counts is None else num_rank_words(self._case.room)
        to = 0 if counts is None else address(counts)
        self._launch(
            self._module.number, num_words * self._num_nodes,
            address(self._table), int(has_landed), self._fanout // self._case.answered,
            self._case.answered, address(numbers), to,
        )  # fmt: skip
        return numbers

    def settle(self, own: torch.Tensor, others: torch.Tensor, parts: NDArray[np.int64]) -> None:
        self._launch(
            self._module.settle, 2 * self._num_nodes, address(own), address(others),
            self._num_nodes, self._places, self._case.num_ranks, parts.ctypes.data,
        )  # fmt: skip

    def _launch(self, kernel: Any, programs: int, *arguments: int) -> None:
        with launching(interpreted=True):
            kernel[(programs,)](*arguments)


def numbered(goes: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Of every place the number of its row, -1 without: [num_nodes, places]."""
    return np.where(goes, goes.cumsum(1) - 1, -1)


def drawn_parts(random: np.random.Generator, rows: int, num_ranks: int) -> NDArray[np.int64]:
    """Of a flow with so many rows the parts of the ranks, of which some have none."""
    ends = np.sort(random.integers(0, rows + 1, num_ranks))
    ends[-1] = rows
    shifts = random.integers(0, 1 << 20, num_ranks)
    return np.stack([ends, shifts, random.permutation(num_ranks)], 1)


@given(case=cases(), data=st.data())
@settings(max_examples=15, deadline=None)
def test_rows_of_flows(case: Case, data: st.DataObject) -> None:
    """Their numbers, how many there are, segments to every rank, and where settled rows are."""
    num_nodes = len(case.ranks)
    late = data.draw(st.integers(0, num_nodes - 1))
    kernels = Kernels(case, late)
    counts = torch.full((num_nodes + num_nodes * case.num_ranks,), -7, dtype=torch.int64)
    own, others = kernels.number(False, counts), kernels.number(True, None)
    goes = (case.ranks >= 0).any(2) & (np.arange(num_nodes) != case.own)[:, None]
    comes = goes & (np.arange(num_nodes) != late)[:, None]
    np.testing.assert_array_equal(own, numbered(goes))
    np.testing.assert_array_equal(others, numbered(comes))
    np.testing.assert_array_equal(counts[:num_nodes], goes.sum(1))
    of_rank = (case.ranks[..., None] == np.arange(case.num_ranks)).any(2).sum(1)
    np.testing.assert_array_equal(counts[num_nodes:].view(num_nodes, -1), of_rank)

    parts = np.array(
        [
            [drawn_parts(case.random, rows, case.num_ranks) for rows in side.sum(1).tolist()]
            for side in (goes, comes)
        ]
    )
    kernels.settle(own, others, parts)
    bits = num_row_bits(case.room)
    for number, (side, found) in enumerate([(goes, own), (comes, others)]):
        for node, index in enumerate(numbered(side)):
            ends, shifts, owners = parts[number, node].T
            part = np.minimum(np.searchsorted(ends, index, "right"), case.num_ranks - 1)
            wanted = owners[part] * 2**bits + index + shifts[part]
            np.testing.assert_array_equal(found[node], np.where(index >= 0, wanted, -1))


def test_a_row_that_no_rank_sends_is_nowhere() -> None:
    """As where a rank follows another dispatch than those that say how many rows there are."""
    case = Case(8, 3, 1, np.zeros((2, 5, 1), np.int64), 1, np.random.default_rng(0))
    kernels = Kernels(case, 1)
    own, others = kernels.number(False, None), kernels.number(True, None)
    parts = np.zeros((2, 2, 3, 3), np.int64)
    parts[:, :, :, 0] = [1, 3, 3]
    kernels.settle(own, others, parts)
    assert own.tolist() == others.tolist() == [[0, 1, 2, -1, -1], [-1] * 5]


@pytest.mark.parametrize("room", ROOMS)
def test_numbers_of_rows_and_ranks_fit_a_word(room: int) -> None:
    assert (room << num_row_bits(room)) - 1 == 2**31 - 1
    assert room <= MOST
