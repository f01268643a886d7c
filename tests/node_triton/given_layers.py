"""Layers of torch around shuffles of given slots; every function runs on one rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.node_triton.given_work import data_of
from tests.node_triton.rank_work import open_shuffle


def gradients(
    group: Any, artifact: str, tables: Sequence[Any], length: int, **options: Any
) -> None:
    """Of rows and weights through two layers; slots that nobody fills are 0."""
    shuffle = open_shuffle(group, artifact, capacity=length + 2, **options)
    data = data_of(shuffle.spec, tables[shuffle.rank], length, shuffle.rank)
    x, to = data.source["x"].requires_grad_(), data.inputs["to"]
    weighted = "weights" in data.inputs
    leaves = [x, *([data.inputs["weights"].requires_grad_()] if weighted else [])]

    def fused(x: Tensor, *weights: Tensor) -> Tensor:
        named = {"weights": weights[0]} if weights else {}
        rows, handle = shuffle.dispatch(x, to=to, length=length, **named)
        assert not rows[~handle.launched.filled].any()
        return shuffle.combine(rows.sin(), handle)

    def plain(x: Tensor, *weights: Tensor) -> Tensor:
        lives = (to.view(len(to), -1, 2)[:, :, 0] >= 0).float()
        factor = lives * weights[0] if weights else lives
        return x.sin() * factor.sum(1, keepdim=True)

    found, wanted = (
        torch.autograd.grad(layer(layer(*leaves), *leaves[1:]).square().sum(), leaves)
        for layer in (fused, plain)
    )
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    shuffle.check()


def compiled(group: Any, artifact: str, tables: Sequence[Any], length: int) -> None:
    """A compiled layer, whose rows are as many as the target is long."""
    shuffle = open_shuffle(group, artifact, capacity=length + 2)
    data = data_of(shuffle.spec, tables[shuffle.rank], length, shuffle.rank)
    x, to = data.source["x"], data.inputs["to"]

    @torch.compile(fullgraph=True, backend="aot_eager")
    def layer(x: Tensor, to: Tensor) -> tuple[Tensor, Tensor]:
        rows, handle = shuffle.dispatch(x, to=to, length=length)
        return rows.sum(), shuffle.combine(2 * rows, handle)

    x.requires_grad_()
    lives = (to.view(len(to), -1, 2)[:, :, 0] >= 0).sum(1, keepdim=True)
    for _ in range(2):
        _, result = layer(x, to)
        torch.testing.assert_close(result, 2 * x * lives)
        (grad,) = torch.autograd.grad(result.sum(), x)
        torch.testing.assert_close(grad, 2 * torch.ones_like(x) * lives)
    shuffle.check()
