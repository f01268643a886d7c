"""``torch.compile(fullgraph=True)``: any number of tokens, the same results and gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from fuscoc_runtime import Shuffle, fused_shuffle
from fuscoc_runtime.engine.linear import LinearMaps
from fuscoc_runtime.errors import ClosedError
from fuscoc_runtime.face import ops
from tests.engine import specs

ENGINES = pytest.mark.parametrize("options", [{}, {"max_sources": 9}], ids=["exact", "fixed"])


def batch(tokens: int) -> list[Tensor]:
    torch.manual_seed(tokens)
    idx = torch.randint(-1, 4, (tokens, 2))
    x, weights = torch.randn(tokens, 24), torch.rand(tokens, 2)
    return [x.requires_grad_(), idx, weights.requires_grad_()]


def check(plain: Callable[..., Tensor], backend: str, *, tokens: tuple[int, ...]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(plain, fullgraph=True, backend=backend, dynamic=True)
    for size in tokens:
        one, other = batch(size), batch(size)
        results = plain(*one), compiled(*other)
        torch.testing.assert_close(*results)
        for result in results:
            result.square().sum().backward()
        for expected, found in ((one[0], other[0]), (one[2], other[2])):
            torch.testing.assert_close(found.grad, expected.grad)


@pytest.mark.parametrize(
    ("backend", "options"),
    [("eager", {}), ("aot_eager", {"max_sources": 9})],
    ids=["exact", "fixed"],
)
def test_a_decorated_function(options: dict[str, Any], backend: str) -> None:
    """Opened while it is traced."""

    @fused_shuffle(specs.artifact(specs.routed("f32", keys=4, topk=2)), **options)
    def experts(rows: Tensor, counts: Tensor, handle: Any) -> Tensor:
        return rows.sin() * counts.sum() + handle.key_offsets[0]

    def layer(x: Tensor, idx: Tensor, weights: Tensor) -> Tensor:
        return experts(x * 2, idx=idx, weights=weights.sqrt()).cos()

    check(layer, backend, tokens=(5, 1, 0))


def test_the_functional_interface() -> None:
    shuffle = Shuffle(specs.artifact(specs.routed("f32", keys=4, topk=2)))

    def layer(x: Tensor, idx: Tensor, weights: Tensor) -> Tensor:
        rows, handle = shuffle.dispatch(x.sin(), idx=idx, weights=weights)
        first = shuffle.combine(rows * 2, handle)
        rows, handle, event = shuffle.dispatch(x, handle=handle, async_op=True)
        event.wait()
        return first + shuffle.combine(rows.cos(), handle)

    check(layer, "aot_eager", tokens=(4, 7))


def test_dense_targets_and_several_fields() -> None:
    """The number of rows is an extent that is passed; along a handle it is not."""
    shuffle = Shuffle(specs.artifact(specs.MOVED.replace("a : f16[5]", "a : f32[24]")))

    def layer(x: Tensor, idx: Tensor, weights: Tensor) -> Tensor:
        slot = torch.arange(x.shape[0])
        table = torch.stack([torch.zeros_like(slot), slot], 1)
        b = torch.zeros(x.shape[0], 2, 2, dtype=torch.int32)
        rows, handle = shuffle.dispatch(x, b, table=table, length=x.shape[0] + 2)
        back = shuffle.combine({"a": rows["a"].sin(), "b": rows["b"]}, handle)
        rows, handle = shuffle.dispatch(back["a"], b, handle=handle)
        back = shuffle.combine({"a": rows["a"].cos(), "b": rows["b"]}, handle)
        return back["a"] * weights.sum()

    check(layer, "aot_eager", tokens=(4, 6))


def test_a_handle_that_leaves_a_compiled_function() -> None:
    shuffle = Shuffle(specs.artifact(specs.routed("f32", keys=4, topk=2)))
    x, idx, weights = (each.detach() for each in batch(5))

    @torch.compile(fullgraph=True, backend="aot_eager")
    def there(x: Tensor) -> Any:
        return shuffle.dispatch(x, idx=idx, weights=weights)

    rows, handle = there(x)
    torch.testing.assert_close(
        shuffle.combine(rows, handle), x * (weights * (idx >= 0)).sum(1, keepdim=True)
    )
    again, _ = shuffle.dispatch(x, handle=handle)
    torch.testing.assert_close(again[rows != 0], rows[rows != 0])
    assert "4 keys" in repr(handle)
    shuffle.close()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="ClosedError"):
        there(x)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@ENGINES
def test_weights_that_change_behind_their_dispatch(options: dict[str, Any], backend: str) -> None:
    """They count as they are at combine, or, where they have travelled, as they were at dispatch;
    in gradients, too, and by a handle that leaves the compiled function."""
    torch._dynamo.reset()
    shuffle = Shuffle(specs.artifact(specs.routed("f32", keys=4, topk=2)), **options)

    @torch.compile(fullgraph=True, backend=backend)
    def layer(x: Tensor, idx: Tensor, weights: Tensor) -> Any:
        held = weights * 2
        rows, handle = shuffle.dispatch(x, idx=idx, weights=held)
        held.neg_()
        again, along = shuffle.dispatch(x, handle=handle)
        return rows, handle, shuffle.combine(rows, handle), shuffle.combine(again, along)

    x, idx, weights = batch(5)
    sums = x * (weights * (idx >= 0)).sum(1, keepdim=True)
    sign = 1 if options else -1
    rows, handle, first, second = layer(x, idx, weights)
    torch.testing.assert_close(second, -2 * sums)
    later = shuffle.combine(rows, handle)
    wanted = 2 * sign * sums
    torch.testing.assert_close(first, wanted)
    torch.testing.assert_close(later, wanted)
    gradients = torch.autograd.grad((first * later).sum(), [x, weights])
    torch.testing.assert_close(gradients, torch.autograd.grad(wanted.square().sum(), [x, weights]))


@ENGINES
def test_hooks_that_copy_what_a_compiled_function_saves(options: dict[str, Any]) -> None:
    """The copy of a token does not keep the routing; hooks that leave what is on the CPU do."""
    torch._dynamo.reset()
    shuffle = Shuffle(specs.artifact(specs.routed("f32", keys=4, topk=2)), **options)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def layer(x: Tensor, idx: Tensor, weights: Tensor) -> Tensor:
        rows, handle = shuffle.dispatch(x, idx=idx, weights=weights)
        return shuffle.combine(rows, handle)

    x, idx, weights = batch(5)
    with torch.autograd.graph.save_on_cpu():
        sums = layer(x, idx, weights)
    sums.sum().backward()
    wanted = (weights * (idx >= 0)).sum(1, keepdim=True).expand_as(x)
    torch.testing.assert_close(x.grad, wanted.detach())
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        sums = layer(x, idx, weights)
    with pytest.raises(ClosedError, match="hooks on saved tensors, such as save_on_cpu"):
        sums.sum().backward()


@ENGINES
def test_operators_are_well_formed(options: dict[str, Any]) -> None:
    """PyTorch's own checks: schema, fake kernels, autograd, dynamic shapes."""
    shuffle = Shuffle(specs.artifact(specs.routed("f32", keys=4, topk=2)), **options)
    x, idx, weights = batch(4)
    given = (shuffle._executor.key, [x], [idx], [-1], [weights], [])
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.fuscoc.dispatch.default, given, test_utils=checks)
    rows, token, *_ = torch.ops.fuscoc.dispatch(*given)
    back = (shuffle._executor.key, [rows.detach().requires_grad_()], token, [weights], [4])
    torch.library.opcheck(torch.ops.fuscoc.combine.default, back, test_utils=checks)


def test_jobs_of_other_sizes_have_other_keys() -> None:
    """What is compiled for one job is cached on disk, and must not be found by another."""
    maps = cast(LinearMaps, SimpleNamespace(spec=SimpleNamespace(name="moe")))
    job = ops.Registered(maps, 0, 2, None, None, 32)
    others = [replace(job, num_ranks=1, num_local_keys=64), replace(job, num_rows=128)]
    keys = [ops.register(each, "digest") for each in (job, job, *others)]
    first, again, *different = [key.rsplit(".", 1)[0] for key in keys]
    assert first == again
    assert len({first, *different}) == 3
