"""Predicted completion time of a network plan: bandwidths, one latency, and a pipeline of slices.

Every rank has a NIC and an NVLink port, full duplex. A stage is over when its slowest rank is; its
NVLink work (moving rows to their carriers, forwarding what arrived) takes as long as its busiest
rank. The order is FAST's (section 4.3): balance first, then the part that stays inside the nodes,
then what arrives is forwarded while more arrives. A stage does not wait for the whole balance, but
for its own share of it, and forwarding does not wait for a whole stage, but for a slice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from fuscoc_runtime.comm.lanes import LEAST_LANES
from fuscoc_runtime.plan import native
from fuscoc_runtime.plan.flows import Assignment, Demand, Float64Array, Int64Array

T = TypeVar("T")

TOLERANCE = 0.01
"""``auto`` takes the simplest choice within this part of the best prediction."""

PIPELINE_DEPTH = 16
"""A slice is at most this part of what the busiest NIC carries, so that the pipeline can fill."""


@dataclass(frozen=True)
class CostModel:
    """What the wires do, and how large a segment is.

    ``nic_bandwidth``, ``nvlink_bandwidth``: bytes per second, rank and direction.
    ``stage_latency``: seconds that starting a stage costs. ``segment_bytes``: bytes of a segment
    (of an average one if they differ). ``slice_bytes``: the most that a slice holds.
    ``handover_latency``: seconds that it costs besides if any rank sends another's segments.
    ``num_lanes``: slices that a rank has to send at once to get all of ``nic_bandwidth``.
    """

    nic_bandwidth: float
    nvlink_bandwidth: float
    stage_latency: float
    segment_bytes: int
    slice_bytes: int = 8 << 20
    handover_latency: float = 0.0
    num_lanes: int = LEAST_LANES

    def nic_seconds(self, segments: float) -> float:
        return segments * self.segment_bytes / self.nic_bandwidth

    def nvlink_seconds(self, segments: float) -> float:
        return segments * self.segment_bytes / self.nvlink_bandwidth

    @cached_property
    def wire(self) -> Float64Array:
        """float64 [3]: seconds of a segment on a NIC, on NVLink, and of a stage's start."""
        return np.array([self.nic_seconds(1), self.nvlink_seconds(1), self.stage_latency])

    @cached_property
    def speeds(self) -> Float64Array:
        """float64 [4]: bytes a second of a NIC and of NVLink, seconds of a stage's start and of a
        handing over."""
        latencies = self.stage_latency, self.handover_latency
        return np.array([self.nic_bandwidth, self.nvlink_bandwidth, *latencies])

    @property
    def grain(self) -> int:
        """Segments that a NIC sends in the latency of a stage.

        Shorter stages do not pay: rounding entries up to a grain ``g`` adds at most ``n g`` to the
        sum of all stages, about ``n g / 2``, and halving it costs about ``n / 2`` more stages.
        """
        return max(1, int(self.stage_latency * self.nic_bandwidth / self.segment_bytes))

    def slice_segments(self, total: int) -> int:
        """Segments of a slice when the busiest NIC carries ``total``."""
        return max(1, min(self.slice_bytes // self.segment_bytes, -(-total // PIPELINE_DEPTH)))


@dataclass(frozen=True)
class Prediction:
    """Seconds. ``completion`` overlaps the others, the busy times of the busiest node."""

    completion: float
    network: float
    balance: float
    redistribution: float
    local: float


@dataclass(frozen=True, eq=False)
class Loads:
    """Segments on NICs and NVLink. One rank's load is the larger of its two directions.

    By tile (source node ``i``, destination node ``q``), [num_nodes, num_nodes], for its busiest
    rank: ``tile``, int64, on the NICs; ``balance``, float64, on the NVLink of node ``i``, to and by
    carriers; ``redistribution``, float64, on the NVLink of node ``q``, from forwarders to final
    ranks, as if each row of a flow had the flow's mean number of destinations.
    By node, [num_nodes], for its busiest rank: the same in all, and ``local``, int64, copies that
    stay in the node.
    """

    tile: Int64Array
    balance: Float64Array
    redistribution: Float64Array
    node_tile: Int64Array
    node_balance: Float64Array
    node_redistribution: Float64Array
    local: Int64Array

    @classmethod
    def of(cls, demand: Demand, assignment: Assignment) -> Loads:
        return cls(*native.loads(demand, assignment))


def oracle(demand: Demand, model: CostModel) -> float:
    """Seconds that no plan can beat: the largest sum that a node sends or receives, over all its
    NICs, with everything else free (FAST's theorem 1)."""
    nodes = demand.node_flows
    busiest = int(max(nodes.sum(axis=0).max(), nodes.sum(axis=1).max()))
    return model.nic_seconds(busiest / demand.ranks_per_node)


def least_of_stages(tile: Int64Array, model: CostModel) -> float:
    """Seconds that no stages can beat which move ``tile`` [num_nodes, num_nodes], segments of the
    busiest rank: a node sends to one node at a time, receives from one, and begins as often."""
    busiest = int(max(tile.sum(axis=0).max(), tile.sum(axis=1).max()))
    peers = tile > 0
    starts = int(max(peers.sum(axis=0).max(), peers.sum(axis=1).max()))
    return model.nic_seconds(busiest) + starts * model.stage_latency


def least_seconds(demand: Demand, model: CostModel) -> tuple[float, float]:
    """What no stages can beat if every rank sends its own segments: the largest flow of every
    tile; and if ranks send for one another: an equal share of it."""
    m = demand.ranks_per_node
    flows = demand.flows.reshape(demand.num_nodes, m, demand.num_nodes)
    alone = least_of_stages(flows.max(axis=1), model)
    together = least_of_stages(-(-flows.sum(axis=1) // m), model) + model.handover_latency
    return alone, min(alone, together)


def handover_seconds(assignment: Assignment, model: CostModel) -> float:
    """What a dispatch waits for besides if ranks send segments of others."""
    return model.handover_latency if model.handover_latency and assignment.hands_over else 0.0


def predict_assignment(demand: Demand, assignment: Assignment, model: CostModel) -> Prediction:
    """As if the network had no incast: one stage, as long as the busiest NIC needs."""
    loads = Loads.of(demand, assignment)
    network = loads.node_tile.max(keepdims=True)
    if not network[0]:
        network = network[:0]
    return _predict(
        model,
        assignment,
        network,
        loads.node_balance.reshape(1, -1)[: len(network)],
        loads.node_redistribution.reshape(1, -1)[: len(network)],
        loads.local,
    )


def predict_stages(
    demand: Demand,
    assignment: Assignment,
    peer: Int64Array,
    length: Int64Array,
    model: CostModel,
) -> Prediction:
    """Stages one after the other. ``peer``, ``length``: int64 [num_stages, num_nodes].

    ``length[k, i]``: what stage ``k`` takes of the tile from node ``i`` to node ``peer[k, i]``
    (-1: none), in segments of its busiest rank.
    """
    loads = Loads.of(demand, assignment)
    stage, source = np.nonzero(length)
    target = peer[stage, source]
    part = length[stage, source] / loads.tile[source, target]
    balance = np.zeros(length.shape)
    balance[stage, source] = part * loads.balance[source, target]
    redistribution = np.zeros(length.shape)
    redistribution[stage, target] = part * loads.redistribution[source, target]
    network = length.max(axis=1)
    return _predict(model, assignment, network, balance, redistribution, loads.local)


def simplest(
    candidates: Sequence[tuple[Callable[[], T], float]], seconds: Callable[[T, float], float]
) -> T:
    """The first candidate within ``TOLERANCE`` of the fastest.

    ``candidates``: how to make each, and a time that it cannot beat; those that promise most are
    made first. One that is too slow in any case is not made, nor one that cannot be faster than an
    earlier one by more than ``TOLERANCE``. ``seconds``: of a candidate; any time above the limit
    that it is given does for what takes longer than that.
    """
    made, skipped, fastest = dict[int, tuple[T, float]](), math.inf, math.inf
    for number in sorted(range(len(candidates)), key=lambda each: candidates[each][1]):
        make, bound = candidates[number]
        if bound > fastest * (1 + TOLERANCE):
            break
        near = bound * (1 + TOLERANCE)
        if any(other < number and time <= near for other, (_, time) in made.items()):
            skipped = min(skipped, bound)
            continue
        candidate = make()
        made[number] = candidate, seconds(candidate, fastest * (1 + TOLERANCE))
        fastest = min(fastest, made[number][1])
    limit = min(fastest, skipped) * (1 + TOLERANCE)
    return made[min(number for number, (_, time) in made.items() if time <= limit)][0]


def _predict(
    model: CostModel,
    assignment: Assignment,
    network: Int64Array,
    balance: Float64Array,
    redistribution: Float64Array,
    local: Int64Array,
) -> Prediction:
    """Stages -> seconds. ``network``: [num_stages]; the others by node, [num_stages, num_nodes]."""
    total = int(network.sum())
    completion = native.pipeline(
        network, balance, redistribution, local, model.wire, model.slice_segments(total)
    )
    return Prediction(
        completion=completion + handover_seconds(assignment, model),
        network=model.nic_seconds(total) + len(network) * model.stage_latency,
        balance=model.nvlink_seconds(float(balance.sum(axis=0).max())),
        redistribution=model.nvlink_seconds(float(redistribution.sum(axis=0).max())),
        local=model.nvlink_seconds(int(local.max())),
    )
