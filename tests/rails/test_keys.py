"""Between nodes a key is its number among the keys of its node."""

from __future__ import annotations

from collections import Counter

import torch
from hypothesis import given
from hypothesis import strategies as st

from fuscoc_runtime.engine.node.triton_program import numbered


@given(st.lists(st.integers(0, 5), max_size=40))
def test_each_has_as_many_before_it_as_are_of_its_group(groups: list[int]) -> None:
    before = Counter[int]()
    for group, number in zip(
        groups, numbered(torch.tensor(groups, dtype=torch.int64)), strict=True
    ):
        assert number == before[group]
        before[group] += 1
