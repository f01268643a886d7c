"""Kinds of low-latency rows, and tokens whose scales are powers of two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.deep_ep.refusals import refusal

BLOCK = 128
"""Elements of a token that share a scale."""
SMALLEST = 1e-4
"""What DeepEP takes for the largest element of a block where all are smaller."""


@dataclass(frozen=True)
class Quantised:
    """How tokens travel: as bf16, as 8-bit floats with scales, ``rounded`` up to powers of two, and
    those as ``packed`` exponents, four in an int32."""

    is_fp8: bool
    rounded: bool
    packed: bool

    def check(self, hidden: int) -> None:
        """Raises AdapterError: there is no such thing, or not for so many elements."""
        if (self.packed and not self.rounded) or (self.rounded and not self.is_fp8):
            raise refusal("use_ue8m0 is given with round_scale, and that with use_fp8")
        elems = BLOCK * (4 if self.packed else 1)
        if self.is_fp8 and hidden % elems:
            raise refusal(f"8-bit floats take a multiple of {elems} elements here, not {hidden}")

    def num_scales(self, hidden: int) -> int:
        """Words of four bytes beside a token."""
        return hidden // BLOCK // (4 if self.packed else 1)

    def spec(self, hidden: int, num_topk: int) -> tuple[str, dict[str, int]]:
        """The spec that moves such tokens, and its constants."""
        sizes = {"hidden": hidden, "topk": num_topk}
        if self.rounded:
            return "slots_narrow", {**sizes, "beside": self.num_scales(hidden)}
        return ("slots_fp8" if self.is_fp8 else "slots"), sizes

    def fields(self, x: Tensor) -> dict[str, Any]:
        """The source's fields. Scales that are not rounded are made on the way."""
        if not self.rounded:
            return {"x": x}
        values, scales = quantise(x)
        if self.packed:
            exponents = scales.view(torch.int32) >> 23
            scales = exponents.to(torch.uint8).view(torch.float32)
        return {"x": values.to(torch.bfloat16), "beside": scales}

    def received(self, arrived: Any, local: int, num_slots: int) -> Any:
        """What has arrived by local expert and slot; scales by column, as TMA reads them."""
        if isinstance(arrived, Tensor):
            return arrived.view(local, num_slots, -1)
        scales = arrived["beside" if self.rounded else "scales"].view(local, num_slots, -1)
        scales = scales.transpose(1, 2).contiguous().transpose(1, 2)
        values = arrived["x"].view(local, num_slots, -1)
        return values, scales.view(torch.int32) if self.packed else scales

    def rows(self, x: Tensor) -> Any:
        """Rows [local, slots, hidden] as combine takes them."""
        rows = x.reshape(-1, x.shape[-1])
        if not self.rounded:
            return rows
        beside = self.num_scales(x.shape[-1])
        zeros = torch.zeros(len(rows), beside, dtype=torch.float32, device=x.device)
        return {"x": rows, "beside": zeros}


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """f8e4m3 [n, hidden], and f32 [n, hidden / BLOCK]: amax / 448, rounded up to a power of 2."""
    num, hidden = x.shape
    blocks = x.float().view(num, hidden // BLOCK, BLOCK)
    mantissa, exponent = torch.frexp(blocks.abs().amax(2).clamp(SMALLEST) * (1 / 448))
    scales = torch.ldexp(torch.ones_like(mantissa), exponent - (mantissa == 0.5).int())
    values = (blocks / scales[..., None]).clamp(-448, 448)
    return values.to(torch.float8_e4m3fn).view(num, hidden), scales
