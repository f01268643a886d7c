"""Gradients of what casts compute, against torch's own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fuscoc_runtime import Shuffle
from fuscoc_runtime.errors import InputError
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.topology import Topology
from tests.static import specs

RANKS, KEYS, FAN = 4, 8, 2
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
SPEC = f"""
shuffle normalised {{
  const mean = {MEAN}, std = {STD}
  index t : tokens   index k : {FAN}   index e : {KEYS}
  segment left {{ x : f32[2, 3], y : f16[5], id : i64 }}
  segment came {{ x : bf16[2, 3], y : f32[5], id : i64 }}
  layout mine[t]  of left
  layout by[e, s] of came  packed(s)
  place e on rank by cyclic
  route to(t, k) -> e = input keys : int64
  dispatch mine[t] -> by[to(t, k), *]  cast((x / 255 - mean) / std, y)
  combine reverse REDUCE
}}"""
SUM = SPEC.replace("id : i64", "id : f32").replace("REDUCE", "reduce sum")


def tokens(random: torch.Generator, count: int) -> list[Tensor]:
    shapes = (count, 2, 3), (count, 5), (count,)
    x, y, number = (torch.randint(-9, 10, each, generator=random) for each in shapes)
    return [x.float().requires_grad_(), y.half().requires_grad_(), number.float()]


@given(
    st.sampled_from(["1x4", "2x2"]),
    st.lists(st.integers(0, 5), min_size=RANKS, max_size=RANKS),
    st.integers(0, 2**32),
)
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
def test_what_was_sent(topology: str, sizes: list[int], seed: int) -> None:
    """A field to two places, and of another type there; -1 is no place."""
    shuffle = LockstepShuffle(specs.artifact(SUM), topology=Topology.parse(topology))
    random = torch.Generator().manual_seed(seed)
    sent = [tokens(random, size) for size in sizes]
    keys = [torch.randint(-1, KEYS, (size, FAN), generator=random) for size in sizes]
    done = shuffle.dispatch(sent, [{"keys": each} for each in keys])
    losses = []
    for each in done:
        x, y = each.rows["x"], each.rows["y"]
        assert (x.dtype, y.dtype) == (torch.bfloat16, torch.float32)
        numbers = each.rows["id"].view(-1, 1)  # of the token, so that each has its own gradient
        losses.append((x.float() * numbers[..., None]).sum() + (y * numbers).sum())
    torch.stack(losses).sum().backward()

    for (x, y, number), chosen in zip(sent, keys, strict=True):
        upstream = number * (chosen >= 0).sum(1)
        wanted = upstream[:, None, None] / 255 / torch.tensor(STD).expand(2, 3)
        torch.testing.assert_close(x.grad, wanted)
        torch.testing.assert_close(y.grad, upstream[:, None].expand(-1, 5).half())


@pytest.mark.parametrize("options", [{}, {"max_sources": 4}], ids=["exact", "fixed"])
def test_in_compiled_functions(options: dict[str, int]) -> None:
    """One rank, by either engine."""
    keys = torch.tensor([[0, 3], [-1, 5]])
    with Shuffle(specs.artifact(SUM), **options) as shuffle:

        def loss(x: Tensor, y: Tensor, number: Tensor) -> Tensor:
            rows, _ = shuffle.dispatch_fresh(x, y, number, keys=keys)
            return (rows["x"].float().sum((1, 2)) * rows["id"]).sum() + rows["y"].sum()

        for call in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
            x, y, number = tokens(torch.Generator().manual_seed(1), 2)
            call(x, y, number).backward()
            wanted = (number * torch.tensor([2.0, 1.0]))[:, None, None] / 255 / torch.tensor(STD)
            torch.testing.assert_close(x.grad, wanted.expand(2, 2, 3))
            torch.testing.assert_close(y.grad, torch.tensor([[2.0], [1.0]]).half().expand(2, 5))


def test_what_comes_back_has_none() -> None:
    shuffle = LockstepShuffle(specs.artifact(SUM), topology=Topology.parse("1x1"))
    sent = [each.detach() for each in tokens(torch.Generator(), 3)]
    [done] = shuffle.dispatch([sent], [{"keys": torch.zeros(3, FAN, dtype=torch.int64)}])
    rows = {"x": torch.ones(6, 2, 3), "y": torch.ones(6, 5).half(), "id": torch.ones(6)}
    rows["x"].requires_grad_()
    with pytest.raises(InputError, match="casts on the path, and would cast its gradient"):
        shuffle.combine([rows], [done.handle], [{}])


def test_scales_have_none() -> None:
    text = SUM.replace("y : f32[5]", "y : f8e4m3[5], scales : f32").replace(
        ", y)", ", y by scales)"
    )
    shuffle = LockstepShuffle(specs.artifact(text), topology=Topology.parse("1x1"))
    keys = torch.zeros(3, FAN, dtype=torch.int64)
    with pytest.raises(InputError, match="casts by scales on the path, which has no gradient"):
        shuffle.dispatch([tokens(torch.Generator(), 3)], [{"keys": keys}])
