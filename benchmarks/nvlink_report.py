"""The results of `benchmarks/nvlink.py` as a markdown table and as a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Entry = Mapping[str, Any]
COLUMNS = ("dispatch_us", "combine_us", "total_us", "p10_us", "p90_us", "bound_us")
PARTS = ("planning", "rearrangement", "communication", "fused")


def markdown(report: Sequence[Entry]) -> str:
    """Times in microseconds, then where they go."""
    lines = [
        "| routing | tokens | contender | dispatch | combine | total | p10 | p90 | bound | × bound "
        "| correct |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for entry in report:
        numbers = " | ".join(f"{entry[column]:.0f}" for column in COLUMNS)
        ok = "yes" if not entry["wrong"] else str(entry["wrong"])
        lines.append(
            f"| {entry['routing']} | {entry['num_tokens']} | {entry['contender']} "
            f"| {numbers} | {entry['times_bound']:.3f} | {ok} |"
        )
    graphs = [entry for entry in report if "graph_us" in entry]
    lines += [
        "",
        *(
            f"CUDA graph, {e['routing']} {e['num_tokens']}: {e['graph_us']:.1f} µs "
            f"(p10 {e['graph_p10_us']:.1f}, p90 {e['graph_p90_us']:.1f}), {e['contender']}"
            for e in graphs
        ),
    ]
    parted = [entry for entry in report if "parts" in entry]
    if parted:
        lines += [
            "",
            "| routing | tokens | contender | " + " | ".join(PARTS) + " |",
            "|---|---|---|" + "---|" * len(PARTS),
        ]
    for entry in parted:
        parts = " | ".join(f"{entry['parts'].get(part, 0):.0f}" for part in PARTS)
        lines.append(
            f"| {entry['routing']} | {entry['num_tokens']} | {entry['contender']} | {parts} |"
        )
    return "\n".join(lines)


def plot(report: Sequence[Entry], path: Path) -> None:
    """Totals as multiples of the bound, a group of bars for each routing and size."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    cases = list(dict.fromkeys((e["routing"], e["num_tokens"]) for e in report))
    names = list(dict.fromkeys(e["contender"] for e in report))
    figure, axes = plt.subplots(figsize=(1.6 + 1.5 * len(cases), 4))
    width = 0.8 / len(names)
    for position, name in enumerate(names):
        found = {
            (e["routing"], e["num_tokens"]): e["times_bound"]
            for e in report
            if e["contender"] == name
        }
        at = [i for i, case in enumerate(cases) if case in found]
        heights = [found[cases[i]] for i in at]
        bars = axes.bar([i + (position + 0.5) * width - 0.4 for i in at], heights, width)
        bars.set_label(name)
        axes.bar_label(bars, fmt="%.2f", fontsize=7)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(cases)), [f"{kind}\n{tokens}" for kind, tokens in cases])
    axes.set_ylabel("dispatch + combine, × bound")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
