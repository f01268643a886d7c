"""Gradients through dispatch and combine, on all ranks at once and in f64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from fuscoc_runtime import Shuffle
from fuscoc_runtime.engine import linear
from fuscoc_runtime.engine.linear import fresh_rows, rows_in_slots
from fuscoc_runtime.engine.node import maps
from fuscoc_runtime.engine.row_kernels import take_rows, weigh_rows
from fuscoc_runtime.errors import InputError
from fuscoc_runtime.face.executor import Executor
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.topology import Topology
from tests.engine import specs
from tests.engine.fixtures import noted_turns

WEIGHTED = specs.routed("f64", hidden=2, keys=4, topk=2).replace("w(t, k) : f32", "w(t, k) : f64")
MOVED = specs.MOVED.replace("a : f16[5]", "a : f64[3]")
GRID = specs.GRID.replace("of f32", "of f64").replace("x : f32[2, 2]", "x : f64[2, 2]")


def lockstep(text: str, topology: str) -> LockstepShuffle:
    return LockstepShuffle(specs.artifact(text), topology=Topology.parse(topology))


def leaves(sizes: list[tuple[int, ...]]) -> list[Tensor]:
    return [torch.rand(size, dtype=torch.float64, requires_grad=True) for size in sizes]


@pytest.mark.parametrize("topology", ["1x2", "2x1"])
def test_weighted_rows_and_weights(topology: str) -> None:
    """Both are combined twice with one handle; one rank has no token, some points are dropped."""
    torch.manual_seed(0)
    shuffle = lockstep(WEIGHTED, topology)
    idx = [torch.tensor([[0, 3], [-1, 2]]), torch.zeros(0, 2, dtype=torch.int64)]

    def layer(*given: Tensor) -> tuple[Tensor, ...]:
        dispatched = shuffle.dispatch([given[:1], given[1:2]], [{"idx": each} for each in idx])
        rows, handles = [each.rows["x"] for each in dispatched], [d.handle for d in dispatched]
        named = [{"weights": weight} for weight in given[2:]]
        squared = shuffle.combine([each.square() for each in rows], handles, named)
        same = shuffle.combine(rows, handles, named)
        return *(each["x"] for each in squared), *(each["x"] for each in same)

    assert gradcheck(layer, leaves([(2, 2), (0, 2), (2, 2), (0, 2)]), fast_mode=True)


def test_rows_that_another_rank_sends() -> None:
    """Rank 1 sends one of the two rows that rank 0 has for the other node."""
    shuffle = lockstep(WEIGHTED.replace("dedup(node, rank)", "balance rebalance"), "2x2")
    idx = [torch.tensor([[2, 3], [3, 0]]), *[torch.zeros(0, 2, dtype=torch.int64)] * 3]
    nothing = [torch.zeros(0, 2, dtype=torch.float64)] * 3

    def layer(x: Tensor, weights: Tensor) -> Tensor:
        named = [{"idx": each} for each in idx]
        dispatched = shuffle.dispatch([[each] for each in (x, *nothing)], named)
        handles = [each.handle for each in dispatched]
        assert [each.plan.rows.carried for each in handles] == [0, 1, 0, 0]
        named = [{"weights": each} for each in (weights, *nothing)]
        results = shuffle.combine([d.rows["x"].square() for d in dispatched], handles, named)
        return results[0]["x"]

    assert gradcheck(layer, leaves([(2, 2), (2, 2)]), fast_mode=True)


def test_a_copied_field_beside_integers() -> None:
    """``combine reverse``: of two fields, the one with a gradient is brought back."""
    shuffle = lockstep(MOVED, "1x2")
    table = [torch.tensor([[1, 2], [0, 0], [-1, 0]]), torch.tensor([[0, 1], [1, 0], [1, 1]])]
    b = torch.ones(3, 2, 2, dtype=torch.int32)

    def layer(*given: Tensor) -> tuple[Tensor, ...]:
        named = [{"table": each, "length": 3} for each in table]
        dispatched = shuffle.dispatch([[a, b] for a in given], named)
        rows = [{**each.rows, "a": each.rows["a"].sin()} for each in dispatched]
        results = shuffle.combine(rows, [each.handle for each in dispatched], [{}, {}])
        return tuple(each["a"] for each in results)

    assert gradcheck(layer, leaves([(3, 3), (3, 3)]), fast_mode=True)


SEVERAL = """
    shuffle several {
      index t : tokens   index k : 2   index e : 4
      segment row { a : f64[2], b : f64[3] }
      layout source[t] of row
      layout target[e, s] of row packed(s) align 2
      place e on rank by cyclic
      route r(t, k) -> e = input idx : int64
      weight w(t, k) : f64 = input weights
      dispatch source[t] -> target[r(t, k), *]
      combine reverse reduce sum(w)
    }"""


def test_a_weighted_sum_of_several_fields() -> None:
    shuffle = lockstep(SEVERAL, "1x2")
    idx = [torch.tensor([[0, 3], [1, -1]]), torch.tensor([[2, 2]])]

    def layer(*given: Tensor) -> tuple[Tensor, ...]:
        fields, weights = [given[:2], given[2:4]], given[4:]
        named = [{"idx": i, "weights": w} for i, w in zip(idx, weights, strict=True)]
        dispatched = shuffle.dispatch(fields, named)
        rows = [{name: row.sin() for name, row in each.rows.items()} for each in dispatched]
        results = shuffle.combine(rows, [each.handle for each in dispatched], [{}, {}])
        return tuple(field for each in results for field in each.values())

    sizes = [(2, 2), (2, 3), (1, 2), (1, 3), (2, 2), (1, 2)]
    assert gradcheck(layer, leaves(sizes), fast_mode=True)


def test_an_unweighted_sum_of_views() -> None:
    shuffle = lockstep(GRID, "1x1")
    table = torch.tensor([[0, 0], [0, 2], [0, 1], [-1, 0], [0, 3], [0, 5]]).view(1, 3, 2, 2)

    def layer(cells: Tensor) -> Tensor:
        [dispatched] = shuffle.dispatch([[cells]], [{"table": table, "length": 7}])
        rows = dispatched.rows["x"]
        return shuffle.combine([rows.square()], [dispatched.handle], [{}])[0]["x"]

    # Slots without a segment are 0 and get no gradient.
    cells = torch.rand(2, 6, dtype=torch.float64, requires_grad=True)
    assert gradcheck(layer, [cells], fast_mode=True)


def test_padding_rows_are_zero_and_give_no_gradient() -> None:
    shuffle = lockstep(specs.routed("f32", keys=2, topk=1, align=4), "1x1")
    x = torch.rand(3, 24, requires_grad=True)
    shuffle.dispatch([[x]], [{"idx": torch.tensor([[0], [0], [1]])}])  # leaves a row in slot 1
    [dispatched] = shuffle.dispatch([[x]], [{"idx": torch.tensor([[0], [1], [1]])}])
    rows = dispatched.rows["x"]
    padding = torch.ones(8, dtype=torch.bool)
    padding[[0, 4, 5]] = False
    assert not rows[padding].any()
    assert torch.equal(rows[~padding], x)
    (rows * 1e30).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 1e30))


class NoWaits(TorchDispatchMode):
    """Refuses operations whose shapes or values the host would have to wait for."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        waiting = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
        assert not waiting & set(func.tags), f"{func} waits for the device"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("compact", [False, True])
