"""Slots divided among keys: in C as in numpy, which serves where there is no compiler."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fuscoc_runtime.plan import native
from fuscoc_runtime.plan.placement import KeyOrder
from fuscoc_runtime.plan.slots import divide_slots
from fuscoc_runtime.topology import Topology


@given(st.data())
def test_slots_are_divided_alike(data: st.DataObject) -> None:
    num_ranks, num_keys = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 9))
    owners = data.draw(
        st.lists(st.integers(0, num_ranks - 1), min_size=num_keys, max_size=num_keys)
    )
    order = KeyOrder.of(np.array(owners), Topology(1, num_ranks))
    counts = st.lists(st.integers(0, 300), min_size=num_keys + 2, max_size=num_keys + 2)
    rows = data.draw(st.lists(counts, min_size=num_ranks, max_size=num_ranks))
    keys = np.array(rows)[:, 1:-1]  # rows are apart, as in a census
    align = data.draw(st.sampled_from([1, 2, 128, 2**62, 2**63 - 1]))
    target = SimpleNamespace(align=align, padding="fewest", most_padding=align - 1)
    for rank in range(num_ranks):
        given_to_both = keys, order.by_rank, order.bounds, target, rank
        with np.errstate(over="ignore"):
            wanted = divide_slots(*given_to_both)
        for mine, theirs in zip(native.slots(*given_to_both), wanted, strict=True):
            np.testing.assert_array_equal(mine, theirs)
