"""The strategies reach what they promise, and shrink to little."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from fuscoc.testing import (
    Routing,
    RoutingFileError,
    cases,
    load_spec,
    plan_of,
    points_of,
    routings,
    specs,
    topologies,
)
from fuscoc.testing.oracle import expect
from fuscoc.testing.points import owners
from fuscoc_runtime import reference
from fuscoc_runtime.engine.divisions import check_divisions
from fuscoc_runtime.reference import on_their_ranks
from fuscoc_runtime.topology import Topology
from tests.drawn import at_night
from tests.testing import broken

FEW = settings(
    max_examples=500, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
SPEC = broken.spec()
CASES = cases(SPEC, max_nodes=3, max_ranks_per_node=2)


def rows(routing: Routing) -> list[int]:
    return [data.extents["num_rows"] for data in routing.ranks]


def keys(routing: Routing) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.concatenate([data.inputs["keys_of"].numpy() for data in routing.ranks])


def test_topologies_reach_eight_by_eight_and_shrink_to_one() -> None:
    assert find(topologies(), lambda each: each.num_ranks == 64, settings=FEW) == Topology(8, 8)
    assert find(topologies(), lambda _: True, settings=FEW) == Topology(1, 1)


def test_only_topologies_that_fit_a_block_placement() -> None:
    fitting = {find(topologies(spec=SPEC), lambda each, n=n: each.num_ranks == n, settings=FEW)
               .num_ranks for n in (1, 2, 3, 4, 6, 12)}  # fmt: skip
    assert fitting == {1, 2, 3, 4, 6, 12}


@pytest.mark.parametrize(
    "wanted",
    [
        lambda routing: 0 in rows(routing) and max(rows(routing)) > 1,
        lambda routing: len(keys(routing)) > 2 and (keys(routing) == -1).all(),
        lambda routing: len(keys(routing)) > 2 and len(np.unique(keys(routing))) == 1,
        lambda routing: any(
            len(np.unique(row[row >= 0])) < (row >= 0).sum() for row in keys(routing)
        ),
        lambda routing: routing.topology.num_ranks > 1 and sum(rows(routing)) == 0,
    ],
    ids=["uneven", "all dropped", "all to one", "a key twice in a row", "nothing at all"],
)
def test_routings_reach(wanted: object) -> None:
    find(CASES, wanted, settings=FEW)  # type: ignore[arg-type]


def test_routings_shrink_to_the_points_that_matter() -> None:
    smallest = find(CASES, lambda routing: (keys(routing) >= 3).any(), settings=FEW)
    assert smallest.topology == Topology(1, 1)
    assert rows(smallest) == [1]
    assert sorted(keys(smallest).ravel().tolist()) == [-1, -1, -1, 3]


def test_specs_shrink_to_one_plain_field() -> None:
    spec = find(specs(), lambda spec: spec.shuffle.declared.target.kind == "packed", settings=FEW)
    assert len(spec.text.splitlines()) <= 13
    assert len(spec.shuffle.declared.fields) == 1


@given(st.data())
@settings(max_examples=at_night(40))
def test_points_and_slots_are_those_of_the_reference(data: st.DataObject) -> None:
    topology = data.draw(topologies(3, 2))
    spec = data.draw(specs(topology))
    routing = data.draw(routings(spec, topology))
    points = points_of(spec.shuffle, topology, routing.ranks)
    expected = expect(spec.shuffle, topology, routing.ranks, points)
    deliveries, layouts = reference.route(spec.shuffle, routing.ranks)
    found = np.stack(
        [expected.source_rank, expected.point, expected.source, expected.rank, expected.slot], 1
    )
    wanted = [
        [each.origin.rank, each.origin.point, each.origin.source, each.rank, each.slot]
        for each in deliveries
    ]
    assert found.tolist() == wanted
    assert expected.num_slots.tolist() == [layout.num_slots for layout in layouts]
    live = [column["rank"].numpy() >= 0 for column in (each.columns for each in points)]
    first_cells = np.concatenate(
        [
            each.columns["src_offset"].numpy()[alive]
            for each, alive in zip(points, live, strict=True)
        ]
    )
    assert first_cells.tolist() == [int(each.origin.cells[0]) for each in deliveries]


COMPUTED = {
    "a slot of each expert": """
