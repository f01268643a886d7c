"""The pictures of a plan, as SVG text. Colours are told apart with any kind of colour vision."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from fuscoc_runtime.plan import Plan
from fuscoc_runtime.plan.flows import Int64Array
from fuscoc_runtime.plan.links import segment_bytes

BEFORE, AFTER, LINE = "#b9c0cc", "#1f5fa8", "#c2410c"
HEAT = "Blues"
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["Inter", "Helvetica Neue", "Arial", "Liberation Sans", "DejaVu Sans"],
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "fuscoc",
}
MIB = 2**20


def rank_maps(plan: Plan) -> str:
    """Bytes from rank to rank: plain all-to-all, after deduplication, after balancing."""
    traffic = plan.traffic
    steps = [
        ("plain all-to-all", traffic.without_dedup()),
        ("deduplicated", traffic.unbalanced()),
        (f"forwarders: {plan.rules.forwarder}", traffic),
    ]
    maps = [(title, each.network + each.handed + each.nvlink) for title, each in steps]
    return _heat_maps(plan, maps, "rank", plan.topology.ranks_per_node)


def node_maps(plan: Plan) -> str:
    """Bytes from node to node: plain all-to-all, after deduplication."""
    traffic = plan.traffic
    maps = [
        ("plain all-to-all", traffic.by_node(traffic.without_dedup().network)),
        ("deduplicated", traffic.by_node(traffic.network)),
    ]
    return _heat_maps(plan, maps, "node", 1)


def nic_bars(plan: Plan) -> str:
    """Bytes that every NIC sends and receives, before and after balancing, with their means."""
    scale = segment_bytes(plan.shuffle.program) / MIB
    network, unbalanced = plan.traffic.network * scale, plan.traffic.unbalanced().network * scale
    highest = max(
        1e-9,
        *(float(each.sum(axis=axis).max()) for each in (network, unbalanced) for axis in (0, 1)),
    )
    rank, balance = np.arange(plan.topology.num_ranks), plan.rules.forwarder
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 4.2), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True)
        for axes, axis in ((upper, 1), (lower, 0)):
            before, after = unbalanced.sum(axis=axis), network.sum(axis=axis)
            axes.bar(rank - 0.2, before, 0.4, color=BEFORE, label="by the same local rank")
            axes.bar(rank + 0.2, after, 0.4, color=AFTER, label=f"balance {balance}")
        lower.legend(
            ncols=2, frameon=False, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2
        )
        for axes, title, axis in ((upper, "sent", 1), (lower, "received", 0)):
            load = network.sum(axis=axis)
            axes.set_title(title)
            axes.set_ylabel("MiB")
            axes.set_ylim(0, highest * 1.05)
            axes.axhline(float(load.mean()), color=LINE, linewidth=1.2)
            axes.text(len(rank) - 0.35, float(load.mean()), "mean", color=LINE, va="center")
            for node in range(1, plan.topology.num_nodes):
                edge = node * plan.topology.ranks_per_node - 0.5
                axes.axvline(edge, color="#dddddd", zorder=0)
        lower.set_xlabel("rank")
        lower.set_xlim(-0.6, len(rank) - 0.4)
        lower.set_xticks(rank[:: max(1, len(rank) // 32)])
        return _svg(figure)


def gantt(plan: Plan) -> str:
    """When which node sends to which; blocks carry the number of the destination node."""
    schedule = plan.schedule
    assert schedule is not None, "only a plan with stages has a chart of them"
    length = schedule.end - schedule.begin
    model, num_nodes = plan.model, plan.topology.num_nodes
    lasts = np.array([model.nic_seconds(float(each.max())) for each in length])
    start = np.cumsum(lasts + model.stage_latency) - lasts
    total = float(start[-1] + lasts[-1]) if len(lasts) else 0.0
    palette = matplotlib.colormaps[HEAT](np.linspace(0.2, 0.85, num_nodes))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 1.1 + 0.32 * num_nodes), layout="constrained")
        axes = figure.subplots()
        for stage, node in np.argwhere(length > 0):
            peer = int(schedule.peer[stage, node])
            wide = model.nic_seconds(float(length[stage, node])) * 1e3
            left, colour = float(start[stage]) * 1e3, palette[peer]
            axes.barh(node, wide, 0.78, left, color=colour, edgecolor="white", linewidth=0.4)
            if wide > 0.02 * total * 1e3:
                dark = float(np.dot(colour[:3], (0.299, 0.587, 0.114))) < 0.5
                axes.text(
                    left + wide / 2, node, str(peer), ha="center", va="center",
                    color="white" if dark else "black", fontsize=9,
                )  # fmt: skip
        axes.set_yticks(range(num_nodes))
        axes.set_ylabel("sending node")
        axes.set_ylim(num_nodes - 0.5, -0.5)
        axes.set_xlim(0, max(total * 1e3, 1e-9))
        axes.set_xlabel("ms on the network")
        return _svg(figure)


def _heat_maps(plan: Plan, maps: Sequence[tuple[str, Int64Array]], what: str, group: int) -> str:
    """Matrices side by side on one scale, with a line between groups of ``group`` entries."""
    scale = segment_bytes(plan.shuffle.program) / MIB
    highest = max(1e-9, max(float(matrix.max()) for _, matrix in maps) * scale)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.2 * len(maps) + 0.6, 3.3), layout="constrained")
        panels: Any = figure.subplots(1, len(maps), squeeze=False)
        for axes, (title, matrix) in zip(panels[0], maps, strict=True):
            image = axes.imshow(
                matrix * scale, cmap=HEAT, vmin=0, vmax=highest, interpolation="nearest"
            )
            axes.set_title(title)
            axes.set_xlabel(f"to {what}")
            for edge in range(group, len(matrix), group) if group > 1 else ():
                axes.axhline(edge - 0.5, color="#c8ced6", linewidth=0.8)
                axes.axvline(edge - 0.5, color="#c8ced6", linewidth=0.8)
            ticks = range(0, len(matrix), max(1, len(matrix) // 8))
            axes.set_xticks(ticks)
            axes.set_yticks(ticks)
        panels[0][0].set_ylabel(f"from {what}")
        figure.colorbar(image, ax=panels[0].tolist(), label="MiB", shrink=0.85)
        return _svg(figure)


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
