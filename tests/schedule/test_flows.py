"""What has to cross, and who carries it: shapes, checks and pairs of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuscoc_runtime.plan.balance import POLICIES
from fuscoc_runtime.plan.flows import MAX_SEGMENTS, Assignment, Demand
from tests.schedule import oracle
from tests.schedule.strategies import demands


def demand(flows: list[list[int]], copies: list[list[int]]) -> Demand:
    return Demand(np.array(flows, np.int64), np.array(copies, np.int64))


def test_a_plain_all_to_all_shares_nothing() -> None:
    made = Demand.without_sharing(np.arange(16, dtype=np.int64).reshape(4, 4), 2)
    assert made.flows.tolist() == [[0, 2 + 3], [0, 6 + 7], [8 + 9, 0], [12 + 13, 0]]
    assert made.node_flows.tolist() == [[0, 18], [42, 0]]
    assert (made.num_nodes, made.ranks_per_node, made.num_ranks) == (2, 2, 4)
    made.check()


@pytest.mark.parametrize(
    ("flows", "copies", "message"),
    [
        ([[0], [0]], [[0, 0]], "must be"),
        ([[0, 0], [0, 0], [0, 0]], np.zeros((3, 3), np.int64), "equally large nodes"),
        ([[0, -1], [0, 0]], [[0, 0], [0, 0]], "negative"),
        ([[0, MAX_SEGMENTS], [1, 0]], [[0, 0], [0, 0]], "are these bytes"),
    ],
)
def test_impossible_arrays_are_refused(
    flows: list[list[int]], copies: list[list[int]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        demand(flows, copies)


def test_other_dtypes_and_strides_are_refused() -> None:
    copies = np.zeros((2, 2), np.int64)
    with pytest.raises(ValueError, match="int64"):
        Demand(np.zeros((2, 2), np.int32), copies)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="C-contiguous"):
        Demand(np.zeros((2, 4), np.int64)[:, ::2], copies)
    with pytest.raises(ValueError, match="C-contiguous"):
        Assignment(np.zeros((2, 2, 2), np.int64).transpose(2, 1, 0), carried=False)


@pytest.mark.parametrize(
    ("flows", "problem"),
    [
        ([[0, 2], [0, 0], [0, 0], [0, 0]], "rank 0 to node 1 is 2 segments; it must be between 4"),
        ([[0, 8], [0, 0], [0, 0], [0, 0]], "between 4 and 7"),
        ([[1, 5], [0, 0], [0, 0], [0, 0]], "rank 0 to node 0 is 1 segments; .* between 0 and 0"),
    ],
)
def test_flows_that_contradict_the_copies_are_named(flows: list[list[int]], problem: str) -> None:
    copies = np.zeros((4, 4), np.int64)
    copies[0] = [9, 9, 3, 4]
    with pytest.raises(ValueError, match=problem):
        demand(flows, copies.tolist()).check()


@given(demands(max_nodes=3, max_ranks_per_node=3), st.sampled_from(sorted(POLICIES)))
def test_pairs_count_the_rows_of_every_route(made: Demand, policy: str) -> None:
    assignment = POLICIES[policy](made)
    expected = np.zeros_like(made.copies)
    for sender, receiver in oracle.route(made, assignment).values():
        expected[sender, receiver] += 1
    assert np.array_equal(assignment.pairs, expected)


def test_forwarder_and_cuts() -> None:
    share = np.zeros((4, 2, 2), np.int64)
    share[0, 1] = [0, 5]
    share[3, 0] = [2, 0]
    whole = Assignment(share, carried=False)
    assert whole.forwarder().tolist() == [[-1, 3], [-1, -1], [-1, -1], [0, -1]]
    assert whole.num_cuts().tolist() == [0, 0]
    share[1, 1] = [1, 1]
    assert whole.num_cuts().tolist() == [0, 1]
    with pytest.raises(ValueError, match="cut"):
        whole.forwarder()
