"""The project's measured tables as the simulator is fitted on them, and judged by them.

Rows are read from the pages in ``docs/benchmarks``. Which tables are fitted and which judged was
settled before any constant was: small inputs are fitted, large ones and other machines judged. Of
calls of fixed capacity between nodes only the present version's rows are read; rows of it that are
measured later, on other wires, are judged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal, get_args

PAGES = Path(__file__).resolve().parents[1] / "docs" / "benchmarks"


Part = Literal["dispatch", "combine", "total", "beyond"]


@dataclass(frozen=True)
class Measured:
    """One row: seconds of the call that ``part`` names; *beyond* is what both take beyond ``wire``
    each. ``wire``: seconds that raw sends of a call's bytes take, measured in the same row, where
    that is what says how fast the wire is."""

    table: str
    role: Literal["fitted", "judged"]
    cluster: str
    shape: str
    routing: str
    tokens: int
    contender: str
    part: Part
    seconds: float
    wire: float | None = None


@dataclass(frozen=True)
class Table:
    """One table of a page: the ``number``-th (from 0) below the heading ``heading``.

    ``tokens``: if no column says it. ``contender``: likewise. ``unit``: seconds of a number.
    ``least``, ``most``: tokens of the rows that are meant.
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
    least: int = 0
    most: int = 1 << 30


BEFORE = "network_before.md"
SLABS, FIRST = "### Own rows read where they are", "## The first rows"
WIRES = "### All wires, captured calls, fewer SMs, GEMMs"
TABLES = (
    Table("Mixtral's shape, 4 GPUs", "fitted", "nvlink.md",
          "# One NVLink node: dispatch and combine of a mixture of experts", 3,
          "testbed-nvlink-4", 1e-6, shape="mixtral-8x7b"),
    Table("2 GPUs", "fitted", "nvlink.md", "## Two GPUs", 0, "testbed-nvlink-2", 1e-6,
          contender="fuscoc cuda"),
    Table("NICs, 2048 tokens", "fitted", BEFORE, "### 2048 tokens a rank", 0,
          "testbed-nics-2x2", 1e-3, tokens=2048),
    Table("a fast wire, few tokens", "fitted", BEFORE, SLABS, 0, "testbed-wire-2x1", 1e-6,
          contender="fixed capacity", most=128),
    Table("4 GPUs", "judged", "nvlink.md",
          "# One NVLink node: dispatch and combine of a mixture of experts", 0,
          "testbed-nvlink-4", 1e-6),
    Table("4 GPUs, longer inputs", "judged", "nvlink.md",
          "# One NVLink node: dispatch and combine of a mixture of experts", 1,
          "testbed-nvlink-4", 1e-6),
    Table("NICs, 4096 tokens", "judged", BEFORE, "### 4096 tokens a rank", 0,
          "testbed-nics-2x2", 1e-3, tokens=4096),
    Table("NICs, four nodes", "judged", BEFORE, "## Four nodes: stages", 0,
          "testbed-nics-4x1", 1e-3, tokens=4096),
    Table("NICs, one rank a node", "judged", BEFORE, "## One rank a node, a GPU each", 0,
          "testbed-nics-2x1", 1e-3),
    Table("2 GPUs, another version", "judged", "versions.md",
          "## One NVLink node, 1 × 2 ranks, `max_sources`, CUDA kernels, µs", 0,
          "testbed-nvlink-2", 1e-6, contender="fuscoc cuda"),
    Table("2 GPUs, the first rows", "judged", "nvlink.md", FIRST, 0, "testbed-nvlink-2", 1e-6,
          contender="fuscoc cuda"),
    Table("2 GPUs, compact targets", "judged", "nvlink.md", "## Compact targets", 0,
          "testbed-nvlink-2", 1e-6, contender="fuscoc cuda"),
    Table("2 H100", "judged", "nvlink.md", "## Two GPUs", 1, "testbed-nvlink-2-h100", 1e-6),
    Table("2 H100, other layouts", "judged", "layouts.md", "## Two H100", 0,
          "testbed-nvlink-2-h100", 1e-6),
    Table("NICs, another version", "judged", "versions.md",
          "## Two nodes of one rank, a NIC of 3.5 GB/s each, 4096 tokens, ms", 0,
          "testbed-nics-2x1", 1e-3, tokens=4096, contender="fuscoc"),
    Table("a fast wire, more tokens", "judged", BEFORE, SLABS, 0, "testbed-wire-2x1", 1e-6,
          contender="fixed capacity", least=512),
    Table("fast wires, one run", "judged", BEFORE, WIRES, 0, "testbed-wire-2x1", 1e-6,
          contender="fixed capacity"),
)  # fmt: skip

