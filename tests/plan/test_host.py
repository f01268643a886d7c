"""Plans in arrays of numpy are those in tensors; their errors are compared in ``test_errors``."""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc_runtime.arrays import on_host
from fuscoc_runtime.comm.lockstep import run_lockstep
from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.manifest.declared import ITEM_BYTES
from fuscoc_runtime.plan import RankPlan, plan_all, plan_rank
from fuscoc_runtime.plan.store import TENSORS
from tests.plan.specs import CPU, contexts, relation
from tests.plan.test_plan import patches_case, routed_case, tiles_case
from tests.plan.test_plan_object import Case, same


@given(st.one_of(routed_case(), patches_case(), tiles_case()))
@settings(max_examples=60)
def test_both_are_the_same(case: Case) -> None:
    """To the last element, there and back."""
    spec, topology, ranks = case
    points = [relation(spec, topology, rank, data) for rank, data in enumerate(ranks)]
    tensors = run_lockstep(list(map(plan_rank, contexts(spec, topology), points)))
    arrays = plan_all(spec, topology, points).ranks
    for one, other in zip(tensors, arrays, strict=True):
        assert isinstance(one.point_order, torch.Tensor)
        assert same(in_arrays(one), other)
        assert same(in_arrays(other.to(CPU)), other)


def in_arrays(plan: RankPlan) -> RankPlan:
    """The same with arrays of numpy."""
    lists = {
        name: {column: on_host(values) for column, values in columns.items()}
        for name, columns in plan.lists.items()
    }
    return replace(plan, lists=lists, **{name: on_host(getattr(plan, name)) for name in TENSORS})


def test_bytes_of_elements() -> None:
    """What plans know without torch is what torch says."""
    assert {name: dtype.itemsize for name, dtype in TORCH_DTYPES.items()} == ITEM_BYTES
