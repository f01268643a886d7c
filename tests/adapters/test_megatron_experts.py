"""Megatron-Core's experts with counts on the device, beside themselves with counts on the host."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fuscoc_runtime.adapters import megatron
from fuscoc_runtime.adapters.megatron_dispatcher import Dispatcher
from fuscoc_runtime.adapters.megatron_experts import can_stay_on_device, keep_on_device
from tests.adapters.megatron_layers import EXPERTS, HIDDEN, TOPK, WIDTH, Layout, configuration

pytestmark = pytest.mark.usefixtures("megatron_core")

GROUPS = SimpleNamespace(ep=None, expt_tp=None, expt_dp=None, tp_ep=None)
GATED = {"gated_linear_unit": True, "activation_func": torch.nn.functional.silu}


class Grouped(nn.Module):
    """A linear layer of several experts, as Transformer Engine's keeps its parameters."""

    def __init__(
        self, num_gemms: int, wide: int, out: int, *, bias: bool, config: Any, **others: Any
    ) -> None:
        super().__init__()
        self.num_gemms, self.skips_bias = num_gemms, others["skip_bias_add"]
        for i in range(num_gemms):
            self.register_parameter(f"weight{i}", nn.Parameter(torch.randn(out, wide)))
        for i in range(num_gemms if bias else 0):
            self.register_parameter(f"bias{i}", nn.Parameter(torch.randn(out)))

    def forward(self, x: Tensor, counts: list[int]) -> tuple[Tensor, Any]:
        biases = [getattr(self, f"bias{i}", torch.zeros(())) for i in range(self.num_gemms)]
        parts = [
            rows @ getattr(self, f"weight{i}").T + (0 if self.skips_bias else biases[i])
            for i, rows in enumerate(x.split(counts))
        ]
        apart = self.skips_bias and hasattr(self, "bias0")
        return torch.cat(parts), biases if apart else None


def named_as_there(name: str) -> type:
    place = "megatron.core.extensions.transformer_engine"
    return type(name, (Grouped,), {"__module__": place})


def make(kind: str, num_experts: int, **options: Any) -> Any:
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.mlp import MLPSubmodules
    from megatron.core.transformer.moe.experts import SequentialMLP, TEGroupedMLP

    config = configuration(Layout(1, 2), moe_ffn_hidden_size=WIDTH, bias_dropout_fusion=False)
    for name, value in options.items():
        setattr(config, name, value)
    if kind == "sequential":
        submodules = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
        experts = SequentialMLP(num_experts, config, submodules, GROUPS)
    else:
        names = "TEColumnParallelGroupedLinear", "TERowParallelGroupedLinear"
        first, second = map(named_as_there, names)
        submodules = MLPSubmodules(linear_fc1=first, linear_fc2=second)
        experts = TEGroupedMLP(num_experts, config, submodules, GROUPS)
    for weight in experts.parameters():
        nn.init.normal_(weight)
    return experts


@pytest.mark.parametrize("kind", ["sequential", "grouped"])
@pytest.mark.parametrize(
    "options", [{}, {"add_bias_linear": True}, GATED], ids=["plain", "biases", "gated"]
)
@settings(max_examples=8, deadline=None)
@given(counts=st.lists(st.integers(0, 5), min_size=1, max_size=4), more=st.integers(0, 3))
def test_same_as_on_the_host(
    kind: str, options: dict[str, Any], counts: list[int], more: int
) -> None:
    """Rows behind those that are counted are no numbers, and so are the gradients of theirs."""
    torch.manual_seed(len(counts))
    theirs = make(kind, len(counts), **options)
    ours, num = copy.deepcopy(theirs), sum(counts)
    assert can_stay_on_device(ours)
    keep_on_device(ours)
    keep_on_device(ours)
    rows, gradient = torch.randn(2, num + more, HIDDEN)
    rows[num:], gradient[num:] = torch.nan, torch.nan
    found = []
    for experts, end in ((theirs, num), (ours, num + more)):
        x = rows[:end].clone().requires_grad_()
        y, bias = experts(x, torch.tensor(counts), torch.ones(end))
        y.backward(gradient[:end])
        assert bias is None
        weights = {name: weight.grad for name, weight in experts.named_parameters()}
        found.append({"output": y.detach()[:num], "rows": x.grad[:num], **weights})
    for name, wanted in found[0].items():
        torch.testing.assert_close(
            found[1][name], wanted if wanted is not None else torch.zeros_like(found[1][name])
        )


@pytest.mark.parametrize("kind", ["sequential", "grouped"])
def test_hooks_that_gather_parameters_run(kind: str) -> None:
    experts, called = make(kind, 2), list[nn.Module]()
    keep_on_device(experts)
    linears = [
        each for each in experts.modules() if hasattr(each, "weight") or hasattr(each, "weight0")
    ]
    for linear in linears:
        linear.register_forward_pre_hook(lambda module, _: called.append(module))
    experts(torch.randn(3, HIDDEN), torch.tensor([1, 2]), torch.ones(3))
    assert {*called} == {*linears}
    assert len(linears) == (4 if kind == "sequential" else 2)


@pytest.mark.parametrize("option", ["fp8", "delay_wgrad_compute"])
def test_experts_that_keep_something_else_stay_as_they_are(option: str) -> None:
    experts = make("sequential", 2)
    setattr(experts.config, option, True)
    assert not can_stay_on_device(experts)


def test_linear_layers_around_others_stay_as_they_are() -> None:
    """Such as adapters of a low rank, whose outputs are not products with `weight` alone."""
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear

    class Adapted(ColumnParallelLinear):  # type: ignore[misc]
        pass

    experts = make("sequential", 2)
    experts.local_experts[1].linear_fc1.__class__ = Adapted
    assert not can_stay_on_device(experts)


@pytest.mark.parametrize("kind", ["sequential", "grouped"])
@pytest.mark.parametrize("num_experts", [1, 4])
def test_nothing_is_read_on_the_host(kind: str, num_experts: int) -> None:
    """On a device that has no values, which raises when one is asked for."""

    class Moe:
        topk = TOPK

        def dispatch(self, x: Tensor, idx: Tensor, weights: Tensor) -> tuple[Tensor, Any]:
            offsets = torch.zeros(num_experts + 1, dtype=torch.int64, device="meta")
            rows = x.new_empty(64, HIDDEN) + x.sum() + weights.sum().to(x.dtype)
            return rows, SimpleNamespace(key_offsets=offsets)

        def combine(self, rows: Tensor, handle: Any) -> Tensor:
            assert rows.shape == (64, HIDDEN)
            return rows[:10]

    experts = make(kind, num_experts, **GATED).to("meta", torch.bfloat16)
    base = megatron.DISPATCHER.load().MoETokenDispatcher
    dispatcher = megatron.DISPATCHER.implement(Dispatcher, base)(
        Moe(), False, num_experts, [*range(num_experts)], experts.config, GROUPS
    )
    keep_on_device(experts)
    hidden = torch.empty(10, 1, HIDDEN, device="meta", dtype=torch.bfloat16, requires_grad=True)
    probs = torch.empty(10, EXPERTS, device="meta", requires_grad=True)
    rows, weights = dispatcher.dispatch_preprocess(hidden, probs > 0, probs)
    rows, counts, ones = dispatcher.dispatch_postprocess(*dispatcher.token_dispatch(rows, weights))
    outputs, _ = experts(rows, counts, ones)
    outputs = dispatcher.token_combine(dispatcher.combine_preprocess(outputs))
    dispatcher.combine_postprocess(outputs).sum().backward()
    assert hidden.grad is not None
    assert all(weight.grad is not None for weight in experts.parameters())
