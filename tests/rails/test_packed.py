"""Slabs of static shuffles, which have places for what crosses: which segments these are, where
they lie, what travels, and calls of whole jobs, uneven ones and in rounds, against the reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc_runtime.demo.generate import generate
from fuscoc_runtime.demo.verify import expect
from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.engine.node import slabs
from fuscoc_runtime.engine.node.crossing import Packing, crossing, leaving
from fuscoc_runtime.engine.node.slabs import Slabs, new_slab_memory, num_places
from fuscoc_runtime.face.choice import MAX_PACKED_BYTES, MAX_SLAB_BYTES, choose_triton
from fuscoc_runtime.manifest.schema import NodeSpec, ShuffleSpec
from fuscoc_runtime.reference import RankData, route
from fuscoc_runtime.topology import Topology
from tests.drawn import at_night
from tests.engine import specs
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.node_triton.given_specs import EXAMPLES
from tests.node_triton.test_any_spec import STATEFUL, Ranks, compiled
from tests.rails import exact_work, rail_work, static_specs
from tests.rails.static_specs import ENDS, EVERY_RANK

pool = pool_of(4)
CPU = torch.device("cpu")
SHAPES = ["2x1", "3x1", "2x2", "4x1", "3x2"]


@st.composite
def layouts(draw: st.DrawFn, num_ranks: int) -> str:
    """Lines of a matrix of three dimensions, the first of which is cut into blocks of the ranks,
    to one that is cut, in blocks or cyclically, along any, with its dimensions in any order."""
    names = ("a", "b", "c")
    whole = {name: draw(st.integers(1, 3)) for name in names}
    cut = draw(st.sampled_from(names))
    for name in {"a", cut}:
        whole[name] *= num_ranks
    here = {name: str(size) for name, size in whole.items()}
    here["a"] = f"({whole['a']} / ranks)"
    run = draw(st.sampled_from([1, 1, 2]))  # of this many lines that lie apart
    along = draw(st.sampled_from(names))
    width = draw(st.integers(1, 5))
    source_order, target_order = (draw(st.permutations(names)) for _ in range(2))
    dims = [f"{here[name]} * {run if name == along else 1}" for name in source_order]
    at = [
        f"{name}*{run} .. {name}*{run}+{run}" if run > 1 and name == along else name
        for name in source_order
    ]
    places = {"a": f"(rank * {here['a']} + a)", "b": "b", "c": "c"}
    lengths = {name: str(size) for name, size in whole.items()}
    lengths[cut] = part = f"({whole[cut]} / ranks)"
    if draw(st.booleans()):
        rank, places[cut] = f"{places[cut]} / {part}", f"{places[cut]} % {part}"
    else:
        rank, places[cut] = f"{places[cut]} % ranks", f"{places[cut]} / ranks"
    dtype = draw(st.sampled_from(["u8", "bf16", "f32", "f64"]))
    shape = f"{run}, {width}" if run > 1 else f"{width}"
    lines = [
        *(f"index {name} : {here[name]}" for name in names),
        f"segment lines {{ x : {dtype}[{shape}] }}",
        f"layout mine[{', '.join(f's{name}' for name in source_order)}] of {dtype}[{width}] "
        f"dense({', '.join(dims)})",
        f"view parts[a, b, c] = mine[{', '.join(at)}]",
        f"layout theirs[{', '.join(f't{name}' for name in target_order)}] of lines "
        f"dense({', '.join(lengths[name] for name in target_order)})",
        f"dispatch parts[a, b, c] -> theirs[{', '.join(places[name] for name in target_order)}] "
        f"on {rank}",
        "combine reverse",
    ]
    return "shuffle cut {\n  " + "\n  ".join(lines) + "\n}\n"


@st.composite
def uneven(draw: st.DrawFn, topology: Topology) -> str:
    kind = draw(st.sampled_from(sorted(ENDS)))
    total, columns = draw(st.integers(1, 11)), draw(st.integers(1, 3))
    if kind == "column":
        columns = min(columns, topology.num_ranks)
    dtype = "f32" if kind == "every" else draw(st.sampled_from(["u8", "bf16", "f64"]))
    return static_specs.uneven(kind, total, columns, dtype, draw(st.integers(1, 5)))


@st.composite
def everywhere(draw: st.DrawFn) -> str:
    kind = draw(st.sampled_from(sorted(EVERY_RANK)))
    dtype = draw(st.sampled_from(["bf16", "f32"]))
    total, reach, width = (draw(st.integers(*ends)) for ends in ((1, 11), (0, 5), (1, 5)))
    return static_specs.everywhere(kind, total, reach, dtype, width)


@st.composite
def static_shuffles(draw: st.DrawFn) -> tuple[Topology, str]:
    topology = Topology.parse(draw(st.sampled_from(SHAPES)))
    make = draw(st.sampled_from([layouts(topology.num_ranks), uneven(topology), everywhere()]))
    return topology, draw(make)


def opened(text: str, topology: Topology) -> ShuffleSpec:
    """As ranks have it that open it."""
    return compiled(text).shuffle().among(topology.num_ranks)


def kernels(shuffle: ShuffleSpec) -> NodeSpec:
    assert shuffle.node is not None, shuffle.node_note
    return shuffle.node.between or shuffle.node


def num_segments(shuffle: ShuffleSpec, topology: Topology) -> list[int]:
    """Of every rank."""
    return [len(leaving(shuffle, topology, rank)) for rank in range(topology.num_ranks)]


def routed(shuffle: ShuffleSpec, topology: Topology) -> list[set[tuple[int, int]]]:
    """By rank the segments and other nodes that these go to, point by point."""
    nothing = [RankData({}, {}, {}) for _ in range(topology.num_ranks)]
    found = [set[tuple[int, int]]() for _ in nothing]
    for each in route(shuffle, nothing)[0]:
        node = each.rank // topology.ranks_per_node
        if node != each.origin.rank // topology.ranks_per_node:
            found[each.origin.rank].add((each.origin.source, node))
    return found


@given(static_shuffles(), st.integers(0, 3), st.integers(1, 3))
@settings(STATEFUL, max_examples=at_night(20), deadline=None)
def test_places_are_of_what_crosses(
    case: tuple[Topology, str], spare: int, round_places: int
) -> None:
    """Each segment has one place in the slab of each node that it goes to, and no other has any;
    both ends of a slab know of as many. It is finished with the round that brings its last sum."""
    topology, text = case
    shuffle = opened(text, topology)
    wanted, counts = routed(shuffle, topology), crossing(shuffle, topology)
    assert counts is not None
    sources = num_segments(shuffle, topology)
    most = max(1, *sources) + spare
    stride = num_places(shuffle, kernels(shuffle), most)
    packed = [Packing(shuffle, topology, rank, most, stride) for rank in range(topology.num_ranks)]
    for rank, packing in enumerate(packed):
        own = topology.node(rank)
        assert packing.at[own].tolist() == list(range(stride))
        for node in range(topology.num_nodes):
            peer = node * topology.ranks_per_node + topology.local_rank(rank)
            there = sorted(source for source, to in wanted[rank] if to == node)
            assert packing.sent[node] == counts[rank, node] == len(there)
            assert packed[peer].received[own] == len(there)
            if node != own:
                has = packing.at[node].tolist()
                assert [has[source] for source in there] == list(range(len(there)))
                assert has.count(-1) == stride - len(there)
        check_order(packing, own, sources[rank], stride, round_places * slabs.STEP)


def check_order(packing: Packing, own: int, num_sources: int, stride: int, size: int) -> None:
    rounds = [range(at, min(at + size, stride)) for at in range(0, stride, size)]
    order, finished = packing.finishing(rounds, slabs.MAX_GROUP)
    listed = order.tolist()
    assert sorted(listed) == list(range(stride))
    assert {*listed[:num_sources]} == {*range(num_sources)}
    assert [at for each in finished for at in each] == list(range(stride))
    assert [each.stop == stride for each in finished] == [False] * (len(rounds) - 1) + [True]
    others = [at for node, at in enumerate(packing.at.tolist()) if node != own]
    for number, each in enumerate(finished):
        for first in range(each.start, min(each.stop, num_sources), slabs.MAX_GROUP):
            pair = listed[first : first + slabs.MAX_GROUP]
            assert [source - pair[0] for source in pair] == [*range(len(pair))]
            last = max(at[source] for at in others for source in pair)
            needed = max(0, last) // size
            is_cut = pair[-1] >= num_sources - 1 and num_sources % slabs.MAX_GROUP
            is_last_pair = is_cut or stride - 1 in pair
            assert number == needed or (is_last_pair and number == len(rounds) - 1)


@given(static_shuffles(), st.booleans())
@settings(STATEFUL, max_examples=at_night(20), deadline=None)
def test_what_travels_is_what_crosses(case: tuple[Topology, str], is_one_round: bool) -> None:
    """What a rank sends and its peer expects, bytes of points and rows of segments that cross, once
    each; nothing of other places but what lies between two parts, if there is one round."""
    topology, text = case
    shuffle = opened(text, topology)
    node, counts = kernels(shuffle), crossing(shuffle, topology)
    assert counts is not None
    most, step = int(counts.amax()), topology.ranks_per_node
    num_sources = max(1, *num_segments(shuffle, topology))
    stride = num_places(shuffle, node, num_sources)
    given = shuffle, node, topology, num_sources
    memory = new_slab_memory(*given, CPU, most)
    made = []
    for rank in range(topology.num_ranks):
        packing = Packing(shuffle, topology, rank, num_sources, stride)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(slabs, "ROUND_BYTES", 1)
            patch.setattr(slabs, "MESSAGE_BYTES", 1)
            made.append(Slabs(*given, memory, is_one_round, most, packing))
    point = shuffle.program.fanout * slabs.POINT_BYTES
    row = sum(size for _, size in made[0]._places)
    for rank, each in enumerate(made):
        own = topology.node(rank)
        for to in set(range(topology.num_nodes)) - {own}:
            other = to * step + rank % step
            peer, goes, returns = made[other], int(counts[rank, to]), int(counts[other, own])
            for ranges, its, told, count, of_one in (
                (each.ranges, peer.ranges, 0, goes, point + row),
                (each.ranges_back, peer.ranges_back, 1, returns, 4 + node.partial_bytes),
            ):
                longest = max(memory.out.shape[1], memory.back.shape[1])
                seen = torch.zeros(longest, dtype=torch.int64)
                for places in each.rounds:
                    sent = ranges(places).sends[to]
                    assert sent == its(places).receives[own]
                    for part in sent:
                        seen[part.start : part.stop] += 1
                headers = 1 + told * (len(each.rounds) - 1)
                assert seen[: slabs.HEADER_BYTES].tolist() == [headers] * slabs.HEADER_BYTES
                behind = seen[slabs.HEADER_BYTES :]
                assert behind.max() <= 1
                if len(each.rounds) > 1:
                    assert int(behind.sum()) == count * of_one
                else:
                    between = len(each._places) * slabs.JOINED_BYTES
                    assert count * of_one <= int(behind.sum()) <= count * of_one + between
                    assert (count == 0) == (int(behind.sum()) == 0)


@pytest.mark.parametrize(
    ("topology", "opens"),
    [
        pytest.param("2x2", rail_work.open_shuffle, id="at once", marks=pytest.mark.nightly),
        pytest.param("4x1", rail_work.open_in_rounds, id="in rounds"),
    ],
)
def test_sums_gradients_and_refusals(pool: Pool, topology: str, opens: Any) -> None:
    """A rank that refuses a dispatch packs nothing into places that others have packed before, and
    one that refuses a combine loses the sums that its rows are part of: of four ranks those of
    segments that go there."""
    text = static_specs.uneven("every", 7, 2, "f32", rail_work.HIDDEN, is_weighted=True)
    options = {"max_sources": 4, "topology": topology}
    found = pool.run(rail_work.weighed, 4, str(specs.artifact(text).path), options, opens)
    *others, refusing = found
    for rank, (combined, called, dispatched, lost) in enumerate(others):
        assert lost == ("...." if rank == 0 else "xxxx")
        assert (combined == "no error") == (rank == 0 and topology == "2x2")
        assert called == "no error"
        assert f"rank 3 refused 1 calls that rank {rank} had joined" in dispatched
    shapes = ["[1, 7]", "no error", "[1, 2, 23]", "no error", ""]
    assert all(shape in said for shape, said in zip(shapes, refusing, strict=True))


@pytest.mark.parametrize(
    ("name", "topology", "crossing_segments"),
    [
        ("ulysses", "2x1", [16, 16]), ("fft_transpose", "4x1", [2, 2, 2, 2]),
        ("redistribute", "2x2", [2, 2, 2, 2]), ("all_gather", "2x2", [3, 3, 3, 2]),
        ("halo", "2x1", [1, 1]), ("halo", "2x2", [0, 1, 1, 0]),
    ],
)  # fmt: skip
def test_bytes_are_of_what_crosses(
    pool: Pool, name: str, topology: str, crossing_segments: list[int]
) -> None:
    """Of every rank to each other node: half of the rows of two nodes, a quarter to each of four;
    all rows once to another node, and of a halo those that are within reach."""
    small, where = EXAMPLES[name], Topology.parse(topology)
    artifact = specs.artifact(small.text)
    program = artifact.shuffle().among(where.num_ranks).program
    [field] = program.buffers["target"]
    row = field.num_elems * TORCH_DTYPES[field.dtype].itemsize
    segment = program.fanout * slabs.POINT_BYTES + row
    options = {**small.options, "topology": topology}
    found = pool.run(rail_work.bytes_sent, where.num_ranks, str(artifact.path), options)
    for rank, (each, crosses) in enumerate(zip(found, crossing_segments, strict=True)):
        wanted = [slabs.HEADER_BYTES + crosses * segment] * where.num_nodes
        wanted[where.node(rank)] = 0
        assert each == wanted


def test_limits_are_of_what_crosses() -> None:
    """Of what slabs hold that have places for half of the segments, whatever `max_sources` says."""
    text = static_specs.uneven("cyclic", 1024, 20, "f32", 1800)
    shuffle, topology = compiled(text).shuffle(), Topology(2, 1)
    counts = crossing(shuffle, topology)
    assert counts is not None
    assert counts.tolist() == [[0, 5120], [5120, 0]]
    assert MAX_SLAB_BYTES < 5120 * 4 * 25_000 < MAX_PACKED_BYTES // 2 < 5120 * 4 * 27_000
    for width in (1800, 25_000):
        carried = compiled(text.replace("1800", str(width))).shuffle()
        for most in (20480, 1 << 20):
            assert choose_triton(carried, topology, most) == kernels(carried)
    longer = compiled(text.replace("1800", "27000")).shuffle()
    said = str(choose_triton(longer, topology, 20480))
    assert said.startswith("slabs of what crosses would take 11")
    assert said.endswith(f"more than {MAX_PACKED_BYTES}")


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    found = Ranks(6)
    yield found
    found.close()


def test_rounds_of_others(ranks: Ranks) -> None:
    """One rank has a segment for every place there is, none of which crosses, and slabs travel in
    several rounds, as others send it theirs: the combine of all ends once."""
    artifact, topology = compiled(static_specs.uneven("first", 128, 2, "f32", 3)), Topology(2, 1)
    shuffle = artifact.shuffle()
    counts = crossing(shuffle, topology)
    assert counts is not None
    assert counts.tolist() == [[0, 0], [128, 0]]
    assert num_places(shuffle, kernels(shuffle), 128) == 128
    brought = generate(shuffle, topology, 1, 0)
    options = {"topology": str(topology)}
    fixed = {**options, "max_sources": 128, "capacity": 256}
    calls = artifact, brought, expect(shuffle, brought)
    assert not ranks.run(2, *calls, fixed, rail_work.open_in_rounds)
    assert not ranks.run(2, *calls, options, exact_work.open_in_rounds)


def check_calls(
    ranks: Ranks, data: st.DataObject, shapes: list[str], is_exact: bool = False
) -> None:
    """A dispatch and a combine, in one round or in several."""
    topology = Topology.parse(data.draw(st.sampled_from(shapes)))
    text = data.draw(uneven(topology) | everywhere() | layouts(topology.num_ranks))
    artifact = compiled(text)
    shuffle = artifact.shuffle()
    brought = generate(shuffle, topology, 1, data.draw(st.integers(0, 9)))
    expected = expect(shuffle, brought)
    options: dict[str, Any] = {"topology": str(topology)}
    work: Any = exact_work if is_exact else rail_work
    if not is_exact:
        options |= {
            "max_sources": max(1, *num_segments(shuffle, topology)) + data.draw(st.integers(0, 2)),
            "capacity": max(1, *(len(rows.written) for rows in expected.rows)),
        }
    opens = data.draw(st.sampled_from([work.open_shuffle, work.open_in_rounds]))
    assert not ranks.run(topology.num_ranks, artifact, brought, expected, options, opens)


@given(data=st.data())
@settings(STATEFUL, max_examples=4)
def test_any_static_shuffle(ranks: Ranks, data: st.DataObject) -> None:
    check_calls(ranks, data, ["2x1", "2x2"])


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@given(data=st.data())
@settings(STATEFUL, max_examples=200)
def test_any_static_shuffle_at_night(ranks: Ranks, data: st.DataObject) -> None:
    check_calls(ranks, data, SHAPES)
