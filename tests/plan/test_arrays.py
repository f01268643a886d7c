"""Orders of values, whatever number of them there may be."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fuscoc_runtime.plan.arrays import stable_order


@pytest.mark.parametrize("bits", [0, 7, 15, 16, 31, 32, 40])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_stable_order_of_values_up_to_the_largest(bits: int, more: int) -> None:
    num_values = max(1, (1 << bits) + more)
    random = np.random.default_rng(bits)
    values = random.choice([0, num_values // 2, num_values - 2, num_values - 1], 200).clip(0)
    order = stable_order(torch.from_numpy(values), num_values)
    assert order.dtype == torch.int64
    np.testing.assert_array_equal(order.numpy(), np.argsort(values, kind="stable"))
