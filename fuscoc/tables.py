"""How tables of the commands look, and those that ``fuscoc run`` and ``fuscoc doctor`` print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from fuscoc_runtime.doctor.report import Report
    from fuscoc_runtime.run import RankReport, RunReport


def titled_table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    """An empty table without lines, of columns that are aligned ``left`` and then ``right``."""
    table = Table(
        title=title, title_justify="left", title_style="bold", caption_justify="left", box=None,
        padding=(0, 2, 0, 0),
    )  # fmt: skip
    for name in left:
        table.add_column(name)
    for name in right:
        table.add_column(name, justify="right")
    return table


_COLUMNS = (
    *("rank", "tokens", "slots", "network", "NVLink", "local", "saved"),
    *("plan", "dispatch", "combine", "verified"),
)


def show_run(report: RunReport) -> None:
    """Print what every rank moved, how long it took, and whether all of it was right."""
    console = Console()
    device = report.ranks[0].device.split(":")[0]
    console.print(f"{report.shuffle} on {report.topology} ({device}): rows by hop, times in ms")
    table = Table(box=None, padding=(0, 1, 0, 0))
    for heading in _COLUMNS:
        table.add_column(heading, justify="right")
    for rank in report.ranks:
        table.add_row(*_row(rank))
    console.print(table)

    moved = sum(
        hop.num_bytes for rank in report.ranks for hop in (rank.network, rank.carried, rank.nvlink)
    )
    saved = sum(rank.network.saved_bytes + rank.nvlink.saved_bytes for rank in report.ranks)
    console.print(
        f"moved {decimal(moved)} between ranks; deduplication saved {decimal(saved)}", style="dim"
    )
    for rank in report.ranks:
        if rank.problem is not None:
            console.print(f"rank {rank.rank}: {rank.problem}", style="red", markup=False)
    verdict = "verified" if report.verified else "NOT verified: results differ from the reference"
    console.print(f"{report.shuffle}: {verdict}", style="green" if report.verified else "bold red")


def _row(rank: RankReport) -> list[str]:
    hops = rank.network, rank.nvlink, rank.local
    saved = rank.network.saved_rows + rank.nvlink.saved_rows
    counts = rank.rank, rank.tokens, rank.slots, *(hop.rows for hop in hops), saved
    return [
        *map(str, counts),
        f"{rank.planning_ms:.1f}",
        f"{rank.dispatch_ms:.1f}",
        "-" if rank.combine_ms is None else f"{rank.combine_ms:.1f}",
        "yes" if rank.verified else "NO",
    ]


_STATES = {"ready": "green", "absent": "dim", "broken": "bold red"}


def show_doctor(report: Report) -> None:
    """Print what was found on a machine, and last what of fuscoc can run there."""
    from fuscoc_runtime.doctor.words import sections

    console = Console()
    table = titled_table("fuscoc doctor", ("", "", ""), ())
    for section in sections(report):
        for number, (name, text) in enumerate(section.rows):
            style = _STATES.get(text.partition(":")[0])
            title = "" if number else section.title
            table.add_row(Text(title, "bold"), Text(name), Text(text, style or ""))
    console.print(table)