def test_rows_of_their_own_are_made_without_waiting(compact: bool) -> None:
    """A dispatch that need not wait for its rows does not wait for their copies, either."""
    text = specs.routed("f32", keys=2, topk=2, align=4)
    text = text.replace("align 4", "align 4 compact") if compact else text
    shuffle = Shuffle(specs.artifact(text))
    rows, handle = shuffle.dispatch(torch.rand(3, 24), idx=torch.tensor([[0, 1], [0, -1], [1, 1]]))
    with NoWaits():
        [fresh] = fresh_rows(handle, {"x": rows})
        [placed] = rows_in_slots(handle, [fresh])
    held = [0, 1, 4, 5, 6]
    wanted = torch.zeros(8, 24)
    if compact:
        assert torch.equal(fresh, rows)
        wanted[[0, 1, 5]] = rows  # each in the first of its slots
        assert torch.equal(placed, wanted)
    else:
        wanted[held] = rows[held]
        assert torch.equal(fresh, wanted)
    assert torch.equal(torch.nonzero(handle.row_of_slot >= 0).flatten(), torch.tensor(held))


def test_specs_without_a_way_back() -> None:
    shuffle = Shuffle(specs.artifact(specs.routed("f32").replace("combine", "// combine")))
    x, idx = torch.rand(2, 24, requires_grad=True), torch.zeros(2, 3, dtype=torch.int64)
    with torch.no_grad():
        shuffle.dispatch(x, idx=idx)
    with pytest.raises(
        InputError, match="`x` on rank 0 requires grad, and the spec has no combine"
    ):
        shuffle.dispatch(x, idx=idx)
    with pytest.raises(InputError, match="`x` on rank 0 requires grad"):
        shuffle.dispatch(x=x, idx=idx)
    rows, _ = shuffle.dispatch(x.detach(), idx=idx)
    assert not rows.requires_grad
    shuffle = Shuffle(specs.artifact(specs.routed("f32", reduce="max")))
    with pytest.raises(InputError, match="requires grad, and the spec reduces by max"):
        shuffle.dispatch(x, idx=idx)
    rows, handle = shuffle.dispatch(x.detach(), idx=idx)
    with pytest.raises(InputError, match="`x` on rank 0 requires grad"):
        shuffle.combine(rows.clone().requires_grad_(), handle)


