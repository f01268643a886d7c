"""Balance policies in plans: who forwards what, at what cost, and that all ranks agree."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc_runtime.comm.lockstep import run_lockstep
from fuscoc_runtime.comm.requests import AllGather, StartGather
from fuscoc_runtime.errors import NativeBuildError
from fuscoc_runtime.plan import Plan, native, plan_all, plan_rank
from fuscoc_runtime.plan.balance import POLICIES, communication_groups
from fuscoc_runtime.plan.cost import CostModel
from fuscoc_runtime.topology import Topology
from tests.drawn import at_night
from tests.plan.specs import (
    ALL_DEDUP,
    Balance,
    balanced,
    contexts,
    relation,
    routed,
    routed_data,
)
from tests.plan.test_plan import check

TWO = Topology(2, 8)
LOADS = [8, 7, 6, 5, 4, 3, 2, 1]


def plan(idx: list[torch.Tensor], topology: Topology, balance: Balance, **spec: Any) -> Plan:
    shuffle = balanced(routed(topk=idx[0].shape[1], **spec), balance)
    points = [
        relation(shuffle, topology, rank, routed_data(each, rank)) for rank, each in enumerate(idx)
    ]
    return plan_all(shuffle, topology, points)


def eight_to_one(balance: Balance) -> Plan:
    """Local rank ``l`` of two nodes sends 8 - l segments to the other node, each to one key there.

    One key a rank; the destinations go round.
    """
    idx = []
    for rank in range(16):
        other = 8 * (1 - rank // 8)
        idx.append(torch.tensor([[other + i % 8] for i in range(LOADS[rank % 8])]))
    return plan(idx, TWO, balance, num_keys=16)


def received(of: Plan) -> list[int]:
    return sorted(of.traffic.network.sum(axis=0)[:8].tolist(), reverse=True)


def test_loads_of_eight_to_one() -> None:
    """Greedy pairs neighbours (8 with 7), whole flows leave one rank with 8, a cut one with 5."""
    assert received(eight_to_one("static")) == LOADS
    groups = eight_to_one("greedy").traffic.network
    pairs = groups + groups.T
    assert pairs.max() == 15
    assert received(eight_to_one("lpt")) == LOADS
    assert received(eight_to_one("split")) == [5, 5, 5, 5, 4, 4, 4, 4]


@pytest.mark.parametrize(
    ("loads", "groups"),
    [
        ([[4, 1, 3, 2], [2, 5, 1, 3]], [[0, 7], [2, 4], [3, 6], [1, 5]]),
        ([[5, 2], [1, 6], [4, 4]], [[0, 2, 4], [1, 3, 5]]),
    ],
)
def test_groups_worked_by_hand(loads: list[list[int]], groups: list[list[int]]) -> None:
    """The examples of docs/scheduling.md; every rank sends all it has to the next node's first."""
    topology = Topology(len(loads), len(loads[0]))
    idx = []
    for node, ranks in enumerate(loads):
        first = (node + 1) % topology.num_nodes * topology.ranks_per_node
        idx += [torch.full((load, 1), first) for load in ranks]
    planned = plan(idx, topology, "greedy", num_keys=topology.num_ranks)
    assert communication_groups(planned.traffic.demand).tolist() == groups
    for source, sent in enumerate(planned.traffic.network):
        (group,) = [group for group in groups if source in group]
        assert set(np.flatnonzero(sent)) <= set(group)


@pytest.mark.parametrize("dedup", [ALL_DEDUP, ("node",), ("rank",), ()], ids="+".join)
def test_cut_flows_deliver_everything(dedup: tuple[str, ...]) -> None:
    """One source has it all, so its flows must be cut; several keys a segment."""
    topology = Topology(3, 2)
    idx = [torch.tensor([[5, 4, 2], [4, 4, -1], [0, 3, 5], [5, 2, 3], [3, 3, 3]])]
    idx += [torch.zeros(0, 3, dtype=torch.int64)] * 5
    ranks = [routed_data(each, rank) for rank, each in enumerate(idx)]
    shuffle = balanced(routed(topk=3, num_keys=6, dedup=dedup), "split")
    executor = check(shuffle, topology, ranks)
    sent = executor.plans[0].net_send_counts
    for node in (1, 2):
        first, second = sent[2 * node : 2 * node + 2]
        assert abs(first - second) <= 1
        assert first + second > 0


