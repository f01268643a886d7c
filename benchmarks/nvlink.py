"""Dispatch and combine inside one NVLink node, against NCCL and against the physical bound.

``python -m torch.distributed.run --nproc-per-node 4 benchmarks/nvlink.py --tokens 4096 8192``

All contenders run interleaved in one process group on the same inputs, and each is verified in the
same run. A time is CUDA events around a call, after a device barrier; the largest over the ranks
counts, and the median over the iterations. NCCL contenders get their layout for free (computed
outside the timed region); fuscoc's times include planning, counts and weights.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
import triton
import triton.language as tl

from benchmarks.moe_cases import (
    Bound,
    Expected,
    Model,
    bound,
    check_combine,
    check_dispatch,
    expected_rows,
    expert_outputs,
    gather_ragged,
    owners,
    program,
    routing,
    shuffle,
)
from fuscoc.codegen.cuda import CudaTarget, choose_tile
from fuscoc_runtime.engine.nvlink import Limits, NodeShuffle, Schedule

HIDE_LAUNCH_CYCLES = 600_000  # the GPU is kept busy while the host enqueues a measured call


@dataclass(frozen=True, eq=False)
class Batch:
    """One rank's inputs, and what must come out."""

    x: torch.Tensor
    topk_idx: torch.Tensor
    weights: torch.Tensor
    all_idx: list[torch.Tensor]
    expected: Expected


@dataclass(frozen=True, eq=False)
class Contender:
    """Two calls to time: ``dispatch()`` and ``combine()``; ``verify()`` says what is wrong."""

    name: str
    dispatch: Callable[[], object]
    combine: Callable[[], object]
    verify: Callable[[], list[str]]


class Fuscoc:
    """fuscoc's generated CUDA kernels under one schedule."""

    def __init__(self, engine: NodeShuffle, schedule: Schedule, model: Model, batch: Batch) -> None:
        self.engine, self.schedule, self.model, self.batch = engine, schedule, model, batch
        self.result = torch.empty_like(batch.x)
        self.outputs = engine.rows[0]

    def dispatch(self) -> None:
        batch, n = self.batch, self.batch.x.shape[0]
        self.engine.configure(self.schedule)
        self.handle = self.engine.dispatch([batch.x], [batch.topk_idx], [n], n, batch.weights)

    def combine(self) -> None:
        self.engine.configure(self.schedule)
        self.engine.combine(self.outputs, self.handle, self.result)

    def verify(self) -> list[str]:
        self.engine.rows[0].view(torch.uint8).fill_(0xFF)
        self.result.fill_(float("nan"))
        torch.cuda.synchronize()
        dist.barrier()
        self.dispatch()
        batch = self.batch
        wrong = check_dispatch(self.engine, self.handle, [batch.x], batch.expected, None)
        self.outputs = expert_outputs(self.engine.rows[0], batch.expected, self.model.experts)
        self.combine()
        wrong += check_combine(
            self.result, batch.x, batch.topk_idx, batch.weights, self.model.experts
        )
        self.outputs = self.engine.rows[0]
        return wrong + self.engine.errors()

    def contender(self, name: str) -> Contender:
        return Contender(name, self.dispatch, self.combine, self.verify)


