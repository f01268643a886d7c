"""Tokens of all ranks, and what DeepEP's calls should make of them: torch's rows, by index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fuscoc_runtime.errors import AdapterError

BLOCK = 128


@dataclass(frozen=True)
class Shape:
    """Of a layer."""

    hidden: int
    experts: int
    topk: int


SMALL, LARGE = Shape(512, 8, 3), Shape(7168, 256, 8)


@dataclass(frozen=True)
class Case:
    """A rank's tokens, and those of all ranks."""

    group: Any
    device: torch.device
    shape: Shape
    x: list[Tensor]
    idx: list[Tensor]
    weights: list[Tensor]
    is_node: bool = True

    @property
    def rank(self) -> int:
        return int(dist.get_rank(self.group))

    @property
    def num_ranks(self) -> int:
        return len(self.x)

    @property
    def local(self) -> int:
        return self.shape.experts // self.num_ranks

    def goes(self, source: int, rank: int) -> Tensor:
        """bool [tokens]: which tokens of a rank go to another."""
        return (self.idx[source] // self.local == rank).any(1)

    def received(self, what: list[Tensor], rank: int) -> Tensor:
        """Rows of ``what`` in DeepEP's order: by source rank, then token."""
        pairs = enumerate(what)
        return torch.cat([each[self.goes(source, rank)] for source, each in pairs])


def make_case(group: Any, device: str, shape: Shape, sizes: list[int], seed: int) -> Case:
    """Every rank makes the tokens of all: some choices are -1, and some tokens go nowhere."""
    x, idx, weights = list[Tensor](), list[Tensor](), list[Tensor]()
    hidden, experts, topk = shape.hidden, shape.experts, shape.topk
    for rank, num in enumerate(sizes[: dist.get_world_size(group)]):
        draw = torch.Generator().manual_seed(100 * seed + rank)
        x.append(torch.randn(num, hidden, generator=draw).bfloat16().to(device))
        scores = torch.rand(num, experts, generator=draw)
        chosen = scores.topk(topk, sorted=False)[1]
        chosen[torch.rand(num, topk, generator=draw) < 0.2] = -1
        chosen[torch.rand(num, generator=draw) < 0.1] = -1
        idx.append(chosen.to(device))
        weights.append(torch.rand(num, topk, generator=draw).to(device))
    return Case(group, torch.device(device), shape, x, idx, weights)


def to_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Values and a scale a block, by column, as quantisers for TMA leave them."""
    blocks = x.float().view(len(x), x.shape[1] // BLOCK, BLOCK)
    amax = blocks.abs().amax(2).clamp(1e-4)
    values = (blocks * (448 / amax[..., None])).to(torch.float8_e4m3fn).view(x.shape)
    return values, (amax / 448).T.contiguous().T


def every_number(values: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """The same, but that the first row has all numbers of eight bits, and NaN."""
    bits = torch.arange(values.shape[1]) % 0xFF
    values[:1] = bits.to(torch.uint8).view(values.dtype).to(values.device)
    return values, scales


def from_fp8(values: Tensor, scales: Tensor) -> Tensor:
    blocks = values.float().view(*values.shape[:-1], values.shape[-1] // BLOCK, BLOCK)
    return (blocks * scales[..., None]).view(values.shape).bfloat16()


def as_f32(scales: Tensor) -> Tensor:
    """Scales, or the exponents of four in an int32, as numbers."""
    if scales.dtype == torch.float32:
        return scales
    # `contiguous` would leave the strides of no rows as they are.
    rows = scales.clone(memory_format=torch.contiguous_format)
    return (rows.view(torch.uint8).int() << 23).view(torch.float32)


def raised(call: Any) -> str:
    """What a call is refused with."""
    try:
        call()
    except AdapterError as error:
        return str(error)
    return "nothing"


class Checks:
    """Collects what is wrong."""

    def __init__(self) -> None:
        self.wrong: list[str] = []

    def equal(self, what: str, found: Any, wanted: Any) -> None:
        if isinstance(wanted, Tensor):
            bits = torch.uint8 if wanted.dtype == torch.float8_e4m3fn else wanted.dtype
            fits = found.dtype == wanted.dtype and found.shape == wanted.shape
            if not fits or not torch.equal(found.view(bits), wanted.view(bits)):
                self.wrong.append(f"{what}: {tuple(found.shape)} is not {tuple(wanted.shape)}")
        elif found != wanted:
            self.wrong.append(f"{what}: {found} is not {wanted}")

    def near(
        self,
        what: str,
        found: Tensor,
        wanted: Tensor,
        rounding: float,
        size: Tensor | None = None,
    ) -> None:
        """Also what is no number must be none. ``size``: of what was rounded, such as a sum of the
        terms' sizes where these cancel; default: of what is wanted, and 1."""
        if found.shape != wanted.shape:
            self.wrong.append(f"{what}: {tuple(found.shape)} is not {tuple(wanted.shape)}")
            return
        off = (found.float() - wanted).abs() - rounding * (
            wanted.abs() + 1 if size is None else size
        )
        wrong = (~(off <= 0) & ~(found.isnan() & wanted.isnan())).nonzero()
        if len(wrong):
            at = tuple(wrong[0].tolist())
            self.wrong.append(
                f"{what}: {len(wrong)} of {found.numel()} are wrong, {at} is {found[at]} and not "
                f"{wanted[at]}"
            )


def as_tuple(x: Any) -> tuple[Tensor, ...]:
    return x if isinstance(x, tuple) else (x,)


def outputs(case: Case, width: int) -> list[Tensor]:
    """Of all ranks' tokens, bf16 [tokens, width, hidden]: so different in size that every order of
    adding them, and every rounding, has a sum of its own."""
    made = []
    for rank, x in enumerate(case.x):
        draw = torch.Generator().manual_seed(rank)
        size = len(x), width, case.shape.hidden
        exponents = torch.randint(-9, 9, size, generator=draw)
        made.append(torch.ldexp(torch.randn(size, generator=draw), exponents).bfloat16())
    return [each.to(case.device) for each in made]


def in_order(terms: Tensor, which: Tensor, biases: Sequence[Tensor] = ()) -> Tensor:
    """bf16 [tokens, hidden]: the biases and then those of the terms [tokens, k, hidden] that are
    meant, bool [tokens, k], one after the other in f32, rounded once."""
    total = torch.zeros_like(terms[:, 0], dtype=torch.float32)
    for bias in biases:
        total += bias.float()
    for k in range(terms.shape[1]):
        total = torch.where(which[:, k, None], total + terms[:, k].float(), total)
    return total.bfloat16()


def by_ranks(y: Tensor, owners: Tensor, biases: Sequence[Tensor] = ()) -> Tensor:
    """What DeepEP's second version makes of outputs [tokens, topk, hidden] of the ranks ``owners``
    [tokens, topk], -1 for none: a rank's are added in the order of the choices and rounded, and the
    ranks' sums in the order of their last choices, after the biases."""
    sums, is_last = torch.zeros_like(y), torch.zeros_like(owners, dtype=torch.bool)
    for k in range(owners.shape[1]):
        same = owners == owners[:, k : k + 1]
        sums[:, k] = in_order(y, same)
        is_last[:, k] = (owners[:, k] >= 0) & ~same[:, k + 1 :].any(1)
    return in_order(sums, is_last, biases)