@pytest.mark.parametrize("options", [{}, {"max_sources": 5}], ids=["exact", "fixed"])
def test_both_engines_against_plain_torch(options: dict[str, Any]) -> None:
    """Handles are outdated by the time of the backward pass; two layers share one shuffle."""
    torch.manual_seed(1)
    shuffle = Shuffle(specs.artifact(specs.routed("f32", keys=4, topk=2)), **options)
    idx = torch.tensor([[0, 3], [-1, 2], [1, 1], [3, 0], [2, -1]])
    x, weights = torch.rand(5, 24, requires_grad=True), torch.rand(5, 2, requires_grad=True)

    def fused(h: Tensor) -> Tensor:
        rows, handle = shuffle.dispatch(h, idx=idx, weights=weights)
        return shuffle.combine(rows.sin(), handle)

    def plain(h: Tensor) -> Tensor:
        return (h.sin()[:, None] * (weights * (idx >= 0))[..., None]).sum(1)

    found = [fused(fused(fused(x)))]
    found += torch.autograd.grad(found[0].square().sum(), [x, weights])
    stats = shuffle.stats()
    assert stats is not None
    assert stats.num_dispatches == 3 if not options else 6  # once more each, for the gradient
    wanted = [plain(plain(plain(x)))]
    wanted += torch.autograd.grad(wanted[0].square().sum(), [x, weights])
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"max_sources": 5}], ids=["exact", "fixed"])
def test_rows_are_read_in_the_turns_of_calls(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the next call, on whatever stream, puts its rows where these are."""
    turns, found = noted_turns(monkeypatch), list[bool]()

    def noting(read: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*given: Any) -> Any:
            found.append(bool(turns))
            return read(*given)

        return noted

    for module in (linear, maps):
        for read in (take_rows, weigh_rows):
            monkeypatch.setattr(module, read.__name__, noting(read))
    with Shuffle(specs.artifact(specs.routed("f32", keys=4, topk=2)), **options) as shuffle:
        x, weights = torch.rand(5, 24, requires_grad=True), torch.rand(5, 2, requires_grad=True)
        idx = torch.tensor([[0, 3], [-1, 2], [1, 1], [3, 0], [2, -1]])
        rows, handle = shuffle.dispatch(x, idx=idx, weights=weights)
        shuffle.combine(rows, handle).sum().backward()
    assert found == [True, True]  # rows of their own, and gradients


def test_rows_alone_when_their_handle_is_outdated() -> None:
    """No backward pass of combine has made a live handle: that of dispatch sees to it."""
    shuffle = Shuffle(specs.artifact(specs.routed("f32", keys=4, topk=2)), max_sources=3)
    x, weights = torch.rand(3, 24, requires_grad=True), torch.rand(3, 2)
    idx = torch.tensor([[0, 1], [2, -1], [3, 3]])
    rows, first = shuffle.dispatch(x, idx=idx, weights=weights)
    for _ in range(3):
        shuffle.dispatch(x.detach(), idx=idx.flip(0), weights=weights)
    assert not first.is_live
    rows.square().sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach() * (idx >= 0).sum(1, keepdim=True))
    # The weights of a handle that is used again are what they were.
    rows, handle = shuffle.dispatch(x, idx=idx, weights=weights)
    rows.sum().backward()
    sums = (weights * (idx >= 0)).sum(1, keepdim=True)
    torch.testing.assert_close(shuffle.combine(rows, handle), x * sums)


def test_rows_in_a_window_are_not_used_after_they_changed() -> None:
    """What autograd has saved of a view is refused, not read, once another dispatch wrote there."""
    shuffle = Shuffle(specs.artifact(specs.routed("f32", keys=4, topk=1)))
    x, idx = torch.rand(2, 24), torch.zeros(2, 1, dtype=torch.int64)
    scale = torch.ones(24, requires_grad=True)
    rows, handle = shuffle.dispatch(x, idx=idx, weights=torch.ones(2, 1))
    y = shuffle.combine(rows * scale, handle)
    shuffle.dispatch(x, idx=idx)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("options", [{}, {"max_sources": 5}], ids=["exact", "fixed"])
@pytest.mark.parametrize("trained", ["x", "weights"])
def test_one_gradient_alone(options: dict[str, Any], trained: str) -> None:
    """Of a source that is passed by name, or of the weights that dispatch was given."""
    torch.manual_seed(0)
    shuffle = Shuffle(specs.artifact(specs.routed("f32", keys=4, topk=2)), **options)
    given = {"x": torch.rand(5, 24), "weights": torch.rand(5, 2)}
    given[trained].requires_grad_()
    rows, handle = shuffle.dispatch(idx=torch.randint(0, 4, (5, 2)), **given)
    shuffle.combine(rows, handle).sum().backward()
    x, weights = (each.detach() for each in given.values())
    of_x = weights.sum(1, keepdim=True).expand(5, 24)
    of_weights = x.sum(1, keepdim=True).expand(5, 2)
    wanted = of_x if trained == "x" else of_weights
    torch.testing.assert_close(given[trained].grad, wanted)


@pytest.mark.parametrize("options", [{}, {"max_sources": 5}], ids=["exact", "fixed"])
def test_weights_that_change_behind_a_combine_of_which_autograd_saves_copies(
    options: dict[str, Any],
) -> None:
    """By hooks, as those that bring them to the host: it does not notice the change then."""
    torch.manual_seed(0)
    shuffle = Shuffle(specs.artifact(specs.routed("f32", keys=4, topk=2)), **options)
    x, idx, weights = torch.randn(5, 24), torch.randint(0, 4, (5, 2)), torch.rand(5, 2)
    wanted = (x * weights.sum(1, keepdim=True)).sum(0)
    scale = torch.ones(24, requires_grad=True)
    rows, handle = shuffle.dispatch(x, idx=idx, weights=weights)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda saved: saved):
        sums = shuffle.combine(rows * scale, handle)
    weights.neg_()
    idx.fill_(-1)
    sums.sum().backward()
    torch.testing.assert_close(scale.grad, wanted)


@pytest.mark.parametrize("options", [{}, {"max_sources": 5}], ids=["exact", "fixed"])
@pytest.mark.parametrize("pins", [False, True])
def test_what_autograd_saves_is_kept_on_the_host(options: dict[str, Any], pins: bool) -> None:
    """Where it is pinned, tokens are copied, too."""
    torch.manual_seed(0)
    shuffle = Shuffle(specs.artifact(specs.routed("f32", keys=4, topk=2)), **options)
    x, weights = (torch.rand(5, size, requires_grad=True) for size in (24, 2))
    with torch.autograd.graph.save_on_cpu(pin_memory=pins):
        rows, handle = shuffle.dispatch(x, idx=torch.randint(0, 4, (5, 2)), weights=weights)
        sums = shuffle.combine(rows * 2, handle)
    del rows, handle
    sums.sum().backward()
    torch.testing.assert_close(x.grad, 2 * weights.detach().sum(1, keepdim=True).expand(5, 24))
    torch.testing.assert_close(weights.grad, 2 * x.detach().sum(1, keepdim=True).expand(5, 2))


def test_ranks_are_told_of_arguments_that_autograd_does_not_get_to_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shuffle = Shuffle(specs.artifact(specs.routed("f32", keys=4, topk=2)))
    told: list[str] = []
    for name in ("dispatch", "combine"):
        call = getattr(Executor, name)

        def noted(*given: Any, name: str = name, call: Any = call) -> Any:
            told.append(name)
            return call(*given)

        monkeypatch.setattr(Executor, name, noted)
    x, idx = torch.rand(3, 24, requires_grad=True), torch.zeros(3, 2, dtype=torch.int64)
    with pytest.raises(InputError, match="`idx` on rank 0 is missing"):
        shuffle.dispatch(x)
    rows, handle = shuffle.dispatch(x, idx=idx, weights=torch.rand(3, 2))
    with pytest.raises(InputError, match="`weight` on rank 0 is no argument"):
        shuffle.combine(rows, handle, weight=torch.rand(3, 2))
    assert told == ["dispatch", "combine"]


@pytest.mark.parametrize("options", [{}, {"max_sources": 5}], ids=["exact", "fixed"])
def test_training_after_inference(options: dict[str, Any]) -> None:
    """What opening and the first calls have made serves those that autograd records."""
    torch.manual_seed(0)
    x, idx, weights = torch.randn(5, 24), torch.randint(0, 4, (5, 2)), torch.rand(5, 2)
    with torch.inference_mode():
        shuffle = Shuffle(specs.artifact(specs.routed("f32", keys=4, topk=2)), **options)
        rows, _ = shuffle.dispatch(x, idx=idx, weights=weights)
        assert not rows.is_inference()
    scale = torch.ones(24, requires_grad=True)
    rows, handle = shuffle.dispatch(x, idx=idx, weights=weights)
    (rows * scale).sum().backward()
    assert scale.grad is not None
    torch.testing.assert_close(scale.grad, rows.sum(0))
    back = shuffle.combine(rows, handle)
    torch.testing.assert_close(back, x * weights.sum(1, keepdim=True))
