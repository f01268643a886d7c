"""Tensors of which memory tells not all: negated lazily, zeros without any, nested, fake, freed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

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


def freed(tensor: Tensor, offset: int) -> Tensor:
    """One like it, in storage that has been freed, as FSDP leaves the parts of its parameters."""
    whole = torch.empty(offset + tensor.numel(), dtype=tensor.dtype)
    part = whole[offset:].view(tensor.shape)
    whole.untyped_storage().resize_(0)
    return part


def calls(shuffle: Shuffle, given: dict[str, Tensor], name: str, other: Tensor) -> Tensor:
    """The result with ``other`` in the place of an argument, or of the rows that come back."""
    rows, handle = shuffle.dispatch(**given | ({} if name == "rows" else {name: other}))
    return shuffle.combine(other if name == "rows" else rows, handle)


@BOTH
@pytest.mark.parametrize("wants_grad", [False, True])
@pytest.mark.parametrize("offset", [0, 64])
@pytest.mark.parametrize("name", ["x", "idx", "weights", "rows"])
def test_freed_tensors_are_refused(
    options: dict[str, Any], name: str, offset: int, wants_grad: bool
) -> None:
    """In calls like earlier ones, too, which go on."""
    shuffle, given = Shuffle(specs.artifact(ROUTED), **options), batch()
    wanted = sums(given)
    for _ in range(2):
        rows, handle = shuffle.dispatch(**given)
        torch.testing.assert_close(shuffle.combine(rows, handle), wanted)
        other = freed(rows if name == "rows" else given[name], offset)
        if wants_grad and other.is_floating_point():
            other.requires_grad_()
        said = f"`{'x' if name == 'rows' else name}` on rank 0 has no memory"
        with pytest.raises(InputError, match=said):
            calls(shuffle, given, name, other)


@pytest.mark.parametrize("name", ["idx", "weights"])
def test_what_is_freed_behind_a_handle_is_refused(name: str) -> None:
    """With a fixed capacity it is read again."""
    shuffle, given = Shuffle(specs.artifact(ROUTED), max_sources=5), batch()
    rows, handle = shuffle.dispatch(**given)
    given[name].untyped_storage().resize_(0)
    check = handle.check_inputs if name == "idx" else handle.check_weights
    with pytest.raises(InputError, match=f"`{name}` on rank 0 has been freed since"):
        check()
    rows, handle = shuffle.dispatch(**batch())
    torch.testing.assert_close(shuffle.combine(rows, handle), sums(batch()))


@BOTH
@pytest.mark.parametrize("name", ["x", "idx", "weights", "rows"])
def test_fake_tensors_are_refused(options: dict[str, Any], name: str) -> None:
    shuffle, given = Shuffle(specs.artifact(ROUTED), **options), batch()
    rows, handle = shuffle.dispatch(**given)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    other = mode.from_tensor(rows if name == "rows" else given[name])
    said = f"`{'x' if name == 'rows' else name}` on rank 0 is a FakeTensor"
    with pytest.raises(InputError, match=said):
        calls(shuffle, given, name, other)
    with mode, pytest.raises(InputError, match="`routed` on rank 0 is called in a FakeTensorMode"):
        calls(shuffle, given, name, other)
    with mode, pytest.raises(InputError, match="`routed` on rank 0 is called in a FakeTensorMode"):
        shuffle.combine(other if name == "rows" else rows.clone(), handle)
    rows, handle = shuffle.dispatch(**given)
    torch.testing.assert_close(shuffle.combine(rows, handle), sums(given))


def test_function_transforms_are_refused() -> None:
    """Their tensors have no memory, whatever they stand for."""
    shuffle, given = Shuffle(specs.artifact(ROUTED), max_sources=5), batch()

    def of_x(x: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = shuffle.dispatch(**{**given, "x": x})[0]
        return rows

    for transformed in (torch.func.vmap(of_x), torch.func.functionalize(of_x)):
        with pytest.raises(InputError, match="`x` on rank 0 has no memory"):
            transformed(given["x"])