class NcclAllToAll:
    """``all_to_all_single`` between a permutation on each side; with ``dedup`` each (token, rank)
    pair travels once and is expanded by the receiver."""

    def __init__(self, model: Model, batch: Batch, owner: torch.Tensor, dedup: bool) -> None:
        self.model, self.batch = model, batch
        rank, num_ranks = dist.get_rank(), dist.get_world_size()
        device = batch.x.device
        sends, pairs_of = [], []
        for idx in batch.all_idx:
            destination = torch.where(idx >= 0, owner[idx.clamp(min=0)], -1)
            if dedup:
                hit = torch.stack([(destination == r).any(1) for r in range(num_ranks)])
                pairs = hit.nonzero()  # (rank, token), by rank
                position = torch.full(hit.shape, -1, device=device, dtype=torch.int64)
                position[hit] = torch.arange(pairs.shape[0], device=device)
            else:
                flat = destination.flatten()
                order = torch.sort(flat, stable=True).indices[(flat < 0).sum() :]
                pairs = torch.stack([flat[order], order], 1)
                position = torch.full((flat.numel(),), -1, device=device, dtype=torch.int64)
                position[order] = torch.arange(order.numel(), device=device)
            sends.append(torch.bincount(pairs[:, 0], minlength=num_ranks).tolist())
            pairs_of.append((pairs, position))
        self.send, self.recv = sends[rank], [counts[rank] for counts in sends]
        pairs, position = pairs_of[rank]
        topk = model.topk
        self.send_token = pairs[:, 1] if dedup else pairs[:, 1] // topk
        expected = batch.expected
        before = [sum(self.recv[:r]) - sum(sends[r][:rank]) for r in range(num_ranks)]
        row = torch.empty_like(expected.slots)  # where each expert row lies in what I receive
        weight = torch.empty(expected.slots.numel(), device=device)
        all_weights = gather_ragged(batch.weights, None)
        for r in range(num_ranks):
            mine = expected.ranks == r
            tokens, keys = expected.tokens[mine], expected.keys[mine]
            k = (batch.all_idx[r][tokens] == keys.unsqueeze(1)).float().argmax(1)
            at = pairs_of[r][1]
            row[mine] = (at[rank][tokens] if dedup else at[tokens * topk + k]) + before[r]
            weight[mine] = all_weights[r][tokens, k]
        num_slots = int(expected.slots.max()) + 1 if expected.slots.numel() else 0
        self.slots, self.dedup = expected.slots, dedup
        self.row_of_slot = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self.row_of_slot[expected.slots] = row
        self.rows = batch.x.new_zeros(num_slots, model.hidden)
        self.slot_of_row = torch.zeros(sum(self.recv), dtype=torch.int64, device=device)
        self.slot_of_row[row] = expected.slots
        # The terms of every received pair and of every own token, padded with a weight of zero.
        self.fan_in = _terms(row, expected.slots, weight, sum(self.recv)) if dedup else None
        sent = torch.arange(self.send_token.numel(), device=device)
        factor = torch.ones(sent.numel(), device=device)
        if not dedup:
            factor = batch.weights.flatten()[pairs[:, 1]]
        self.own_terms = _terms(self.send_token, sent, factor, batch.x.shape[0])

    def dispatch(self) -> None:
        packed = _gather(self.batch.x, self.send_token)
        arrived = packed.new_empty(sum(self.recv), packed.shape[1])
        dist.all_to_all_single(arrived, packed, self.recv, self.send)
        self.rows = _gather(arrived, self.row_of_slot)

    def combine(self) -> None:
        if self.fan_in is not None:
            back = _weighted_sum(self.rows, *self.fan_in)
        else:
            back = _gather(self.rows, self.slot_of_row)
        home = back.new_empty(sum(self.send), back.shape[1])
        dist.all_to_all_single(home, back, self.send, self.recv)
        self.result = _weighted_sum(home, *self.own_terms)

    def verify(self) -> list[str]:
        self.rows.fill_(float("nan"))
        self.dispatch()
        batch = self.batch
        wrong = []
        for r, theirs in enumerate(gather_ragged(batch.x, None)):
            mine = batch.expected.ranks == r
            if not torch.equal(self.rows[self.slots[mine]], theirs[batch.expected.tokens[mine]]):
                wrong.append(f"rows from rank {r} differ")
        kept = self.rows
        self.rows = expert_outputs(kept, batch.expected, self.model.experts)
        self.combine()
        self.rows = kept
        return wrong + check_combine(
            self.result, batch.x, batch.topk_idx, batch.weights, self.model.experts
        )

    def contender(self, name: str) -> Contender:
        return Contender(name, self.dispatch, self.combine, self.verify)


