"""FAST scheduling: how long it takes, and how close the planned transfer comes to the oracle.

``python -m benchmarks.schedule --markdown docs/benchmarks/schedule.md``

Contenders run interleaved on the same traffic, and every schedule is checked to deliver every
segment once. Completion is predicted by the cost model of ``plan/cost.py`` (see
``docs/scheduling.md``), with 450 GB/s of NVLink and 50 GB/s of NIC a rank, FAST's 9:1. Every rank
sends 32768 segments of 14 KiB on average: 8192 tokens of hidden size 7168 in bf16 to four nodes
each. Needs scipy, for the baseline.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import numpy as np
import scipy
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

from benchmarks.traffic import LARGEST, one_to_one, uniform, zipf
from fuscoc_runtime.manifest.program import Rules
from fuscoc_runtime.plan import native
from fuscoc_runtime.plan.balance import same_local_rank
from fuscoc_runtime.plan.choose import plan_network
from fuscoc_runtime.plan.cost import CostModel, oracle
from fuscoc_runtime.plan.flows import Assignment, Demand
from fuscoc_runtime.plan.network import choose_natively
from fuscoc_runtime.plan.schedule import (
    Schedule,
    arrange,
    fast,
    predict,
)

RANKS_PER_NODE = 8
SEGMENTS_PER_RANK = 32768
BANDWIDTH_ONLY = CostModel(50e9, 450e9, stage_latency=0.0, segment_bytes=14336)
WITH_LATENCY = CostModel(50e9, 450e9, stage_latency=10e-6, segment_bytes=14336)
PAPER_US = {4: 25, 8: 221, 12: 805, 40: 77000}


@dataclass(frozen=True)
class Result:
    num_nodes: int
    traffic: str
    contender: str
    stages: int
    median_us: float
    p10_us: float
    p90_us: float
    completion: float  # over the oracle
    stages_with_latency: int
    completion_with_latency: float  # over the oracle, 10 us a stage


def scipy_birkhoff(demand: Demand, model: CostModel) -> Schedule:
    """FAST with the textbook decomposition on scipy's Hopcroft-Karp: any perfect matching."""
    share, tile = native.rebalance(demand.flows)
    n = len(tile)
    load, node = tile.copy(), np.arange(n)
    rows, columns = tile.sum(axis=1), tile.sum(axis=0)
    remaining = max(rows.max(), columns.max())
    for i, j in np.ndindex(n, n):
        slack = min(remaining - rows[i], remaining - columns[j])
        load[i, j] += slack
        rows[i] += slack
        columns[j] += slack
    sent = np.zeros_like(tile)
    stages = []
    while remaining:
        to = maximum_bipartite_matching(csr_matrix(load), perm_type="column")
        weight = load[node, to].min()
        load[node, to] -= weight
        remaining -= weight
        begin = sent[node, to]
        end = np.minimum(begin + weight, tile[node, to])
        sent[node, to] = end
        if (end > begin).any():
            stages.append((np.where(end > begin, to, -1), begin, end))
    peer, begin, end = (np.array(part) for part in zip(*stages, strict=True))
    return Schedule("fast", Assignment(share, carried=True), tile, peer, begin, end)


def unbalanced(kind: str) -> Callable[[Demand, CostModel], Schedule]:
    return lambda demand, model: arrange(kind, demand, same_local_rank(demand), model)


CONTENDERS: dict[str, Callable[[Demand, CostModel], Schedule]] = {
    "fuscoc fast": fast,
    "fuscoc auto": plan_network,
    "scipy Birkhoff": scipy_birkhoff,
    "spread-out": unbalanced("spread-out"),
    "pairwise": unbalanced("pairwise"),
}

