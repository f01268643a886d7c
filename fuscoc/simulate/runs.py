"""One contender on one cluster with one routing: both of its calls, traffic and memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fuscoc.simulate.amounts import ListAmounts
from fuscoc.simulate.clusters import Cluster
from fuscoc.simulate.contenders import Contender
from fuscoc.simulate.counts import Counts
from fuscoc.simulate.events import Progress
from fuscoc.simulate.hop import NetworkPlan, cost_model, plan_network, slices_of
from fuscoc.simulate.legs import simulate_leg
from fuscoc.simulate.record import Run, Stage, Traffic
from fuscoc.simulate.rounds import ring_slots
from fuscoc.simulate.slabs import num_bytes
from fuscoc_runtime.plan.links import row_bytes

Float64Array = NDArray[np.float64]

MOST_RANKS_SHOWN = 128
MOST_STAGE_CELLS = 200_000

PathProgress = Callable[[str], Progress]
"""(what is being simulated) -> whom to tell how far it has come."""


def simulate(
    contender: Contender,
    counts: Counts,
    cluster: Cluster,
    *,
    grain: float | None = None,
    detailed: bool = True,
    progress: PathProgress | None = None,
) -> Run:
    """Simulate dispatch, and combine if the program has one. ``grain``: see ``events.run``."""
    program = contender.program
    plan = plan_network(contender, counts, cluster)
    legs = [
        simulate_leg(
            contender, path, counts, plan, cluster, grain=grain, detailed=detailed,
            progress=progress(f"{contender.name}: {name}") if progress is not None else None,
        ).leg
        for name, path in (("dispatch", program.dispatch), ("combine", program.combine))
        if path is not None
    ]  # fmt: skip
    return Run(
        contender=contender.name,
        rewrite=contender.rewrite.words,
        seconds=sum(leg.seconds for leg in legs),
        dispatch=legs[0],
        combine=legs[1] if len(legs) > 1 else None,
        stages=_stages(contender, plan),
        traffic=_traffic(contender, counts, plan),
        memory=memory(contender, counts, plan, cluster),
    )


def memory(
    contender: Contender, counts: Counts, plan: NetworkPlan, cluster: Cluster
) -> dict[str, float]:
    """Bytes of buffers on the rank that needs most. A packed target has its padding at most; what
    separate collectives send from and receive into is used again by the next of them."""
    program, pairs = contender.program, plan.assignment.pairs
    landed = counts.pairs if program.is_compact else counts.points
    rows = {
        "target": int(landed.sum(axis=0).max(initial=0)) + _padding(contender, counts),
        "staging": int(
            ((counts.pairs * counts.same_node).sum(axis=1) + counts.flows.sum(axis=1)).max()
        ),
        "carried": int(plan.assignment.handed.sum(axis=0).max()),
    }
    if program.combine is None:
        del rows["staging"]
    elif plan.num_rounds:
        forwarded = ListAmounts(counts, plan, program.is_compact).of("reduce_node")
        by_rank = np.bincount(forwarded.rank, forwarded.terms, len(pairs))
        rows["forward_staging"] = int(np.ceil(by_rank.max(initial=0.0)))
    found = {
        name: float(count * row_bytes(program.buffers.get(name, ())))
        for name, count in rows.items()
    }
    if contender.rewrite.execution == "slabs" and cluster.nodes > 1:
        found["slabs"] = float(num_bytes(program, counts))
    elif contender.rewrite.execution in ("staged", "hops"):
        found |= _between_operators(contender, counts, plan)
    elif plan.num_rounds:
        slices, slots = plan.slices, ring_slots(cost_model(contender, cluster))
        for ring, rank in (("slices", slices.sender), ("landing", slices.receiver)):
            key = rank * plan.num_rounds + slices.round
            largest = float(np.bincount(key, slices.rows).max(initial=0.0))
            found[ring] = slots * largest * row_bytes(program.buffers.get(ring, ()))
    return {name: size for name, size in found.items() if size}


def _between_operators(contender: Contender, counts: Counts, plan: NetworkPlan) -> dict[str, float]:
    """Bytes of whole hops, since nothing of one leaves before all of it is there: rows that
    forwarders pass on, and, where rows are permuted, those that are packed and not yet placed."""
    program, amounts = contender.program, ListAmounts(counts, plan, contender.program.is_compact)
    size = {name: row_bytes(program.buffers.get(name, ())) for name in ("slices", "landing")}
    size["target"] = row_bytes(program.buffers["target"])
    received = plan.assignment.pairs.sum(axis=0) * (0 if plan.is_straight else size["landing"])
    if contender.rewrite.execution == "hops":
        return {"landing": float(received.max())}

    def rows(name: str) -> Float64Array:
        found = amounts.of(name)
        return np.asarray(np.bincount(found.rank, found.entries, len(received)), np.float64)

    packed = rows("direct") + rows("net_send")
    if plan.assignment.hands_over:
        packed += rows("carry")
    packed *= size["slices"]
    if not plan.is_straight:
        packed = np.maximum(packed, rows("forward") * size["landing"])
    arrived = counts.pairs.sum(axis=0) * size["target"]
    return {"slices": float(packed.max()), "landing": float(np.maximum(received, arrived).max())}


def _padding(contender: Contender, counts: Counts) -> int:
    target = contender.program.target
    if target.kind != "packed":
        return 0
    return -(-target.num_keys // counts.topology.num_ranks) * target.most_padding


def _traffic(contender: Contender, counts: Counts, plan: NetworkPlan) -> Traffic:
    size = row_bytes(contender.program.buffers["slices"])
    ranks = counts.topology.num_ranks
    amounts = ListAmounts(counts, plan, contender.program.is_compact)
    after = plan.assignment.pairs.astype(np.float64)
    lists = ["direct", "forward"] + (["carry"] if plan.assignment.hands_over else [])
    for each in map(amounts.of, lists):
        np.add.at(after, (each.rank, each.peer), each.entries)
    before = np.asarray(counts.points * float(size))
    after *= size
    shown = ranks <= MOST_RANKS_SHOWN
    return Traffic(
        _by_node(before, counts),
        _by_node(after, counts),
        before if shown else None,
        after if shown else None,
    )


def _by_node(matrix: Float64Array, counts: Counts) -> Float64Array:
    n, m = counts.topology.num_nodes, counts.topology.ranks_per_node
    return np.asarray(matrix.reshape(n, m, n, m).sum(axis=(1, 3)))


def _stages(contender: Contender, plan: NetworkPlan) -> tuple[Stage, ...]:
    """Bytes between nodes by stage, where they are not too many to look at."""
    if plan.stages is None:
        return ()
    n, m = len(plan.stages.tile), plan.assignment.ranks_per_node
    if plan.stages.num_stages * n * n > MOST_STAGE_CELLS:
        return ()
    slices = slices_of(plan.stages)
    size = row_bytes(contender.program.buffers["slices"])
    cube = np.zeros((plan.stages.num_stages, n, n))
    np.add.at(cube, (slices.round, slices.sender // m, slices.receiver // m), slices.rows * size)
    return tuple(map(Stage, cube))
