"""The numbers of a record as tables: what charts show, for reading, copying and printing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fuscoc.simulate.explorer.words import bound, legs, resource
from fuscoc.simulate.record import Record, Run, SweepPoint
from fuscoc_runtime.plan.summary import human_bytes, human_seconds


@dataclass(frozen=True)
class Table:
    """Rows of cells below a header; the first column names the rows."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables(record: Record) -> Iterator[Table]:
    """Those that the record has something for."""
    if record.runs:
        yield _runs(record.runs)
        programs = [(run.contender, run.rewrite) for run in record.runs]
        yield Table("Programs", ("Run", "Program"), programs)
    if any(leg.bounds for run in record.runs for _, leg in legs(run)):
        yield _bounds(record.runs)
    if any(run.memory for run in record.runs):
        yield _memory(record.runs)
    if record.ablation:
        rows = [
            (row.without, human_seconds(row.seconds), f"{row.change:+.1%}")
            for row in record.ablation
        ]
        yield Table("Without one part", ("Without", "Time", "The part changes it by"), rows)
    for name in dict.fromkeys(point.name for point in record.sweep):
        yield _sweep(name, [point for point in record.sweep if point.name == name])


def _runs(runs: Sequence[Run]) -> Table:
    directions = list(dict.fromkeys(name for run in runs for name, _ in legs(run)))
    header = ["Run", "Time", "Links allow"]
    header += [word for name in directions for word in (name.capitalize(), "bound by")]
    rows = []
    for run in runs:
        least, found = bound(run), dict(legs(run))
        cells = [run.contender, human_seconds(run.seconds)]
        cells.append(human_seconds(least) if least is not None else "")
        for name in directions:
            leg = found.get(name)
            cells += [human_seconds(leg.seconds), resource(leg.limit)] if leg else ["", ""]
        rows.append(cells)
    return Table("Runs", header, rows)


def _bounds(runs: Sequence[Run]) -> Table:
    """By direction and kind of link; a column a run."""
    found = {
        (name, each.resource, place): (each.seconds, leg.seconds)
        for place, run in enumerate(runs)
        for name, leg in legs(run)
        for each in leg.bounds
    }

    def cell(name: str, what: str, place: int) -> str:
        seconds, all_seconds = found.get((name, what, place), (None, 0.0))
        if seconds is None:
            return ""
        part = f" ({seconds / all_seconds:.0%})" if all_seconds else ""
        return human_seconds(seconds) + part

    rows = [
        (f"{name}: {resource(what)}", *(cell(name, what, place) for place in range(len(runs))))
        for name, what in dict.fromkeys((name, what) for name, what, _ in found)
    ]
    header = ("Links", *(run.contender for run in runs))
    return Table("What each kind of link needs, and its part of the time", header, rows)


def _memory(runs: Sequence[Run]) -> Table:
    having = [run for run in runs if run.memory]
    rows = [
        (
            name.replace("_", " "),
            *(human_bytes(run.memory[name]) if name in run.memory else "" for run in having),
        )
        for name in dict.fromkeys(name for run in having for name in run.memory)
    ]
    rows.append(("all", *(human_bytes(sum(run.memory.values())) for run in having)))
    header = ("Buffer", *(run.contender for run in having))
    return Table("Memory of the rank that needs most", header, rows)


def _sweep(name: str, points: Sequence[SweepPoint]) -> Table:
    contenders = list(dict.fromkeys(point.contender for point in points))
    found = {(point.value, point.contender): human_seconds(point.seconds) for point in points}
    rows = [
        (f"{value:,g}", *(found.get((value, contender), "") for contender in contenders))
        for value in sorted({point.value for point in points})
    ]
    return Table(f"Time by {name}", (name, *contenders), rows)