TRAFFIC: dict[str, Callable[[int], Demand]] = {
    "Zipf(0.8)": lambda n: zipf(n, RANKS_PER_NODE, 0.8, 0, SEGMENTS_PER_RANK // (8 * n)),
    "uniform random": lambda n: uniform(n, RANKS_PER_NODE, 0, SEGMENTS_PER_RANK // (8 * n)),
    "adversarial": lambda n: one_to_one(n, RANKS_PER_NODE, SEGMENTS_PER_RANK * 8 // n),
}


def check(demand: Demand, schedule: Schedule) -> None:
    """Every stage a partial permutation; the ranges of every tile follow one another to its end."""
    sent = np.zeros_like(schedule.tile)
    for stage in schedule.stages:
        senders = np.flatnonzero(stage.peer >= 0)
        to = stage.peer[senders]
        assert len(np.unique(to)) == len(to), "incast"
        assert (stage.begin[senders] == sent[senders, to]).all(), "a gap"
        sent[senders, to] = stage.end[senders]
    assert (sent == schedule.tile).all(), "something is not sent"
    assert (schedule.assignment.share.sum(axis=2) == demand.flows).all(), "a flow is not carried"


def measure(num_nodes: int, traffic: str, seconds: float) -> list[Result]:
    demand = TRAFFIC[traffic](num_nodes)
    bound = oracle(demand, BANDWIDTH_ONLY)
    schedules = {name: make(demand, BANDWIDTH_ONLY) for name, make in CONTENDERS.items()}
    times: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    spent = dict.fromkeys(CONTENDERS, 0.0)
    while min(spent.values()) < seconds:
        for name, make in CONTENDERS.items():
            if spent[name] >= seconds and len(times[name]) >= 5:
                continue  # a slow one has its sample; the others go on
            before = time.thread_time()
            make(demand, BANDWIDTH_ONLY)
            times[name].append(time.thread_time() - before)
            spent[name] += times[name][-1]
    results = []
    for name, schedule in schedules.items():
        delayed = CONTENDERS[name](demand, WITH_LATENCY)
        for each in (schedule, delayed):
            check(demand, each)
        p10, median, p90 = np.percentile(times[name], [10, 50, 90]) * 1e6
        results.append(
            Result(
                num_nodes,
                traffic,
                name,
                schedule.num_stages,
                float(median),
                float(p10),
                float(p90),
                predict(demand, schedule, BANDWIDTH_ONLY).completion / bound,
                delayed.num_stages,
                predict(demand, delayed, WITH_LATENCY).completion / bound,
            )
        )
    return results


def dispatch_table(nodes: Sequence[int], seconds: float) -> str:
    """Forwarders and stages, both chosen by ``auto``: one call of C, and numpy."""
    lines = ["| traffic | servers x GPUs | one call, µs | numpy, µs |", "|---|---|---|---|"]
    for traffic, make in TRAFFIC.items():
        for n in nodes:
            demand, model, times = make(n), WITH_LATENCY, list[tuple[float, float]]()
            rules = Rules("auto", "auto", model.slice_bytes)
            until = time.thread_time() + seconds
            while time.thread_time() < until or len(times) < 5:
                started = time.thread_time()
                found = choose_natively(demand, rules, model)
                middle = time.thread_time()
                stages = plan_network(demand, model)
                times.append((middle - started, time.thread_time() - middle))
            for mine, theirs in zip(
                found.stages, (stages.peer, stages.begin, stages.end), strict=True
            ):
                np.testing.assert_array_equal(mine, theirs)
            ours, numpys = np.median(times, axis=0) * 1e6
            lines.append(
                f"| {traffic} | {n} x {RANKS_PER_NODE} | **{ours:,.1f}** | {numpys:,.1f} |"
            )
    return "\n".join(lines)


def processor() -> str:
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0].split(":")[1].strip() if names else platform.machine()


def environment() -> str:
    return (
        f"{processor()}, one thread; Python {platform.python_version()}, numpy {np.__version__}, "
        f"scipy {scipy.__version__}; load {os.getloadavg()[1]:.0f} on {os.cpu_count()} cores"
    )


def speed_table(results: list[Result]) -> str:
    lines = [
        "| servers x GPUs | fuscoc fast, µs (p10-p90) | FAST paper, µs | scipy Birkhoff, µs |",
        "|---|---|---|---|",
    ]
    zipfian = [r for r in results if r.traffic == "Zipf(0.8)"]
    baseline = {r.num_nodes: r for r in zipfian if r.contender == "scipy Birkhoff"}
    for r in zipfian:
        if r.contender == "fuscoc fast":
            n = r.num_nodes
            lines.append(
                f"| {n} x {RANKS_PER_NODE} | **{r.median_us:,.1f}** "
                f"({r.p10_us:,.1f}-{r.p90_us:,.1f}) "
                f"| {PAPER_US.get(n, '')} | {baseline[n].median_us:,.0f} |"
            )
    return "\n".join(lines)


def completion_table(results: list[Result]) -> str:
    lines = [
        "| traffic | servers | contender | stages | completion / oracle | stages, 10 µs each | "
        "completion / oracle | schedule, µs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r.traffic} | {r.num_nodes} | {r.contender} | {r.stages} | {r.completion:.3f} | "
        f"{r.stages_with_latency} | {r.completion_with_latency:.3f} | {r.median_us:,.1f} |"
        for r in results
    ]
    return "\n".join(lines)


def report(results: list[Result], dispatches: str) -> str:
    return f"""# FAST scheduling

Made by `python -m benchmarks.schedule --markdown docs/benchmarks/schedule.md`; what is computed is
described in [scheduling.md](../scheduling.md).

{environment()}; {date.today()}.
Contenders interleaved in one process, medians of processor time after warm-up; every schedule was
checked to deliver every segment once. Zipf traffic is FAST's: amounts from rank to rank are drawn
from 1 to {LARGEST}, with probabilities that go with their power of -0.8, and scaled.

## Time to schedule, balancing included (Zipf 0.8)

{speed_table(results)}

The paper's times are from its Figure 16 (Xeon Platinum 8468).

## What a dispatch asks for

Before it can send, a rank chooses forwarders and stages by `auto`, with 10 µs a stage, and cuts its
part into rounds. One call of C (`plan/network.c`), compared with the same in numpy, whose loops
over ranks are C, too; both were checked to be equal.

{dispatches}

## Completion over the oracle

Predicted by the cost model at 450 GB/s of NVLink and 50 GB/s of NIC a GPU (9:1), segments of
14 KiB, 32768 a GPU on average. The oracle is the largest sum that a server sends or receives over
all its NICs, with NVLink free. FAST guarantees 1 + (8 + 8/n)/9 of it: 2.11 for 4 servers, 1.91 for
40. `fuscoc fast` and scipy Birkhoff balance the servers' GPUs first; spread-out and pairwise do
not. Adversarial is the traffic of FAST's appendix: one rank of every server has all the data, and
another one wants it. The middle columns charge nothing for a stage, the next two 10 µs.

{completion_table(results)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[4, 8, 12, 40])
    parser.add_argument("--seconds", type=float, default=0.5, help="of sampling, per contender")
    parser.add_argument("--markdown", type=Path, help="write the report here")
    parser.add_argument("--json", type=Path, help="write all results here")
    options = parser.parse_args()
    results = [
        result
        for traffic in TRAFFIC
        for num_nodes in options.nodes
        for result in measure(num_nodes, traffic, options.seconds)
    ]
    dispatches = dispatch_table([2, *options.nodes], options.seconds)
    text = report(results, dispatches)
    print(text)
    if options.markdown:
        options.markdown.parent.mkdir(parents=True, exist_ok=True)
        options.markdown.write_text(text)
    if options.json:
        rows = [asdict(result) for result in results]
        options.json.write_text(json.dumps({"environment": environment(), "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
