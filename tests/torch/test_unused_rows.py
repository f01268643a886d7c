"""Rows of a fixed capacity behind the last that came, which nobody writes if nobody wants them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fuscoc_runtime import Shuffle
from fuscoc_runtime.errors import InputError, OptionError
from tests.engine import specs

HIDDEN, KEYS, TOPK, ALIGN, MOST = 8, 4, 2, 4, 12


@pytest.fixture(autouse=True)
def uninitialised_is_nan() -> Iterator[None]:
    """What torch allocates without values is NaN, so that what nobody writes can be told."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("num_tokens", [0, 1, 5, MOST])
def test_experts_that_stop_where_the_rows_end(num_tokens: int) -> None:
    """A layer with a grouped GEMM, against one that loops over tokens."""
    torch.manual_seed(num_tokens)
    text = specs.routed("f32", HIDDEN, KEYS, TOPK, align=ALIGN)
    shuffle = Shuffle(specs.artifact(text), max_sources=MOST, zero_unused=False)
    x = torch.randn(num_tokens, HIDDEN, requires_grad=True)
    matrices = torch.randn(KEYS, HIDDEN, HIDDEN, requires_grad=True)
    scores = torch.rand(num_tokens, KEYS).softmax(-1)
    weights, idx = (each.detach() for each in scores.topk(TOPK))
    idx = torch.where(torch.rand(idx.shape) < 0.8, idx, -1)
    weights.requires_grad_()

    rows, handle = shuffle.dispatch(x, idx=idx, weights=weights)
    worked = F.grouped_mm(rows, matrices, offs=handle.key_offsets[1:].int()).tanh()
    kept: list[Tensor] = []
    worked.register_hook(kept.append)
    y = shuffle.combine(worked, handle)
    gradient = torch.randn(num_tokens, HIDDEN)
    found = [y, *torch.autograd.grad(y, (x, matrices, weights), gradient)]

    each = torch.einsum("th,tkhi->tki", x, matrices[idx.clamp(min=0)]).tanh()
    plain = (each * (weights * (idx >= 0))[..., None]).sum(1)
    wanted = [plain, *torch.autograd.grad(plain, (x, matrices, weights), gradient)]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)

    ends = [int(each) for each in handle.key_offsets]
    assert ends[-1] < handle.num_slots
    for written in (rows.detach(), *kept):
        assert written[ends[-1] :].isnan().all()
        for first, count in zip(ends, handle.key_counts.tolist(), strict=False):
            padding = written[first + count : first + -(-count // ALIGN) * ALIGN]
            assert not padding.any()


def test_they_are_zero_unless_nobody_wants_them() -> None:
    shuffle = Shuffle(specs.artifact(specs.routed("f32", HIDDEN, KEYS, TOPK)), max_sources=MOST)
    x, idx = torch.randn(2, HIDDEN, requires_grad=True), torch.tensor([[0, 1], [3, -1]])
    rows, handle = shuffle.dispatch(x, idx=idx, weights=torch.ones(2, TOPK))
    assert not rows[int(handle.key_offsets[-1]) :].any()


@pytest.mark.parametrize("options", [{}, {"max_sources": MOST}], ids=["exact", "compact"])
def test_where_it_has_no_effect(options: dict[str, int]) -> None:
    """Exact sizes have no such rows; those of a compact target are told by ``row_index``."""
    text = specs.routed("f32", HIDDEN, KEYS, TOPK)
    text = text.replace("packed(s)", "packed(s) compact") if options else text
    shuffle = Shuffle(specs.artifact(text), zero_unused=False, **options)
    x, idx = torch.randn(2, HIDDEN, requires_grad=True), torch.tensor([[0, 1], [3, -1]])
    rows, _ = shuffle.dispatch(x, idx=idx, weights=torch.ones(2, TOPK))
    assert not rows.isnan().any()


@pytest.mark.parametrize("num_tokens", [0, 2, 3])
def test_rows_that_are_cut_to_a_step(num_tokens: int) -> None:
    """No more than three tokens, where there is room for more; under autograd, too."""
    torch.manual_seed(num_tokens)
    text = specs.routed("f32", HIDDEN, KEYS, TOPK, align=ALIGN)
    shuffle = Shuffle(specs.artifact(text), max_sources=MOST)
    most = shuffle.capacity_for(3)
    assert most == 3 * TOPK + KEYS * (ALIGN - 1)
    x, weights = torch.randn(num_tokens, HIDDEN), torch.rand(num_tokens, TOPK)
    idx = torch.randint(KEYS, (num_tokens, TOPK))
    plain = (x[:, None] * weights[..., None]).sum(1)

    rows, handle = shuffle.dispatch(x, idx=idx, weights=weights)
    assert most < handle.num_slots == len(rows)
    torch.testing.assert_close(shuffle.combine(rows[:most], handle), plain)
    torch.testing.assert_close(shuffle.combine(rows[:most].clone(), handle), plain)

    leaves = x.clone().requires_grad_(), weights.clone().requires_grad_()
    rows, handle = shuffle.dispatch(leaves[0], idx=idx, weights=leaves[1])
    y = shuffle.combine(rows[:most] * 2, handle)
    found = torch.autograd.grad(y, leaves, torch.ones_like(y))
    doubled = (leaves[0][:, None] * 2 * leaves[1][..., None]).sum(1)
    wanted = torch.autograd.grad(doubled, leaves, torch.ones_like(y))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_rows_that_are_cut_too_short() -> None:
    shuffle = Shuffle(specs.artifact(specs.routed("f32", HIDDEN, KEYS, TOPK)), max_sources=MOST)
    x, idx = torch.randn(3, HIDDEN), torch.tensor([[0, 1], [0, 1], [3, 0]])
    rows, handle = shuffle.dispatch(x, idx=idx, weights=torch.ones(3, TOPK))
    end = int(handle.key_offsets[-1])
    with pytest.raises(InputError, match=f"`x` on rank 0 has {end - 1} rows, and {end} came"):
        shuffle.combine(rows[: end - 1], handle)
    with pytest.raises(InputError, match=r"`x` on rank 0 has the shape"):
        shuffle.combine(torch.zeros(handle.num_slots + 1, HIDDEN), handle)


@pytest.mark.parametrize(
    ("text", "num_sources", "said"),
    [
        (specs.routed(), None, "`num_sources` is None; it must be a whole number of 0 or more"),
        (specs.routed().replace("packed(s)", "packed(s) compact"), 3, "is not packed, or is comp"),
    ],
)
def test_slots_that_cannot_be_told(text: str, num_sources: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        Shuffle(specs.artifact(text)).capacity_for(num_sources)
