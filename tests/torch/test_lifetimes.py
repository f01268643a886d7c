"""What a call was given, or has lent, and what becomes of it when somebody changes it later."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fuscoc_runtime import Shuffle
from fuscoc_runtime.errors import FuscoRuntimeError, InputError
from tests.engine import specs

ROUTED = specs.routed("f32", hidden=4, keys=4, topk=2)
BOTH = pytest.mark.parametrize("options", [{}, {"max_sources": 5}], ids=["exact", "fixed"])


def batch() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {"x": torch.rand(5, 4), "idx": torch.randint(-1, 4, (5, 2)), "weights": torch.rand(5, 2)}


def sums(given: dict[str, Tensor]) -> Tensor:
    """What combine makes of the rows of dispatch."""
    return given["x"] * (given["weights"] * (given["idx"] >= 0)).sum(1, keepdim=True)


@BOTH
def test_rows_are_lent_anew(options: dict[str, Any]) -> None:
    """What autograd knows of them, or is told of work in place, ends with them."""
    shuffle, scale = Shuffle(specs.artifact(ROUTED), **options), torch.rand(4, requires_grad=True)
    with torch.no_grad():
        rows, handle = shuffle.dispatch(**batch())
    rows.mul_(scale)
    shuffle.combine(rows, handle).sum().backward()
    torch.testing.assert_close(scale.grad, sums(batch()).sum(0))
    rows, handle = shuffle.dispatch(**batch())
    assert not rows.requires_grad
    rows.requires_grad_()
    rows, handle = shuffle.dispatch(**batch())
    assert not rows.requires_grad
    torch.testing.assert_close(shuffle.combine(rows, handle), sums(batch()))


@BOTH
def test_a_dict_of_rows_is_the_callers(options: dict[str, Any]) -> None:
    shuffle = Shuffle(specs.artifact(specs.FIELDS), **options)
    given = torch.zeros(2, 3), torch.zeros(2, 20, dtype=torch.uint8), torch.arange(2)
    for _ in range(2):
        rows, _ = shuffle.dispatch(*given, idx=torch.tensor([[0, 5], [5, -1]]))
        assert set(rows) == {"scales", "payload", "id"}
        rows.clear()


@BOTH
def test_routing_that_is_changed_in_place(options: dict[str, Any]) -> None:
    """A backward pass takes the way of its dispatch; so does a later dispatch, or it is refused."""
    shuffle, given = Shuffle(specs.artifact(ROUTED), **options), batch()
    given["weights"].requires_grad_()
    idx = given["idx"].clone()
    rows, handle = shuffle.dispatch(given["x"], idx=idx, weights=given["weights"])
    y = shuffle.combine(rows, handle)
    idx.zero_()
    counts = torch.bincount(given["idx"][given["idx"] >= 0], minlength=4)
    assert torch.equal(handle.key_counts, counts)
    y.sum().backward()
    wanted = given["x"].sum(1, keepdim=True) * (given["idx"] >= 0)
    torch.testing.assert_close(given["weights"].grad, wanted)
    if not options:
        rows, handle = shuffle.dispatch(given["x"], handle=handle)
        torch.testing.assert_close(shuffle.combine(rows, handle), sums(given))
        return
    with pytest.raises(InputError, match="`idx` on rank 0 has been changed in place since"):
        shuffle.dispatch(given["x"], handle=handle)
    # Before combine it is too late to keep the routing for a backward pass.
    rows, handle = shuffle.dispatch(given["x"], idx=idx, weights=given["weights"])
    idx.fill_(1)
    with pytest.raises(FuscoRuntimeError, match="`idx` on rank 0 has been changed in place since"):
        shuffle.combine(rows, handle).sum().backward()


@pytest.mark.parametrize("trained", [False, True])
def test_weights_that_are_changed_in_place(trained: bool) -> None:
    """Combine takes them as they are, or refuses where dispatch has sent them already."""
    given = batch()
    given["x"].requires_grad_(trained)
    shuffle = Shuffle(specs.artifact(ROUTED))
    rows, handle = shuffle.dispatch(**given)
    given["weights"].mul_(2)
    torch.testing.assert_close(shuffle.combine(rows, handle), sums(given))
    shuffle = Shuffle(specs.artifact(ROUTED), max_sources=5)
    rows, handle = shuffle.dispatch(**given)
    given["weights"].mul_(2)
    with pytest.raises(InputError, match="`weights` on rank 0 has been changed in place since"):
        shuffle.combine(rows, handle)
    rows, handle = shuffle.dispatch(given["x"], handle=handle)
    torch.testing.assert_close(shuffle.combine(rows, handle), sums(given))


@BOTH
def test_rows_that_were_overwritten(options: dict[str, Any]) -> None:
    """By a later dispatch, or by the backward pass of what was computed from them."""
    shuffle, given = Shuffle(specs.artifact(ROUTED), **options), batch()
    rows, handle = shuffle.dispatch(**given)
    kept = rows.clone()
    shuffle.dispatch(**{**given, "x": given["x"] + 1})
    with pytest.raises(InputError, match=r"dispatch 1 returned, where dispatch 2 has put its own"):
        shuffle.combine(rows, handle)
    torch.testing.assert_close(shuffle.combine(kept, handle), sums(given))
    given["weights"].requires_grad_()
    rows, handle = shuffle.dispatch(**given)
    shuffle.combine(rows, handle).sum().backward()
    with pytest.raises(InputError, match=r"dispatch 3 returned, where dispatch 4 has put its own"):
        shuffle.combine(rows, handle)


@BOTH
def test_weights_that_are_rows_of_a_dispatch(options: dict[str, Any]) -> None:
    """They are read while the next rows come, or later: what has come by then is no weight."""
    shuffle = Shuffle(specs.artifact(specs.routed("f32", hidden=2, keys=4, topk=2)), **options)
    given = {**batch(), "x": torch.rand(5, 2), "idx": torch.tensor([[0, 3]] * 5)}
    rows, _ = shuffle.dispatch(**given)
    lent = {**given, "weights": rows[:5]}
    with pytest.raises(InputError, match="`weights` on rank 0 is what a dispatch returned, where"):
        shuffle.dispatch(**lent)
    copied = {**given, "weights": rows[:5].clone()}
    rows, handle = shuffle.dispatch(**copied)
    torch.testing.assert_close(shuffle.combine(rows, handle), sums(copied))


@BOTH
def test_experts_that_are_checkpointed(options: dict[str, Any]) -> None:
    """Hooks of autograd save the rows that are brought again, and look at no version of them."""
    shuffle, given = Shuffle(specs.artifact(ROUTED), **options), batch()
    scale = torch.rand(4, requires_grad=True)

    def layer(x: Tensor) -> Tensor:
        rows, handle = shuffle.dispatch(**{**given, "x": x})
        return shuffle.combine(rows * scale, handle)

    checkpoint(layer, given["x"], use_reentrant=False).sum().backward()
    torch.testing.assert_close(scale.grad, sums(given).sum(0))


@BOTH
def test_a_handles_tensors_are_the_callers(options: dict[str, Any]) -> None:
    text = specs.routed("f32", hidden=4, keys=4, topk=2, capacity="compact")
    shuffle, given = Shuffle(specs.artifact(text), **options), batch()
    scale = torch.rand(4, requires_grad=True)
    rows, handle = shuffle.dispatch(**given)
    told = [handle.keys, handle.key_counts, handle.key_offsets, handle.row_index]
    before = [each.clone() for each in told]
    taken = (rows * 1)[told[3]] * scale
    y = shuffle.combine(taken, handle)
    shuffle.dispatch(**{**given, "idx": given["idx"].flip(0)})
    shuffle.dispatch(**{**given, "idx": given["idx"].flip(0)})
    assert all(torch.equal(one, other) for one, other in zip(told, before, strict=True))
    y.sum().backward()
    torch.testing.assert_close(scale.grad, sums(given).sum(0))
    for each in told:
        each.fill_(7)
    _, handle = shuffle.dispatch(**given)
    again = [handle.keys, handle.key_counts, handle.key_offsets, handle.row_index]
    assert all(torch.equal(one, other) for one, other in zip(again, before, strict=True))


@BOTH
def test_a_handle_of_inference(options: dict[str, Any]) -> None:
    """Of an operator's dispatch: autograd saves its token."""
    shuffle, given = Shuffle(specs.artifact(ROUTED), **options), batch()
    scale = torch.rand(4, requires_grad=True)
    with torch.inference_mode():
        rows, handle = shuffle.dispatch_fresh(**given)
    shuffle.combine(rows.clone() * scale, handle).sum().backward()
    torch.testing.assert_close(scale.grad, sums(given).sum(0))


def test_maxima_of_rows_in_memory_of_a_fixed_size() -> None:
    """The Triton kernels of one node only sum: without others, memory is what a batch needs."""
    shuffle = Shuffle(specs.artifact(specs.routed("f32", hidden=4, reduce="max")), max_sources=5)
    x, idx = torch.rand(3, 4), torch.tensor([[0, 1, 2], [3, 3, -1], [-1, -1, -1]])
    rows, handle = shuffle.dispatch(x, idx=idx)
    wanted = torch.stack([x[0], x[1], torch.zeros(4)])
    assert torch.equal(shuffle.combine(rows, handle), wanted)
