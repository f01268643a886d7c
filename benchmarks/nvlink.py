"""Dispatch and combine inside one NVLink node, against NCCL and against the physical bound.

    python -m benchmarks.nvlink --compile-only --shape deepseek-v3
    python -m torch.distributed.run --nproc-per-node 4 -m benchmarks.nvlink --breakdown

The artifact is compiled if ``build/nvlink`` lacks it, so that the ranks need no compiler. All
contenders run interleaved in one process group on the same inputs, and each is verified in the
same run. A time is CUDA events around a call, after a device barrier; the largest over the ranks
counts, and the median over the iterations. NCCL contenders get their layout for free (computed
outside the timed calls; ``--breakdown`` times it); fuscoc's times include planning, counts and
weights. ``--graph`` replays fuscoc's dispatch and combine from one CUDA graph, with another routing
every time. What a contender lacks to run here is printed (nvlink_peers.py).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks import fp8_cases
from benchmarks.moe_bound import bound
from benchmarks.moe_cases import (
    SHAPES,
    Model,
    expected_rows,
    gather_ragged,
    owners,
    routing,
    spec,
)
from benchmarks.nvlink_contenders import Batch, Contender, Fuscoc
from benchmarks.nvlink_graph import Replay
from benchmarks.nvlink_nccl import AllGather, AllToAll
from benchmarks.nvlink_peers import Make, find_peers, use_nvshmem
from benchmarks.nvlink_report import Entry, markdown, plot
from benchmarks.nvlink_timing import (
    Barrier,
    largest_bound,
    quantiles,
    summarise,
    time_contenders,
    time_parts,
)
from benchmarks.verdict import exit_if_wrong
from fuscoc_runtime import Shuffle

ARTIFACTS = Path("build/nvlink")
BACKENDS = ("cuda", "triton")
NUM_REPLAYED = 4
"""Batches that a CUDA graph is replayed with in turn."""


def artifact(shape: str, backend: str, compact: bool = False) -> Path:
    """The compiled shuffle of a model; compiles it if it is not there yet."""
    path = ARTIFACTS / f"{shape}-{backend}{'-compact' if compact else ''}"
    if not path.exists():
        import fuscoc

        fuscoc.compile(spec(replace(SHAPES[shape], compact=compact), backend), path)
    return path


def targets(options: argparse.Namespace) -> tuple[bool, ...]:
    """Which kinds of target take part, by whether they are compact."""
    return (False, True) if options.compact else (False,)


def artifacts(options: argparse.Namespace) -> Iterable[Path]:
    """All that the options ask for."""
    for backend in options.backend:
        for compact in targets(options):
            yield artifact(options.shape, backend, compact)
    for kind in fp8_cases.KINDS if options.fp8 else ():
        yield fp8_cases.artifact(options.shape, SHAPES[options.shape], kind, ARTIFACTS)


def make_batch(
    model: Model, topk_idx: torch.Tensor, generator: torch.Generator, owner: torch.Tensor
) -> Batch:
    num_tokens, topk = topk_idx.shape
    x = torch.randn(num_tokens, model.hidden, device=generator.device, generator=generator)
    weights = torch.rand(num_tokens, topk, device=generator.device, generator=generator)
    weights /= weights.sum(1, keepdim=True)
    all_idx = gather_ragged(topk_idx, None)
    expected = expected_rows(all_idx, owner, model.align, dist.get_rank())
    return Batch(x.bfloat16(), topk_idx, weights, all_idx, expected)


def routings(
    options: argparse.Namespace, model: Model, generator: torch.Generator
) -> list[tuple[str, torch.Tensor]]:
    """(name, this rank's topk_idx) of every case: made up, and recorded in a .pt or .npy file of
    int64 [ranks, tokens, topk]."""
    num_ranks = dist.get_world_size()
    found = [
        (kind, routing(kind, tokens, model, num_ranks, generator))
        for kind in options.kind
        for tokens in options.tokens
    ]
    if options.routing is not None:
        import numpy

        recorded = torch.from_numpy(numpy.load(options.routing))
        mine = recorded[dist.get_rank()].to(generator.device, torch.int64)
        found.append((options.routing.stem, mine.contiguous()))
    return found


@dataclass(frozen=True, eq=False)
class Shuffles:
    """What fuscoc takes part with, by the contender's name."""

    bf16: dict[str, Shuffle]
    fp8: dict[str, Shuffle]

    @classmethod
    def open(cls, options: argparse.Namespace, max_sources: int) -> Shuffles:
        bf16 = {}
        for backend, compact, num_sms in product(
            options.backend, targets(options), options.num_sms
        ):
            name = f"fuscoc {backend}" + (", compact" if compact else "")
            name += f", {num_sms} SMs" if num_sms else ""
            path = artifact(options.shape, backend, compact)
            bf16[name] = Shuffle(path, max_sources=max_sources, num_sms=num_sms or None)
        model = SHAPES[options.shape]
        fp8 = {
            kind: Shuffle(
                fp8_cases.artifact(options.shape, model, kind, ARTIFACTS), max_sources=max_sources
            )
            for kind in (fp8_cases.KINDS if options.fp8 else ())
        }
        return cls(bf16, fp8)

    def contenders(self, model: Model, batch: Batch, owner: torch.Tensor) -> list[Contender]:
        row_bytes = batch.x.shape[1] * batch.x.element_size()
        found = []
        for name, each in self.bf16.items():
            own = bound(
                batch.all_idx,
                owner,
                row_bytes,
                dist.get_rank(),
                compact=each.spec.program.is_compact,
            )
            found.append(Fuscoc(each, model, batch).contender(name, largest_bound(own)))
        for kind, shuffle in self.fp8.items():
            own = largest_bound(fp8_cases.limits(model, batch, owner, kind))
            fp8 = fp8_cases.Fp8(shuffle, model, batch, kind)
            found.append(fp8.contender(f"fuscoc fp8, {kind}", own))
        return found

    def replays(self, model: Model, batches: Sequence[Batch]) -> dict[str, Callable[[], Replay]]:
        return {name: partial(Replay, each, model, batches) for name, each in self.bf16.items()}


def gather_problems(problems: list[str]) -> list[str]:
    """Those of all ranks."""
    wrong: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(wrong, problems)
    return [line for lines in wrong for line in lines]


def measure(
    contenders: list[Contender],
    replays: Mapping[str, Callable[[], Replay]],
    batch: Batch,
    owner: torch.Tensor,
    options: argparse.Namespace,
) -> list[dict[str, object]]:
    """Verify and time the contenders on one batch, and those of ``replays`` in a CUDA graph."""
    row_bytes, barrier = batch.x.shape[1] * batch.x.element_size(), Barrier(batch.x.device)
    limit = largest_bound(bound(batch.all_idx, owner, row_bytes, dist.get_rank()))
    problems = {contender.name: contender.verify() for contender in contenders}
    time_contenders(contenders, 3, barrier)
    times = time_contenders(contenders, options.iterations, barrier)
    entries = []
    for contender in contenders:
        entry: dict[str, object] = {
            "contender": contender.name,
            **summarise(times[contender.name], contender.bound or limit),
        }
        if options.breakdown:
            entry["parts"] = time_parts(contender, 5, barrier)
        if contender.name in replays:
            replay = replays[contender.name]()
            problems[contender.name] += replay.verify()
            replay.times(5, barrier)
            tenth, median, ninetieth = quantiles(replay.times(50, barrier))
            entry |= {"graph_us": median, "graph_p10_us": tenth, "graph_p90_us": ninetieth}
        entry["wrong"] = gather_problems(problems[contender.name])
        entries.append(entry)
    return entries


def measure_case(
    topk_idx: torch.Tensor,
    options: argparse.Namespace,
    shuffles: Shuffles,
    peers: Sequence[Make],
    owner: torch.Tensor,
    generator: torch.Generator,
) -> list[dict[str, object]]:
    """All contenders on one routing; what they hold is let go of before the next case."""
    model = SHAPES[options.shape]
    batch = make_batch(model, topk_idx, generator, owner)
    contenders = shuffles.contenders(model, batch, owner)
    if not options.no_nccl:
        contenders += [
            AllToAll(model, batch, owner, dedup).contender(f"NCCL a2a, {name}")
            for name, dedup in (("rank-deduplicated", True), ("naive", False))
        ]
        contenders.append(AllGather(model, batch).contender("NCCL all-gather, reduce-scatter"))
        contenders += [make(model, batch, owner) for make in peers]
    replays: dict[str, Callable[[], Replay]] = {}
    if options.graph:
        orders = [
            torch.randperm(len(topk_idx), device=topk_idx.device, generator=generator)
            for _ in range(NUM_REPLAYED)
        ]
        others = [make_batch(model, topk_idx[order], generator, owner) for order in orders]
        replays = shuffles.replays(model, others)
    return measure(contenders, replays, batch, owner, options)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shape", choices=SHAPES, default="deepseek-v3")
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 8192])
    parser.add_argument("--kind", nargs="*", default=["uniform", "single", "skewed"])
    parser.add_argument(
        "--routing", type=Path, help="a recorded routing: .npy, int64 [ranks, tokens, topk]"
    )
    parser.add_argument("--iterations", type=int, default=25)
    parser.add_argument("--backend", choices=BACKENDS, nargs="+", default=list(BACKENDS))
    parser.add_argument("--num-sms", type=int, nargs="+", default=[0], help="0: all")
    parser.add_argument("--no-nccl", action="store_true", help="fuscoc alone")
    parser.add_argument(
        "--nvshmem", action="store_true", help="symmetric memory by NVSHMEM: one more contender"
    )
    parser.add_argument("--fp8", action="store_true", help="also fp8 rows with scales: fp8_cases")
    parser.add_argument("--compact", action="store_true", help="also compact targets")
    parser.add_argument("--graph", action="store_true", help="replay both from one CUDA graph")
    parser.add_argument("--breakdown", action="store_true", help="where the time goes")
    parser.add_argument("--compile-only", action="store_true", help="write artifacts and stop")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    return parser.parse_args()


