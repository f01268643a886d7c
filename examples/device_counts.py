"""Experts that learn on the device how many rows came: memory of a fixed size, and no wait.

Three grouped GEMMs, each over the rows that came and no others, of one dispatch with `max_sources`:

- torch's, which takes where each expert's rows end;
- one in Triton, whose programs read where their expert's rows begin and end;
- one in the manner of DeepGEMM's `m_grouped_…_contiguous`, which takes the expert of every row, -1
  behind the last, and works a tile of rows where all have the same.

On a GPU, or with TRITON_INTERPRET=1 on a CPU: python examples/device_counts.py
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

import fuscoc
from fuscoc.torch import as_artifact

TOKENS, HIDDEN, EXPERTS, TOPK = 40, 64, 8, 2
ROWS, COLUMNS = 16, 32  # of a tile


@triton.jit
def by_offsets(
    rows, weights, offsets, result, hidden: tl.constexpr, width: tl.constexpr,
    tile_rows: tl.constexpr, tile_columns: tl.constexpr,
):  # fmt: skip
    """``result[i] = rows[i] @ weights[e]`` for rows i from ``offsets[e]`` to ``offsets[e + 1]``,
    where e is the program's second number."""
    expert = tl.program_id(1)
    first, last = tl.load(offsets + expert), tl.load(offsets + expert + 1)
    column = tl.program_id(2) * tile_columns + tl.arange(0, tile_columns)
    inner = tl.arange(0, hidden)
    weight = tl.load(weights + (expert * hidden + inner[:, None]) * width + column[None, :])
    step = tl.num_programs(0) * tile_rows
    for start in range(first + tl.program_id(0) * tile_rows, last, step):
        row = start + tl.arange(0, tile_rows)
        inside = (row < last)[:, None]
        tile = tl.load(rows + row[:, None] * hidden + inner[None, :], mask=inside, other=0)
        sums = tl.dot(tile, weight, input_precision="ieee")
        to = result + row[:, None] * width + column[None, :]
        tl.store(to, sums.to(result.dtype.element_ty), mask=inside)


@triton.jit
def by_indices(
    rows, weights, indices, result, hidden: tl.constexpr, width: tl.constexpr,
    tile_rows: tl.constexpr, tile_columns: tl.constexpr,
):  # fmt: skip
    """The same, where the expert of a tile of rows is that of its first one, -1 for none."""
    row = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    expert = tl.load(indices + tl.program_id(0) * tile_rows)
    if expert >= 0:
        column = tl.program_id(1) * tile_columns + tl.arange(0, tile_columns)
        inner = tl.arange(0, hidden)
        weight = tl.load(weights + (expert * hidden + inner[:, None]) * width + column[None, :])
        tile = tl.load(rows + row[:, None] * hidden + inner[None, :])
        sums = tl.dot(tile, weight, input_precision="ieee")
        to = result + row[:, None] * width + column[None, :]
        tl.store(to, sums.to(result.dtype.element_ty))


def in_torch(rows: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
    return F.grouped_mm(rows, weights, offs=offsets[1:].int())


def in_triton(rows: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
    experts, hidden, width = weights.shape
    result = rows.new_empty(len(rows), width)
    programs = min(4, -(-len(rows) // ROWS))  # for each expert; more where there are more rows
    grid = programs, experts, width // COLUMNS
    by_offsets[grid](rows, weights, offsets, result, hidden, width, ROWS, COLUMNS)
    return result


def in_tiles(rows: Tensor, weights: Tensor, offsets: Tensor) -> Tensor:
    """The spec aligns every expert's rows to whole tiles."""
    _, hidden, width = weights.shape
    slots = torch.arange(len(rows), device=rows.device)
    expert = torch.searchsorted(offsets[1:], slots, right=True)
    indices = torch.where(expert < len(weights), expert, -1).int()
    result = rows.new_empty(len(rows), width)
    grid = len(rows) // ROWS, width // COLUMNS
    by_indices[grid](rows, weights, indices, result, hidden, width, ROWS, COLUMNS)
    return result


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    text = Path(__file__).with_name("moe_f32.fsc").read_text()
    text = text.replace("packed(s)", f"packed(s) align {ROWS}")
    sizes = {"hidden": HIDDEN, "experts": EXPERTS, "topk": TOPK}
    shuffle = fuscoc.load(as_artifact(text, sizes), device=device, max_sources=TOKENS)
    torch.manual_seed(0)
    x = torch.randn(TOKENS, HIDDEN, device=device)
    experts = torch.randn(EXPERTS, HIDDEN, HIDDEN, device=device) / HIDDEN**0.5
    gates, idx = torch.rand(TOKENS, EXPERTS, device=device).softmax(-1).topk(TOPK)
    wanted = (torch.einsum("th,tkhi->tki", x, experts[idx]) * gates[..., None]).sum(1)
    for work in (in_torch, in_triton, in_tiles):
        rows, handle = shuffle.dispatch(x, topk_idx=idx, topk_weights=gates)
        y = shuffle.combine(work(rows, experts, handle.key_offsets), handle)
        error = (y - wanted).abs().max().item()
        print(f"{work.__name__}: {len(rows)} rows of memory, off by {error:.1e}")
        assert error < 1e-4


if __name__ == "__main__":
    main()
