"""Slots that the relation gives, through the Triton kernels of one node, interpreted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine import specs
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.node_triton import given_layers, given_mistakes, given_work, rank_work
from tests.node_triton.given_specs import EXAMPLES, LINES, MOVING

NUM_RANKS = 4
MOST = rank_work.MAX_SOURCES


pool = pool_of(NUM_RANKS)


def path(text: str) -> str:
    return str(specs.artifact(text).path)


@pytest.mark.parametrize(
    ("name", "num_ranks"),
    [
        # The suite has four ranks and two, in turn.
        pytest.param(name, num_ranks, marks=[] if num_ranks == by_day else [pytest.mark.nightly])
        for number, (name, small) in enumerate(EXAMPLES.items())
        for by_day in [4 if number % 2 else 2]
        for num_ranks in (1, 2, 4)
        if num_ranks >= small.least_ranks
    ],
)
def test_examples(pool: Pool, name: str, num_ranks: int) -> None:
    small = EXAMPLES[name]
    batches = [sizes[:num_ranks] for sizes in small.batches]
    pool.run(given_work.epochs, num_ranks, path(small.text), batches, 1, small.options)


def to_slots(fan: int = 1, dtype: str = "f32", reduce: str = "", weight: str = "") -> str:
    """Rows to the ranks and slots that an input names, and back."""
    index = "index k : {fan}" if fan > 1 else ""
    at = "t, k" if fan > 1 else "t"
    return f"""
    shuffle routed {{
      index t : tokens   index s : length   {index.format(fan=fan)}
      segment row {{ x : {dtype}[3] }}
      layout by_row[t] of row
      layout slots[s] of row dense(length)
      route where({at}) -> (rank, slot) = input to : int64[2]
      {weight}
      dispatch by_row[t] -> slots[where({at}).slot] on where({at}).rank
      combine reverse {reduce}
    }}"""


COPIED = to_slots()
FANNED = {
    "summed": to_slots(3, "f32", "reduce sum"),
    "bf16": to_slots(2, "bf16", "reduce sum"),
    "weighted": to_slots(3, "f32", "reduce sum(w)", "weight w(t, k) : f32 = input weights"),
    "copied": to_slots(1, "f64"),
}


@st.composite
def relations(draw: st.DrawFn, fan: int) -> tuple[int, list[list[list[list[int]]]]]:
    """The length of every target, and for every rank of some a rank and slot of every segment and
    fan-out: no slot twice, and some dropped."""
    num_ranks, length = draw(st.integers(1, 3)), draw(st.integers(0, 20))
    places = [(rank, slot) for rank in range(num_ranks) for slot in range(length)]
    places = draw(st.permutations(places))
    tables = []
    for _ in range(num_ranks):
        size = draw(st.integers(0, MOST))
        taken, places = places[: size * fan], places[size * fan :]
        taken += [(-1, draw(st.integers(-3, 30)))] * (size * fan - len(taken))
        taken = [(-1, s) if draw(st.integers(0, 5)) == 0 else (r, s) for r, s in taken]
        taken = draw(st.permutations(taken))
        tables.append([list(map(list, taken[i * fan : i * fan + fan])) for i in range(size)])
    return length, tables


@pytest.mark.parametrize("name", FANNED)
@given(data=st.data())
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_relation(pool: Pool, name: str, data: st.DataObject) -> None:
    text = FANNED[name]
    fan = {"summed": 3, "bf16": 2, "weighted": 3, "copied": 1}[name]
    length, tables = data.draw(relations(fan))
    options = {"capacity": data.draw(st.integers(max(1, length), 24))}
    pool.run(given_work.routed, len(tables), path(text), [tables, tables[::-1]], length, options)


NO_SLOT = "DestinationError: [FSR019]"
RIGHT = [[(1, 0), (0, 3)], [(1, 2), (0, 0)]]


@pytest.mark.parametrize(
    ("wrong", "errors", "lost"),
    [
        (  # a slot behind the last, one before the first, and a rank that is none
            [[(0, 0), (0, 4), (1, -2)], [(2, 0), (1, 0)]],
            [
                "DestinationError: [FSR019] 2 points of rank 0",
                "DestinationError: [FSR019] 1 points of rank 1",
            ],
            [[1, 2], [0]],
        ),
        (  # one slot twice on a rank
            [[(0, 0), (1, 3), (1, 3)], [(0, 1)]],
            ["SlotClashError: [FSR024] rank 0 found 1 points", "no error"],
            None,
        ),
        (  # far beyond what 32 bits count
            [[(0, 2**40), (0, 1)], [(0, 2**32 + 1)]],
            [
                "DestinationError: [FSR019] 1 points of rank 0",
                "DestinationError: [FSR019] 1 points of rank 1",
            ],
            [[0], [0]],
        ),
    ],
)
def test_mistakes_are_counted(
    pool: Pool, wrong: Any, errors: list[str], lost: list[list[int]] | None
) -> None:
    """They are told once, on the rank that made them; all other rows are right."""
    found = pool.run(given_mistakes.mistaken, 2, path(COPIED), wrong, RIGHT, 4)
    for rank, (said, zeros, dropped, _) in enumerate(found):
        assert said[0].startswith(errors[rank])
        assert set(said[1:]) <= {"no error"}
        assert dropped == len(zeros)
        assert lost is None or zeros == lost[rank]
    assert "`to[t, 0]` is no rank, `to[t, 1]` no slot" in found[0][0][0] or lost is None


def test_two_ranks_want_one_slot(pool: Pool) -> None:
    """One of them gets it, whichever it is; the other one is told."""
    wrong = [[(1, 2), (0, 1)], [(1, 2), (0, 2)]]
    found = pool.run(given_mistakes.mistaken, 2, path(COPIED), wrong, RIGHT, 4)
    assert sorted(said[0][:14] for said, *_ in found) == ["SlotClashError", "no error"]
    assert sorted(zeros for _, zeros, _, _ in found) == [[], [0]]
    assert sorted(dropped for _, _, dropped, _ in found) == [0, 1]
    assert [filled.tolist() for *_, filled in found] == [[1, 2], [2]]


def test_more_slots_than_there_is_room_for(pool: Pool) -> None:
    first, second, third = pool.run(given_mistakes.one_has_too_many_slots, 3, path(COPIED))
    assert "`length` on rank 1 is 7; the shuffle was loaded with a `capacity` of 6" in second[0]
    assert second[1:] == ["no error"] * 2
    for said in (first, third):
        assert said[0] == said[2] == "no error"
        assert "rank 1 refused 1 calls" in said[1]


def test_mistakes_of_ragged_sizes(pool: Pool) -> None:
    for rank, said in enumerate(
        pool.run(given_mistakes.ragged_mistakes, 2, path(specs.patches(2, 3)))
    ):
        excess, *others = said
        assert excess[0].startswith(f"ExcessError: [FSR025] 3 source segments of rank {rank}")
        assert excess[1:] == (3, 4)
        for message, dropped, moved in others:
            assert message.startswith("SizesError: [FSR026]"), message
            assert "`pictures`" in message
            assert (dropped, moved) == (0, 0)


LONG_PAGES = EXAMPLES["kv_long_pages"].text
SHORT_PAGES = LONG_PAGES.replace("page = 4", "page = 1")


@pytest.mark.parametrize(("text", "dropped"), [(LONG_PAGES, 0), (SHORT_PAGES, 2)])
def test_pages_that_are_given_away_twice(pool: Pool, text: str, dropped: int) -> None:
    """They come back as one of the two, and the rank whose they are is told."""
    pages = [[0, 2, 0, -1, 4, 2], [1, 2, 3]]
    places = [[(0, 1), (1, 3), (1, 5), (0, 0), (0, 2), (0, 7)], [(0, 9), (1, 0), (0, 3)]]
    found = pool.run(given_mistakes.shared_pages, 2, path(text), pages, places)
    assert found[0][0][0].startswith("SourceClashError: [FSR031] rank 0 found 2 segments")
    assert "`cache`" in found[0][0][0]
    assert found[0][0][1] == "no error"
    assert found[0][1] == dropped
    assert found[1] == (["no error"] * 2, 0)


@pytest.mark.parametrize("text", [LONG_PAGES, SHORT_PAGES])
def test_pages_that_are_given_away_twice_in_many_calls(pool: Pool, text: str) -> None:
    """Nothing of what one call has found is left for another, whatever handle's memory it has."""
    twice, whole = [[0, 1, 0, 2, 3], [1, 2, 1, 1]], [[0, 1, 2, 3], [3, 2, 1, 0]]
    larger = [[5, 6, 5], [6, 0, 4]]
    calls = [(4, twice)] * 4 + [(4, whole)] * 2 + [(7, larger), (4, twice), (7, larger), (4, whole)]
    found = pool.run(given_mistakes.shared_pages_again, 2, path(text), calls)
    assert found[0] == [1] * 4 + [0] * 2 + [1, 1, 1, 0]
    assert found[1] == [2] * 4 + [0] * 2 + [0, 2, 0, 0]


