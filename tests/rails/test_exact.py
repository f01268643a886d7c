"""Exact sizes between nodes, interpreted: processes that are ranks of several nodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuscoc_runtime.engine.handle import Handle
from fuscoc_runtime.engine.node.exact_rails import RailKnown
from fuscoc_runtime.engine.node.flow_rails import FlowKnown
from tests.engine import specs
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.node_exact import memory_work, rank_work
from tests.node_triton.test_any_rows import CASTS
from tests.rails import exact_work
from tests.rails.test_rails import COMPACT, CYCLIC, SHORT, SMALL, WIDE, check_that_the_last_is_named

NIGHTLY = pytest.mark.nightly
BY_A_CALL = CASTS["normalised by a call"]
RANKS = {"2x1": 2, "2x2": 4, "3x1": 3, "4x1": 4, "3x2": 6}


pool = pool_of(6)


def path(text: str) -> str:
    return str(specs.artifact(text).path)


def by(work: Callable[..., Any], topology: str) -> partial[Any]:
    """What the tests inside one node let ranks do, between nodes."""
    return partial(exact_work.with_few_places, work=work, topology=topology)


@pytest.mark.parametrize(
    ("text", "topology", "batches"),
    [
        pytest.param(SMALL, "2x1", [(3, 0), (45, 5), (0, 0), (1, 1)], id="sum"),
        pytest.param(SHORT, "2x1", [(3, 0), (140, 5), (0, 0)], id="short"),
        pytest.param(COMPACT, "2x2", [(1, 0, 2, 1), (0, 0, 0, 40)], id="compact", marks=NIGHTLY),
        pytest.param(WIDE, "3x1", [(2, 0, 4)], id="wide", marks=NIGHTLY),
        pytest.param(specs.FIELDS, "4x1", [(0, 3, 1, 2)], id="fields", marks=NIGHTLY),
        pytest.param(BY_A_CALL, "2x1", [(3, 2), (1, 12)], id="normalised by a call"),
        pytest.param(CYCLIC, "3x2", [(1, 0, 2, 1, 0, 3)], id="compact max", marks=NIGHTLY),
    ],
)
def test_calls(pool: Pool, text: str, topology: str, batches: list[tuple[int, ...]]) -> None:
    """Uneven ranks, some without segments: rows bit by bit, results within rounding."""
    pool.run(exact_work.sizes, RANKS[topology], path(text), topology, batches, 1)


def some_batches(num_ranks: int) -> st.SearchStrategy[list[tuple[int, ...]]]:
    """Sizes of every rank, batch after batch."""
    sizes = st.one_of(st.integers(0, 5), st.integers(30, 70))
    return st.lists(st.tuples(*[sizes] * num_ranks), min_size=1, max_size=4)


STATEFUL = [HealthCheck.function_scoped_fixture]


@NIGHTLY
@pytest.mark.parametrize("topology", ["2x1", "2x2", "4x1", "3x2"])
@given(data=st.data(), seed=st.integers(0, 1000))
@settings(max_examples=6, suppress_health_check=STATEFUL, deadline=None)
def test_many_sizes(pool: Pool, topology: str, data: st.DataObject, seed: int) -> None:
    batches = data.draw(some_batches(RANKS[topology]))
    text = data.draw(st.sampled_from([SMALL, COMPACT]))
    pool.run(exact_work.sizes, RANKS[topology], path(text), topology, batches, seed)


def test_what_is_too_small_grows(pool: Pool) -> None:
    """Slabs on all ranks, if one has more segments than there are places for."""
    batches = [(2, 2), (2, 40), (2, 40), (3, 1), (40, 40)]
    launched = pool.run(exact_work.sizes, 2, path(SMALL), "2x1", batches, 1)
    assert launched == [[1, 2, 1, 1, 2]] * 2  # (3, 1) lets places abate


@pytest.mark.parametrize("topology", ["2x1", pytest.param("2x2", marks=NIGHTLY)])
def test_windows_grow_in_the_node_that_needs_it(pool: Pool, topology: str) -> None:
    """Its ranks take on once more what has landed; nobody sends it again."""
    num_ranks = RANKS[topology]
    found = pool.run(exact_work.one_window, num_ranks, path(SMALL), topology)
    half = num_ranks // 2
    assert found == [(0, 1)] * half + [(1, 1)] * half


@pytest.mark.parametrize(
    ("text", "topology"),
    [(SMALL, "2x1"), pytest.param(WIDE, "2x2", marks=NIGHTLY)],
    ids=["sum", "several ranks a node"],
)
def test_rounds(pool: Pool, text: str, topology: str) -> None:
    """Large slabs, whose last round has segments of some ranks only, or of none."""
    num_ranks = RANKS[topology]
    batches = [(3, *[40] * (num_ranks - 1)), (40, *[9] * (num_ranks - 1))]
    found = pool.run(exact_work.rounds, num_ranks, path(text), topology, batches)
    assert set(found) == {3}


def test_one_wait_a_dispatch_and_none_a_combine(pool: Pool) -> None:
    """Nor a dispatch along a known routing."""
    for waits in pool.run(exact_work.waits, 2, path(SMALL), "2x1"):
        assert waits == [1, 0, 0, 0]


def test_late_weights_of_segments_of_two_indices(pool: Pool) -> None:
    text = SMALL
    for one, two in (
        ("index t : tokens ", "index t : tokens   index u : 2 "),
        ("by_row[t]", "by_row[t, u]"),
        ("(t, k)", "(t, u, k)"),
    ):
        assert one in text
        text = text.replace(one, two)
    pool.run(exact_work.late_weights, 2, path(text), "2x1")


@pytest.mark.parametrize("topology", ["2x1", pytest.param("2x2", marks=NIGHTLY)])
@pytest.mark.parametrize(
    "text", [SMALL, pytest.param(COMPACT, marks=NIGHTLY)], ids=["expanded", "compact"]
)
def test_handles_last(pool: Pool, text: str, topology: str) -> None:
    pool.run(by(rank_work.handles_last, topology), RANKS[topology], path(text))


@pytest.mark.parametrize("topology", ["2x1", pytest.param("2x2", marks=NIGHTLY)])
def test_gradients(pool: Pool, topology: str) -> None:
    work = partial(exact_work.with_few_places, work=rank_work.by_torch)
    options, num_ranks = {"topology": topology}, RANKS[topology]
    for errors in pool.run(work, num_ranks, "gradients", path(SMALL), options):
        assert max(errors) < 1e-5, errors


def test_epochs_wrap(pool: Pool) -> None:
    """Windows grow before and behind it."""
    work = partial(by(rank_work.batches, "2x1"), first=2**31 - 2)
    pool.run(work, 2, path(SMALL), [(1, 2), (2, 1), (40, 0), (1, 1)], 1)


@NIGHTLY
@pytest.mark.parametrize("first", [each - 3 for each in (2**25, 2**26, 2**31)])
def test_turns_of_combines_wrap(pool: Pool, first: int) -> None:
    """Words of turns are numbers of combines times 64: they change their sign, or begin anew."""
    batches = [(40, 3, 0, 9), (2, 40, 7, 0), (5, 5, 40, 40)]
    found = pool.run(exact_work.in_turns, 4, path(SMALL), "2x2", batches, 4, first)
    assert found == [4] * 4


@pytest.mark.parametrize(
    ("topology", "num_mistakes"), [("2x1", 2), pytest.param("2x2", 5, marks=NIGHTLY)]
)
def test_mistakes(pool: Pool, topology: str, num_mistakes: int) -> None:
    """All ranks raise what the general engine raises, and nothing has moved."""
    num_ranks, work = RANKS[topology], by(rank_work.mistakes, topology)
    found = pool.run(work, num_ranks, path(COMPACT), num_mistakes, True)
    assert found == pool.run(work, num_ranks, path(COMPACT), num_mistakes, False)
    assert len(found[0]) == num_mistakes
    assert all(each == found[0] for each in found)
    assert all(message != "no error" for message in found[0])


def test_calls_that_kernels_leave_out(pool: Pool) -> None:
    pool.run(by(rank_work.left_out, "2x1"), 2, path(SMALL))


@pytest.mark.parametrize("topology", ["2x1", pytest.param("2x2", marks=NIGHTLY)])
def test_calls_that_slabs_do_not_carry(pool: Pool, topology: str) -> None:
    """Their rows travel as flows; later ones may be in slabs once more."""
    for kinds in pool.run(exact_work.too_large, RANKS[topology], path(SMALL), topology):
        assert kinds == [RailKnown, FlowKnown, Handle, FlowKnown, RailKnown, FlowKnown]


@pytest.mark.parametrize("topology", ["2x1", pytest.param("2x2", marks=NIGHTLY)])
def test_slabs_grow_behind_calls_that_they_do_not_carry(pool: Pool, topology: str) -> None:
    """There is memory for as many places, but not for rows of them."""
    for found in pool.run(exact_work.slabs_again, RANKS[topology], path(SMALL), topology):
        flowing, *small, large = found
        assert flowing[0] is FlowKnown
        assert small[-1][0] is RailKnown
        assert small[-1][1] < large[1] < flowing[1]
        assert large[0] is RailKnown
        assert not large[2]


@pytest.mark.parametrize("topology", ["2x1", pytest.param("2x2", marks=NIGHTLY)])
def test_a_combine_that_one_rank_refuses(pool: Pool, topology: str) -> None:
    """Sums that need its rows are lost, and every other call is whole."""
    num_ranks = RANKS[topology]
    found = pool.run(exact_work.a_refused_combine, num_ranks, path(SMALL), topology)
    refused = f"rank {num_ranks - 1} refused 1 calls that rank"
    assert any(lost for _, lost in found[:-1])
    for said, lost in found[:-1]:
        assert (refused in said[0]) == bool(lost)
        assert said[1] == "no error"
    assert "has the shape [1, 7]" in found[-1][0][0]


@pytest.mark.parametrize(
    ("text", "topology"),
    [
        (SMALL, "2x1"),
        pytest.param(SMALL, "2x2", marks=NIGHTLY),
        pytest.param(specs.routed("f32", options="schedule fast"), "3x1", marks=NIGHTLY),
    ],
    ids=["slabs", "several ranks a node", "flows"],
)
def test_weights_that_change_behind_their_dispatch(pool: Pool, text: str, topology: str) -> None:
    """They have travelled: a combine that would be by other ones is refused."""
    num_ranks = RANKS[topology]
    found = pool.run(exact_work.changed_weights, num_ranks, path(text), topology)
    *others, last = (zip(*each, strict=True) for each in found)
    refused, told = last
    for said, what in zip(refused, ["changed in place"] * 2 + ["freed"] * 2, strict=True):
        assert f"[FSR003] `weights` on rank {num_ranks - 1} has been {what}" in said
    assert told == ("no error",) * 4
    for has_lost, told in others:
        assert has_lost == ("True",) * 4
        assert all(f"rank {num_ranks - 1} refused 1 calls" in each for each in told)


@NIGHTLY
def test_weights_that_change_behind_their_dispatch_in_a_compiled_function(pool: Pool) -> None:
    pool.run(exact_work.changed_weights_compiled, 2, path(SMALL), "2x1")


@pytest.mark.parametrize("topology", ["2x1", pytest.param("2x2", marks=NIGHTLY)])
def test_ranks_that_mean_several_routings(pool: Pool, topology: str) -> None:
    num_ranks = RANKS[topology]
    found = pool.run(exact_work.other_routings, num_ranks, path(SMALL), topology)
    for combined, dispatched, whole in found:
        assert combined != "no error"
        assert dispatched != "no error"
        assert whole == "no error"


def test_a_dispatch_along_a_known_routing_that_one_rank_refuses(pool: Pool) -> None:
    [first], second = pool.run(exact_work.a_refused_dispatch, 2, path(SMALL), "2x1")
    assert "rank 1 refused 1 calls that rank 0 had joined" in first
    assert "is torch.float64" in second[0]
    assert second[1].startswith("ProtocolError")
    assert "rank 1 has refused a call" in second[1]


@pytest.mark.parametrize("topology", ["2x1", pytest.param("2x2", marks=NIGHTLY)])
def test_no_memory_for_larger_slabs(pool: Pool, topology: str) -> None:
    """All ranks name the one that has none, in every later call."""
    num_ranks = RANKS[topology]
    found = pool.run(exact_work.no_memory, num_ranks, path(SMALL), topology)
    for said in found:
        assert said[0] == said[1]
        assert f"PreparationError: [FSR006] rank {num_ranks - 1} could not prepare" in said[0]


@pytest.mark.parametrize("topology", ["2x1", pytest.param("2x2", marks=NIGHTLY)])
def test_no_memory_for_larger_windows_in_one_node(topology: str) -> None:
    """Its ranks raise that, and come to no call of any shuffle more; others name one of them."""
    found = without_memory(SMALL, topology, 8)
    half = len(found) // 2
    for said in found[half:]:
        assert all("could not prepare the call: no memory" in each for each in said)
    for rank, said in enumerate(found[:half]):
        assert all(f"HopTimeoutError: [FSR020] rank {rank} waited" in each for each in said)
        assert all(f"for rank {rank + half} in the network hop" in each for each in said)


@pytest.mark.parametrize(
    ("text", "topology"),
    [
        pytest.param(specs.routed("f32", capacity="capacity max 400"), "2x1", id="verdicts"),
        pytest.param(specs.routed("f32", options="schedule fast"), "3x1", id="flows"),
    ],
)
def test_no_memory_in_one_node_where_all_hear_of_it(text: str, topology: str) -> None:
    """All ranks raise that, and calls of other shuffles are whole: where nodes tell each other
    verdicts, or make room for rows that travel as flows in the same call."""
    found = without_memory(text, topology, 45)
    last = f"PreparationError: [FSR006] rank {len(found) - 1} could not prepare the call: no memory"
    for first, second, other in found:
        assert first.startswith(last)
        assert second == first
        assert other == "no error"


def test_no_memory_for_the_ways_of_one_rank() -> None:
    """It comes to no call of any shuffle more, and the others name it."""
    processes, text = Pool(3), specs.routed("f32", options="schedule fast")
    try:
        *others, last = processes.run(exact_work.no_memory_for_ways, 3, path(text), "3x1")
    finally:
        processes.close()
    first, *later = last
    assert first == "no memory"
    assert all("rank 2 could not prepare the call: OutOfMemoryError" in each for each in later)
    for said in others:
        assert all("HopTimeoutError" in each and "for rank 2" in each for each in said)


def without_memory(text: str, topology: str, tokens: int) -> list[list[str]]:
    """See `exact_work.no_memory_in_one_node`; in processes that end then."""
    num_ranks = RANKS[topology]
    processes, work = Pool(num_ranks), exact_work.no_memory_in_one_node
    try:
        found: list[list[str]] = processes.run(work, num_ranks, path(text), topology, tokens)
        return found
    finally:
        processes.close()


def test_no_memory_for_a_call(pool: Pool) -> None:
    said = (
        "PreparationError: [FSR006] rank 1 could not prepare the call: OutOfMemoryError: no memory"
    )
    found = pool.run(by(memory_work.out_of_scratch, "2x1"), 2, path(SMALL))
    assert found == [said, said]


def test_graphs_cannot_capture_calls(pool: Pool) -> None:
    for said in pool.run(by(rank_work.captured, "2x1"), 2, path(SMALL)):
        assert all(each.startswith("OptionError") and "CUDA graph" in each for each in said), said


def test_what_fuscoc_run_does(pool: Pool) -> None:
    problems, rows = zip(*pool.run(by(rank_work.demo, "2x1"), 2, path(COMPACT)), strict=True)
    assert problems == (None, None)
    assert sum(rows) > 0


@pytest.mark.parametrize("topology", ["2x1", pytest.param("2x2", marks=NIGHTLY)])
def test_a_rank_that_dies_is_named(topology: str) -> None:
    check_that_the_last_is_named(exact_work.one_dies, RANKS[topology], path(SMALL), topology)


def test_weights_that_one_rank_gives_later(pool: Pool) -> None:
    assert pool.run(exact_work.weights_on_one_rank, 2, path(SMALL), "2x1") == [Handle] * 2