def report(entries: list[Entry], skipped: dict[str, str], options: argparse.Namespace) -> None:
    """Print the tables; write JSON and the plot where they are asked for."""
    print(markdown(entries), flush=True)
    for name, reason in skipped.items():
        print(f"skipped: {name}: {reason}", flush=True)
    if options.json:
        setup = {
            "gpu": torch.cuda.get_device_name(),
            "ranks": dist.get_world_size(),
            "shape": options.shape,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "skipped": skipped,
        }
        options.json.write_text(json.dumps({"setup": setup, "results": entries}, indent=2))
    if options.plot:
        plot(entries, options.plot)


def main() -> None:
    options = arguments()
    if options.compile_only:
        print(*artifacts(options), sep="\n")
        return
    rank, device = int(os.environ["RANK"]), torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    num_ranks, model = dist.get_world_size(), SHAPES[options.shape]
    nvshmem = use_nvshmem() if options.nvshmem else "it needs --nvshmem"
    peers, skipped = find_peers(model, nvshmem)
    generator = torch.Generator(device).manual_seed(1000 + rank)
    owner = owners(model, num_ranks, device)
    cases = routings(options, model, generator)
    sizes: list[int] = [0] * num_ranks
    dist.all_gather_object(sizes, max(idx.shape[0] for _, idx in cases))
    shuffles = Shuffles.open(options, max(sizes))
    entries: list[Entry] = []
    for kind, topk_idx in cases:
        case = {"routing": kind, "num_tokens": topk_idx.shape[0]}
        measured = measure_case(topk_idx, options, shuffles, peers, owner, generator)
        entries += [case | entry for entry in measured]
    if rank == 0:
        report(entries, {} if options.no_nccl else skipped, options)
    dist.destroy_process_group()
    exit_if_wrong(entries)


if __name__ == "__main__":
    main()