def test_mistakes_in_pieces(pool: Pool) -> None:
    """A page that is none, a slot that is none and one that two ranks want: those are not moved, or
    one of them is there, or parts of both, and somebody is told."""
    pages = [[0, 7, -1, 1], [2, 4, 3]]
    places = [[(1, 3), (0, 0), (0, 1), (1, 16)], [(1, 3), (0, 5), (-1, 0)]]
    found = pool.run(given_mistakes.wrong_pages, 2, path(LONG_PAGES), pages, places)
    assert [each[1:] for each in found] == [(2, [5]), (0, [3])]
    assert "[FSR019] 2 points of rank 0" in found[0][0][0]
    assert "[FSR024] rank 1 found 1 points" in found[1][0][0]
    assert [each[0][1] for each in found] == ["no error"] * 2


FIXED_OUTSIDE = """
    shuffle fixed_outside {
      index n : docs   index j : 4   index i : width(n)   index p : length
      segment row { x : f32[3] }
      layout table[n, e, c] of row dense(4, width(n))
      layout there[p] of row dense(length)
      route to(n, j) -> (rank, offset) = input places_of : int64[2]
      dispatch table[n, j, i] -> there[to(n, j).offset + i] on to(n, j).rank
    }"""


@pytest.mark.parametrize(
    ("widths", "error", "filled"),
    [
        ([2, 3], "no error", 20),
        ([0, 0], "no error", 0),
        ([3, 0], "no error", 12),
        ([-(2**40), 1], "FSR026", 0),
        ([2**40, 1], "FSR026", 0),
    ],
)
def test_nothing_is_read_beyond_inputs(
    pool: Pool, widths: list[int], error: str, filled: int
) -> None:
    """Whatever the sizes are, and however many points there is room for."""
    found = pool.run(given_mistakes.guarded_sizes, 1, path(FIXED_OUTSIDE), widths)
    for said, count in found:
        assert error in said
        assert count == filled


