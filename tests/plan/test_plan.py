"""Executing a plan's lists moves exactly what the reference says, on any topology."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc_runtime import reference
from fuscoc_runtime.comm.lockstep import run_lockstep
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan import RankPlan, plan_rank
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.topology import Topology
from tests.drawn import at_night
from tests.plan.executor import Executor, Rows, entries
from tests.plan.specs import (
    Balance,
    balanced,
    contexts,
    patches,
    relation,
    routed,
    routed_data,
    tiles,
)

TOPOLOGIES = ["1x1", "1x4", "2x2", "4x1", "3x2", "2x3", "4x4"]
DEDUPS = [("node", "rank"), ("node",), ("rank",), ()]

topologies = st.sampled_from(TOPOLOGIES).map(Topology.parse)
dedups = st.sampled_from(DEDUPS)
balances = st.sampled_from(get_args(Balance))


def make_plans(spec: ShuffleSpec, topology: Topology, ranks: list[RankData]) -> list[RankPlan]:
    return run_lockstep(
        [
            plan_rank(ctx, relation(spec, topology, ctx.rank, data))
            for ctx, data in zip(contexts(spec, topology), ranks, strict=True)
        ]
    )


def check(spec: ShuffleSpec, topology: Topology, ranks: list[RankData]) -> Executor:
    """Dispatch and combine by the plan's lists, against the reference."""
    plans = make_plans(spec, topology, ranks)
    executor = Executor(spec, topology, plans, ranks)
    rows, writes = executor.dispatch()
    expected = reference.dispatch(spec, ranks)
    for plan, got, count, want in zip(plans, rows, writes, expected, strict=True):
        assert (count == want.written.numpy()).all(), "each slot once, padding never"
        for name, values in want.fields.items():
            written = want.written.numpy()
            flat = values.numpy().reshape(got[name].shape)
            np.testing.assert_array_equal(got[name][written], flat[written])
        assert tuple(plan.keys.tolist()) == want.keys
        assert tuple(plan.key_counts.tolist()) == want.key_counts
        assert tuple(plan.key_offsets.tolist()) == want.key_offsets
    check_combine(spec, executor, ranks, rows)
    check_invariants(spec, topology, executor)
    return executor


def check_combine(spec: ShuffleSpec, executor: Executor, ranks: list[RankData], rows: Rows) -> None:
    # The consumer changes the rows in between.
    outputs = [
        {name: (values * 3 + 1).astype(values.dtype) for name, values in each.items()}
        for each in rows
    ]
    weight = spec.declared.combine.weight if spec.declared.combine is not None else None
    weights = [data.inputs[weight.input].numpy() for data in ranks] if weight else None
    got = executor.combine(outputs, weights)
    shaped = [
        {
            field.name: torch.from_numpy(each[field.name]).view(-1, *field.shape)
            for field in spec.declared.fields
        }
        for each in outputs
    ]
    want = reference.combine(spec, ranks, shaped)
    for mine, theirs in zip(got, want, strict=True):
        for name, values in theirs.fields.items():
            flat = values.numpy().reshape(mine[name].shape)
            if theirs.magnitude:
                bound = 1e-12 * theirs.magnitude[name].numpy().reshape(flat.shape)
                assert (np.abs(mine[name] - flat) <= bound).all()
            else:
                np.testing.assert_array_equal(mine[name], flat)


def check_invariants(spec: ShuffleSpec, topology: Topology, executor: Executor) -> None:
    """What holds for every plan, whatever the routing."""
    if spec.program.copies_once("node"):
        assert all(count == 1 for count in executor.traffic.network.values())
    if spec.program.copies_once("rank"):
        assert all(count == 1 for count in executor.traffic.nvlink.values())
    else:
        assert executor.traffic.local == 0
    for plan in executor.plans:
        for columns in plan.lists.values():
            for column in columns.values():
                assert column.dtype == torch.int64
                assert column.is_contiguous(), "kernels are given addresses"
        largest = plan.max_rows
        for name in ("target", "staging", "forward_staging", "slices", "landing"):
            assert getattr(plan.rows, name) <= getattr(largest, name)
            assert getattr(largest, name) == max(
                getattr(each.rows, name) for each in executor.plans
            )
        assert plan.rows.forward_staging == len(list(entries(plan, "forward")))
        served = [(each["src_row"], each["dst_peer"]) for each in entries(plan, "forward")]
        assert served == sorted(served), "forward is ordered by landing row, then rank"
        if spec.program.exchange.forwarder == "static":
            for to, count in enumerate(plan.net_send_counts):
                same_group = topology.local_rank(to) == topology.local_rank(plan.rank)
                assert same_group or count == 0


@pytest.mark.parametrize("dedup", DEDUPS, ids="+".join)
@pytest.mark.parametrize("make", [routed, patches, tiles])
def test_copies_are_for_what_the_text_says(
    make: Callable[..., ShuffleSpec], dedup: tuple[str, ...]
) -> None:
    """What ``check_invariants`` relies on."""
    program = make(dedup=dedup).program
    tiers: tuple[Literal["node", "rank"], ...] = ("node", "rank")
    assert tuple(tier for tier in tiers if program.copies_once(tier)) == dedup


