"""Planning for all ranks in one process: how long the tests and the simulator wait for a plan.

``python -m benchmarks.planner --markdown docs/benchmarks/planner.md``

Every rank's generator runs in lockstep on the CPU, so a time is the sum over all ranks, from the
relation's outputs to finished descriptor lists, the metadata exchange included. Routings are those
of the communication benchmarks: top-8 of 256 keys in blocks, 128-row alignment. Each plan is
checked in the same run: row counts against numpy's distinct (segment, rank) and (segment, node)
pairs, and every slot written once. The bar is 2 s for 64 ranks x 4096 tokens on two cores.

Ranks are planned one after the other on small tensors, so one thread is about as fast as two, and
far faster where others use the cores too: torch's threads wait for each other in a loop.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fuscoc.testing import load_spec
from fuscoc_runtime import Topology
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan import Points, RankPlan, key_to_rank, plan_all

SPEC = Path(__file__).parent.parent / "examples" / "moe.fsc"
DEDUP = "dedup(node, rank)"
TOPK, NUM_KEYS = 8, 256
TOPOLOGIES = ["1x8", "2x8", "8x8"]
BAR_SECONDS = 2.0
POLICIES = [
    ("node, rank", "static"),
    ("node, rank", "greedy"),
    ("node, rank", "lpt"),
    ("node, rank", "split"),
    ("node, rank", "auto"),
    ("none", "static"),
]
"""Deduplication and balance; without deduplication there is the most to do."""


@dataclass(frozen=True)
class Result:
    topology: str
    routing: str
    dedup: str
    balance: str
    median_s: float
    p10_s: float
    p90_s: float


def uniform(num_tokens: int, num_ranks: int, generator: torch.Generator) -> Tensor:
    """The top-8 keys of random scores: int64 [num_tokens, TOPK]."""
    return torch.rand(num_tokens, NUM_KEYS, generator=generator).topk(TOPK, dim=1).indices


def single(num_tokens: int, num_ranks: int, generator: torch.Generator) -> Tensor:
    """All keys of a token on one random rank; a rank with fewer keys than 8 gives some twice."""
    per_rank = NUM_KEYS // num_ranks
    rank = torch.randint(num_ranks, (num_tokens, 1), generator=generator)
    return rank * per_rank + torch.arange(TOPK) % per_rank


def skewed(num_tokens: int, num_ranks: int, generator: torch.Generator) -> Tensor:
    """Key popularity Zipf(1.0), keys permuted; distinct keys for a token (Gumbel top-k)."""
    order = torch.randperm(NUM_KEYS, generator=torch.Generator().manual_seed(0))
    popularity = -(torch.arange(NUM_KEYS) + 1.0).log()[order]
    noise = torch.rand(num_tokens, NUM_KEYS, generator=generator).log().neg().log()
    return (popularity - noise).topk(TOPK, dim=1).indices


ROUTINGS: dict[str, Callable[[int, int, torch.Generator], Tensor]] = {
    "uniform": uniform,
    "single": single,
    "skewed": skewed,
}


def make_points(spec: ShuffleSpec, topology: Topology, tables: Sequence[Tensor]) -> list[Points]:
    """What the relation kernel puts out for a routing table of every rank."""
    assert spec.program.target.kind == "packed"
    owner = key_to_rank(spec.program.target, topology, 0, {}, torch.device("cpu"))
    points = []
    for table in tables:
        key = table.flatten()
        source = torch.arange(len(table)).repeat_interleave(TOPK)
        columns = {"source": source, "src_offset": source, "rank": owner[key], "key": key}
        points.append(Points(columns, owner, None, {}, {"tokens": len(table)}))
    return points


def check(
    spec: ShuffleSpec, topology: Topology, points: Sequence[Points], plans: Sequence[RankPlan]
) -> None:
    """Rows that deduplication must leave, and slots written once."""
    written = [np.zeros(plan.rows.target, dtype=np.int64) for plan in plans]
    for rank, (each, plan) in enumerate(zip(points, plans, strict=True)):
        source, to = each.columns["source"].numpy(), each.columns["rank"].numpy()
        first = topology.node(rank) * topology.ranks_per_node
        if spec.program.copies_once("rank"):
            pairs = np.unique(np.stack([source, to]), axis=1)
            near = pairs[1] // topology.ranks_per_node == topology.node(rank)
            assert len(plan.lists["direct"]["dst_slot"]) == near.sum()
        if spec.program.copies_once("node"):
            nodes = np.unique(np.stack([source, to // topology.ranks_per_node]), axis=1)
            handed = plan.lists["carry"]["dst_peer"] if "carry" in plan.lists else ()
            sent = plan.rows.slices - plan.rows.carried + len(handed)
            assert sent == (nodes[1] != topology.node(rank)).sum()
        for name in ("direct", "forward"):
            columns = plan.lists[name]
            peer, slot = columns["dst_peer"], columns["dst_slot"]
            for local in range(topology.ranks_per_node):
                np.add.at(written[first + local], slot[peer == local], 1)
        np.add.at(written[rank], plan.lists["local"]["dst_slot"], 1)
    for plan, writes in zip(plans, written, strict=True):
        assert writes.max(initial=0) <= 1
        assert writes.sum() == plan.key_counts.sum()


def moe(dedup: str, forwarder: str) -> ShuffleSpec:
    """The example with a policy."""
    text = SPEC.read_text()
    assert DEDUP in text
    return load_spec(text.replace(DEDUP, f"dedup({dedup})")).with_rules(forwarder=forwarder).shuffle


def measure(topology: Topology, num_tokens: int, repeats: int) -> list[Result]:
    """Every routing with every policy, interleaved."""
    policies = POLICIES if topology.num_nodes > 1 else POLICIES[::5]
    specs = {policy: moe(*policy) for policy in policies}
    generator = torch.Generator().manual_seed(0)
    cases = {}
    for routing, make in ROUTINGS.items():
        tables = [
            make(num_tokens, topology.num_ranks, generator) for _ in range(topology.num_ranks)
        ]
        points = make_points(specs[POLICIES[0]], topology, tables)
        for (dedup, balance), spec in specs.items():
            check(spec, topology, points, plan_all(spec, topology, points).ranks)
            cases[routing, dedup, balance] = spec, points
    times: dict[tuple[str, str, str], list[float]] = {case: [] for case in cases}
    for _ in range(repeats):
        for case, (spec, points) in cases.items():
            before = time.perf_counter()
            plan_all(spec, topology, points)
            times[case].append(time.perf_counter() - before)
    results = []
    for (routing, dedup, balance), seconds in times.items():
        p10, median, p90 = (float(each) for each in np.percentile(seconds, [10, 50, 90]))
        results.append(Result(str(topology), routing, dedup, balance, median, p10, p90))
    return results


def render(results: Sequence[Result], num_tokens: int) -> str:
    lines = [
        "# Planning for all ranks at once",
        "",
        f"`python -m benchmarks.planner`: {num_tokens} tokens a rank, top-{TOPK} of {NUM_KEYS}; "
        "seconds for all ranks together.",
        "Routings: uniform, random keys; single, all keys of a token on one random rank; skewed,",
        "keys of Zipf(1.0) popularity.",
        "`dedup` and `balance` are in the words of the [language](../language.md#options): "
        "`node, rank` is `dedup(node, rank)`.",
        "`static` is the rule of `balance none`, the default; `auto` chooses among all "
        "rules, of which `rebalance` is one.",
        f"{platform.processor() or platform.machine()}, threads: {torch.get_num_threads()}, "
        f"torch {torch.__version__}, Python {platform.python_version()}, {date.today()}.",
        "",
        "| topology | routing | dedup | balance | median | p10 | p90 |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {each.topology} | {each.routing} | {each.dedup} | {each.balance} | {each.median_s:.2f} "
        f"| {each.p10_s:.2f} | {each.p90_s:.2f} |"
        for each in results
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topology", nargs="+", default=TOPOLOGIES)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--markdown", type=Path, help="where to write the table")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = []
    for text in options.topology:
        results += measure(Topology.parse(text), options.tokens, options.repeats)
    table = render(results, options.tokens)
    print(table)
    if options.markdown is not None:
        options.markdown.parent.mkdir(parents=True, exist_ok=True)
        options.markdown.write_text(table)
    slowest = max(results, key=lambda each: each.median_s)
    print(f"slowest: {slowest.median_s:.2f} s; the bar is {BAR_SECONDS} s")


if __name__ == "__main__":
    main()