def test_nothing_is_read_beyond_a_source_that_shrinks(pool: Pool) -> None:
    """Programs read what boxes of the call before say, which had more rows."""
    pool.run(given_mistakes.guarded_sources, 2, path(LINES), [4, 4, 4, 4, 1, 1, 1, 1])


@pytest.mark.parametrize("first", [2**30, 2**31 - 2])
def test_epochs_wrap(pool: Pool, first: int) -> None:
    """Also twice an epoch, which ranks tell each other."""
    sizes = [(1, 2)] * 3
    options = EXAMPLES["vit_patches"].options
    pool.run(given_work.epochs, 2, path(specs.patches(2, 3)), sizes, 1, options, first)


@pytest.mark.parametrize("text", [specs.patches(2, 3), specs.GRID], ids=["ragged", "grid"])
def test_handles_keep_where_segments_lie(pool: Pool, text: str) -> None:
    options = {"capacity": 400, "max_sources": 60}
    pool.run(given_work.older_handles, 2, path(text), options)


HOLDS = LINES, 8
"""So many programs that each has an item, which it reads before it knows that boxes are kept."""


@pytest.mark.parametrize(("text", "programs"), [(MOVING, 1), (HOLDS[0], 1), HOLDS])
def test_boxes_are_made_when_something_has_changed(pool: Pool, text: str, programs: int) -> None:
    """Of the ring entry that a call has, whatever the other one is for; again where a point was
    dropped, which is told in every call, or a rank refused. Epochs wrap meanwhile."""
    a, b = ((2, 3), (8, 8)), ((4, 1), (8, 8))
    other_rows, other_length = ((2, 1), (8, 8)), ((2, 1), (8, 7))
    too_long, too_short = ((2, 3), (8, 9)), ((2, 3), (8, 6))
    calls = [a, a, a, a, b, a, b, other_rows, b, other_length]
    made = [[1, 1, 0, 0, 1, 0, 0, 0, 0, 1], [1, 1, 0, 0, 1, 0, 0, 1, 0, 1]]
    calls += [too_long, too_short, b, too_short, b, b]
    made[0] += [1, 1, 1, 0, 0, 1]
    # The rank that refuses makes none, and finds its own of the call before with that entry.
    made[1] += [1, 1, 0, 1, 0, 1]
    found = pool.run(given_work.changing_extents, 2, path(text), calls, 2**31 - 6, programs)
    before = [None, None, *calls]  # with the same entry
    is_whole = [call is not too_long and call is not too_short for call in calls]
    keeps = [pair[0] == pair[1] for pair in zip(calls, before, strict=False)]
    for rank, seen in enumerate(found):
        assert [stale for stale, *_ in seen] == made[rank]
        for call, same, whole, (stale, is_kept, turned, said) in zip(
            calls, keeps, is_whole, seen, strict=True
        ):
            if call is not too_long or rank == 0:
                assert is_kept == (same and whole)
                assert turned == stale
            if call is too_short:
                assert "[FSR019] 6 points of rank 1" in said if rank else said == "no error" * 2
            elif call is not too_long:
                assert said == "no error"