@st.composite
def routed_case(draw: st.DrawFn) -> tuple[ShuffleSpec, Topology, list[RankData]]:
    topology = draw(topologies)
    placement = draw(st.sampled_from(["block", "cyclic", "table"]))
    num_keys = draw(st.integers(1, 3)) * topology.num_ranks
    topk = draw(st.integers(1, 4))
    align = draw(st.sampled_from([1, 2, 4]))
    spec = routed(
        topk=topk, num_keys=num_keys, align=align, placement=placement, dedup=draw(dedups)
    )
    more = {}
    if placement == "table":
        owners = st.integers(0, topology.num_ranks - 1)
        table = draw(st.lists(owners, min_size=num_keys, max_size=num_keys))
        more["owner"] = torch.tensor(table)
    key = draw(st.sampled_from([st.integers(-1, num_keys - 1), st.just(-1), st.just(0)]))
    ranks = []
    for rank in range(topology.num_ranks):
        row = st.lists(key, min_size=topk, max_size=topk)
        rows = draw(st.lists(row, max_size=5))
        idx = torch.tensor(rows, dtype=torch.int64).view(len(rows), topk)
        ranks.append(routed_data(idx, rank, more=more))
    return balanced(spec, draw(balances)), topology, ranks


@given(routed_case())
@settings(max_examples=at_night(60))
def test_routed(case: tuple[ShuffleSpec, Topology, list[RankData]]) -> None:
    check(*case)


@st.composite
def patches_case(draw: st.DrawFn) -> tuple[ShuffleSpec, Topology, list[RankData]]:
    """Pictures of different sizes, dealt to random ranks, slots given out in random order."""
    topology = draw(topologies)
    p = draw(st.integers(1, 3))
    used = [0] * topology.num_ranks
    sizes, packing = [], []
    for _ in range(topology.num_ranks):
        pictures = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 2)), max_size=2))
        sizes.append(pictures)
        packing.append([])
        for height, width in pictures:
            to = draw(st.integers(-1, topology.num_ranks - 1))
            packing[-1].append([to, used[to] + draw(st.integers(0, 1)) if to >= 0 else 0])
            if to >= 0:
                used[to] = packing[-1][-1][1] + height * width
    ranks = []
    for rank, pictures in enumerate(sizes):
        height = torch.tensor([h * p for h, _ in pictures], dtype=torch.int64)
        width = torch.tensor([w * p for _, w in pictures], dtype=torch.int64)
        cells = int((height * width).sum())
        pixels = (torch.arange(cells * 3) + 17 * rank).to(torch.uint8).view(cells, 3)
        where = torch.tensor(packing[rank], dtype=torch.int64).view(len(pictures), 2)
        inputs = {"height": height, "width": width, "packing": where}
        extents = {"images": len(pictures), "length": used[rank] + draw(st.integers(0, 2))}
        ranks.append(RankData({"pixels": pixels}, inputs, extents))
    return balanced(patches(p=p, dedup=draw(dedups)), draw(balances)), topology, ranks


@given(patches_case())
@settings(max_examples=at_night(100))
def test_patches(case: tuple[ShuffleSpec, Topology, list[RankData]]) -> None:
    check(*case)


@st.composite
def tiles_case(draw: st.DrawFn) -> tuple[ShuffleSpec, Topology, list[RankData]]:
    """Tiles with several copies each, at slots drawn without repetition."""
    topology = draw(topologies)
    copies = draw(st.integers(1, 3))
    tile_rows = draw(st.lists(st.integers(0, 2), min_size=topology.num_ranks))
    tile_rows = tile_rows[: topology.num_ranks]
    num_points = sum(tile_rows) * 2 * copies
    slots = [(rank, slot) for rank in range(topology.num_ranks) for slot in range(num_points + 1)]
    chosen = iter(draw(st.permutations(slots))) if slots else iter([])
    ranks = []
    for rank, rows in enumerate(tile_rows):
        where = torch.zeros(rows, 2, copies, 2, dtype=torch.int64)
        for place in where.view(-1, 2):
            dropped = draw(st.integers(0, 3)) == 0
            place[:] = torch.tensor([-1, 0] if dropped else next(chosen))
        a = torch.arange(rows * 24, dtype=torch.float32).view(rows * 2, 4, 3) + 1000 * rank
        b = torch.arange(rows * 8, dtype=torch.float16).view(rows * 2, 4) - 100 * rank
        extents = {"tile_rows": rows, "length": num_points + 1}
        ranks.append(RankData({"a": a, "b": b}, {"where": where}, extents))
    return balanced(tiles(copies=copies, dedup=draw(dedups)), draw(balances)), topology, ranks


@given(tiles_case())
@settings(max_examples=at_night(100))
def test_tiles(case: tuple[ShuffleSpec, Topology, list[RankData]]) -> None:
    check(*case)
