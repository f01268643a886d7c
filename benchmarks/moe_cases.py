"""Mixture-of-experts cases for one NVLink node: kernels, routings and references.

Shared by the benchmark and the GPU tests, so that both mean the same by "correct".
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist

from fuscoc.codegen.cuda import print_cuda
from fuscoc.codegen.cuda_tiles import TARGETS, CudaSizes, CudaTarget, choose_sizes
from fuscoc.codegen.cuda_types import CudaField, CudaInput, CudaShuffle
from fuscoc_runtime.engine.node.handle import NodeHandle
from fuscoc_runtime.engine.node.nvlink import CudaNode
from fuscoc_runtime.engine.node.program import NodeProgram
from fuscoc_runtime.engine.node.rings import Launched
from fuscoc_runtime.kernels.cuda import ARCH_VARIABLE

RELATIONS = Path("build/relations")

TORCH_DTYPES = {
    "bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32,
    "f8e4m3": torch.float8_e4m3fn, "i64": torch.int64, "i32": torch.int32, "u8": torch.uint8,
}  # fmt: skip


@dataclass(frozen=True)
class Model:
    """A model's shuffle: payload elements and type, further (name, dtype, elements) fields; a token
    is on a rank once if ``compact``."""

    hidden: int = 7168
    experts: int = 256
    topk: int = 8
    dtype: str = "bf16"
    extra: tuple[tuple[str, str, int], ...] = ()
    placement: str = "block"
    align: int = 128
    compact: bool = False

    @property
    def fields(self) -> tuple[tuple[str, str, int], ...]:
        return (("x", self.dtype, self.hidden), *self.extra)

    @property
    def sums(self) -> bool:
        return not self.extra and self.dtype in ("bf16", "f16", "f32")


SHAPES = {
    "deepseek-v3": Model(hidden=7168, experts=256, topk=8),
    "qwen3-235b": Model(hidden=4096, experts=128, topk=8),
    "mixtral-8x7b": Model(hidden=4096, experts=8, topk=2),
    "gpt-oss-120b": Model(hidden=2880, experts=128, topk=4),
    "llama-4": Model(hidden=5120, experts=128, topk=1),
}


def spec(model: Model, backend: str = "auto") -> str:
    """The .fsc text of a model of one field whose rows are summed on the way back."""
    place = (
        model.placement if model.placement in ("block", "cyclic") else f"table {model.placement}"
    )
    packed = "packed(s) compact" if model.compact else "packed(s)"
    return f"""shuffle moe {{
  const hidden = {model.hidden}, experts = {model.experts}, topk = {model.topk}
  index t : tokens
  index k : topk
  index e : experts
  segment token {{ x : {model.dtype}[hidden] }}
  layout  by_token[t]     of token
  layout  by_expert[e, s] of token  {packed} align {model.align}
  place   e on rank by {place}
  route   r(t, k) -> e = input topk_idx : int64
  weight  w(t, k) : f32 = input topk_weights
  dispatch by_token[t] -> by_expert[r(t, k), *]  backend {backend}
  combine  reverse reduce sum(w)
}}
"""


def shuffle(model: Model) -> CudaShuffle:
    table = [model.placement] if model.placement == "expert_to_rank" else []
    return CudaShuffle(
        name="moe",
        fields=tuple(CudaField(name, dtype, n, n) for name, dtype, n in model.fields),
        extents=("tokens",),
        inputs=tuple(CudaInput(name, "i64") for name in ("topk_idx", *table)),
        fanout=model.topk,
        num_keys=model.experts,
        align=model.align,
        combine="sum" if model.sums else None,
        weighted=model.sums,
        compact=model.compact,
        by_table=bool(table),
    )


def gpu_target() -> CudaTarget:
    """The GPU whose kernels run: the newest, or the one before ``$FUSCOC_CUDA_ARCH``."""
    named = os.environ.get(ARCH_VARIABLE) or TARGETS[0].arch
    return next(t for t in TARGETS if int(t.arch[3:]) <= int(named[3:]))


def program(model: Model, sizes: CudaSizes | None = None) -> NodeProgram:
    return node_program(model, shuffle(model), sizes)


def node_program(model: Model, shuffle: CudaShuffle, sizes: CudaSizes | None = None) -> NodeProgram:
    """The program of ``shuffle``, whose relation is the model's."""
    sizes = sizes or choose_sizes(shuffle, gpu_target())
    printed = print_cuda(shuffle, relation(model, shuffle), sizes, gpu_target())
    return NodeProgram(
        name=shuffle.name,
        text=printed.text,
        launches={n: (c.threads, c.shared_bytes) for n, c in printed.launches.items()},
        fields=tuple((TORCH_DTYPES[field.dtype], field.elems) for field in shuffle.fields),
        fanout=shuffle.fanout,
        num_keys=shuffle.num_keys,
        weighted=shuffle.weighted,
        teams=printed.sizes.teams,
        summed=tuple((TORCH_DTYPES[each.dtype], each.elems) for each in shuffle.leaving),
        compact=shuffle.compact,
        scatters=printed.sizes.dispatch_rows > 1,
        sorts=printed.sizes.sorted_rows > 1,
        by_table=shuffle.by_table,
    )


