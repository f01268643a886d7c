"""What the host finds and fills in for rows that travel as flows, between counts and posts.

``python -m benchmarks.ways`` prints a table. Every rank does this in every dispatch that plans,
while its GPU waits. Counts are those of random routings, top-8 of 256 keys in blocks; medians of
one process. The memory of rows is made up.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from fuscoc_runtime import Topology
from fuscoc_runtime.comm.requests import Window
from fuscoc_runtime.engine.node.flow_memory import FlowMemory
from fuscoc_runtime.engine.node.flow_posts import Going
from fuscoc_runtime.engine.node.ways import find_ways
from fuscoc_runtime.manifest.program import Rules
from fuscoc_runtime.plan.cost import CostModel
from fuscoc_runtime.plan.flows import Demand

TOPOLOGIES = ["2x2", "4x1", "2x8", "4x8", "8x8", "16x8", "4x72"]
POLICIES = [("static", "pairwise"), ("rebalance", "fast"), ("auto", "auto")]
TOPK, NUM_KEYS, ROW_BYTES = 8, 256, 14336
MODEL = CostModel(50e9, 450e9, 2e-5, ROW_BYTES)


def demand(topology: Topology, num_tokens: int) -> Demand:
    """Counts of so many tokens a rank."""
    random, num_ranks = np.random.default_rng(0), topology.num_ranks
    flows = np.zeros((num_ranks, topology.num_nodes), np.int64)
    copies = np.zeros((num_ranks, num_ranks), np.int64)
    for rank in range(num_ranks):
        keys = random.random((num_tokens, NUM_KEYS)).argpartition(TOPK)[:, :TOPK]
        goes = np.zeros((num_tokens, num_ranks), bool)
        np.put_along_axis(goes, keys * num_ranks // NUM_KEYS, True, 1)
        copies[rank] = goes.sum(0)
        to_nodes = goes.reshape(num_tokens, topology.num_nodes, -1).any(2).sum(0)
        flows[rank] = np.where(np.arange(len(to_nodes)) == topology.node(rank), 0, to_nodes)
    return Demand(flows, copies)


def microseconds(work: Callable[[], object], repeats: int) -> float:
    taken = []
    for _ in range(repeats + 3):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[3:]) * 1e6


def measure(counts: Demand, rules: Rules, repeats: int) -> tuple[int, float, float]:
    """Legs, and microseconds of finding ways and of filling in their transfers."""

    def allocate(num_bytes: int) -> Window:
        return Window(torch.empty(0), torch.empty(0))

    ways = find_ways(counts, rules, MODEL, 1)
    memory = FlowMemory(allocate, ways.most_rows, [ROW_BYTES], ROW_BYTES, 0)

    def fill() -> None:
        Going(ways, torch.empty(0), 2).transfers(memory, False)

    found = microseconds(lambda: find_ways(counts, rules, MODEL, 1), repeats)
    return ways.num_legs, found, microseconds(fill, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topology", nargs="+", default=TOPOLOGIES)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=51)
    options = parser.parse_args()
    print("| topology | balance | schedule | legs | ways, us | transfers, us |")
    print("|---|---|---|---|---|---|")
    for topology in map(Topology.parse, options.topology):
        counts = demand(topology, options.tokens)
        for forwarder, schedule in POLICIES:
            rules = Rules(forwarder, schedule, MODEL.slice_bytes)
            legs, found, filled = measure(counts, rules, options.repeats)
            print(
                f"| {topology} | {forwarder} | {schedule} | {legs} | {found:.0f} | {filled:.0f} |"
            )


if __name__ == "__main__":
    main()
