"""Plans in arrays of numpy are those in tensors; their errors are compared in ``test_errors``."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc_runtime.comm.lockstep import run_lockstep
from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.manifest.declared import ITEM_BYTES
from fuscoc_runtime.plan import plan_all, plan_rank
from tests.drawn import at_night
from tests.plan.specs import CPU, contexts, relation
from tests.plan.test_plan import patches_case, routed_case, tiles_case
from tests.plan.test_plan_object import Case, same


@given(st.one_of(routed_case(), patches_case(), tiles_case()))
@settings(max_examples=at_night(60))
def test_both_are_the_same(case: Case) -> None:
    """To the last element, there and back."""
    spec, topology, ranks = case
    points = [relation(spec, topology, rank, data) for rank, data in enumerate(ranks)]
    tensors = run_lockstep(list(map(plan_rank, contexts(spec, topology), points)))
    arrays = plan_all(spec, topology, points).ranks
    for one, other in zip(tensors, arrays, strict=True):
        assert isinstance(one.point_order, torch.Tensor)
        assert same(one.to(None), other)
        assert same(other.to(CPU).to(None), other)


def test_bytes_of_elements() -> None:
    """What plans know without torch is what torch says."""
    assert {name: dtype.itemsize for name, dtype in TORCH_DTYPES.items()} == ITEM_BYTES