def relation(model: Model, shuffle: CudaShuffle) -> str:
    """The model's relation in C++. Kept under ``RELATIONS``: where there is no MLIR, as on many
    GPU machines, what another machine has printed is taken."""
    text = spec(replace(model, dtype="f32", extra=()))
    key = hashlib.sha256(f"{text}{shuffle.inputs}".encode()).hexdigest()[:16]
    kept = RELATIONS / f"{key}.cuh"
    try:
        from fuscoc.codegen.cuda_relation import print_relation
        from fuscoc.lang.check import check
        from fuscoc.pipeline import compile_to_ir
        from fuscoc.source import SourceFile
    except ImportError:
        return kept.read_text()
    (checked,) = check(SourceFile("moe.fsc", text))
    lowered = compile_to_ir(checked, after="fuse-node")
    printed = print_relation(lowered.module, shuffle)
    RELATIONS.mkdir(parents=True, exist_ok=True)
    kept.write_text(printed)
    return printed


def owners(model: Model, num_ranks: int, device: torch.device) -> torch.Tensor:
    """The rank of every expert; a table is a fixed shuffle of an uneven split."""
    experts = torch.arange(model.experts, device=device)
    if model.placement == "block":
        return experts // -(-model.experts // num_ranks)
    if model.placement == "cyclic":
        return experts % num_ranks
    generator = torch.Generator().manual_seed(7)
    return torch.randint(num_ranks, (model.experts,), generator=generator).to(device)


def routing(
    kind: str, num_tokens: int, model: Model, num_ranks: int, generator: torch.Generator
) -> torch.Tensor:
    """``topk_idx`` int64 [num_tokens, topk]: uniform, single (one rank a token), skewed (Zipf 1.0),
    or messy (repeated experts and dropped entries)."""
    device = generator.device
    shape = (num_tokens, model.experts)
    scores = torch.rand(shape, device=device, generator=generator)
    if kind == "single":
        owner = owners(model, num_ranks, device)
        chosen = torch.randint(num_ranks, (num_tokens, 1), device=device, generator=generator)
        scores = torch.where(owner == chosen, scores, scores - 1)
    elif kind == "skewed":
        fixed = torch.Generator().manual_seed(11)
        order = torch.randperm(model.experts, generator=fixed).to(device)
        popularity = 1.0 / (order + 1).float()
        # Gumbel top-k draws without replacement in proportion to popularity.
        scores = popularity.log() - (-scores.clamp(1e-9, 1 - 1e-9).log()).log()
    elif kind == "messy":
        return torch.randint(
            -1, model.experts, (num_tokens, model.topk), device=device, generator=generator
        )
    return scores.topk(model.topk, dim=1).indices


def gather_ragged(tensor: torch.Tensor, group: dist.ProcessGroup | None) -> list[torch.Tensor]:
    """Every rank's tensor; dim 0 may differ."""
    num_ranks = dist.get_world_size(group)
    sizes = [0] * num_ranks
    dist.all_gather_object(sizes, tensor.shape[0], group=group)
    padded = tensor.new_zeros((max(*sizes, 1), *tensor.shape[1:]))
    padded[: tensor.shape[0]] = tensor
    parts = [torch.empty_like(padded) for _ in range(num_ranks)]
    dist.all_gather([p.view(torch.uint8) for p in parts], padded.view(torch.uint8), group=group)
    return [part[:size] for part, size in zip(parts, sizes, strict=True)]


@dataclass(frozen=True, eq=False)
class Expected:
    """The rows of one rank: ``slots``, and the (source rank, token) each must hold; ``rows`` are
    what they refer to in a compact target. Per own key its rows and first slot."""

    slots: torch.Tensor
    rows: torch.Tensor
    ranks: torch.Tensor
    tokens: torch.Tensor
    keys: torch.Tensor
    key_counts: torch.Tensor
    key_starts: torch.Tensor


def expected_rows(
    all_idx: list[torch.Tensor], owner: torch.Tensor, align: int, rank: int
) -> Expected:
    """The definition of a packed target: keys ascending, each from an aligned slot; within a key,
    points by source rank and then by linear index. In a compact target, tokens in that order."""
    device = owner.device
    keys = torch.cat([idx.reshape(-1) for idx in all_idx])
    ranks = torch.cat(
        [torch.full((idx.numel(),), r, device=device) for r, idx in enumerate(all_idx)]
    )
    tokens = torch.cat(
        [torch.arange(i.shape[0], device=device).repeat_interleave(i.shape[1]) for i in all_idx]
    )
    live = (keys >= 0) & (owner[keys.clamp(min=0)] == rank)
    keys, ranks, tokens = keys[live], ranks[live], tokens[live]
    order = torch.sort(keys, stable=True).indices
    keys, ranks, tokens = keys[order], ranks[order], tokens[order]
    most = max(1, *(len(idx) for idx in all_idx))
    rows = torch.unique(ranks * most + tokens, return_inverse=True)[1]
    counts = torch.bincount(keys, minlength=owner.numel())
    padded = (counts + align - 1) // align * align
    starts = padded.cumsum(0) - padded
    first = counts.cumsum(0) - counts
    slots = starts[keys] + torch.arange(keys.numel(), device=device) - first[keys]
    own = owner == rank
    return Expected(slots, rows, ranks, tokens, keys, counts[own], starts[own])


