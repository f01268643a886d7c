"""The results of `network.py` beside their bound, as rows of a markdown table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.network_timing import COLUMNS, Measured

Entry = dict[str, Any]
BOUND = "bound"
BOUNDED = ("dispatch", "combine", "total", "idle")
MEMORY = ("window MB", "MB")
"""What peers of a rank can address, and all that it holds from call to call."""
SHOWN = (*COLUMNS[:4], "x bound", "beyond", *COLUMNS[4:], *MEMORY)
PARTS = ("preprocessing", "rearrangement", "communication")


def bound_of(raw: Sequence[Measured]) -> Measured:
    """The best of raw wires in each column that has a bound."""
    found: Measured = dict.fromkeys(COLUMNS)
    for column in BOUNDED:
        found[column] = min(each[column] or 0.0 for each in raw)
    return found


def beside(entry: Entry, bound: Measured) -> Entry:
    """With what the total is beyond that of the bound, and as a multiple of it."""
    limit, total = bound["total"] or 0.0, entry["total"]
    times = round(total / limit, 3) if limit else None
    return {**entry, "beyond": round(total - limit, 1), "x bound": times}


def caption(setup: Mapping[str, Any]) -> str:
    """Hardware, wire, versions and date."""
    return (
        f"{setup['gpus']} x {setup['gpu']}{' under MPS' if setup['mps'] else ''} as "
        f"{setup['topology']}; {setup['wire in words']}; torch {setup['torch']}, NCCL "
        f"{setup['nccl']}; {setup['date']}; µs of the slowest rank, medians of "
        f"{setup['iterations']}"
    )


def header() -> str:
    titles = ("routing", "tokens", "contender", *SHOWN, "verified")
    return "| " + " | ".join(titles) + " |\n" + "|---" * len(titles) + "|"


def markdown(report: Sequence[Entry]) -> str:
    """Rows, then what else was measured of some."""
    lines = []
    for entry in report:
        cells = [str(entry[name]) for name in ("routing", "num_tokens", "contender")]
        cells += [_shown(name, entry.get(name)) for name in SHOWN]
        cells.append(_verdict(entry))
        lines.append("| " + " | ".join(cells) + " |")
    for entry in report:
        if "gemm" in entry:
            found = {name: round(value, 2) for name, value in entry["gemm"].items()}
            lines.append(f"{entry['contender']} beside GEMMs: {found}")
        if "parts" in entry:
            shown = " / ".join(f"{entry['parts'].get(part, 0.0):.2f}" for part in PARTS)
            lines.append(f"{entry['contender']}, ms of {' / '.join(PARTS)}: {shown}")
    return "\n".join(lines)


def _shown(column: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if column == "x bound" else f"{value:.0f}"


def _verdict(entry: Entry) -> str:
    return "" if entry["is raw"] else "; ".join(entry["wrong"]) or "yes"
