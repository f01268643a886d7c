"""Tokens as rows of a spec: what travels beside them is f32, or the bits of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.deep_ep.refusals import refusal

Tokens = Tensor | tuple[Tensor, Tensor]
"""[n, hidden] in bf16, or in f8e4m3 with scales [n, num_scales] of four bytes."""

BESIDE = (torch.float32, torch.int32)


@dataclass(frozen=True)
class Kind:
    """What a row is: ``hidden`` elements, and beside them ``num_scales`` scales, if they are 8-bit
    floats, the experts and weights of ``num_topk`` choices, and, if ``is_numbered``, the number of
    the token."""

    hidden: int
    num_scales: int
    num_topk: int
    is_numbered: bool = False

    @property
    def spec(self) -> str:
        """The spec that moves such rows."""
        return "narrow" if self.num_scales else "gated" if self.num_topk else "ranks"

    @property
    def num_beside(self) -> int:
        return self.num_scales + 2 * self.num_topk + self.is_numbered

    def constants(self, num_ranks: int) -> dict[str, int]:
        """Those of the spec."""
        beside = {"beside": self.num_beside} if self.num_beside else {}
        return {"hidden": self.hidden, **beside, "peers": num_ranks}

    def rows(self, x: Tensor, *beside: Tensor) -> dict[str, Any]:
        """The fields of rows: bf16 [n, hidden], and beside them all that is given, then zeros.

        Raises:
            AdapterError: something of another type than four bytes is to go beside them.
        """
        if not self.num_beside:
            return {"x": x}
        wrong = [each.dtype for each in beside if each.dtype not in BESIDE]
        if wrong:
            raise refusal(f"weights and scales are torch.float32 or torch.int32, not {wrong[0]}")
        given = [each.view(torch.float32) for each in beside]
        width = self.num_beside - sum(each.shape[1] for each in given)
        zeros = torch.zeros(x.shape[0], width, dtype=torch.float32, device=x.device)
        return {"x": x, "beside": torch.cat([*given, zeros], dim=1)}


def kind_of(x: Tokens, num_topk: int) -> Kind:
    """What rows of ``x`` are.

    Raises:
        AdapterError: they are of another type or shape than ``Tokens``.
    """
    values, scales = x if isinstance(x, tuple) else (x, None)
    wanted = torch.bfloat16 if scales is None else torch.float8_e4m3fn
    if values.dtype != wanted or values.dim() != 2:
        raise refusal(
            f"x is {values.dtype} of the shape {list(values.shape)}; rows are torch.bfloat16 "
            "[tokens, hidden], or torch.float8_e4m3fn with scales beside them"
        )
    if scales is None:
        return Kind(values.shape[1], 0, num_topk)
    if (
        scales.dtype not in BESIDE
        or scales.dim() != 2
        or scales.shape[0] != values.shape[0]
        or not scales.shape[1]
    ):
        raise refusal(
            f"scales are {scales.dtype} of the shape {list(scales.shape)}; they are torch.float32 "
            f"or torch.int32 [{values.shape[0]}, num_scales]"
        )
    return Kind(values.shape[1], scales.shape[1], num_topk)


def pack(x: Tokens) -> tuple[Tensor, list[Tensor]]:
    """The rows in bf16, and the scales beside them."""
    if isinstance(x, Tensor):
        return x.contiguous(), []
    return x[0].to(torch.bfloat16), [x[1].contiguous()]


def unpack(rows: Tensor, beside: Tensor | None, like: Tokens) -> Tokens:
    """What ``pack`` was given, in memory of its own."""
    if isinstance(like, Tensor) or beside is None:
        return rows.clone()
    scales = beside[:, : like[1].shape[1]].contiguous().view(like[1].dtype)
    return rows.clone(), scales
