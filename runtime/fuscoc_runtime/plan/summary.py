"""A plan in numbers: rows and bytes by hop, NIC loads, predicted times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuscoc_runtime.plan.traffic import Traffic


@dataclass(frozen=True)
class HopLoad:
    """Rows that cross a hop.

    ``rows_before``: how many would in a plain all-to-all, every point straight from its source.
    """

    hop: str
    rows: int
    rows_before: int
    bytes: int

    @property
    def saved(self) -> float:
        """Part of the rows that deduplication keeps off this hop; negative where it adds some."""
        return 1 - self.rows / self.rows_before if self.rows_before else 0.0


@dataclass(frozen=True)
class NicLoad:
    """Network rows: the busiest NIC's, in its busier direction, and a NIC's mean in each."""

    busiest: int
    mean: float

    @classmethod
    def of(cls, traffic: Traffic) -> NicLoad:
        return cls(int(traffic.nic_load.max()), float(traffic.network.sum(axis=1).mean()))

    @property
    def imbalance(self) -> float:
        """Busiest over mean; 1 is even."""
        return self.busiest / self.mean if self.mean else 1.0


@dataclass(frozen=True)
class PlanSummary:
    """Of all ranks together. Times are seconds, ``num_segments`` source segments.

    ``local`` rows are copies inside a destination's own memory, which cost no wire. ``carried``
    rows cross NVLink to another rank of their node, which sends them.
    ``nic_before``: with every source's forwarders at its own local rank, ``nic``: as planned.
    ``oracle``: what no forwarders and no stages can beat. ``num_stages``: ``None`` without stages.
    """

    shuffle: str
    topology: str
    balance: str
    num_segments: int
    num_points: int
    segment_bytes: int
    network: HopLoad
    carried: HopLoad
    nvlink: HopLoad
    local: HopLoad
    nic_before: NicLoad
    nic: NicLoad
    schedule: str | None
    num_stages: int | None
    predicted: float
    oracle: float

    @property
    def hops(self) -> tuple[HopLoad, ...]:
        """Outermost first; ``carried`` only if there are such rows."""
        handed = (self.carried,) if self.carried.rows else ()
        return self.network, *handed, self.nvlink, self.local

    def __str__(self) -> str:
        rows = [("hop", "rows", "bytes", "plain all-to-all", "saved")]
        rows += [
            (each.hop, f"{each.rows:,}", human_bytes(each.bytes), f"{each.rows_before:,}",
             f"{each.saved:.0%}" if each.saved > 0 else "")
            for each in self.hops
        ]  # fmt: skip
        stages = f", {self.num_stages} stages ({self.schedule})" if self.schedule else ""
        lines = [
            f"{self.shuffle} on {self.topology}: {self.num_segments:,} segments of "
            f"{human_bytes(self.segment_bytes)} to {self.num_points:,} slots, "
            f"balance {self.balance}{stages}",
            *_aligned(rows),
            f"busiest NIC {self.nic.busiest:,} rows, {self.nic.imbalance:.2f} of the mean "
            f"({self.nic_before.imbalance:.2f} before balancing)",
            f"predicted {human_seconds(self.predicted)}, "
            f"no plan can beat {human_seconds(self.oracle)}",
        ]
        return "\n".join(lines)


def human_bytes(count: float) -> str:
    """``14.0 KiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def human_seconds(seconds: float) -> str:
    """``1.23 ms``."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join([f"  {first:<{widths[0]}}", *cells]))
    return lines
