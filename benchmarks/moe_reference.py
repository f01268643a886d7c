"""A mixture-of-experts layer in f32 without any shuffle: every rank sees all tokens, and computes
what its own experts add. Slow, and sharing nothing with what it checks but the router's choice."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from examples.moe_layer import BALANCE_WEIGHT, MoeLayer, balance_loss, swiglu

Results = dict[str, Tensor]
"""``y`` and the gradients of ``x``, the router and the first local expert."""


def actual(layer: MoeLayer, x: Tensor, gradient: Tensor) -> Results:
    """What the layer gives for ``sum(y * gradient)`` and the weighted balance loss."""
    layer.zero_grad()
    x = x.detach().requires_grad_()
    y, balance = layer(x)
    torch.autograd.backward([y, BALANCE_WEIGHT * balance], [gradient, None])
    assert x.grad is not None
    assert layer.router.weight.grad is not None
    assert layer.gate_up.grad is not None
    assert layer.down.grad is not None
    return {
        "y": y.detach(),
        "gradient of x": x.grad,
        "gradient of the router": layer.router.weight.grad.clone(),
        "gradient of gate_up": layer.gate_up.grad[0].clone(),
        "gradient of down": layer.down.grad[0].clone(),
    }


def reference(layer: MoeLayer, x: Tensor, gradient: Tensor) -> Results:
    """The same; every rank has as many tokens."""
    layer.zero_grad()
    x = x.detach().requires_grad_()
    normed = layer.norm(x)
    probabilities = layer.router(normed).float().softmax(-1)
    weights, topk_idx = probabilities.topk(layer.sizes.topk, dim=-1)
    weights = weights / weights.sum(-1, keepdim=True)
    everything = [_gather(t) for t in (normed, weights, topk_idx, gradient)]
    all_x, all_weights = (t.float().requires_grad_() for t in everything[:2])
    all_idx, all_gradients = everything[2], everything[3].float()

    routed = torch.zeros_like(all_x)
    grads = [torch.zeros_like(t) for t in (all_x, all_weights)]
    first_grads: list[Tensor] = []
    first = dist.get_rank() * layer.gate_up.shape[0]
    for local in range(layer.gate_up.shape[0]):
        gate_up = layer.gate_up[local].detach().float().requires_grad_()
        down = layer.down[local].detach().float().requires_grad_()
        token, k = (all_idx == first + local).nonzero(as_tuple=True)
        rows = swiglu(all_x[token] @ gate_up) @ down * all_weights[token, k].unsqueeze(1)
        routed.index_add_(0, token, rows.detach())
        of_experts = () if local else (gate_up, down)
        found = torch.autograd.grad(rows, (all_x, all_weights, *of_experts), all_gradients[token])
        for total, one in zip(grads, found, strict=False):
            total += one
        first_grads += found[2:]
    for total in (routed, *grads):
        dist.all_reduce(total)
    mine = slice(dist.get_rank() * x.shape[0], (dist.get_rank() + 1) * x.shape[0])

    rest = x + layer.shared_down(swiglu(layer.shared_gate_up(normed)))
    balance = BALANCE_WEIGHT * balance_loss(probabilities, topk_idx)
    torch.autograd.backward(
        [rest, normed, weights, balance],
        [gradient, grads[0][mine].to(x.dtype), grads[1][mine], None],
    )
    assert x.grad is not None
    assert layer.router.weight.grad is not None
    return {
        "y": routed[mine] + rest.detach().float(),
        "gradient of x": x.grad,
        "gradient of the router": layer.router.weight.grad.clone(),
        "gradient of gate_up": first_grads[0],
        "gradient of down": first_grads[1],
    }


def differences(found: Results, expected: Results, tolerance: float) -> list[str]:
    """What is off by more than ``tolerance`` of its norm."""
    wrong = []
    for name, want in expected.items():
        error = float((found[name].float() - want.float()).norm() / want.float().norm())
        if not error < tolerance:
            wrong.append(f"{name} is off by {error:.1e} on rank {dist.get_rank()}")
    return wrong


def _gather(tensor: Tensor) -> Tensor:
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor.detach().contiguous())
    return torch.cat(parts)
