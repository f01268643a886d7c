"""What the wires of a cluster are taken to do, when nobody has measured them."""

from __future__ import annotations

from fuscoc_runtime.engine.dtypes import TORCH_DTYPES
from fuscoc_runtime.plan.cost import CostModel
from fuscoc_runtime.schema import ShuffleSpec

NIC_BANDWIDTH = 50e9
"""Bytes a second of a 400 Gbit/s NIC, one for every rank."""

NVLINK_BANDWIDTH = 450e9
"""Bytes a second and direction of a GPU of the Hopper generation."""

STAGE_LATENCY = 10e-6
"""Seconds to start a stage of the network hop."""


def segment_bytes(shuffle: ShuffleSpec) -> int:
    """Bytes of a segment, all fields together."""
    return sum(each.num_elems * TORCH_DTYPES[each.dtype].itemsize for each in shuffle.fields)


def cost_model(
    shuffle: ShuffleSpec,
    nic_bandwidth: float = NIC_BANDWIDTH,
    nvlink_bandwidth: float = NVLINK_BANDWIDTH,
    stage_latency: float = STAGE_LATENCY,
) -> CostModel:
    """The cost model of a shuffle's segments and slices; bandwidths are bytes a second."""
    return CostModel(
        nic_bandwidth,
        nvlink_bandwidth,
        stage_latency,
        max(1, segment_bytes(shuffle)),
        shuffle.policy.slice_bytes,
    )
