"""A shuffle inside modules, beside what PyTorch does with modules: copies, wrappers, compilers."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.utils.checkpoint import checkpoint

from fuscoc_runtime import Shuffle, fused_shuffle
from fuscoc_runtime.errors import InputError
from fuscoc_runtime.face import tickets
from fuscoc_runtime.face.pool import Pool as Windows
from tests.engine import specs
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool
from tests.torch import module_work

ROUTED = specs.routed("f32", keys=4, topk=2)
OPTIONS: list[dict[str, Any]] = [{}, {"max_sources": 9}]
ENGINES = pytest.mark.parametrize("options", OPTIONS, ids=["exact", "fixed"])


class Layer(nn.Module):
    def __init__(self, shuffle: Shuffle) -> None:
        super().__init__()
        self.shuffle = shuffle
        self.linear = nn.Linear(24, 24)

    def forward(self, x: Tensor, idx: Tensor, weights: Tensor) -> Tensor:
        rows, handle = self.shuffle.dispatch(self.linear(x), idx=idx, weights=weights)
        return x + self.shuffle.combine(rows.sin(), handle)


def batch(tokens: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(tokens)
    x, weights = torch.randn(tokens, 24), torch.rand(tokens, 2)
    return x.requires_grad_(), torch.randint(-1, 4, (tokens, 2)), weights.requires_grad_()


def test_copies_of_a_module_share_its_shuffle() -> None:
    layer = Layer(Shuffle(specs.artifact(ROUTED)))
    averaged = torch.optim.swa_utils.AveragedModel(layer)
    torch.testing.assert_close(averaged(*batch()), layer(*batch()))
    assert set(layer.state_dict()) == {"linear.weight", "linear.bias"}
    decorated = fused_shuffle(specs.artifact(ROUTED))(lambda rows: rows)
    layer.experts = decorated
    assert copy.deepcopy(layer).experts is decorated
    with pytest.raises(TypeError, match=r"a Shuffle cannot be saved or sent.*`state_dict`"):
        pickle.dumps(layer.shuffle)


@ENGINES
def test_gradients_of_any_layout(options: dict[str, Any]) -> None:
    """Expanded, transposed, and of a graph that is used twice."""
    layer = Layer(Shuffle(specs.artifact(ROUTED), **options))
    x, idx, weights = batch()
    found = []
    for gradient in (torch.ones(5, 24), torch.ones(1).expand(5, 24), torch.ones(24, 5).t()):
        y = layer(x, idx, weights)
        found += [
            torch.autograd.grad(y, [x, weights], gradient, retain_graph=keep)
            for keep in (True, False)
        ]
    for each in found[1:]:
        torch.testing.assert_close(each, found[0])


def test_recomputed_activations() -> None:
    layer = Layer(Shuffle(specs.artifact(ROUTED), max_sources=9))
    gradients = []
    for run in (layer, lambda *given: checkpoint(layer, *given, use_reentrant=False)):
        x, idx, weights = batch()
        run(x, idx, weights).square().sum().backward()
        gradients.append((x.grad, weights.grad))
    torch.testing.assert_close(*gradients)


@ENGINES
def test_gradients_have_no_gradients(options: dict[str, Any]) -> None:
    layer = Layer(Shuffle(specs.artifact(ROUTED), **options))
    x, idx, weights = batch()
    grads = torch.autograd.grad(layer(x, idx, weights).square().sum(), [x], create_graph=True)
    assert grads[0].isfinite().all()
    with pytest.raises(InputError, match="`routed` on rank 0 has first derivatives only"):
        grads[0].sum().backward()


def test_autocast_does_not_change_what_the_spec_says() -> None:
    text = specs.routed("bf16", keys=4, topk=2)
    layer = Layer(Shuffle(specs.artifact(text)))
    x, idx, weights = batch()
    with pytest.raises(InputError, match=r"`x` on rank 0 is torch\.float32"):
        layer(x, idx, weights)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x, idx, weights)
    y.float().sum().backward()
    assert layer.linear.weight.grad is not None
    assert layer.linear.weight.grad.dtype == torch.float32


def test_layers_of_a_pool_are_compiled_once() -> None:
    """More of them than Dynamo would compile one by one; again only where ``x`` gets a gradient."""
    torch._dynamo.reset()
    counter, pool = CompileCounter(), Windows()
    h, idx, weights = batch()
    h = h.detach()
    for _ in range(10):
        layer = Layer(Shuffle(specs.artifact(ROUTED), pool=pool))
        layer.compile(backend=counter, fullgraph=True, dynamic=True)
        h = layer(h, idx, weights)
    assert counter.frame_count == 2


def test_numbers_of_tokens_do_not_compile_again() -> None:
    torch._dynamo.reset()
    counter = CompileCounter()
    layer = Layer(Shuffle(specs.artifact(ROUTED)))
    layer.compile(backend=counter, fullgraph=True)
    for tokens in (5, 7, 3, 9):
        layer(*batch(tokens))
    assert counter.frame_count == 2  # the second with a size that may change


@ENGINES
def test_nothing_is_held_after_a_step(options: dict[str, Any]) -> None:
    """A routing goes with the graph that used it, without the garbage collector; statistics keep
    the latest one."""
    layer = Layer(Shuffle(specs.artifact(ROUTED), **options))
    before, watched = len(tickets._tickets), []
    gc.disable()
    try:
        for _ in range(3):
            x, idx, weights = batch()
            rows, handle = layer.shuffle.dispatch(x, idx=idx, weights=weights)
            watched += [weakref.ref(each) for each in (rows, handle, handle.key_counts)]
            layer.shuffle.combine(rows, handle).sum().backward()
            del rows, handle
        assert [each() for each in watched[:-1]] == [None] * 8
    finally:
        gc.enable()
    assert len(tickets._tickets) == before


pool = pool_of(2)


@pytest.mark.parametrize(("wrapper", "options"), [("ddp", {}), ("fsdp", {"max_sources": 9})])
def test_wrappers(pool: Pool, wrapper: str, options: dict[str, Any]) -> None:
    """Data-parallel weights around experts that are not; gradients are those without a wrapper."""
    path = str(specs.artifact(specs.routed("f32")).path)
    for error in pool.run(module_work.wrapped, 2, path, wrapper, options):
        assert error < 1e-5


def test_distributed_tensors_are_named(pool: Pool) -> None:
    path = str(specs.artifact(specs.routed("f32")).path)
    for messages in pool.run(module_work.distributed_tensors, 2, path):
        for message in messages:
            assert "is a DTensor: give what this rank holds, as by `to_local()`" in message
