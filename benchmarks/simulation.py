"""Writes the tables of ``docs/simulation.md``: ``python -m benchmarks.simulation``.

The page's words stay as they are; what stands between its marks is made anew. Takes some minutes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import get_args

import torch

from benchmarks import simulation_fusco as fusco
from benchmarks import simulation_published as published
from benchmarks.simulation_cases import REWRITES, Case, seconds
from benchmarks.simulation_tables import LEFT_OUT, TABLES, Measured, Part, measured
from fuscoc.simulate.clusters import PARTS
from fuscoc.simulate.costs import Costs

PAGE = Path(__file__).resolve().parents[1] / "docs" / "simulation.md"
NEAR, FAR = 0.15, 0.30


@dataclass(frozen=True)
class Row:
    """A measured row and what is predicted for it, in seconds."""

    measured: Measured
    predicted: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured.seconds - 1


def predict(rows: Iterable[Measured]) -> Iterator[Row]:
    """Simulate every row; those of one call are simulated once."""
    runs = {}
    for row in rows:
        key = Case.of(row), row.contender
        if key not in runs:
            runs[key] = Case.of(row).run(row.contender)
        yield Row(row, seconds(runs[key], row))


def constants() -> list[str]:
    """All of them, with the values of the package."""
    lines = ["| constant | value |", "|---|---|"]
    for each in fields(Costs):
        value = getattr(Costs(), each.name)
        shown = f"{value:.2f} of the rate" if each.name in PARTS else f"{value * 1e6:g} µs"
        lines.append(f"| `{each.name}` | {shown} |")
    return lines


def roles() -> list[str]:
    """Which tables are fitted, which judged, and what is left out."""
    lines = ["| table | page | |", "|---|---|---|"]
    lines += [f"| {t.name} | [{t.page}](benchmarks/{t.page}) | {t.role} |" for t in TABLES]
    lines += ["", "| left out | why |", "|---|---|"]
    return lines + [f"| {what} | {why} |" for what, why in LEFT_OUT.items()]


def summary(rows: list[Row]) -> list[str]:
    """How many rows are near, and the farthest, by table."""
    lines = [
        f"| table | | rows | within {NEAR:.0%} | farthest |", "|---|---|---|---|---|",
    ]  # fmt: skip
    by_table = defaultdict(list)
    for row in rows:
        by_table[row.measured.table, row.measured.role].append(row.error)
        by_table["all", row.measured.role].append(row.error)
    order = [(table.name, table.role) for table in TABLES] + [("all", "fitted"), ("all", "judged")]
    for name, role in order:
        errors = by_table[name, role]
        near = sum(abs(error) <= NEAR for error in errors)
        far = max(errors, key=abs)
        bold = "**" if name == "all" else ""
        lines.append(
            f"| {bold}{name}{bold} | {role} | {len(errors)} | {near / len(errors):.1%} "
            f"| {far:+.1%} |"
        )
    return lines


def details(rows: list[Row]) -> list[str]:
    """Every row: measured, predicted, error."""
    lines = [
        "| table | routing, tokens | contender | dispatch | combine | total | beyond the wire |",
        "|---|---|---|---|---|---|---|",
    ]
    by_call: dict[tuple[str, str, int, str], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        found = row.measured
        key = found.table, found.routing, found.tokens, found.contender
        by_call[key][found.part] = row
    for (table, routing, tokens, contender), parts in by_call.items():
        cells = [_cell(parts.get(part)) for part in get_args(Part)]
        inputs = f"{routing}, {tokens}" if tokens else routing
        lines.append(f"| {table} | {inputs} | {contender} | {' | '.join(cells)} |")
    return lines


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    error = f"{row.error:+.0%}"
    shown = f"**{error}**" if abs(row.error) > NEAR else error
    return f"{_ms(row.measured.seconds)} → {_ms(row.predicted)}, {shown}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}"


def rewrites() -> list[str]:
    """The contenders of the tables as programs."""
    lines = ["| contender | program |", "|---|---|"]
    return lines + [f"| {name} | {each.words} |" for name, each in REWRITES.items()]


def fusco_readme() -> list[str]:
    """FUSCO's README beside predictions and the bound of its hardware."""
    lines = [
        "| traffic | tokens | contender | published | predicted | | bound | published × bound |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return lines + [
        f"| {cell.kind} | {cell.tokens} | {cell.contender} | {cell.published * 1e3:.1f} "
        f"| {cell.predicted * 1e3:.1f} | {cell.error:+.0%} | {cell.hardware * 1e3:.1f} "
        f"| {cell.published / cell.hardware:.1f} |"
        for cell in fusco.readme()
    ]


