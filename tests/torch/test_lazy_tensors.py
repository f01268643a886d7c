"""Tensors of which memory tells not all: negated lazily, zeros without any, nested."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fuscoc_runtime import Shuffle
from fuscoc_runtime.errors import InputError
from tests.engine import specs
from tests.torch.test_lifetimes import BOTH, ROUTED, batch, sums


def test_numbers_that_are_negated_lazily() -> None:
    """As PyTorch has them: an imaginary part of a conjugate, contiguous where it is one number."""
    shuffle = Shuffle(specs.artifact(specs.routed("f32", hidden=1, keys=4, topk=1)))
    x, weights = (torch.tensor([[number]]).conj().imag for number in (2 - 3j, 1 - 5j))
    assert x.is_neg()
    assert x.is_contiguous()
    rows, handle = shuffle.dispatch(x, idx=torch.tensor([[1]]), weights=weights)
    assert rows[handle.key_offsets[1]].item() == 3
    assert shuffle.combine(rows, handle).item() == 15
    lazy = torch._neg_view(torch.full_like(rows, -7))
    assert shuffle.combine(lazy, handle).item() == 35


@BOTH
@pytest.mark.parametrize("name", ["x", "weights", "rows"])
def test_calls_that_repeat_others_of_such_numbers(options: dict[str, Any], name: str) -> None:
    shuffle, given = Shuffle(specs.artifact(ROUTED), **options), batch()
    wanted = sums(given)
    if name != "rows":
        given[name] = torch._neg_view(-given[name])
    for _ in range(3):
        rows, handle = shuffle.dispatch(**given)
        rows = torch._neg_view(-rows) if name == "rows" else rows
        torch.testing.assert_close(shuffle.combine(rows, handle), wanted)


@BOTH
def test_zeros_without_memory(options: dict[str, Any]) -> None:
    """As forward mode makes them."""
    shuffle, given = Shuffle(specs.artifact(ROUTED), **options), batch()
    nothing = {name: torch._efficientzerotensor(*given[name].shape) for name in ("x", "weights")}
    for _ in range(2):
        for name, zeros in nothing.items():
            rows, handle = shuffle.dispatch(**{**given, name: zeros})
            assert not shuffle.combine(rows, handle).any()
        rows, handle = shuffle.dispatch(**given)
        assert not shuffle.combine(torch._efficientzerotensor(*rows.shape), handle).any()


def test_nested_tensors_are_refused() -> None:
    given: dict[str, Tensor] = batch()
    parts = torch.nested.nested_tensor([given["x"][0], given["x"][1]], layout=torch.strided)
    with pytest.raises(InputError, match="`x` on rank 0 is nested; it must"):
        Shuffle(specs.artifact(ROUTED)).dispatch(**{**given, "x": parts})
