"""The results of `benchmarks/network.py` as markdown tables and as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.kernels.trace import Span

Entry = dict[str, Any]
PARTS = ("preprocessing", "rearrangement", "communication")
COLUMNS = ("layout_ms", "dispatch_ms", "combine_ms", "total_ms", "p10_ms", "p90_ms")


def summarise(times: Tensor, bound: float) -> dict[str, float]:
    """``times``: milliseconds [iterations, 3] of layout, dispatch and combine; the total is that of
    the last two. ``bound``: of the total."""
    total = times[:, 1:].sum(1)
    tenth, median, ninetieth = torch.quantile(total, torch.tensor([0.1, 0.5, 0.9])).tolist()
    layout, dispatch, combine = times.quantile(0.5, dim=0).tolist()
    return {
        "layout_ms": layout,
        "dispatch_ms": dispatch,
        "combine_ms": combine,
        "total_ms": median,
        "with_layout_ms": median + layout,
        "p10_ms": tenth,
        "p90_ms": ninetieth,
        "bound_ms": bound,
        "times_bound": median / bound if bound else 0.0,
    }


def markdown(report: Sequence[Entry]) -> str:
    """Times in milliseconds; parts of a contender are timed one after the other. What fuscoc is
    faster by is given for the total, and for the total and the layout."""
    lines = [
        "| routing | tokens | contender | layout | dispatch | combine | total | p10 | p90 | "
        "× bound | fuscoc is faster by | preprocessing / rearrangement / communication | correct |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for entry in report:
        numbers = " | ".join(f"{entry[column]:.2f}" for column in COLUMNS)
        ours = next(
            each["total_ms"]
            for each in report
            if each["contender"] == "fuscoc" and _case(each) == _case(entry)
        )
        parts = entry.get("parts")
        faster = f"{entry['total_ms'] / ours:.2f}"
        if entry["layout_ms"]:
            faster += f" ({entry['with_layout_ms'] / ours:.2f} with its layout)"
        shown = " / ".join(f"{parts.get(p, 0.0):.2f}" for p in PARTS) if parts else ""
        lines.append(
            f"| {entry['routing']} | {entry['num_tokens']} | {entry['contender']} | {numbers} "
            f"| {entry['times_bound']:.2f} | {faster} | {shown} "
            f"| {'yes' if not entry['wrong'] else entry['wrong']} |"
        )
    return "\n".join(lines)


def _case(entry: Entry) -> tuple[Any, ...]:
    return entry["routing"], entry["num_tokens"]


def plot(report: Sequence[Entry], path: Path) -> None:
    """Totals as multiples of the bound, a group of bars for each routing and size."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    cases = list(dict.fromkeys(_case(entry) for entry in report))
    names = list(dict.fromkeys(entry["contender"] for entry in report))
    figure, axes = plt.subplots(figsize=(2 + 2.2 * len(cases), 4.5))
    width = 0.8 / len(names)
    for position, name in enumerate(names):
        found = {_case(e): e["times_bound"] for e in report if e["contender"] == name}
        at = [i for i, case in enumerate(cases) if case in found]
        left = [i + (position + 0.5) * width - 0.4 for i in at]
        bars = axes.bar(left, [found[cases[i]] for i in at], width, label=name)
        axes.bar_label(bars, fmt="%.1f", fontsize=6)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(cases)), [f"{kind}\n{tokens}" for kind, tokens in cases])
    axes.set_ylabel("dispatch + combine, × bound")
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)


def idle_part(spans: Sequence[Span]) -> float:
    """The part of the time from the first begin to the last end in which no span is under way."""
    busy, until = 0.0, float("-inf")
    for span in sorted(spans, key=lambda each: each.begin):
        busy += max(0.0, span.end - max(span.begin, until))
        until = max(until, span.end)
    if not spans:
        return 0.0
    total = until - min(span.begin for span in spans)
    return 1 - busy / total if total > 0 else 0.0
