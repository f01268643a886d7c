"""The planner's kernels, interpreted: the same plans as of tensors, to the last element."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch
import triton
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fuscoc_runtime.comm.lockstep import run_lockstep
from fuscoc_runtime.errors import IndexOutOfRangeError
from fuscoc_runtime.kernels.loader import device_module
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan import PlanContext, Points, RankPlan, device, plan_rank, planner
from fuscoc_runtime.plan.device.source import place_points
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.topology import Topology
from tests.plan.specs import Balance, contexts, relation, routed, routed_data, with_rules
from tests.plan.test_plan import patches_case, tiles_case

TOPOLOGIES = ["1x1", "1x2", "2x1", "3x1", "2x2", "3x2", "1x4"]


def plans(
    spec: ShuffleSpec, topology: Topology, ranks: list[RankData], *, kernels: bool
) -> list[RankPlan]:
    return run_lockstep(
        [
            plan_rank(replace(ctx, kernels=kernels), relation(spec, topology, ctx.rank, data))
            for ctx, data in zip(contexts(spec, topology), ranks, strict=True)
        ]
    )


def check_equal(plan: RankPlan, other: RankPlan) -> None:
    """Bit by bit, with the types of every array."""
    assert plan.lists.keys() == other.lists.keys()
    pairs = {
        f"{name}.{column}": (values, other.lists[name][column])
        for name, columns in plan.lists.items()
        for column, values in columns.items()
    }
    for name in ("point_order", "keys", "key_counts", "key_offsets", "row_index"):
        pairs[name] = getattr(plan, name), getattr(other, name)
    for name, (mine, theirs) in pairs.items():
        assert mine.dtype == theirs.dtype == torch.int64, name
        assert torch.equal(mine, theirs), name
    for name in ("rows", "max_rows", "net_send_counts", "net_recv_counts", "point_send_counts"):
        assert getattr(plan, name) == getattr(other, name), name


Case = tuple[ShuffleSpec, Topology, list[RankData]]


def check_case(case: Case) -> None:
    by_kernels, by_tensors = (plans(*case, kernels=kernels) for kernels in (True, False))
    for mine, theirs in zip(by_kernels, by_tensors, strict=True):
        check_equal(mine, theirs)


@st.composite
def routings(draw: st.DrawFn) -> Case:
    """More points than a tile holds, some of them dropped, in any combination of policies."""
    topology = Topology.parse(draw(st.sampled_from(TOPOLOGIES)))
    num_keys = topology.num_ranks * draw(st.sampled_from([1, 2, 20]))
    topk = draw(st.sampled_from([1, 2, 5]))
    placement = draw(st.sampled_from(["block", "cyclic", "table"]))
    dedup = draw(st.sampled_from([(), ("rank",), ("node",), ("node", "rank")]))
    align = draw(st.sampled_from([1, 4]))
    compact = "rank" in dedup and draw(st.booleans())
    spec = with_rules(
        routed(
            topk=topk,
            num_keys=num_keys,
            align=align,
            placement=placement,
            dedup=dedup,
            compact=compact,
        ),
        forwarder=draw(st.sampled_from(get_args(Balance))),
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    owners = torch.randint(0, topology.num_ranks, (num_keys,), generator=generator)
    more = {"owner": owners} if placement == "table" else {}
    ranks = []
    for rank in range(topology.num_ranks):
        tokens = draw(st.sampled_from([0, 1, 7, 20, 50]))
        idx = torch.randint(-1, num_keys, (tokens, topk), generator=generator)
        ranks.append(routed_data(idx, rank, more=more))
    return spec, topology, ranks


@settings(max_examples=10)
@given(routings())
def test_packed_targets(case: Case) -> None:
    check_case(case)


@settings(max_examples=4)
@given(st.one_of(patches_case(), tiles_case()))
def test_dense_targets(case: Case) -> None:
    assume(case[1].num_ranks <= 6)
    check_case(case)


def test_more_than_the_kernels_take() -> None:
    """A fan-out beyond them takes the other way."""
    idx = torch.arange(2 * 200).view(2, 200) % 4
    wide = routed(topk=200, num_keys=4)
    check_case((wide, Topology(2, 1), [routed_data(idx, rank) for rank in range(2)]))


def test_ranks_may_plan_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one has more points than there is room to count, and the other has not."""
    placed = list[int]()

    def spied(ctx: PlanContext, points: Points) -> object:
        placed.append(ctx.rank)
        return place_points(ctx, points)

    monkeypatch.setattr(planner, "place_points", spied)
    monkeypatch.setattr(device, "MAX_TABLE_BYTES", 100)
    idx = torch.arange(2 * 90).view(90, 2) % 4
    check_case(
        (routed(topk=2, num_keys=4), Topology(2, 1), [routed_data(idx, 0), routed_data(idx[:7], 1)])
    )
    assert placed == [1]


@pytest.mark.parametrize("seed", range(2))
def test_what_is_wrong_is_found_before_anything_moves(seed: int) -> None:
    idx = torch.randint(0, 4, (9, 2), generator=torch.Generator().manual_seed(seed))
    idx[5, 1] = 4
    ranks = [routed_data(idx * (rank == seed), rank) for rank in range(2)]
    with pytest.raises(IndexOutOfRangeError, match=rf"idx\[5, 1\].* on rank {seed} is 4"):
        plans(routed(num_keys=4), Topology(1, 2), ranks, kernels=True)


CONSTANTS: dict[tuple[str, str], tuple[int, ...]] = {
    ("plan_sources", "count"): (1, 1, 32, 8, 32, 256),
    ("plan_sources", "take_census"): (8,),
    ("plan_sources", "place"): (1, 1, 32, 8, 32, 1),
    ("plan_words", "describe"): (1, 0, 2, 256),
    ("plan_targets", "forward"): (256,),
    ("plan_targets", "count_kinds"): (0, 2, 32),
    ("plan_targets", "scan_kinds"): (),
    ("plan_targets", "place_targets"): (0, 2, 32),
}
"""What a mixture of 256 experts, top-8, on a few ranks fixes when a kernel is compiled."""

ONE_WARP = "count", "place", "count_kinds", "place_targets"


@pytest.mark.parametrize(("module", "name"), CONSTANTS)
def test_compiles_for_sm_90(module: str, name: str) -> None:
    function = getattr(device_module(module, interpreted=False), name)
    constants = CONSTANTS[module, name]
    num_arguments = len(function.arg_names) - len(constants)
    assert function.do_not_specialize == range(num_arguments), "one machine code for all values"
    signature = dict.fromkeys(function.arg_names[:num_arguments], "i64")
    signature |= dict.fromkeys(function.arg_names[num_arguments:], "constexpr")
    fixed = {(num_arguments + place,): value for place, value in enumerate(constants)}
    source = ASTSource(function, signature, fixed)
    options = {"num_warps": 1 if name in ONE_WARP else 4}
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    ptx = compiled.asm["ptx"]
    assert ".local" not in ptx, "everything lives in registers"