def test_only_cut_flows_are_gathered_again() -> None:
    """Whole flows need no more words than no balancing at all."""

    def gathers(balance: Balance, rows: int) -> int:
        counted = 0

        def counting(generator: Any) -> Any:
            nonlocal counted
            answer = None
            while True:
                try:
                    request = generator.send(answer)
                except StopIteration as stop:
                    return stop.value
                counted += isinstance(request, AllGather | StartGather)
                answer = yield request

        shuffle, topology = balanced(routed(topk=1, num_keys=4), balance), Topology(2, 2)
        data = [routed_data(torch.full((rows, 1), 3 - rank), rank) for rank in range(4)]
        run_lockstep(
            [
                counting(plan_rank(ctx, relation(shuffle, topology, ctx.rank, each)))
                for ctx, each in zip(contexts(shuffle, topology), data, strict=True)
            ]
        )
        return counted // 4

    assert {gathers(policy, 3) for policy in ("static", "greedy", "lpt")} == {1}
    assert gathers("split", 3) == 1, "two equal flows into a node need no cut"
    assert gathers("auto", 3) == 1


@st.composite
def demands(draw: st.DrawFn) -> tuple[list[torch.Tensor], Topology]:
    topology = Topology(draw(st.integers(2, 3)), draw(st.integers(1, 4)))
    topk = draw(st.integers(1, 3))
    seed = draw(st.integers(0, 2**32 - 1))
    generator = torch.Generator().manual_seed(seed)
    tokens = draw(
        st.lists(st.integers(0, 40), min_size=topology.num_ranks, max_size=topology.num_ranks)
    )
    skew = draw(st.sampled_from([1, 2, 6]))
    idx = [
        (torch.rand(count, topk, generator=generator) ** skew * topology.num_ranks).long()
        for count in tokens
    ]
    return idx, topology


@given(demands(), st.sampled_from([4e9, 50e9, 400e9]))
@settings(max_examples=at_night(30), deadline=None)
def test_auto_is_never_much_worse_than_the_best_policy(
    case: tuple[list[torch.Tensor], Topology], nic: float
) -> None:
    idx, topology = case
    model = CostModel(nic, 450e9, stage_latency=0.0, segment_bytes=14336)

    shuffle = routed(topk=idx[0].shape[1], num_keys=topology.num_ranks)
    points = [
        relation(shuffle, topology, rank, routed_data(each, rank)) for rank, each in enumerate(idx)
    ]

    def seconds(balance: Balance) -> float:
        stages = shuffle.program.exchange.schedule
        planned = plan_all(balanced(shuffle, balance), topology, points, model, schedule=stages)
        return planned.predicted.completion

    best = min(seconds(policy) for policy in POLICIES)
    assert seconds("auto") <= 1.01 * best * (1 + 1e-9)


@pytest.mark.parametrize(
    ("balance", "loads", "nvlink", "latency", "carries"),
    [
        ("auto", [90, 2], 9.0, 0.0, True),
        ("auto", [90, 2], 9.0, 5e-6, True),
        ("auto", [90, 2], 9.0, 1e-3, False),
        ("auto", [46, 46], 9.0, 0.0, False),
        ("auto", [90, 2], 0.2, 0.0, False),
        ("split", [90, 2], 9.0, 0.0, False),
        ("rebalance", [90, 2], 0.2, 1e-3, True),
    ],
)
def test_rows_are_carried_where_it_pays(
    balance: Balance, loads: list[int], nvlink: float, latency: float, *, carries: bool
) -> None:
    """Not if all send alike, nor if NVLink or handing over costs more than the network saves."""
    topology = Topology(2, 2)
    idx = [
        torch.tensor([[(rank // 2 + 1) % 2 * 2 + i % 2] for i in range(loads[rank % 2])])
        for rank in range(4)
    ]
    shuffle = balanced(routed(topk=1, num_keys=4), balance)
    model = CostModel(50e9, nvlink * 50e9, 10e-6, 14336, handover_latency=latency)
    points = [
        relation(shuffle, topology, rank, routed_data(each, rank)) for rank, each in enumerate(idx)
    ]
    traffic = plan_all(shuffle, topology, points, model).traffic
    assert bool(traffic.handed.any()) == carries
    if carries:
        assert traffic.network.sum(axis=1).tolist() == [46, 46, 46, 46]


@given(demands(), st.sampled_from(get_args(Balance)))
@settings(max_examples=at_night(30), deadline=None)
def test_forwarders_are_those_of_the_policy(
    case: tuple[list[torch.Tensor], Topology], balance: Balance
) -> None:
    idx, topology = case
    planned = plan(idx, topology, balance, num_keys=topology.num_ranks)
    demand = planned.traffic.demand
    demand.check()
    shares = {name: assign(demand).share for name, assign in POLICIES.items()}
    wanted = list(shares.values()) if balance == "auto" else [shares[balance]]
    assert any(np.array_equal(planned.forwarders.share, share) for share in wanted)


def test_a_rank_without_a_compiler_fails_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise native.BuildError("no C compiler")

    monkeypatch.setattr(native, "load", broken)
    monkeypatch.setattr(native, "is_there", lambda: False)
    with pytest.raises(NativeBuildError, match="rank 0 cannot plan: no C compiler"):
        eight_to_one("lpt")
    eight_to_one("split")