LEFT_OUT = {
    "Triton kernels": "they plan and expand in kernels of their own, which are no steps of L2",
    "all-gather with reduce-scatter, torch's all_to_all_vdev_2d": "no program of this IR",
    "kernels on few SMs": "the simulator has no resource for instructions",
    "rows of f8e4m3 with scales": "casts are instructions",
    "a graph of 128 tokens, layouts of 4 MB and less": "latencies inside kernels, not flows",
    "NICs: raw sends": "they are the rate of the NIC, not a prediction",
    "the loopback device, shared": "cores and one device that ranks contend for: no network",
    "other layouts on one GPU, patches of 42 bytes": "limited by instructions where it is not HBM",
    "an idle GPU; ranks that share GPUs": "the host's own work, and time slices of GPUs",
    "fast wires, exact sizes": "slow hosts: 512 tokens took 6.9 ms, and 4.1 on another machine",
    "fast wires, earlier versions": "a dispatch had seven kernels, or packed a node's own rows too",
}
"""What no row is made of, and why."""

CONTENDERS = {
    "fuscoc": "fuscoc",
    "fuscoc cuda": "fuscoc",
    "fixed capacity": "fixed",
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
    """The ``number``-th table behind a heading: its rows by the names of their columns, which
    have a number behind them from the second of a name on.

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
    columns, _, *rows = tables[number]
    before = [columns[:place].count(name) for place, name in enumerate(columns)]
    names = [f"{name} {n + 1}" if n else name for name, n in zip(columns, before, strict=True)]
    for above, row in pairwise(rows):
        row[0] = row[0] or above[0]  # said once for the rows below
    return [dict(zip(names, row, strict=True)) for row in rows]


def _rows(table: Table, row: Mapping[str, str]) -> Iterator[Measured]:
    for found in _READERS.get(table.name, _by_columns)(table, row):
        if table.least <= found.tokens <= table.most:
            yield found


def _before_and_after(table: Table, row: Mapping[str, str]) -> Iterator[Measured]:
    """One part a row."""
    found = re.fullmatch(r"(\w+)(?: rank)?, (\d+)(?: tokens)?, (dispatch|combine)", row["case"])
    if found:
        routing, tokens, part = found.groups()
        yield _measured(table, routing, int(tokens), "fuscoc", part, row["new (min–max)"])


def _first_rows(table: Table, row: Mapping[str, str]) -> Iterator[Measured]:
    """Dispatches without and with what the section is about."""
    for routing in ("uniform", "skewed", "single"):
        if row["rows"] == "bf16" and row[routing]:
            after = row[routing].split("→")[1].strip()
            yield _measured(table, routing, int(row["tokens"]), "fuscoc", "dispatch", after)


def _compact(table: Table, row: Mapping[str, str]) -> Iterator[Measured]:
    """Those of compact targets."""
    for part, column in (("dispatch", "compact: dispatch"), ("combine", "combine 2")):
        yield replace(
            _measured(table, row["routing"], int(row["tokens"]), "fuscoc", part, row[column]),
            shape=f"{table.shape} compact",
        )


def _one_rank_a_node(table: Table, row: Mapping[str, str]) -> Iterator[Measured]:
    """Totals, those with an earlier plan in brackets."""
    where, routing, tokens = re.split(r": |, ", row[""])
    if where == "NICs":
        cells = {
            "fuscoc": row["fuscoc"].split("(")[0],
            "fuscoc, plan for free": row["fuscoc"].split("(")[1],
            **{name: row[name] for name in ("NCCL, naive", "NCCL, rank-deduplicated")},
        }
        for name, cell in cells.items():
            yield _measured(table, routing, int(tokens), name, "total", cell)


def _another_version(table: Table, row: Mapping[str, str]) -> Iterator[Measured]:
    """The mean of two runs."""
    routing, _, reused = row["routing"].partition(", ")
    name = "fuscoc, plan for free" if reused else "fuscoc"
    runs = [float(each) for each in row["new"].split(", ")]
    mean = str(sum(runs) / len(runs))
    assert table.tokens is not None
    yield _measured(table, routing.replace(" ", "-"), table.tokens, name, "total", mean)


def _fast_wire(table: Table, row: Mapping[str, str]) -> Iterator[Measured]:
    """The version of the column *now*, the mean of runs."""
    runs = [_number(each) for each in row["now, two rows at once"].replace("*", "").split(", ")]
    yield from _beyond(table, "uniform", row, str(sum(runs) / len(runs)))


def _all_wires(table: Table, row: Mapping[str, str]) -> Iterator[Measured]:
    """Calls on GPUs that are busy, and graphs of them."""
    _, _, captured = row["tokens"].partition(", ")
    routing = ", ".join(filter(None, ("uniform", row["wire"], captured)))
    yield from _beyond(table, routing, row, row["beyond"].strip("*"))


def _beyond(
    table: Table, routing: str, row: Mapping[str, str], microseconds: str
) -> Iterator[Measured]:
    """What both ways take, beyond the raw wire of the same row and with it."""
    raw = _number(row["raw, both ways"]) * table.unit
    tokens = int(_number(row["tokens"]))
    found = _measured(table, routing, tokens, "fixed capacity", "beyond", microseconds)
    found = replace(found, wire=raw / 2)
    yield replace(found, part="total", seconds=found.seconds + raw)
    yield found


def _by_columns(table: Table, row: Mapping[str, str]) -> Iterator[Measured]:
    """A contender a row, a part a column."""
    contender = table.contender or row.get("contender", "").strip("*¹ ")
    tokens = table.tokens or int(row["tokens"])
    if contender not in CONTENDERS or "SMs" in row["routing"]:
        return
    columns = {name.split(" (")[0]: cell for name, cell in row.items()}
    for part in PARTS:
        yield _measured(table, row["routing"], tokens, contender, part, columns[part])


def _two_h100(table: Table, row: Mapping[str, str]) -> Iterator[Measured]:
    """As by columns, tokens in the routing's; graphs of few tokens are left out."""
    routing, tokens, *graph = row["routing"].replace(",", "").split(" ", 2)
    if row["contender"] == "fuscoc cuda" and not graph:
        for part in PARTS:
            yield _measured(table, routing, int(tokens), row["contender"], part, row[part])


def _layouts(table: Table, row: Mapping[str, str]) -> Iterator[Measured]:
    """CUDA's kernels on all SMs; every example is a shape."""
    if row["SMs"] == "all" and row["µs"] in LAYOUTS:
        for part, column in (("dispatch", "CUDA there"), ("combine", "back")):
            if cell := row[column].strip("*"):
                found = _measured(table, row["µs"], 0, "fuscoc", part, cell)
                yield replace(found, shape=row["µs"])


LAYOUTS = {"ulysses": "ulysses", "fft": "fft", "redistribute": "redistribute", "kv_pages": "kv"}
"""Layouts that links limit: names of tables -> those of ``benchmarks/layouts.py``."""
PARTS: tuple[Part, ...] = ("dispatch", "combine", "total")
_READERS: Mapping[str, Callable[[Table, Mapping[str, str]], Iterator[Measured]]] = {
    "2 GPUs, another version": _before_and_after,
    "2 GPUs, the first rows": _first_rows,
    "2 GPUs, compact targets": _compact,
    "2 H100": _two_h100,
    "2 H100, other layouts": _layouts,
    "NICs, one rank a node": _one_rank_a_node,
    "NICs, another version": _another_version,
    "a fast wire, few tokens": _fast_wire,
    "a fast wire, more tokens": _fast_wire,
    "fast wires, one run": _all_wires,
}
"""How the rows of a table are read, by its name; those of others by their columns."""


def _measured(
    table: Table, routing: str, tokens: int, contender: str, part: str, cell: str
) -> Measured:
    assert part in get_args(Part)
    return Measured(
        table.name, table.role, table.cluster, table.shape, routing, tokens,
        CONTENDERS[contender], part, _number(cell) * table.unit,
    )  # fmt: skip


def _number(cell: str) -> float:
    found = re.match(r"[\d.]+", cell)
    if found is None:
        raise LookupError(f"{cell!r} is no number")
    return float(found[0])
