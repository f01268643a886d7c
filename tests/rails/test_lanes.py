"""Large exchanges between hosts, divided among communicators: both ends of a pair divide alike, all
is awaited, and calls of whole jobs bring the same rows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fuscoc_runtime.comm import lanes
from fuscoc_runtime.comm.lanes import divided, lanes_of
from fuscoc_runtime.comm.rails import Ranges
from fuscoc_runtime.comm.requests import Crossing, Rows
from fuscoc_runtime.engine import probe
from fuscoc_runtime.engine.node import rail_commands
from fuscoc_runtime.engine.node.rail_commands import RailCommands
from fuscoc_runtime.engine.node.triton_program import TritonProgram
from fuscoc_runtime.kernels.commands import Await, Command, Exchange, Launch
from fuscoc_runtime.plan.links import Link
from tests.engine import specs
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.node_triton import rank_work
from tests.node_triton.given_specs import EXAMPLES
from tests.rails import exact_work, rail_work

pool = pool_of(4)
KERNELS = ("pack", "forward", "collect", "finish")
LANE = 1000
"""Bytes that are enough for a lane here."""


@pytest.fixture(autouse=True)
def small_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "LANE_BYTES", LANE)
    monkeypatch.setattr(lanes, "ALIGNMENT", 16)


@st.composite
def traffic(draw: st.DrawFn) -> list[list[list[int]]]:
    """Of every rank for every other one the bytes of messages: other ones for each, some none."""
    ranks = draw(st.integers(2, 4))
    sizes = st.lists(st.integers(0, 3 * LANE), max_size=4)
    return [[draw(sizes) if to != rank else [] for to in range(ranks)] for rank in range(ranks)]


@given(traffic(), st.integers(1, 5))
def test_both_ends_divide_alike(sent: list[list[list[int]]], most: int) -> None:
    """Each message has a receive of its size, on its lane and in its place there; parts behind each
    other are all bytes, about as many on every lane."""
    ranks = range(len(sent))

    def side(messages: Sequence[list[int]], rank: int) -> tuple[Rows, ...]:
        return tuple(
            Rows(peer, tuple(torch.arange(n).to(torch.uint8) for n in messages[peer]))
            for peer in ranks
            if peer != rank
        )

    made = [
        divided(
            Crossing(side(sent[rank], rank), side([*zip(*sent, strict=True)][rank], rank)),
            most,
        )
        for rank in ranks
    ]
    for rank in ranks:
        for peer in set(ranks) - {rank}:
            goes = [[r.fields for r in each.sends if r.peer == peer] for each in made[rank]]
            comes = [[r.fields for r in each.receives if r.peer == rank] for each in made[peer]]
            there, here = (
                [[field.tolist() for field in fields[0]] for fields in each if fields]
                for each in (goes, comes)
            )
            assert there == here
            whole = [
                n for each in sent[rank][peer] for n in torch.arange(each).to(torch.uint8).tolist()
            ]
            assert [n for lane in there for field in lane for n in field] == whole
            assert len(there) == max(1, min(most, len(whole) // LANE))
            each = [sum(map(len, lane)) for lane in there]
            assert max(each) - min(each) <= 2 * 16
            if len(there) > 1:
                assert min(each) > LANE - 16


def test_small_exchanges_stay_whole() -> None:
    what = Crossing((Rows(1, (torch.zeros(2 * LANE - 1, dtype=torch.uint8),)),), ())
    [same] = divided(what, 8)
    assert [rows.peer for rows in same.sends] == [1]
    assert same.sends[0].fields[0].data_ptr() == what.sends[0].fields[0].data_ptr()
    assert same.sends[0].fields[0].shape == what.sends[0].fields[0].shape
    assert len(divided(Crossing((), ()), 8)) == 1
    assert [lanes_of(n * LANE, 4) for n in (0, 1, 2, 3, 4, 9)] == [1, 1, 2, 3, 4, 4]


class Beside:
    """How an exchange travels beside its list, and what that waits for."""

    def __init__(self, device: object, lane: int = 0) -> None:
        self.lane, self.waits = lane, True

    def behind(self) -> Beside:
        self.waits = False
        return self


class OneRail:
    """A rail to one other node, that keeps what is to travel."""

    def __init__(self, num_lanes: int) -> None:
        self.num_lanes = num_lanes

    def between(self, sent: torch.Tensor, received: torch.Tensor, ranges: Ranges) -> Crossing:
        [part] = ranges.sends[1]
        rows = (Rows(1, (sent[1, part.start : part.stop],)),)
        return Crossing(rows, rows)

    def command(self, what: Crossing, is_told: bool, beside: Any, lane: int) -> Exchange:
        assert is_told
        return Exchange(None, lambda: None, (what, beside, lane))


def commands(rounds: list[int], num_lanes: int, is_packed: bool) -> list[Command]:
    """Of rounds of so many bytes."""
    bounds = [sum(rounds[:n]) for n in range(len(rounds) + 1)]
    places = [range(*each) for each in itertools.pairwise(bounds)]
    slab = torch.zeros(2, bounds[-1], dtype=torch.uint8)
    slabs = SimpleNamespace(
        rounds=places, finished=places, ranges=lambda each: Ranges([[], [each]], [[], [each]]),
        ranges_back=lambda each: Ranges([[], [each]], [[], [each]]),
        memory=SimpleNamespace(out=slab, landed=slab, back_out=slab, back=slab),
    )  # fmt: skip
    kernel = cast(Any, None)
    program = SimpleNamespace(
        device=torch.device("cuda"), named={}, kernels=dict.fromkeys(KERNELS, kernel),
        evaluating=list, planning=lambda _: [Launch(kernel, "one")], num_nodes=2,
    )  # fmt: skip
    made = RailCommands(
        cast(Any, program), cast(Any, OneRail(num_lanes)), cast(Any, slabs), bounds[-1], {}
    )
    return made.forth() if is_packed else made.back()


@pytest.mark.parametrize("is_packed", [True, False], ids=["forth", "back"])
@pytest.mark.parametrize(
    ("rounds", "num_lanes", "wanted"),
    [
        ([5 * LANE], 1, [1]),
        ([LANE], 4, [1]),
        ([5 * LANE], 4, [4]),
        ([2 * LANE, 9 * LANE, LANE], 4, [2, 4, 1]),
        ([LANE, LANE], 4, [1, 1]),
    ],
)
def test_all_that_travels_is_awaited(
    monkeypatch: pytest.MonkeyPatch,
    rounds: list[int],
    num_lanes: int,
    wanted: list[int],
    is_packed: bool,
) -> None:
    """Beside the list if it is several exchanges; on a lane behind the list, what comes first there
    too. A round is awaited on all its lanes, by what reads it first."""
    monkeypatch.setattr(rail_commands, "Beside", Beside)
    made = commands(rounds, num_lanes, is_packed)
    posted = [each for each in made if isinstance(each, Exchange)]
    assert [each.held[2] for each in posted] == [lane for n in wanted for lane in range(n)]
    awaited = [each.exchange for each in made if isinstance(each, Await)]
    if len(posted) == 1:
        assert not awaited
        assert posted[0].held[1] is None
        return
    assert awaited == posted
    begun = set[int]()
    for each in posted:
        _, beside, lane = each.held
        assert beside.lane == lane
        assert beside.waits == (not is_packed or lane not in begun)
        begun.add(lane)
    ends = [at + 1 for at, each in enumerate(made) if isinstance(each, Await)]
    behind = [made[at] for at in ends if isinstance(made[at], Launch)]
    assert len(behind) == len(wanted)
    assert not any(each.follows for each in behind)


@pytest.mark.parametrize(
    ("is_measured", "is_one_host", "num_bytes", "bandwidth", "wanted"),
    [
        (True, False, 2 * LANE, 2e9, 4),
        (False, False, 2 * LANE, 2e9, None),
        (True, True, 2 * LANE, 2e9, None),
        (True, False, 2 * LANE - 1, 2e9, None),
        (True, False, 2 * LANE, probe.FAST, 1),
    ],
    ids=["sockets", "given", "one host", "small", "NICs"],
)
def test_who_wants_lanes(
    monkeypatch: pytest.MonkeyPatch,
    is_measured: bool,
    is_one_host: bool,
    num_bytes: int,
    bandwidth: float,
    wanted: int | None,
) -> None:
    """Nobody measures the network for slabs that one lane would carry in any case."""
    measured, found = list[object](), list[int]()

    def link(members: object) -> Link:
        measured.append(members)
        return Link(bandwidth, 1e-5, 4)

    monkeypatch.setattr(probe, "link_between", link)
    rails = SimpleNamespace(is_measured=is_measured, divide_among=found.append)
    members = SimpleNamespace(is_one_host=is_one_host)
    probe.divide_slabs(cast(Any, rails), cast(Any, members), num_bytes)
    assert found == ([] if wanted is None else [wanted])
    assert len(measured) == len(found)


WIDE = specs.routed("bf16", hidden=40, keys=12, topk=8, align=1)


@pytest.mark.parametrize(
    ("text", "topology"),
    [(WIDE, "2x1"), pytest.param(WIDE, "2x2", marks=pytest.mark.nightly)],
    ids=["2x1", "2x2"],
)
@pytest.mark.parametrize("work", [rail_work.rounds, exact_work.rounds], ids=["fixed", "exact"])
def test_calls(pool: Pool, work: Any, text: str, topology: str) -> None:
    """In rounds, each on several lanes; rows bit by bit, results within rounding."""
    num_ranks = {"2x1": 2, "2x2": 4}[topology]
    batches = [(3, *[12] * (num_ranks - 1)), (12, *[9] * (num_ranks - 1))]
    path = str(specs.artifact(text).path)
    found = pool.run(rail_work.on_lanes, num_ranks, path, work, topology, batches)
    assert [used for _, used in found] == [4] * num_ranks


def test_slabs_of_what_crosses(pool: Pool) -> None:
    """A static shuffle whose ranks send each node something else, on as many lanes as that is."""
    small = EXAMPLES["redistribute"]
    options = {**small.options, "topology": "4x1"}
    path = str(specs.artifact(small.text).path)
    found = pool.run(rail_work.on_lanes, 4, path, rail_work.in_rounds, [(1,) * 4] * 2, options)
    assert all(used > 1 for _, used in found)


def test_lanes_of_one_host(pool: Pool) -> None:
    """None but the first."""
    path = str(specs.artifact(WIDE).path)
    work = partial(rank_work.epochs, topology="2x1")
    found = pool.run(rail_work.on_lanes, 2, path, work, [(3, 12)], 1)
    assert [used for _, used in found] == [1, 1]


@pytest.mark.parametrize("role", ["assign", "place"])
@pytest.mark.parametrize(
    ("num_nodes", "tiles", "follows"),
    [(2, 64, [True, True]), (2, 65, [True, False]), (1, 8, [False] * 2)],
)
def test_what_waits_for_peers_leads_no_kernel_that_fills_the_gpu(
    num_nodes: int, tiles: int, follows: list[bool], role: str
) -> None:
    """Where ranks of several nodes share GPUs, two of them could keep each other's peers out."""
    kernels = dict.fromkeys(("count", "exchange", "assign", "place"))
    program = SimpleNamespace(
        num_nodes=num_nodes, is_dense=role == "place", sorts=False, kernels=kernels, named={},
        table=None, spec=SimpleNamespace(kernels=kernels),
    )  # fmt: skip
    sizes = {"programs": 64, "exchanging": 8, "tiles": tiles}
    made = TritonProgram.planning(cast(Any, program), sizes)
    assert [(each.programs, each.follows) for each in made[-2:]] == [
        ("exchanging", follows[0]),
        ("tiles", follows[1]),
    ]
