"""What the wires of a cluster do, or are taken to do where nobody has measured them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fuscoc_runtime.comm.lanes import LEAST_LANES
from fuscoc_runtime.manifest.declared import FieldSpec
from fuscoc_runtime.manifest.program import Program
from fuscoc_runtime.plan.cost import CostModel

NIC_BANDWIDTH = 50e9
"""Bytes a second of a 400 Gbit/s NIC, one for every rank."""

NVLINK_BANDWIDTH = 450e9
"""Bytes a second and direction of a GPU of the Hopper generation."""

STAGE_LATENCY = 10e-6
"""Seconds to start a stage of the network hop."""

LEAST_LATENCY = 1e-6


@dataclass(frozen=True)
class Link:
    """What the network does for every rank while all of them send on ``num_lanes`` lanes: bytes a
    second and direction, and the seconds that a message takes besides."""

    bandwidth: float
    latency: float
    num_lanes: int = LEAST_LANES

    @classmethod
    def through(
        cls, small: tuple[int, float], large: tuple[int, float], num_lanes: int = LEAST_LANES
    ) -> Link:
        """That explains the seconds of two messages, given as (bytes, seconds)."""
        num_bytes, seconds = (b - a for a, b in zip(small, large, strict=True))
        bandwidth = num_bytes / seconds if seconds > 0 else large[0] / large[1]
        latency = max(LEAST_LATENCY, small[1] - small[0] / bandwidth)
        return cls(bandwidth, latency, num_lanes)

    def model(self, assumed: CostModel) -> CostModel:
        """What is ``assumed``, but for what has been measured."""
        return replace(
            assumed,
            nic_bandwidth=self.bandwidth,
            stage_latency=self.latency,
            num_lanes=self.num_lanes,
        )

    def __str__(self) -> str:
        rate, latency = f"{self.bandwidth / 1e9:.3g} GB/s", f"{self.latency * 1e6:.3g} us"
        return f"{rate} a rank on {self.num_lanes} lanes, {latency}"


def row_bytes(fields: Iterable[FieldSpec]) -> int:
    """Bytes of a segment row, all fields together."""
    return sum(each.num_bytes for each in fields)


def segment_bytes(program: Program) -> int:
    """Bytes of a segment on the network, on the way forth."""
    return row_bytes(program.buffers["slices"])


def network_row_bytes(program: Program) -> int:
    """Bytes of a row of the network hop, all fields together, in the direction that has more."""
    back = row_bytes(program.buffers.get("return_slices", ()))
    return max(1, back, segment_bytes(program))


def cost_model(
    program: Program,
    nic_bandwidth: float = NIC_BANDWIDTH,
    nvlink_bandwidth: float = NVLINK_BANDWIDTH,
    stage_latency: float = STAGE_LATENCY,
) -> CostModel:
    """The cost model of a shuffle's segments and slices; bandwidths are bytes a second."""
    return CostModel(
        nic_bandwidth,
        nvlink_bandwidth,
        stage_latency,
        max(1, segment_bytes(program)),
        program.exchange.slice_bytes,
    )
