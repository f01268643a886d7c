"""A record as tables in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from fuscoc.simulate.clusters import Cluster
from fuscoc.simulate.record import Record, Run
from fuscoc.tables import titled_table
from fuscoc_runtime.plan.summary import human_bytes, human_seconds


def show(record: Record, layers: int, cluster: Cluster, console: Console) -> None:
    """Print contenders, ablation, sweep and forecast."""
    console.print(f"[bold]{record.title}[/]: {record.tokens:,} segments a rank, {record.traffic}")
    console.print(contender_table(record))
    if record.ablation:
        console.print(ablation_table(record))
    if record.sweep:
        console.print(sweep_table(record))
    console.print(forecast_table(record.runs[0], layers, cluster))


def contender_table(record: Record) -> Table:
    """What every contender takes, and what holds it up."""
    columns = ["dispatch", "combine", "total", "×", "bound", "bound by"]
    table = titled_table("Contenders", ["contender"], columns)
    table.caption = "\n".join(f"{run.contender}: {run.rewrite}" for run in record.runs)
    first = record.runs[0].seconds
    for run in record.runs:
        legs = [run.dispatch, *([run.combine] if run.combine is not None else [])]
        bound = sum(leg.bounds[0].seconds for leg in legs)
        table.add_row(
            run.contender,
            human_seconds(run.dispatch.seconds),
            human_seconds(run.combine.seconds) if run.combine is not None else "",
            human_seconds(run.seconds),
            f"{run.seconds / first:.2f}" if first else "",
            human_seconds(bound),
            " / ".join(dict.fromkeys(leg.limit for leg in legs)),
        )
    return table


def ablation_table(record: Record) -> Table:
    """What each part of fuscoc saves, of the time without it."""
    table = titled_table("Ablation", ["without"], ["total", "saved"])
    table.add_row("nothing", human_seconds(record.runs[0].seconds), "")
    for row in record.ablation:
        table.add_row(row.without, human_seconds(row.seconds), f"{-row.change:.1%}")
    return table


def sweep_table(record: Record) -> Table:
    """A row a value, a column a contender."""
    names = list(dict.fromkeys(point.contender for point in record.sweep))
    table = titled_table("Sweep", [record.sweep[0].name], names)
    for value in dict.fromkeys(point.value for point in record.sweep):
        found = {p.contender: p.seconds for p in record.sweep if p.value == value}
        table.add_row(f"{value:g}", *(human_seconds(found[name]) for name in names))
    return table


def forecast_table(run: Run, layers: int, cluster: Cluster) -> Table:
    """Memory of a rank, and the time of a step of so many layers. A backward pass shuffles as much
    as a forward pass: combine's transpose is a dispatch, and dispatch's a combine."""
    table = titled_table(f"Forecast for {layers} layer(s)", ["what"], ["", "bound by"])
    total = sum(run.memory.values())
    legs = [run.dispatch, *([run.combine] if run.combine is not None else [])]
    limit = " / ".join(dict.fromkeys(leg.limit for leg in legs))
    table.add_row("forward", human_seconds(run.seconds * layers), limit)
    if run.combine is not None:
        table.add_row("forward and backward", human_seconds(2 * run.seconds * layers), limit)
    for name, size in sorted(run.memory.items(), key=lambda each: -each[1]):
        table.add_row(f"memory a rank: {name.replace('_', ' ')}", human_bytes(int(size)), "")
    part = f"{total / cluster.memory:.1%} of the rank's"
    table.add_row("memory a rank", human_bytes(int(total)), part)
    return table