@pytest.mark.parametrize("name", ["ulysses", "vit_patches", "vit_unpack"])
def test_planned_in_parts(pool: Pool, name: str) -> None:
    small = EXAMPLES[name]
    batches = [sizes[:2] for sizes in small.batches]
    pool.run(given_work.planned_in_parts, 2, path(small.text), batches * 2, small.options)


def test_a_rank_leaves_where_nothing_is_new(pool: Pool) -> None:
    """Who waits for it in a combine hears of its next dispatch."""
    small = EXAMPLES["ulysses"]
    first, last = pool.run(given_work.one_leaves, 2, path(small.text), small.options)
    assert first[0]
    assert "rank 1 refused 1 calls" in first[1]
    assert last == (False, "no error")


def test_a_planner_may_be_overtaken(pool: Pool) -> None:
    """Programs of dispatch do not wait for it: a peer may be in the next dispatch when it looks."""
    for seen in pool.run(given_work.overtaken, 2, path(MOVING), 6):
        assert sum(seen) == 6 - seen.index(True)
        assert seen.index(True) <= 4


def test_rows_of_a_late_peer_are_waited_for(pool: Pool) -> None:
    """Longer than the last program looks for them before it waits."""
    for wrong in pool.run(given_work.rows_of_a_late_peer, 2, path(MOVING), 0.5, 6):
        assert wrong == [0] * 6


def test_programs_without_an_item_look_for_no_rank(pool: Pool) -> None:
    """Of a piece that goes nowhere, by a mistake or because no rank is there."""
    shifted = LINES.replace("on k", "on k + shift")
    shifted = shifted.replace("index s :", "index z : shift   index s :")
    shifts = [{"shift": shift} for shift in (0, 0, 0, 10**9, 0, 0, 0, 0)]
    for seen in pool.run(given_work.ranks_that_do_not_exist, 2, path(shifted), shifts):
        for each, (said, ranks) in zip(shifts, seen, strict=True):
            assert ("[FSR019]" in said) == (each["shift"] > 0)
            assert min(ranks) >= 0
            assert max(ranks) < 2
    lower = LINES.replace("theirs[rank * most + i] on k", "theirs[k * most + i] on (rank - 1)")
    for seen in pool.run(given_work.ranks_that_do_not_exist, 2, path(lower), [{}] * 4):
        for said, ranks in seen:
            assert said == "no error" * 2
            assert set(ranks) == {0}


@pytest.mark.parametrize(("before", "latest"), [(0, 2), (-4, 0)])
def test_flags_that_nobody_waits_for_are_set_now_and_then(
    pool: Pool, before: int, latest: int
) -> None:
    """Boxes of both ring entries are made in the first calls; then of 2^20 calls one sets them."""
    often = 3 << 20
    found = pool.run(given_work.flags_of_unchanging_calls, 2, path(MOVING), often + before, 5)
    for rank, flags in enumerate(found):
        told = {name: of_peers[1 - rank] - often for name, of_peers in flags.items()}
        assert told == {"plan_flags": latest, "told_flags": latest}


