"""Tokens as rows that travel: bf16 as it is; 8-bit floats and scales as bytes of such a row.

Rows of one kind serve both, because what comes back is bf16. A row has room for as many 8-bit
floats and as many bytes again, in which their scales are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fuscoc_runtime.deep_ep.refusals import refusal

Tokens = Tensor | tuple[Tensor, Tensor]
"""[n, hidden] in bf16, or in f8e4m3 with scales [n, num_scales] of four bytes."""


def pack(x: Tokens) -> Tensor:
    """bf16 [n, hidden].

    Raises:
        AdapterError: ``x`` is of another type or shape.
    """
    if isinstance(x, Tensor):
        if x.dtype != torch.bfloat16 or x.dim() != 2:
            raise refusal(
                f"x is {x.dtype} of the shape {list(x.shape)}; rows are torch.bfloat16 [tokens, "
                "hidden], or torch.float8_e4m3fn with scales beside them"
            )
        return x.contiguous()
    values, scales = x
    if values.dtype != torch.float8_e4m3fn or values.dim() != 2:
        raise refusal(f"x[0] is {values.dtype} of the shape {list(values.shape)}; with scales it "
                      "is torch.float8_e4m3fn [tokens, hidden]")  # fmt: skip
    if scales.dtype not in (torch.float32, torch.int32) or scales.dim() != 2:
        raise refusal(f"scales are {scales.dtype} of the shape {list(scales.shape)}; they are "
                      "torch.float32 or torch.int32 [tokens, num_scales]")  # fmt: skip
    (num, hidden), num_scales = values.shape, scales.shape[1]
    if scales.shape[0] != num or hidden % 2 or hidden < 4 * num_scales:
        raise refusal(
            f"scales have the shape {list(scales.shape)} for values {list(values.shape)}; there is "
            "one row for a token, of no more bytes than the values have"
        )
    row = torch.zeros(num, 2 * hidden, dtype=torch.uint8, device=values.device)
    row[:, :hidden] = values.view(torch.uint8)
    row[:, hidden : hidden + 4 * num_scales] = scales.contiguous().view(torch.uint8)
    return row.view(torch.bfloat16)


def unpack(rows: Tensor, like: Tokens) -> Tokens:
    """What ``pack`` has made rows of, in memory of its own."""
    if isinstance(like, Tensor):
        return rows.clone()
    values, scales = like
    hidden, end = values.shape[1], values.shape[1] + 4 * scales.shape[1]
    taken = rows.view(torch.uint8)
    return (
        taken[:, :hidden].contiguous().view(values.dtype),
        taken[:, hidden:end].contiguous().view(scales.dtype),
    )
