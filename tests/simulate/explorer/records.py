"""Records made up for the explorer's tests: regular, but with every part that a page shows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fuscoc.simulate.record import (
    AblationRow,
    Bound,
    ClusterRecord,
    Leg,
    Links,
    Load,
    Record,
    Run,
    Spans,
    Stage,
    SweepPoint,
    Traffic,
)

RANK_KINDS = {"nic_out": 50e9, "nic_in": 50e9, "nvlink_out": 450e9, "nvlink_in": 450e9, "hbm": 3e12}
LANES = ("plan", "gather", "wire 0", "wire 1", "forward", "direct")
TITLE = "moe <b>&</b> `</script><script>alert(1)</script>`"


def make_record(
    num_nodes: int = 4,
    ranks_per_node: int = 8,
    contenders: Sequence[str] = ("fuscoc", "naive", "deduplicated"),
    rounds: int = 12,
    samples: int = 64,
    loaded: Sequence[str] = ("nic_out", "nic_in", "leaf"),
    seed: int = 0,
) -> Record:
    """A simulation of a fat tree of two leaves, with a sweep and an ablation.

    ``samples``: of the loads over time of all links of the kinds ``loaded``.
    """
    rng = np.random.default_rng(seed)
    cluster = make_cluster(num_nodes, ranks_per_node)
    runs = tuple(
        make_run(cluster, name, 1.8e-3 * (1 + 0.55 * place), rounds, samples, loaded, rng)
        for place, name in enumerate(contenders)
    )
    sweep = tuple(
        SweepPoint("tokens", tokens, run.contender, run.seconds * tokens / 8192 + 2e-4)
        for run in runs
        for tokens in (4096.0, 8192.0, 16384.0, 32768.0)
    )
    ablation = (
        AblationRow("deduplication", 4.1e-3, -0.42),
        AblationRow("balancing", 2.1e-3, -0.12),
        AblationRow("slices", 1.7e-3, 0.04),
    )
    return Record(TITLE, "simulation", "moe", "zipf:0.8", 8192, cluster, runs, sweep, ablation)


def make_cluster(num_nodes: int, ranks_per_node: int, rails: bool = False) -> ClusterRecord:
    """``rails``: every local rank has a leaf of its own for each half of the nodes."""
    num_ranks, per_leaf = num_nodes * ranks_per_node, max(1, num_nodes // 2)
    rows = [
        (kind, rank, speed, "") for kind, speed in RANK_KINDS.items() for rank in range(num_ranks)
    ]
    leaves = -(-num_nodes // per_leaf) * (ranks_per_node if rails else 1)
    rows += [
        ("rail" if rails else "leaf", leaf, num_ranks * 25e9 / leaves, way)
        for leaf in range(leaves)
        for way in ("up", "down")
    ]
    kind, owner, bandwidth, direction = zip(*rows, strict=True)
    links = Links(kind, np.array(owner), np.array(bandwidth, np.float64), direction)
    return ClusterRecord("h100", "H100 nodes", num_nodes, ranks_per_node, per_leaf, links)


def make_run(
    cluster: ClusterRecord,
    contender: str,
    seconds: float,
    rounds: int,
    samples: int,
    loaded: Sequence[str],
    rng: np.random.Generator,
) -> Run:
    n, num_ranks = cluster.num_nodes, cluster.num_nodes * cluster.ranks_per_node
    before = rng.gamma(2.0, 4e6, (num_ranks, num_ranks))
    after = before * np.where(np.arange(num_ranks)[:, None] == np.arange(num_ranks), 1.2, 0.4)
    node = (n, cluster.ranks_per_node, n, cluster.ranks_per_node)
    few = num_ranks <= 256
    traffic = Traffic(
        before.reshape(node).sum(axis=(1, 3)),
        after.reshape(node).sum(axis=(1, 3)),
        before if few else None,
        after if few else None,
    )
    stages = tuple(
        Stage(np.roll(np.diag(rng.uniform(1e6, 9e6, n)), shift, axis=1)) for shift in range(1, n)
    )
    dispatch = make_leg(cluster, seconds * 0.45, rounds, samples, loaded, rng)
    combine = make_leg(cluster, seconds * 0.55, rounds, samples, loaded, rng)
    memory = {"landing ring": 192e6, "slices": 96e6, "windows": 1.1e9}
    rewrite = "as it is" if contender == "fuscoc" else f"dedup({contender})"
    return Run(contender, rewrite, seconds, dispatch, combine, stages, traffic, memory)


def make_leg(
    cluster: ClusterRecord,
    seconds: float,
    rounds: int,
    samples: int,
    loaded: Sequence[str],
    rng: np.random.Generator,
) -> Leg:
    """Each rank runs ``rounds`` rounds through its lanes, a little later than the one before."""
    num_ranks, num_links = cluster.num_nodes * cluster.ranks_per_node, len(cluster.links.owner)
    round_seconds = seconds / (rounds + 3)
    columns = [
        (rank, lane, each if lane else rounds, (each + lane * 0.5) * round_seconds * slow)
        for rank, slow in enumerate(rng.uniform(0.75, 0.98, num_ranks))
        for each in range(rounds)
        for lane in range(len(LANES))
        if lane or not each
    ]
    rank, lane, name, begin = (np.array(column) for column in zip(*columns, strict=True))
    spans = Spans(
        np.arange(num_ranks), LANES, (*(f"round {each}" for each in range(rounds)), "lists"),
        rank, lane, name, begin, begin + round_seconds * rng.uniform(0.3, 0.72, len(begin)),
    )  # fmt: skip
    links = np.flatnonzero(np.isin(cluster.links.kind, loaded))
    wave = np.sin(np.linspace(0, 3.1, samples))[:, None] * rng.uniform(0.4, 1, len(links))
    wave = np.clip(wave + rng.normal(0, 0.1, wave.shape), 0, 1)
    load = Load(np.linspace(0, seconds, samples + 1), links, wave)
    busy = rng.beta(5, 3, num_links)
    bounds = (
        Bound("nic_in", seconds * 0.82), Bound("nic_out", seconds * 0.71),
        Bound("nvlink_in", seconds * 0.33), Bound("hbm", seconds * 0.08),
    )  # fmt: skip
    passed = busy * seconds * cluster.links.bandwidth
    return Leg(seconds, rounds, bounds, "nic_in", passed, busy, load, spans)