@pytest.mark.parametrize(("text", "programs"), [(MOVING, 1), HOLDS])
def test_clashes_are_found_in_every_call(pool: Pool, text: str, programs: int) -> None:
    """Also where nothing has changed since the call before with that entry."""
    text, calls = text.replace("rank * most + i", "i + 0"), [((2, 2), (6, 6))] * 5
    for seen in pool.run(given_work.changing_extents, 2, path(text), calls, 0, programs):
        assert [is_kept for _, is_kept, *_ in seen] == [False] * 5
        assert all("[FSR024]" in said and "found 2 points" in said for *_, said in seen)


@pytest.mark.parametrize("name", ["summed", "copied"])
def test_compiled(pool: Pool, name: str) -> None:
    fan = 1 if name == "copied" else 3
    slots = [(rank, slot) for slot in range(20) for rank in range(2)]
    tables = [[slots[i * fan : i * fan + fan] for i in range(first, first + 5)] for first in (0, 6)]
    text = FANNED[name].replace("f64", "f32")
    pool.run(given_layers.compiled, 2, path(text), tables, 20)


@pytest.mark.parametrize("name", ["summed", "weighted", "copied"])
def test_gradients(pool: Pool, name: str) -> None:
    fan = 1 if name == "copied" else 3
    slots = [(rank, slot) for slot in range(20) for rank in range(2)]
    slots[::5] = [(-1, 0)] * 8
    tables = [[slots[i * fan : i * fan + fan] for i in range(first, first + 5)] for first in (0, 6)]
    text = FANNED[name].replace("f64", "f32")
    pool.run(given_layers.gradients, 2, path(text), tables, 20)


PACKED_GRID = """
    shuffle grid {
      const w = 6
      index i : rows   index j : w / 2   index e : 5
      segment cell { x : f32, y : i8[3] }
      segment tile { x : f32[2, 2], y : i8[2, 2, 3] }
      layout cells[v, z] of cell dense(2 * rows, w)
      view tiles[i, j] = cells[2*i .. 2*i+2, 2*j .. 2*j+2]
      layout slots[e, s] of tile packed(s)
      place e on rank by cyclic
      route r(i, j) -> e = input idx : int64
      dispatch tiles[i, j] -> slots[r(i, j), *]
    }"""

GROUPED = """
    shuffle grouped {
      index t : tokens   index g : 5   index e : 6   index k : 2
      segment row { x : f32[3] }
      layout by_row[t] of row
      layout by_key[e, s] of row packed(s) align 2
      place e on rank by block
      route group(t, k) -> g = input groups : int64
      route of_group(g) -> e = input keys : int64
      dispatch by_row[t] -> by_key[of_group(group(t, k)), *]
      combine reverse reduce sum
    }"""


@pytest.mark.parametrize("text", [PACKED_GRID, specs.ragged_keys(3), GROUPED, specs.HASHED])
def test_packed_targets(pool: Pool, text: str) -> None:
    """Of scattered rows, of ragged sizes, with keys that are looked up, and with copies back."""
    sizes = [(2, 0, 4), (0, 0, 0), (1, 3, 2)]
    pool.run(rank_work.epochs, 3, path(text), sizes, 1)


def test_scattered_sums(pool: Pool) -> None:
    sizes = [(2, 0, 4), (0, 0, 0), (1, 3, 2)]
    pool.run(given_work.epochs, 3, path(specs.GRID), sizes, 1, {"capacity": 99})


def test_missing_places(pool: Pool) -> None:
    """Of looked-up keys: what is read instead may be a -1, and yet nothing is lost in silence."""
    assert pool.run(given_mistakes.missing_places, 2, path(GROUPED)) == [["2", "no error"]] * 2


def test_a_length_has_to_be_known(pool: Pool) -> None:
    for said in pool.run(given_mistakes.without_capacity, 2, path(COPIED)):
        assert "[FSR007] `capacity` is missing: `length`, the length of `slots`" in said