def _terms(
    target: torch.Tensor, index: torch.Tensor, weight: torch.Tensor, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """For each of ``size`` targets the ``index`` and ``weight`` of its terms, [size, most]; missing
    terms have index 0 and weight 0."""
    order = torch.sort(target, stable=True).indices
    counts = torch.bincount(target, minlength=size)
    first = counts.cumsum(0) - counts
    most = max(int(counts.max()), 1) if size else 1
    indices = torch.zeros(size, most, dtype=torch.int64, device=target.device)
    weights = torch.zeros(size, most, device=target.device)
    inside = torch.arange(target.numel(), device=target.device) - first[target[order]]
    indices[target[order], inside] = index[order]
    weights[target[order], inside] = weight[order]
    return indices, weights


def _gather(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """``rows[index]``, moved eight bytes at a time."""
    return rows.view(torch.int64).index_select(0, index).view(rows.dtype)


@triton.jit
def _sum_kernel(rows, indices, weights, result, hidden, most, block: tl.constexpr):
    target = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = column < hidden
    total = tl.zeros([block], dtype=tl.float32)
    for j in range(most):
        weight = tl.load(weights + target * most + j)
        if weight != 0.0:
            row = tl.load(indices + target * most + j)
            total += (
                tl.load(rows + row * hidden + column, mask=inside, other=0.0).to(tl.float32)
                * weight
            )
    tl.store(result + target * hidden + column, total.to(result.dtype.element_ty), mask=inside)


def _weighted_sum(rows: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """``result[i] = sum_j weights[i, j] * rows[indices[i, j]]`` in f32, in one pass."""
    size, hidden = indices.shape[0], rows.shape[1]
    result = rows.new_empty(size, hidden)
    block = 1024
    grid = (size, -(-hidden // block))
    _sum_kernel[grid](rows, indices, weights, result, hidden, indices.shape[1], block, num_warps=4)
    return result


class Barrier:
    """All GPUs reach the same point, on the device."""

    def __init__(self, device: torch.device) -> None:
        self._word = torch.zeros(1, device=device)

    def __call__(self) -> None:
        dist.all_reduce(self._word)


def time_contenders(
    contenders: list[Contender], iterations: int, barrier: Barrier
) -> dict[str, torch.Tensor]:
    """Microseconds [iterations, 2] (dispatch, combine) for each contender, largest over ranks."""
    marks = {
        c.name: [
            [torch.cuda.Event(enable_timing=True) for _ in range(4)] for _ in range(iterations)
        ]
        for c in contenders
    }
    for i in range(iterations):
        for contender in contenders:
            events = marks[contender.name][i]
            for call, begin, end in ((contender.dispatch, 0, 1), (contender.combine, 2, 3)):
                torch.cuda._sleep(HIDE_LAUNCH_CYCLES)
                barrier()
                events[begin].record()
                call()
                events[end].record()
    torch.cuda.synchronize()
    times = {}
    for name, rows in marks.items():
        own = torch.tensor(
            [[e[0].elapsed_time(e[1]) * 1e3, e[2].elapsed_time(e[3]) * 1e3] for e in rows],
            device="cuda",
        )
        dist.all_reduce(own, op=dist.ReduceOp.MAX)
        times[name] = own.cpu()
    return times


def time_graph(contender: Contender, replays: int, barrier: Barrier) -> torch.Tensor:
    """Microseconds [replays] of dispatch + combine replayed from one CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        contender.dispatch()
        contender.combine()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        contender.dispatch()
        contender.combine()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(replays)]
    for begin, end in events:
        torch.cuda._sleep(100_000)
        barrier()
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    own = torch.tensor([b.elapsed_time(e) * 1e3 for b, e in events], device="cuda")
    dist.all_reduce(own, op=dist.ReduceOp.MAX)
    return own.cpu()


def summarise(times: torch.Tensor, limit: Bound) -> dict[str, float]:
    total = times.sum(1)
    tenth, median, ninetieth = torch.quantile(total, torch.tensor([0.1, 0.5, 0.9])).tolist()
    return {
        "dispatch_us": times[:, 0].median().item(),
        "combine_us": times[:, 1].median().item(),
        "total_us": median,
        "p10_us": tenth,
        "p90_us": ninetieth,
        "bound_us": limit.total,
        "times_bound": median / limit.total,
    }


def largest_bound(limit: Bound) -> Bound:
    words = torch.tensor([limit.dispatch, limit.combine], device="cuda")
    dist.all_reduce(words, op=dist.ReduceOp.MAX)
    return Bound(*words.tolist())


def make_batch(
    model: Model, kind: str, num_tokens: int, generator: torch.Generator, owner: torch.Tensor
) -> Batch:
    num_ranks = dist.get_world_size()
    topk_idx = routing(kind, num_tokens, model, num_ranks, generator)
    x = torch.randn(num_tokens, model.hidden, device=generator.device, generator=generator)
    weights = torch.rand(num_tokens, model.topk, device=generator.device, generator=generator)
    weights /= weights.sum(1, keepdim=True)
    all_idx = gather_ragged(topk_idx, None)
    expected = expected_rows(all_idx, owner, model.align, dist.get_rank())
    return Batch(x.bfloat16(), topk_idx, weights, all_idx, expected)


def parse_schedule(text: str) -> Schedule:
    """The fields of a `Schedule`, in order, separated by commas; zeros take the model's values."""
    return Schedule(*(int(word) for word in text.split(",")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 8192])
    parser.add_argument("--routing", nargs="+", default=["uniform", "single", "skewed"])
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--topk", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=25)
    parser.add_argument("--schedule", type=parse_schedule, nargs="+", default=[Schedule()])
    parser.add_argument(
        "--tile", nargs="+", default=[""], help="warps,passes,teams,team_warps,vectors,batch"
    )
    parser.add_argument("--no-nccl", action="store_true")
    parser.add_argument("--graph", action="store_true", help="replay both from one CUDA graph")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    rank, device = int(os.environ["RANK"]), torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    num_ranks = dist.get_world_size()
    model = Model(hidden=options.hidden, experts=options.experts, topk=options.topk)
    owner = owners(model, num_ranks, device)
    most = max(options.tokens)
    limits = Limits(
        most, num_ranks * most * min(model.topk, model.experts) + model.experts * model.align
    )
    barrier = Barrier(device)
    base = choose_tile(shuffle(model), CudaTarget())
    names = ("dispatch_warps", "num_passes", "teams", "team_warps", "team_vectors", "team_batch")
    engines = {}
    for text in options.tile:
        sizes = dict(zip(names, map(int, text.split(",")), strict=True)) if text else {}
        engines[text] = NodeShuffle(
            program(model, replace(base, **sizes)), limits, dist.group.WORLD, device, timeout_s=5
        )
    generator = torch.Generator(device).manual_seed(1000 + rank)
    report = []
    for kind in options.routing:
        for num_tokens in options.tokens:
            batch = make_batch(model, kind, num_tokens, generator, owner)
            limit = largest_bound(bound(batch.all_idx, owner, model.hidden * 2, rank))
            contenders = [
                Fuscoc(engine, schedule, model, batch).contender(
                    "fuscoc cuda" + (f" tile {text}" if text else "") + _label(schedule)
                )
                for text, engine in engines.items()
                for schedule in options.schedule
            ]
            if not options.no_nccl:
                contenders += [
                    NcclAllToAll(model, batch, owner, True).contender(
                        "NCCL a2a, rank-deduplicated"
                    ),
                    NcclAllToAll(model, batch, owner, False).contender("NCCL a2a, naive"),
                ]
            problems = {c.name: c.verify() for c in contenders}
            time_contenders(contenders, 3, barrier)
            times = time_contenders(contenders, options.iterations, barrier)
            for contender in contenders:
                wrong: list[list[str]] = [[] for _ in range(num_ranks)]
                dist.all_gather_object(wrong, problems[contender.name])
                entry = {
                    "routing": kind, "num_tokens": num_tokens, "contender": contender.name,
                    **summarise(times[contender.name], limit),
                    "wrong": [line for lines in wrong for line in lines],
                }  # fmt: skip
                if options.graph and contender.name.startswith("fuscoc"):
                    graph = time_graph(contender, 50, barrier)
                    entry["graph_us"] = graph.median().item()
                report.append(entry)
    if rank == 0:
        print(markdown(report))
        if options.json:
            header = {
                "gpu": torch.cuda.get_device_name(),
                "ranks": num_ranks,
                "torch": torch.__version__,
                "python": platform.python_version(),
                "model": vars(model),
            }
            options.json.write_text(json.dumps({"setup": header, "results": report}, indent=2))
    dist.destroy_process_group()


def _label(schedule: Schedule) -> str:
    words = {k: v for k, v in vars(schedule).items() if v != getattr(Schedule(), k)}
    return "".join(f" {name}={value}" for name, value in words.items())


def markdown(report: list[dict[str, object]]) -> str:
    """The results as a table, microseconds."""
    lines = [
        "| routing | tokens | contender | dispatch | combine | total | p10 | p90 | bound | × bound "
        "| correct |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for entry in report:
        numbers = " | ".join(
            f"{entry[k]:.0f}"
            for k in ("dispatch_us", "combine_us", "total_us", "p10_us", "p90_us", "bound_us")
        )
        graph = f" (graph {entry['graph_us']:.1f})" if "graph_us" in entry else ""
        ok = "yes" if not entry["wrong"] else str(entry["wrong"])
        lines.append(
            f"| {entry['routing']} | {entry['num_tokens']} | {entry['contender']}{graph} "
            f"| {numbers} | {entry['times_bound']:.3f} | {ok} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
