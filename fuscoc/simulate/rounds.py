"""A hop cut into rounds of slices, so that gathering, sending and forwarding overlap.

A *slice* is a range of rows from one rank to another. A *round* is the slices that travel at once:
a part of a stage that is small enough to overlap with the others. A ring has room for the rows of
so many rounds.
"""

from __future__ import annotations

import math

from fuscoc_runtime.comm.lanes import LEAST_LANES
from fuscoc_runtime.plan.cost import CostModel

RING_SLOTS = 8
"""The most rounds of the network hop under way."""

PLANNING_SECONDS = 4e-3
"""Rounds travel meanwhile: what the rest of a plan may take on a busy host."""


def ring_slots(model: CostModel) -> int:
    """Rounds that may be under way: as many as the network carries while a plan is completed; one
    more starts, and one ends. Every lane has one."""
    carried = model.nic_bandwidth * (PLANNING_SECONDS + model.stage_latency)
    needed = max(model.num_lanes, 2 + math.ceil(carried / model.slice_bytes))
    return min(RING_SLOTS, needed)


def slice_rows(total: int, row_bytes: int, most_bytes: int, model: CostModel) -> int:
    """Rows of a slice when the busiest rank sends or receives ``total`` rows.

    Every slice costs a latency; nothing covers the gathering of the first slice and the forwarding
    of the last, which both run at NVLink's pace. With ``B`` bytes and slices of ``s`` that is
    ``B / s * latency + 2 * s / bandwidth``, least at ``sqrt(B * latency * bandwidth / 2)``. A slice
    holds ``most_bytes`` at most, and one row at least. All lanes of the network get equally many,
    but more than two lanes only slices that travel for longer than that latency.
    """
    num_bytes, latency = total * row_bytes, model.stage_latency
    best = max(row_bytes, math.sqrt(num_bytes * latency * model.nvlink_bandwidth / 2))
    most_rows = max(1, most_bytes // max(1, row_bytes))
    worthwhile = int(model.nic_seconds(total) / latency) if latency else model.num_lanes
    lanes = min(model.num_lanes, max(LEAST_LANES, worthwhile))
    per_lane = max(-(-total // (lanes * most_rows)), round(num_bytes / (lanes * best)), 1)
    return -(-total // (lanes * per_lane))
