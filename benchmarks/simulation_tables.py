"""The project's measured tables as the simulator is fitted on them, and judged by them.

Rows are read from the pages in ``docs/benchmarks``. Which tables are fitted and which judged was
settled before any constant was: small inputs are fitted, large ones judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

PAGES = Path(__file__).resolve().parents[1] / "docs" / "benchmarks"


@dataclass(frozen=True)
class Measured:
    """One row: seconds of the call that ``part`` names."""

    table: str
    role: Literal["fitted", "judged"]
    cluster: str
    shape: str
    routing: str
    tokens: int
    contender: str
    part: Literal["dispatch", "combine", "total"]
    seconds: float


@dataclass(frozen=True)
class Table:
    """One table of a page: the ``number``-th (from 0) below the heading ``heading``.

    ``tokens``: if no column says it. ``contender``: likewise. ``unit``: seconds of a number.
    """

    name: str
    role: Literal["fitted", "judged"]
    page: str
    heading: str
    number: int
    cluster: str
    unit: float
    shape: str = "deepseek-v3"
    tokens: int | None = None
    contender: str | None = None


TABLES = (
    Table("Mixtral's shape, 4 GPUs", "fitted", "nvlink.md",
          "# One NVLink node: dispatch and combine of a mixture of experts", 3,
          "testbed-nvlink-4", 1e-6, shape="mixtral-8x7b"),
    Table("2 GPUs", "fitted", "nvlink.md", "## Two GPUs", 0, "testbed-nvlink-2", 1e-6,
          contender="fuscoc cuda"),
    Table("NICs, 2048 tokens", "fitted", "network.md", "### 2048 tokens a rank", 0,
          "testbed-nics-2x2", 1e-3, tokens=2048),
    Table("4 GPUs", "judged", "nvlink.md",
          "# One NVLink node: dispatch and combine of a mixture of experts", 0,
          "testbed-nvlink-4", 1e-6),
    Table("4 GPUs, longer inputs", "judged", "nvlink.md",
          "# One NVLink node: dispatch and combine of a mixture of experts", 1,
          "testbed-nvlink-4", 1e-6),
    Table("NICs, 4096 tokens", "judged", "network.md", "### 4096 tokens a rank", 0,
          "testbed-nics-2x2", 1e-3, tokens=4096),
    Table("NICs, four nodes", "judged", "network.md", "## Four nodes: stages", 0,
          "testbed-nics-4x1", 1e-3, tokens=4096),
    Table("NICs, one rank a node", "judged", "network.md", "## One rank a node, a GPU each", 0,
          "testbed-nics-2x1", 1e-3),
    Table("2 GPUs, another version", "judged", "versions.md",
          "## One NVLink node, 1 × 2 ranks, `max_sources`, CUDA kernels, µs", 0,
          "testbed-nvlink-2", 1e-6, contender="fuscoc cuda"),
)  # fmt: skip

LEFT_OUT = {
    "Triton kernels": "they plan and expand in kernels of their own, which are no steps of L2",
    "all-gather with reduce-scatter, torch's all_to_all_vdev_2d": "no program of this IR",
    "kernels on few SMs": "the simulator has no resource for instructions",
    "rows of f8e4m3 with scales, compact targets": "no routing of the simulator's differs by them",
    "a graph of 128 tokens": "latencies inside kernels, not flows",
    "NICs: raw sends": "they are the rate of the NIC, not a prediction",
    "the loopback device, shared": "cores and one device that ranks contend for: no network",
    "other layouts than rows of experts": "one GPU, limited by instructions where it is not HBM",
    "an idle GPU; ranks that share GPUs": "the host's own work, and time slices of GPUs",
    "fast wires": "the project has no such measurement yet",
}
"""What no row is made of, and why."""

CONTENDERS = {
    "fuscoc": "fuscoc",
    "fuscoc cuda": "fuscoc",
    "fuscoc, plan for free": "fuscoc, plan for free",
    "NCCL, naive": "naive",
    "NCCL a2a, naive": "naive",
    "NCCL, rank-deduplicated": "deduplicated",
    "NCCL a2a, rank-deduplicated": "deduplicated",
    "fused copies off": "unfused",
    "senders as they are": "split",
    "balancer off": "static",
    "planner off": "undeduplicated",
    "FAST stages": "stages",
    "pairwise stages": "pairwise",
}
"""A contender of the tables -> one of the simulator's (``fuscoc/simulate/contenders.py``) or of
``benchmarks/simulation.py``."""


def measured() -> Iterator[Measured]:
    """All rows of ``TABLES`` that name a contender of ``CONTENDERS``."""
    for table in TABLES:
        for row in read_table(table.page, table.heading, table.number):
            yield from _rows(table, row)


def read_table(page: str, heading: str, number: int) -> list[dict[str, str]]:
    """The ``number``-th table behind a heading: its rows by the
    names of their columns.

    Raises LookupError if there is no such heading.
    """
    lines = (PAGES / page).read_text(encoding="utf-8").split("\n")
    if heading not in lines:
        raise LookupError(f"{page} has no heading {heading!r}")
    tables: list[list[list[str]]] = []
    inside = False
    for line in lines[lines.index(heading) + 1 :]:
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if line.startswith("|") and not inside:
            tables.append([])
        inside = line.startswith("|")
        if inside:
            tables[-1].append(cells)
    names, _, *rows = tables[number]
    return [dict(zip(names, row, strict=True)) for row in rows]


def _rows(table: Table, row: dict[str, str]) -> Iterator[Measured]:
    contender = table.contender or row.get("contender", "").strip("*¹ ")
    if "case" in row:  # before and after: one part a row
        found = re.fullmatch(r"(\w+)(?: rank)?, (\d+)(?: tokens)?, (dispatch|combine)", row["case"])
        if found:
            routing, tokens, part = found.groups()
            seconds = _number(row["new (min–max)"]) * table.unit
            yield _measured(table, routing, int(tokens), contender, part, seconds)
        return
    if table.name == "NICs, one rank a node":
        where, routing, tokens = re.split(r": |, ", row[""])
        if where == "NICs":
            cells = {
                "fuscoc": row["fuscoc"].split("(")[0],
                "fuscoc, plan for free": row["fuscoc"].split("(")[1],
                **{name: row[name] for name in ("NCCL, naive", "NCCL, rank-deduplicated")},
            }
            for name, cell in cells.items():
                seconds = _number(cell) * table.unit
                yield _measured(table, routing, int(tokens), name, "total", seconds)
        return
    routing = row["routing"]
    if contender not in CONTENDERS or "SMs" in routing:
        return
    tokens = table.tokens or int(row["tokens"])
    columns = {name.split(" (")[0]: cell for name, cell in row.items()}
    for part in ("dispatch", "combine", "total"):
        seconds = _number(columns[part]) * table.unit
        yield _measured(table, routing, tokens, contender, part, seconds)


def _measured(
    table: Table, routing: str, tokens: int, contender: str, part: str, seconds: float
) -> Measured:
    assert part in ("dispatch", "combine", "total")
    known = CONTENDERS[contender]
    return Measured(
        table.name, table.role, table.cluster, table.shape, routing, tokens, known, part, seconds
    )


def _number(cell: str) -> float:
    found = re.match(r"[\d.]+", cell)
    if found is None:
        raise LookupError(f"{cell!r} is no number")
    return float(found[0])
