"""All ranks in one process, against the reference: any routing, any topology, any dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc_runtime.demo.generate import generate
from fuscoc_runtime.demo.verify import check_result, expect
from fuscoc_runtime.reference import RankData, combine
from fuscoc_runtime.topology import Topology
from tests.drawn import at_night
from tests.engine import specs
from tests.engine.lockstep import dispatch, inputs_of, lockstep, round_trip

TOPOLOGIES = ("1x1", "1x4", "2x2", "4x1", "3x2")
NUM_KEYS, NUM_TOPK, HIDDEN = 12, 3, 24

topologies = st.sampled_from(TOPOLOGIES)


@st.composite
def routings(draw: st.DrawFn, num_ranks: int) -> list[list[list[int]]]:
    """Keys by rank, token and choice; every element of [-1, num_keys) is as likely."""
    keys = st.lists(st.integers(-1, NUM_KEYS - 1), min_size=NUM_TOPK, max_size=NUM_TOPK)
    tokens = st.lists(keys, max_size=6)
    return draw(st.lists(tokens, min_size=num_ranks, max_size=num_ranks))


def routed_data(routing: list[list[list[int]]], dtype: torch.dtype, seed: int) -> list[RankData]:
    random = torch.Generator().manual_seed(seed)
    ranks = []
    for keys in routing:
        tokens = len(keys)
        x = torch.randn(tokens, HIDDEN, generator=random).to(dtype)
        idx = torch.tensor(keys, dtype=torch.int64).view(tokens, NUM_TOPK)
        weights = torch.randn(tokens, NUM_TOPK, generator=random)
        ranks.append(RankData({"x": x}, {"idx": idx, "weights": weights}, {"tokens": tokens}))
    return ranks


def check_any_routing(data: st.DataObject) -> None:
    topology, seed = data.draw(topologies), data.draw(st.integers(0, 99))
    dtype = data.draw(st.sampled_from(["f32", "f16", "bf16"]))
    routing = data.draw(routings(Topology.parse(topology).num_ranks))
    torch_dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]
    ranks = routed_data(routing, torch_dtype, seed)
    round_trip(lockstep(specs.routed(dtype), topology), ranks)


def check_any_pictures(data: st.DataObject) -> None:
    shuffle = lockstep(specs.patches(), data.draw(topologies))
    images, seed = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 999))
    round_trip(shuffle, generate(shuffle.spec, shuffle.topology, images, seed))


@settings(max_examples=15)
@given(st.data())
def test_any_routing(data: st.DataObject) -> None:
    check_any_routing(data)


@settings(max_examples=10)
@given(st.data())
def test_any_pictures(data: st.DataObject) -> None:
    check_any_pictures(data)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("check", [check_any_routing, check_any_pictures])
@settings(max_examples=100)
@given(data=st.data())
def test_any_at_night(check: Callable[[st.DataObject], None], data: st.DataObject) -> None:
    check(data)


VARIANTS = {
    "no dedup": specs.routed(options="dedup(none)"),
    "node dedup": specs.routed(options="dedup(node)"),
    "rank dedup": specs.routed(options="dedup(rank)"),
    "cyclic": specs.routed(placement="cyclic"),
    "table": specs.routed(placement="table owner"),
    "no weights": specs.routed(reduce="sum"),
    "no alignment": specs.routed(align=1),
    "odd row": specs.routed("f16", hidden=7),
    "one element": specs.routed("f32", hidden=1),
    "f64": specs.routed("f64", hidden=5),
    "several fields": specs.FIELDS,
    "sums of several fields": specs.MAXIMA.replace(", n : i32[3]", "").replace("max", "sum"),
    "maxima": specs.MAXIMA,
    "computed keys": specs.HASHED,
    "copy": specs.MOVED,
    "fan-out to slots": specs.GRID,
    "large patch": specs.patches(p=14),
    "small slices": specs.routed("f32", options="slice 96 B"),
    "slices of cut flows": specs.routed("f32", options="balance split slice 200 B"),
    "slices of FAST stages": specs.routed("f32", options="schedule fast slice 96 B"),
    "slices of every point": specs.routed("f32", options="dedup(none) balance lpt slice 96 B"),
}


@pytest.mark.parametrize(
    ("variant", "topology"),
    [
        # The suite runs every variant on one of the first two, in turn; one rank is for the night.
        pytest.param(variant, topology, marks=[] if number % 2 == turn else [pytest.mark.nightly])
        for number, variant in enumerate(VARIANTS)
        for turn, topology in enumerate(("2x2", "3x2", "1x1"))
    ],
)
def test_variants(variant: str, topology: str) -> None:
    shuffle = lockstep(VARIANTS[variant], topology)
    for tokens, seed in ((7, 0), (2, 1), (0, 2)):
        round_trip(shuffle, generate(shuffle.spec, shuffle.topology, tokens, seed))


@pytest.mark.parametrize("num_programs", [1, 3, 64])
def test_any_grid(num_programs: int) -> None:
    shuffle = lockstep(specs.routed(), "2x2", num_programs)
    round_trip(shuffle, generate(shuffle.spec, shuffle.topology, 9, 0))


def test_extreme_routings() -> None:
    shuffle = lockstep(specs.routed("f32"), "2x2")
    everything_to_one = [[[5, 5, 5]] * 4 for _ in range(4)]
    nothing = [[[-1, -1, -1]] * 4 for _ in range(4)]
    no_tokens: list[list[list[int]]] = [[] for _ in range(4)]
    for routing in (everything_to_one, nothing, no_tokens):
        round_trip(shuffle, routed_data(routing, torch.float32, 0))


@pytest.mark.parametrize("topology", ["1x4", "2x2"])
@pytest.mark.parametrize("keys", [[0, 1, 3], [6, 7, 9], [6, 9, 0], [9, 10, 0]])
def test_partial_sums_may_be_beyond_f16(topology: str, keys: list[int]) -> None:
    """40000 + 40000 - 40000: two of them meet on one rank, or in one node, before the third."""
    shuffle = lockstep(specs.routed("f16", reduce="sum"), topology)
    num_ranks = shuffle.topology.num_ranks
    empty = torch.empty(0, NUM_TOPK, dtype=torch.int64)
    ranks = [
        RankData(
            {"x": torch.ones(int(rank == 0), HIDDEN, dtype=torch.float16)},
            {"idx": torch.tensor([keys]) if rank == 0 else empty},
            {"tokens": int(rank == 0)},
        )
        for rank in range(num_ranks)
    ]
    dispatched = dispatch(shuffle, ranks)
    values = dict(zip(keys, (40000.0, 40000.0, -40000.0), strict=True))
    rows = []
    for each in dispatched:
        filled = torch.zeros_like(each.rows["x"])
        for key, begin in zip(each.handle.keys.tolist(), each.handle.key_offsets, strict=False):
            if key in values:
                filled[int(begin)] = values[key]
        rows.append({"x": filled})
    results = shuffle.combine(rows, [each.handle for each in dispatched], [{}] * num_ranks)
    assert torch.equal(results[0]["x"], torch.full((1, HIDDEN), 40000.0, dtype=torch.float16))


def test_a_handle_can_be_combined_again_and_later() -> None:
    shuffle = lockstep(specs.routed("f32"), "2x2")
    earlier = generate(shuffle.spec, shuffle.topology, 5, 3)
    first = dispatch(shuffle, earlier)
    rows = [{name: rows.clone() for name, rows in each.rows.items()} for each in first]
    dispatch(shuffle, generate(shuffle.spec, shuffle.topology, 8, 4))
    weights = [inputs_of(shuffle.spec, data, weights=True) for data in earlier]
    for factor in (1, 2):
        scaled = [{"x": factor * each["x"]} for each in rows]
        results = shuffle.combine(scaled, [each.handle for each in first], weights)
        for wanted, found in zip(combine(shuffle.spec, earlier, scaled), results, strict=True):
            check_result(wanted, found)


def test_source_may_be_strided_and_unaligned() -> None:
    shuffle = lockstep(specs.routed("f32"), "1x1")
    [data] = generate(shuffle.spec, shuffle.topology, 4, 0)
    wide = torch.zeros(4, 2 * HIDDEN + 1)
    wide[:, 1::2] = data.source["x"]
    strided = RankData({"x": wide[:, 1::2]}, data.inputs, data.extents)
    expected = expect(shuffle.spec, [data])
    [found] = dispatch(shuffle, [strided])
    written = expected.rows[0].written
    assert torch.equal(found.rows["x"][written], expected.rows[0].fields["x"][written])


def test_handle_describes_the_dispatch() -> None:
    shuffle = lockstep(specs.routed("f32"), "2x2")
    # Rank 0 sends two tokens: both to keys 0 and 1 (own rank) and to key 9 (rank 3).
    routing: list[list[list[int]]] = [[[0, 1, 9], [0, 1, 9]], [], [], []]
    dispatched = dispatch(shuffle, routed_data(routing, torch.float32, 0))
    handle = dispatched[0].handle
    assert handle.num_slots == 8
    assert handle.keys.tolist() == [0, 1, 2]
    assert handle.key_counts.tolist() == [2, 2, 0]
    assert handle.key_offsets.tolist() == [0, 4, 8, 8]
    assert (handle.stats.network.rows, handle.stats.network.saved_rows) == (2, 0)
    assert handle.stats.network.num_bytes == 2 * HIDDEN * 4
    assert (handle.stats.nvlink.rows, handle.stats.local.rows) == (0, 4)
    forwarder = dispatched[2].handle.stats
    assert (forwarder.nvlink.rows, forwarder.local.rows) == (2, 0)
    assert "8 slots, 3 keys" in repr(handle)


@settings(max_examples=at_night(30))
@given(st.data())
def test_stats_add_up(data: st.DataObject) -> None:
    shuffle = lockstep(specs.routed("f32"), "3x2")
    routing = data.draw(routings(6))
    stats = [
        each.handle.stats for each in dispatch(shuffle, routed_data(routing, torch.float32, 0))
    ]
    points = sum(key >= 0 for keys in routing for token in keys for key in token)
    owner = {key: key // 2 for key in range(NUM_KEYS)}
    remote = sum(
        owner[key] // 2 != rank // 2
        for rank, keys in enumerate(routing)
        for token in keys
        for key in token
        if key >= 0
    )
    copies = {
        (rank, number, owner[key] // 2)
        for rank, keys in enumerate(routing)
        for number, token in enumerate(keys)
        for key in token
        if key >= 0 and owner[key] // 2 != rank // 2
    }
    assert sum(each.network.rows for each in stats) == len(copies)
    assert sum(each.network.saved_rows for each in stats) == remote - len(copies)
    assert sum(each.nvlink.rows + each.local.rows for each in stats) == points


@settings(max_examples=5)
@given(routings(4))
def test_rows_that_a_node_does_not_send_twice(routing: list[list[list[int]]]) -> None:
    """Further points of a segment on another rank, which copies the row that it has got."""
    shuffle = lockstep(specs.routed("f32"), "1x4")
    dispatched = dispatch(shuffle, routed_data(routing, torch.float32, 0))
    saved = [0] * 4
    for rank, keys in enumerate(routing):
        for token in keys:
            destinations = [key // 3 for key in token if key >= 0]
            for destination in set(destinations) - {rank}:
                saved[destination] += destinations.count(destination) - 1
    assert [each.handle.stats.nvlink.saved_rows for each in dispatched] == saved


PARTS = """
    shuffle parts {
      index i : rows   index k : 2   index s : length
      segment tile { x : f32[2, 2] }
      layout cells[y, z] of f32 dense(3 * rows, 5)
      view tiles[i] = cells[3*i .. 3*i+2, 1 .. 3]
      layout slots[s] of tile dense(length)
      route where(i, k) -> (rank, slot) = input table : int64[2]
      dispatch tiles[i] -> slots[where(i, k).slot] on where(i, k).rank
      combine slots[where(i, k).slot] -> tiles[i] reduce sum
    }"""


@pytest.fixture
def nan_where_nothing_was_stored() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("nan_where_nothing_was_stored")
def test_cells_outside_every_segment_are_zero() -> None:
    shuffle = lockstep(PARTS, "1x2")
    round_trip(shuffle, generate(shuffle.spec, shuffle.topology, 4, 0))
