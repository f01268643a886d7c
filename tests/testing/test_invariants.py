"""Every invariant of every plan, over generated specs, topologies and routings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc.testing import (
    Routing,
    Spec,
    cases,
    check_plan,
    load_spec,
    plan_of,
    plans,
    routings,
    specs,
    topologies,
)
from fuscoc.testing.invariants import INVARIANTS, Check, check_round_trip
from fuscoc_runtime.errors import CapacityError
from fuscoc_runtime.plan import Plan
from fuscoc_runtime.reference import RankData
from tests.testing import broken

FORWARDERS = ("static", "greedy", "lpt", "split", "rebalance", "auto")
SCHEDULES = (None, "pairwise", "spread-out", "fast", "auto")


@dataclass(frozen=True)
class Case:
    """A spec under a rule, with a routing and maybe stages for the network hop."""

    spec: Spec
    routing: Routing
    forwarder: str
    schedule: str | None

    def check(self, checks: Sequence[Check] = INVARIANTS) -> None:
        spec = self.spec.with_rules(forwarder=self.forwarder)
        check_plan(plan_of(spec, self.routing, schedule=self.schedule), self.routing, checks)


@st.composite
def everything(draw: st.DrawFn) -> Case:
    topology = draw(topologies())
    forwarder, schedule = draw(st.sampled_from(FORWARDERS)), draw(st.sampled_from(SCHEDULES))
    spec = draw(specs(topology))
    return Case(spec, draw(routings(spec, topology)), forwarder, schedule)


@given(everything())
@settings(max_examples=60)
def test_invariants(case: Case) -> None:
    """All but the last, which costs half as much as everything else."""
    assert INVARIANTS[-1] is check_round_trip
    case.check(INVARIANTS[:-1])


@given(everything())
@settings(max_examples=30)
def test_saved_plans(case: Case) -> None:
    case.check([check_round_trip])


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@given(everything())
@settings(max_examples=20_000)
def test_invariants_nightly(case: Case) -> None:
    case.check()


@given(plans(broken.spec(), max_nodes=3, max_ranks_per_node=2))
@settings(max_examples=20)
def test_plans_of_a_given_spec(planned: tuple[Plan, Routing]) -> None:
    check_plan(*planned)


SPEC = load_spec(broken.TEXT.replace("by block", "by cyclic").replace("max 80", "max 4"))


@given(st.data())
@settings(max_examples=50)
def test_routings_respect_the_capacity(data: Any) -> None:
    routing = data.draw(cases(SPEC, max_nodes=2, max_ranks_per_node=2))
    assert max(plan.rows.target for plan in plan_of(SPEC, routing).ranks) <= 4


def test_one_point_too_many_is_an_error() -> None:
    ranks = tuple(
        RankData({}, {**data.inputs, "keys_of": data.inputs["keys_of"].clamp(max=0)}, data.extents)
        for data in broken.routing().ranks
    )
    with pytest.raises(CapacityError):
        plan_of(SPEC, Routing("rows", broken.TOPOLOGY, ranks))