def fusco_ablation() -> list[str]:
    """FUSCO's Table 3 beside predictions."""
    lines = [
        "| traffic | without | published | predicted | | saved, published | saved, predicted "
        "| by draw |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return lines + [
        f"| {off.kind} | {off.part} | {off.published * 1e3:.1f} | {off.predicted * 1e3:.1f} "
        f"| {off.predicted / off.published - 1:+.0%} | {off.published_saved:.1%} "
        f"| {off.saved.mean:.1%} | {off.saved.least:.1%} to {off.saved.most:.1%} |"
        for off in fusco.ablation()
    ]


def fast_gain() -> list[str]:
    """FAST over a plain all-to-all, by the traffic's skew."""
    lines = [
        "| cluster | traffic | MB a rank | plain, GB/s | FAST, GB/s | gain | by seed | published |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return lines + [
        f"| {gain.cluster} | {gain.traffic} | {gain.per_rank / 1e6:.0f} | {gain.plain / 1e9:.1f} "
        f"| {gain.fast / 1e9:.1f} | {gain.mean:.2f} | {gain.least:.2f}–{gain.most:.2f} "
        f"| {published.FAST_GAINS.get((gain.cluster, gain.traffic), '')} |"
        for gain in published.fast_gains()
    ]


def on_h100() -> list[str]:
    """64 H100: everybody's time, and fuscoc's advantage."""
    lines = [
        "| traffic | contender | dispatch | combine | total | bound by | fuscoc is faster by |",
        "|---|---|---|---|---|---|---|",
    ]
    ours = {}
    for kind, name, run in published.on_h100():
        assert run.combine is not None
        ours.setdefault(kind, run.seconds)
        limits = " / ".join(dict.fromkeys((run.dispatch.limit, run.combine.limit)))
        lines.append(
            f"| {kind} | {name} | {run.dispatch.seconds * 1e3:.1f} "
            f"| {run.combine.seconds * 1e3:.1f} | {run.seconds * 1e3:.1f} | {limits} "
            f"| {run.seconds / ours[kind]:.2f} |"
        )
    return lines


def sensitivity() -> list[str]:
    """What the advantage hangs on."""
    lines = [
        "| assumption | fuscoc, ms | naive, ms | advantage | FUSCO, ms | advantage |",
        "|---|---|---|---|---|---|",
    ]
    for name, ours, naive, theirs in published.sensitivity():
        lines.append(
            f"| {name} | {ours * 1e3:.1f} | {naive * 1e3:.1f} | {naive / ours:.2f} "
            f"| {theirs * 1e3:.1f} | {theirs / ours:.2f} |"
        )
    return lines


def validation_parts(rows: list[Row]) -> Mapping[str, Callable[[], list[str]]]:
    """The parts of the page that the project's own measurements decide, by their marks."""
    return {
        "constants": constants,
        "roles": roles,
        "rewrites": rewrites,
        "summary": lambda: summary(rows),
        "rows": lambda: details(rows),
    }


PUBLISHED_PARTS: Mapping[str, Callable[[], list[str]]] = {
    "readme": fusco_readme,
    "ablation": fusco_ablation,
    "fast": fast_gain,
    "h100": on_h100,
    "sensitivity": sensitivity,
}


def with_parts(page: str, parts: Mapping[str, Callable[[], list[str]]]) -> str:
    """A page whose parts are made anew.

    Raises LookupError if it lacks one.
    """
    for name, make in parts.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        if begin not in page or end not in page:
            raise LookupError(f"{PAGE.name} has no part `{name}`")
        text = "\n".join(make())
        found = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        page = found.sub(lambda _, text=text, b=begin, e=end: f"{b}\n{text}\n\n{e}", page)  # type: ignore[misc]
    return page


def main() -> None:
    torch.set_num_threads(1)
    rows = list(predict(measured()))
    parts = {**validation_parts(rows), **PUBLISHED_PARTS}
    PAGE.write_text(with_parts(PAGE.read_text(encoding="utf-8"), parts), encoding="utf-8")


if __name__ == "__main__":
    main()
