"""What a page says about a record in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuscoc.simulate.record import Leg, Record, Run
from fuscoc_runtime.plan.summary import human_bytes, human_seconds

RESOURCES = {
    "nic_in": "NIC in",
    "nic_out": "NIC out",
    "nvlink_in": "NVLink in",
    "nvlink_out": "NVLink out",
    "hbm": "HBM",
    "rail": "rails",
    "leaf": "leaves",
}
"""Kinds of links, as they are called beside numbers."""

LIMITS = {
    "NIC in": "receiving NICs",
    "NIC out": "sending NICs",
    "NVLink in": "receiving over NVLink",
    "NVLink out": "sending over NVLink",
    "host": "the hosts",
    "spine": "the spine",
}
"""The same, and what else time is spent on, in the middle of a sentence."""


@dataclass(frozen=True)
class Tile:
    """A number to look at first; ``note`` puts it beside another."""

    title: str
    value: str
    note: str


def resource(name: str) -> str:
    return RESOURCES.get(name, name)


def _limit(leg: Leg) -> str:
    return LIMITS.get(resource(leg.limit), resource(leg.limit))


def legs(run: Run) -> Sequence[tuple[str, Leg]]:
    """The directions of a run by name."""
    if run.combine is None:
        return [("dispatch", run.dispatch)]
    return [("dispatch", run.dispatch), ("combine", run.combine)]


def bound(run: Run) -> float | None:
    """Seconds that the run's rows cannot go below on these links, in whatever order."""
    if not all(leg.bounds for _, leg in legs(run)):
        return None
    return sum(max(each.seconds for each in leg.bounds) for _, leg in legs(run))


def headline(record: Record) -> tuple[str, str, str]:
    """Three parts of one sentence, the middle one the number that matters."""
    if not record.runs:
        spans = record.recorded
        seconds = float(spans.end.max()) if spans is not None and len(spans.end) else 0.0
        ranks = len(spans.ranks) if spans is not None else 0
        return f"{record.title}: a recorded run of ", human_seconds(seconds), f" on {ranks} ranks"
    run, cluster = record.runs[0], record.cluster
    where = ""
    if cluster is not None:
        where = f" on {cluster.num_nodes * cluster.ranks_per_node:,} GPUs"
    what = " and ".join(name for name, _ in legs(run))
    limits = dict.fromkeys(_limit(leg) for _, leg in legs(run))
    subject = f"{run.contender}{where}: {what} take" + ("s " if run.combine is None else " ")
    return subject, human_seconds(run.seconds), f", bound by {' and '.join(limits)}"


def lead(record: Record) -> str:
    """What was simulated, in one line."""
    parts = [record.title]
    if record.cluster is not None:
        cluster = record.cluster
        plural = "s" if cluster.num_nodes > 1 else ""
        shape = f"{cluster.num_nodes} node{plural} of {cluster.ranks_per_node}"
        name = cluster.title or cluster.name
        parts.append(shape if name in record.title else f"{name} ({shape})")
    if record.tokens:
        parts.append(f"{record.tokens:,} tokens a rank")
    if record.traffic:
        parts.append(f"traffic {record.traffic}")
    return " · ".join(parts)


def tiles(record: Record) -> list[Tile]:
    """The numbers of the first run, beside what bounds them and the other runs."""
    if not record.runs:
        return []
    run, shown = record.runs[0], []
    least = bound(run)
    for name, leg in legs(run):
        shown.append(
            Tile(
                name.capitalize(),
                human_seconds(leg.seconds),
                f"{leg.num_rounds} rounds" if leg.num_rounds else resource(leg.limit),
            )
        )
    if least:
        over = f"the run takes {run.seconds / least:.2f}×"
        shown.append(Tile("These links allow", human_seconds(least), over))
    others = [each for each in record.runs[1:] if each.seconds > 0]
    if others and run.seconds > 0:
        best = min(others, key=lambda each: each.seconds)
        ratio = best.seconds / run.seconds
        shown.append(Tile(f"Best other: {best.contender}", f"{ratio:.2f}×", "as long"))
    before = float(run.traffic.node_before.sum() - run.traffic.node_before.trace())
    after = float(run.traffic.node_after.sum() - run.traffic.node_after.trace())
    if before:
        saved = f"{human_bytes(after)} of {human_bytes(before)} cross"
        shown.append(Tile("Kept off the network", f"{1 - after / before:.0%}", saved))
    if run.memory:
        largest = max(run.memory, key=lambda each: run.memory[each])
        total = human_bytes(sum(run.memory.values()))
        shown.append(Tile("Memory a rank", total, f"most: {largest.replace('_', ' ')}"))
    return shown