def check_dispatch(
    engine: CudaNode,
    handle: Launched,
    source: list[torch.Tensor],
    expected: Expected,
    group: dist.ProcessGroup | None,
) -> list[str]:
    """Rows bit-exact, counts and starts exact; returns what is wrong."""
    own = expected.key_counts.numel()
    return _differences(
        handle.key_counts[:own].long(),
        handle.key_starts[:own].long(),
        handle.row_index,
        engine.rows,
        source,
        expected,
        group,
    )


def check_rows(
    handle: NodeHandle,
    rows: Sequence[torch.Tensor],
    source: list[torch.Tensor],
    expected: Expected,
    group: dist.ProcessGroup | None,
) -> list[str]:
    """The same for a dispatch through ``Shuffle``, whose handle says where keys begin and end."""
    starts, index = handle.key_offsets[:-1], handle.row_index
    return _differences(handle.key_counts, starts, index, rows, source, expected, group)


def _differences(
    key_counts: torch.Tensor,
    key_starts: torch.Tensor,
    row_index: torch.Tensor | None,
    target: Sequence[torch.Tensor],
    source: list[torch.Tensor],
    expected: Expected,
    group: dist.ProcessGroup | None,
) -> list[str]:
    wrong = []
    if not torch.equal(key_counts, expected.key_counts):
        wrong.append("key_counts differ")
    if not torch.equal(key_starts, expected.key_starts):
        wrong.append("key_starts differ")
    at = expected.slots
    if row_index is not None:
        at = expected.rows
        refers = torch.full_like(row_index, -1).index_copy(0, expected.slots, at)
        if not torch.equal(row_index, refers):
            wrong.append(f"row_index: {int((row_index != refers).sum())} slots differ")
    for field, (tensor, rows) in enumerate(zip(source, target, strict=True)):
        everyone = gather_ragged(tensor, group)
        for r, theirs in enumerate(everyone):
            mine = expected.ranks == r
            got = rows.view(torch.uint8)[at[mine]]
            want = theirs.view(torch.uint8)[expected.tokens[mine]]
            bad = int((got != want).any(dim=1).sum())
            if bad:
                wrong.append(f"field {field}: {bad} of {got.shape[0]} rows from rank {r} differ")
    return wrong


def expert_outputs(
    rows: torch.Tensor,
    expected: Expected,
    num_experts: int,
    row_index: torch.Tensor | None = None,
) -> torch.Tensor:
    """What experts would make of the rows: each scaled by its expert; other slots are NaN.

    The slots of a compact target refer to rows by ``row_index``."""
    scale = expert_scales(num_experts, rows.device)
    num_slots = len(rows) if row_index is None else len(row_index)
    result = rows.new_full((num_slots, *rows.shape[1:]), float("nan"))
    for part in torch.arange(expected.slots.numel(), device=rows.device).split(1 << 15):
        slots = expected.slots[part]
        taken = rows[slots if row_index is None else row_index[slots]]
        scaled = taken.float() * scale[expected.keys[part]].unsqueeze(1)
        result[slots] = scaled.to(rows.dtype)
    return result


def expert_scales(num_experts: int, device: torch.device) -> torch.Tensor:
    return torch.linspace(0.5, 1.5, num_experts, device=device)


def check_combine(
    result: torch.Tensor,
    x: torch.Tensor,
    topk_idx: torch.Tensor,
    weights: torch.Tensor,
    num_experts: int,
) -> list[str]:
    """Against the same sum in f32, relative error of the whole below 1e-2."""
    if not x.shape[0]:
        return []
    scale = expert_scales(num_experts, x.device)
    want = torch.zeros(x.shape, device=x.device, dtype=torch.float32)
    for k in range(topk_idx.shape[1]):
        live = topk_idx[:, k] >= 0
        factor = scale[topk_idx[:, k].clamp(min=0)]
        row = (x.float() * factor.unsqueeze(1)).to(x.dtype).float()
        want += row * (weights[:, k] * live).unsqueeze(1)
    error = (result.float() - want).norm() / want.norm().clamp(min=1e-30)
    worst = (result.float() - want).abs().max()
    if not error < 1e-2 or not torch.isfinite(worst):
        return [f"combine is off by {float(error):.2e} (largest {float(worst):.2e})"]
    return []
