"""Layouts whose keys are distinct: what breaks the promise is dropped, counted and told, and memory
of a fixed size has room for whatever keeps it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc.declared import scalar_json
from fuscoc.lang.checked import Const, DomainIndex, IndexRef, Load
from fuscoc.lang.distinct import repeats
from fuscoc.source import Span
from fuscoc.testing import cases, load_spec
from fuscoc_runtime.demo.generate import generate
from fuscoc_runtime.engine.sizes import worst_capacity
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.scalar import Scope, evaluate, parse
from fuscoc_runtime.topology import Topology
from tests.drawn import at_night
from tests.engine import distinct_work, specs
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.node_triton.rank_work import MAX_SOURCES

ROUTED = specs.routed("f32", capacity="distinct")
GRID = """
    shuffle grid {
      index n : images   index t : 6   index k : 2   index e : 8
      segment row { x : f32[4] }
      layout by_row[n, t] of row
      layout by_key[e, s] of row packed(s) distinct
      place e on rank by cyclic
      route r(n, t, k) -> e = input idx : int64
      dispatch by_row[n, t] -> by_key[r(n, t, k), *]
    }"""
TEXTS = {
    "routed": ROUTED,
    "compact": specs.routed("f32", capacity="compact distinct"),
    "cyclic": specs.routed("bf16", topk=5, align=1, placement="cyclic", capacity="distinct"),
}


pool = pool_of(2)


def path(text: str) -> str:
    return str(specs.artifact(text).path)


def named(ranks: Sequence[RankData]) -> list[list[int]]:
    """The keys of every segment, without -1."""
    segments = [each for data in ranks for each in data.inputs["idx"].flatten(0, -2).tolist()]
    return [[key for key in keys if key >= 0] for keys in segments]


@given(st.lists(st.integers(-1, 3), min_size=6, max_size=6), st.integers(0, 1), st.integers(0, 2))
def test_earlier_points_of_the_key(keys: list[int], first: int, second: int) -> None:
    """Counted over two indices, the last one faster; of -1 there are none."""
    at = (IndexRef("j"), IndexRef("k"))
    fan_out = [DomainIndex(n, Const(size), Span(0, 0)) for n, size in (("j", 2), ("k", 3))]
    counted = parse(scalar_json(repeats(Load("idx", at), fan_out)))
    table = {(j, k): keys[3 * j + k] for j in range(2) for k in range(3)}
    before, key = keys[: 3 * first + second], table[first, second]
    found = evaluate(counted, Scope({}, {"idx": table}, {"j": first, "k": second}))
    assert found == (before.count(key) if key >= 0 else 0)


@pytest.mark.parametrize("topology", ["1x2", "2x1"])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_what_is_named_again_is_told(pool: Pool, text: str, topology: str) -> None:
    found = pool.run(distinct_work.repeated, 2, path(text), topology)
    assert sum(again for *_, again in found)
    for said, dropped, again in found:
        assert dropped == again
        if not again:
            assert said == "no error"
            continue
        assert said.startswith(f"KeyRangeError: [FSR017] `idx[t, k]` is no key for {again} points")
        assert said.endswith("and points of a segment must have different ones")


@pytest.mark.parametrize("topology", ["1x2", "2x1"])
@pytest.mark.parametrize(
    ("topk", "align", "slots"),
    [
        (3, 4, 2 * MAX_SOURCES * 3 + 6 * 3),  # as many keys of a rank as a segment has
        (8, 5, 6 * 25),  # all keys of a rank, of 24 rows each
    ],
)
def test_the_worst_routing_has_room(
    pool: Pool, topk: int, align: int, slots: int, topology: str
) -> None:
    text = specs.routed("f32", topk=topk, align=align, capacity="distinct")
    assert pool.run(distinct_work.all_to_one_rank, 2, path(text), topology) == [slots, slots]


def test_an_exact_call_names_the_segment(pool: Pool) -> None:
    for said in pool.run(distinct_work.exact, 2, path(ROUTED), "1x2"):
        assert "`idx[1, 2]` on rank" in said
        assert "is 4, as for another point of its segment" in said


FIVE = st.lists(st.integers(1, 40), min_size=5, max_size=5)  # calls of a spec, which takes longer


@given(st.integers(1, 4), FIVE, st.integers(1, 9), st.sampled_from([1, 4, 128]))
@settings(max_examples=at_night(20))
def test_no_routing_takes_more(num_ranks: int, calls: list[int], topk: int, align: int) -> None:
    """Never more than without the promise, and for 1 key a rank a row of every segment."""
    keys = num_ranks
    told, untold = (
        load_spec(specs.routed("f32", keys=keys, topk=topk, align=align, capacity=word)).shuffle
        for word in ("distinct", "")
    )
    for tokens in calls:
        most = worst_capacity(told, num_ranks, tokens)
        assert most <= worst_capacity(untold, num_ranks, tokens)
        assert most == -(-num_ranks * tokens // align) * align


@pytest.mark.parametrize("text", [ROUTED, GRID])
def test_made_up_keys_are_distinct(text: str) -> None:
    """Of one segment, and no others: those of an outermost index may have the same."""
    found = named(generate(specs.artifact(text).manifest.shuffles[0], Topology(1, 2), 40, 1))
    assert all(len(set(keys)) == len(keys) for keys in found)
    assert sum(map(len, found)) > len(found)


@given(st.data())
@settings(max_examples=at_night(30))
def test_drawn_keys_are_distinct(data: st.DataObject) -> None:
    spec = load_spec(GRID)
    found = named(data.draw(cases(spec, max_nodes=2, max_ranks_per_node=2)).ranks)
    assert all(len(set(keys)) == len(keys) for keys in found)