shuffle rows {
  const experts = 8, cap = 5
  index t : tokens
  index k : 2
  segment token { x : f32[4] }
  layout by_token[t] of token
  layout slots[q] of token dense(experts / ranks * ranks * cap)
  route r(t, k) -> (expert, position) = input assignment : int64[2]
  dispatch by_token[t]
    -> slots[(r(t, k).expert % (experts / ranks) * ranks + rank) * cap + r(t, k).position]
    on r(t, k).expert / (experts / ranks)
}""",
    "a divisor of this run": """
shuffle rows {
  index t : tokens
  segment token { x : f32[4] }
  layout part[t] of token
  layout whole[i, p] of token dense(tokens / ranks, ranks)
  dispatch part[t] -> whole[t % (tokens / ranks), rank] on t / (tokens / ranks)
}""",
    "a divisor of this cluster": """
shuffle rows {
  const experts = 2
  index t : tokens
  segment token { x : f32[4] }
  layout by_token[t] of token
  index q : room
  layout slots[q] of token
  route r(t) -> (rank, slot) = input to : int64[2]
  dispatch by_token[t] -> slots[r(t).slot + t % (experts / ranks)] on r(t).rank
}""",
    "a rank beside one that is looked up": """
shuffle rows {
  index m : moves
  index h : 2
  index q : requests
  segment page { x : f32[4] }
  layout pages[m, h] of page
  index s : room
  layout arrived[s] of page
  route of(m) -> request = input request_of : int32
  route home(q) -> (rank, slot) = input homes : int32[2]
  route nth(m) -> n = input position : int32
  dispatch pages[m, h] -> arrived[home(of(m)).slot + nth(m)] on home(of(m)).rank + h
}""",
}


@pytest.mark.parametrize("text", COMPUTED.values(), ids=COMPUTED)
@given(data=st.data())
@settings(max_examples=15)
def test_routings_of_computed_places_are_correct(text: str, data: st.DataObject) -> None:
    spec = load_spec(text)
    routing = data.draw(cases(spec, max_nodes=3, max_ranks_per_node=2))
    for rank, each in enumerate(on_their_ranks(routing.ranks)):
        check_divisions(spec.shuffle, rank, each.extents)
    plan_of(spec, routing)


@pytest.mark.parametrize("text", COMPUTED.values(), ids=COMPUTED)
def test_routings_of_computed_places_reach_several_ranks(text: str) -> None:
    spec = load_spec(text)

    def spreads(routing: Routing) -> bool:
        points = points_of(spec.shuffle, routing.topology, routing.ranks)
        expected = expect(spec.shuffle, routing.topology, routing.ranks, points)
        return len(np.unique(expected.rank)) > 1 and len(expected.rank) > 2

    unshrunk = settings(FEW, phases=[Phase.generate])
    find(cases(spec, max_nodes=2, max_ranks_per_node=2), spreads, settings=unshrunk)


def test_owners_of_a_block_placement() -> None:
    target = SPEC.shuffle.declared.target
    assert target.kind == "packed"
    assert owners(target, Topology(2, 2), broken.routing().ranks[0]).tolist() == [
        0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3,
    ]  # fmt: skip


@given(st.data())
@settings(max_examples=at_night(30))
def test_routings_come_back_from_files(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    topology = data.draw(topologies(3, 2))
    spec = data.draw(specs(topology))
    routing = data.draw(routings(spec, topology))
    path = tmp_path_factory.mktemp("routing") / "routing.npz"
    routing.save(path)
    loaded = Routing.load(path, spec.shuffle)
    assert loaded.topology == topology
    for one, other in zip(routing.ranks, loaded.ranks, strict=True):
        assert one.extents == other.extents
        assert one.inputs.keys() == other.inputs.keys()
        for name, tensor in one.inputs.items():
            assert tensor.dtype == other.inputs[name].dtype
            assert tensor.equal(other.inputs[name])


def test_files_that_are_no_routing(tmp_path: Path) -> None:
    path = tmp_path / "routing.npz"
    with pytest.raises(RoutingFileError, match="holds no routing of `rows`"):
        Routing.load(path, SPEC.shuffle)
    path.write_text("something else")
    with pytest.raises(RoutingFileError, match="holds no routing of `rows`"):
        Routing.load(path, SPEC.shuffle)
    broken.routing().save(path)
    other = load_spec(broken.TEXT.replace("shuffle rows", "shuffle columns")).shuffle
    with pytest.raises(RoutingFileError, match="is a routing of `rows`, not of `columns`"):
        Routing.load(path, other)


def test_a_routing_shows_ranks_that_have_something() -> None:
    text = repr(broken.routing())
    assert "rank 0: num_rows=4 keys_of=[[" in text
    assert "rank 2" not in text
