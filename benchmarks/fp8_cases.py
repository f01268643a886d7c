"""Dispatch of fp8 rows with their scales, against a bound of its own: for `nvlink.py --fp8`.

`payload`: the source holds 8-bit floats and f32 scales already; only dispatch is measured, since
what comes back has another type. `cast`: the source is bf16 and dispatch quantises on the way; the
experts' bf16 rows are combined with weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.moe_bound import Bound, bound
from benchmarks.moe_cases import (
    Model,
    check_combine,
    check_rows,
    expert_outputs,
)
from benchmarks.nvlink_contenders import Batch, Contender
from fuscoc_runtime import Shuffle
from fuscoc_runtime.manifest.declared import CastSpec
from fuscoc_runtime.reference import cast_fields

BLOCK = 128
KINDS = ("payload", "cast")
QUANTISE = (CastSpec("x", "scales", BLOCK),)


def spec(model: Model, kind: str) -> str:
    """The .fsc text of a model whose tokens arrive as fp8 with a scale for each block."""
    casts = kind == "cast"
    lines = [
        f"shuffle moe_{kind} {{",
        f"const hidden = {model.hidden}, experts = {model.experts}, topk = {model.topk}",
        "index t : tokens",
        "index k : topk",
        "index e : experts",
        "segment wide { x : bf16[hidden] }" if casts else "",
        f"segment token {{ x : f8e4m3[hidden], scales : f32[hidden / {BLOCK}] }}",
        f"layout by_token[t] of {'wide' if casts else 'token'}",
        f"layout by_expert[e, s] of token packed(s) align {model.align}",
        f"place e on rank by {model.placement}",
        "route r(t, k) -> e = input topk_idx : int64",
        "weight w(t, k) : f32 = input topk_weights" if casts else "",
        f"dispatch by_token[t] -> by_expert[r(t, k), *] {'cast(x by scales)' if casts else ''}",
        "combine reverse reduce sum(w)" if casts else "",
        "}",
    ]
    return "\n".join(filter(None, lines)) + "\n"


def artifact(shape: str, model: Model, kind: str, folder: Path) -> Path:
    """The compiled shuffle; compiles it if it is not there yet."""
    path = folder / f"{shape}-fp8-{kind}"
    if not path.exists():
        import fuscoc

        fuscoc.compile(spec(model, kind), path)
    return path


def limits(model: Model, batch: Batch, owner: torch.Tensor, kind: str) -> Bound:
    """fp8 rows and scales over NVLink and into the slots; the cast reads bf16 and sends it back."""
    wide, row_bytes = model.hidden * 2, model.hidden + model.hidden // BLOCK * 4
    rank = dist.get_rank()
    if kind == "payload":
        return replace(bound(batch.all_idx, owner, row_bytes, rank), combine=0.0)
    dispatch = bound(batch.all_idx, owner, row_bytes, rank, source_bytes=wide).dispatch
    return Bound(dispatch, bound(batch.all_idx, owner, wide, rank).combine)


class Fp8:
    """A compiled artifact, as a user runs it."""

    def __init__(self, shuffle: Shuffle, model: Model, batch: Batch, kind: str) -> None:
        self.shuffle, self.model, self.batch = shuffle, model, batch
        quantised = cast_fields(QUANTISE, {"x": batch.x}, shuffle.spec.declared.fields)
        num_tokens = batch.x.shape[0]
        self.expected = {name: each.view(num_tokens, -1) for name, each in quantised.items()}
        self.casts = kind == "cast"
        self.given: Mapping[str, Any] = self.expected
        if self.casts:
            self.given = {"x": batch.x, "topk_weights": batch.weights}
        self.dispatch()
        self.outputs = batch.x.new_zeros(self.handle.num_slots, model.hidden)

    def dispatch(self) -> None:
        self.rows, self.handle = self.shuffle.dispatch(**self.given, topk_idx=self.batch.topk_idx)

    def combine(self) -> None:
        self.result = self.shuffle.combine(self.outputs, self.handle)

    def verify(self) -> list[str]:
        """Rows and scales bit by bit; the sum of the rows' own values, in bf16, to 1e-2."""
        batch, names = self.batch, list(self.expected)
        for name in names:
            self.rows[name].view(torch.uint8).fill_(0xFF)
        torch.cuda.synchronize()
        dist.barrier()
        self.dispatch()
        rows, source = [self.rows[n] for n in names], [self.expected[n] for n in names]
        wrong = check_rows(self.handle, rows, source, batch.expected, None)
        if self.casts:
            experts = self.model.experts
            dispatched = _widened(self.rows["x"], self.rows["scales"])
            self.outputs = expert_outputs(dispatched, batch.expected, experts)
            self.combine()
            sent = _widened(self.expected["x"], self.expected["scales"])
            wrong += check_combine(self.result, sent, batch.topk_idx, batch.weights, experts)
        self.shuffle.check()
        return wrong

    def contender(self, name: str, limit: Bound) -> Contender:
        combine = self.combine if self.casts else None
        return Contender(name, self.dispatch, combine, self.verify, bound=limit)


def _widened(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Rows of fp8 times their scales, as bf16."""
    rows = torch.empty(x.shape, dtype=torch.bfloat16, device=x.device)
    for part in torch.arange(len(x), device=x.device).split(1 << 14):
        blocks = x[part].float().view(len(part), -1, BLOCK) * scales[part].unsqueeze(-1)
        rows[part] = blocks.view(len(part), -1).bfloat16()
    return rows
