"""Clusters: what every rank has, and what lies between the nodes; from TOML files.

A file may extend another one, of the package or beside it. Rates in it are GB/s of one rank and
direction as vendors state them; efficiencies say what programs get of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from fuscoc.diagnostics import CompileError, DiagnosticSink, nearest
from fuscoc.simulate.costs import Costs
from fuscoc.simulate.record import ClusterRecord, Links
from fuscoc.simulate.toml_source import Place, Settings, read_settings
from fuscoc.source import SourceFile, Span, read_source

GB, MICROSECOND = 1e9, 1e-6
MOST_NODES, MOST_RANKS = 4096, 1024
SUFFIX = ".toml"


@dataclass(frozen=True)
class Cluster:
    """Bytes a second of a rank and direction, after efficiencies; seconds; bytes.

    ``nic``: 0 on one node. ``lanes``: slices that a rank has to send at once to get all of it.
    ``pxn``: collectives leave a node by the NIC of the local rank that has the receiver's index, so
    that its senders share their NICs evenly; rows reach it over NVLink.
    ``nodes_per_leaf``: nodes below a leaf switch; 0 if nothing between the nodes is ever short.
    ``rails``: every local rank has leaf switches of its own. ``oversubscription``: of a leaf: what
    its NICs can do over what its uplinks can; ``spine_oversubscription``: of all leaves together.
    """

    name: str
    title: str
    nodes: int
    ranks_per_node: int
    nvlink: float
    hbm: float
    memory: float
    nic: float
    latency: float
    lanes: int
    pxn: bool
    nodes_per_leaf: int
    rails: bool
    oversubscription: float
    spine_oversubscription: float
    costs: Costs = field(default_factory=Costs)

    @property
    def num_ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    def collective_sender(
        self, rank: np.ndarray[Any, np.dtype[np.int64]], peer: np.ndarray[Any, np.dtype[np.int64]]
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Whose NIC sends what a collective has from ``rank`` to ``peer`` of another node."""
        m = self.ranks_per_node
        return rank // m * m + peer % m if self.pxn else rank

    def leaf(
        self, rank: np.ndarray[Any, np.dtype[np.int64]]
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The leaf switch of every one of ``rank``."""
        node, local = np.divmod(rank, self.ranks_per_node)
        group = node // max(1, self.nodes_per_leaf)
        return group * self.ranks_per_node + local if self.rails else group

    @property
    def num_leaves(self) -> int:
        if not self.nodes_per_leaf:
            return 0
        groups = -(-self.nodes // self.nodes_per_leaf)
        return groups * self.ranks_per_node if self.rails else groups

    def links(self) -> Links:
        """HBM, NVLink and NICs of all ranks, then leaves and the spine."""
        ranks = self.num_ranks
        parts = [
            ("hbm", ranks, self.hbm, ""),
            ("nvlink_out", ranks, self.nvlink, ""),
            ("nvlink_in", ranks, self.nvlink, ""),
        ]
        if self.nodes > 1:
            parts += [("nic_out", ranks, self.nic, ""), ("nic_in", ranks, self.nic, "")]
        if leaves := self.num_leaves:
            members = self.nodes_per_leaf * (1 if self.rails else self.ranks_per_node)
            uplink = members * self.nic / self.oversubscription
            kind = "rail" if self.rails else "leaf"
            parts += [(kind, leaves, uplink, way) for way in ("up", "down")]
            parts.append(("spine", 1, leaves * uplink / self.spine_oversubscription, ""))
        return Links(
            tuple(kind for kind, count, *_ in parts for _ in range(count)),
            np.concatenate([np.arange(count) for _, count, *_ in parts]),
            np.concatenate([np.full(count, rate) for _, count, rate, _ in parts]),
            tuple(way for _, count, _, way in parts for _ in range(count)),
        )

    def record(self) -> ClusterRecord:
        """As a record keeps it."""
        return ClusterRecord(
            self.name, self.title, self.nodes, self.ranks_per_node, self.nodes_per_leaf,
            self.links(),
        )  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """What may stand in a file: a number from ``least`` to ``most``, whole if these are, or a word
    or a truth, if there are no limits."""

    kind: type
    least: float = 0
    most: float = 0
    default: Any = None

    @property
    def words(self) -> str:
        if self.kind is str:
            return "text in quotes"
        if self.kind is bool:
            return "true or false"
        whole = "a whole number" if self.kind is int else "a number"
        return f"{whole} from {self.least:g} to {self.most:g}"


PARTS = ("permute", "reduce", "collective_nvlink", "collective_nic", "hop_nic")
_RATE = Setting(float, 1e-3, 1e6)
_PART = Setting(float, 0.01, 1, default=1.0)
SETTINGS: Mapping[tuple[str, str], Setting] = {
    ("", "title"): Setting(str),
    ("", "extends"): Setting(str, default=""),
    ("", "nodes"): Setting(int, 1, MOST_NODES),
    ("", "ranks_per_node"): Setting(int, 1, MOST_RANKS),
    ("rank", "nvlink"): _RATE,
    ("rank", "nvlink_efficiency"): _PART,
    ("rank", "hbm"): _RATE,
    ("rank", "hbm_efficiency"): _PART,
    ("rank", "memory"): _RATE,
    ("nic", "bandwidth"): _RATE,
    ("nic", "efficiency"): _PART,
    ("nic", "latency"): Setting(float, 0, 1e5, default=10.0),
    ("nic", "lanes"): Setting(int, 1, 64, default=2),
    ("nic", "pxn"): Setting(bool, default=False),
    ("fabric", "nodes_per_leaf"): Setting(int, 0, MOST_NODES, default=0),
    ("fabric", "rails"): Setting(bool, default=False),
    ("fabric", "oversubscription"): Setting(float, 0.1, 1000, default=1.0),
    ("fabric", "spine_oversubscription"): Setting(float, 0.1, 1000, default=1.0),
    **{
        ("costs", each.name): (
            _PART if each.name in PARTS
            else Setting(float, 0, 1e6)
        )
        for each in fields(Costs)
    },
}  # fmt: skip
"""By table and name; ``costs`` are microseconds, or parts of a rate."""


def names() -> list[str]:
    """The clusters of the package."""
    found = files("fuscoc.simulate").joinpath("clusters").iterdir()
    return sorted(each.name.removesuffix(SUFFIX) for each in found if each.name.endswith(SUFFIX))


def load_cluster(name: str) -> Cluster:
    """A cluster of the package by its name, or that of a file by its path.

    Raises:
        CompileError: what is wrong in the file, and where.
        LookupError: there is neither.
        OSError: the file cannot be read.
    """
    source, _ = _find(name, None)
    found = _layers(source, Path(name).parent)
    values = {place: value for layer in reversed(found) for place, value in layer.values.items()}
    return _checked(source, found[0], values, Path(source.path).name.removesuffix(SUFFIX))


def _find(name: str, beside: Path | None) -> tuple[SourceFile, Path | None]:
    if name.endswith(SUFFIX):
        path = Path(name) if beside is None else beside / name
        return read_source(path), path.parent
    inside = files("fuscoc.simulate").joinpath("clusters", name + SUFFIX)
    if name not in names():
        like = nearest(name, names())
        hint = f"did you mean `{like}`?" if like else f"there are {', '.join(names())}"
        raise LookupError(f"there is no cluster `{name}`, and it names no {SUFFIX} file; {hint}")
    return SourceFile(name + SUFFIX, inside.read_text(encoding="utf-8")), None


def _layers(source: SourceFile, beside: Path | None) -> list[Settings]:
    """The settings of a file, then of those that it extends, each one by one."""
    found, seen = list[Settings](), {source.path}
    while True:
        settings = read_settings(source)
        _check_each(source, settings)
        found.append(settings)
        name = settings.values.get(("", "extends"), "")
        if not name:
            return found
        try:
            source, beside = _find(name, beside)
        except (LookupError, OSError) as error:
            _fail(source, settings.places["", "extends"].value, "FSC011", str(error))
        if source.path in seen:
            _fail(source, settings.places["", "extends"].value, "FSC011", "extends itself")
        seen.add(source.path)


def _check_each(source: SourceFile, settings: Settings) -> None:
    """Every setting is one that there is, of the right kind and size."""
    sink = DiagnosticSink(source)
    tables = {table for table, _ in SETTINGS}
    for (table, key), value in settings.values.items():
        place = settings.places[table, key]
        if (table, key) not in SETTINGS:
            _report_unknown(sink, settings, table, key, place, tables)
            continue
        setting = SETTINGS[table, key]
        problem = _problem(setting, value)
        if problem is not None:
            sink.report(problem, place.value, f"`{key}` must be {setting.words}", f"not {value!r}")
    sink.raise_errors()


def _report_unknown(
    sink: DiagnosticSink, settings: Settings, table: str, key: str, place: Place, tables: set[str]
) -> None:
    if table not in tables:
        like = nearest(table, tables)
        help = (
            f"did you mean `{like}`?" if like else f"there are {', '.join(sorted(tables - {''}))}"
        )
        sink.report("FSC011", settings.tables[table], f"there is no table `{table}`", help=help)
        return
    known = [name for where, name in SETTINGS if where == table]
    like = nearest(key, known)
    elsewhere = [where or "before all" for where, name in SETTINGS if name == key]
    help = f"did you mean `{like}`?" if like else f"there are {', '.join(known)}"
    if elsewhere:
        help = f"it belongs into [{elsewhere[0]}]"
    sink.report("FSC011", place.key, f"there is no setting `{key}` here", help=help)


def _problem(setting: Setting, value: Any) -> str | None:
    """The code of what is wrong with a value."""
    if setting.kind in (str, bool):
        return None if type(value) is setting.kind else "FSC012"
    if type(value) is not int and not (setting.kind is float and type(value) is float):
        return "FSC021"
    return None if setting.least <= value <= setting.most else "FSC023"


def _checked(
    source: SourceFile, own: Settings, values: Mapping[tuple[str, str], Any], name: str
) -> Cluster:
    """The cluster of all settings, those of the file itself over those that it extends."""

    def get(table: str, key: str) -> Any:
        value = values.get((table, key), SETTINGS[table, key].default)
        if value is None:
            where = f"[{table}] " if table else ""
            span = own.tables.get(table, Span(0, len(source.text.split("\n")[0])))
            _fail(source, span, "FSC001", f"{where}`{key}` is missing",
                  f"{SETTINGS[table, key].words} is needed")  # fmt: skip
        return value

    nodes, ranks = get("", "nodes"), get("", "ranks_per_node")
    return Cluster(
        name=name,
        title=get("", "title"),
        nodes=nodes,
        ranks_per_node=ranks,
        nvlink=get("rank", "nvlink") * GB * get("rank", "nvlink_efficiency"),
        hbm=get("rank", "hbm") * GB * get("rank", "hbm_efficiency"),
        memory=get("rank", "memory") * GB,
        nic=get("nic", "bandwidth") * GB * get("nic", "efficiency") if nodes > 1 else 0.0,
        latency=get("nic", "latency") * MICROSECOND,
        lanes=get("nic", "lanes"),
        pxn=get("nic", "pxn"),
        nodes_per_leaf=get("fabric", "nodes_per_leaf"),
        rails=get("fabric", "rails"),
        oversubscription=get("fabric", "oversubscription"),
        spine_oversubscription=get("fabric", "spine_oversubscription"),
        costs=Costs(**dict(_costs(values))),
    )


def _costs(values: Mapping[tuple[str, str], Any]) -> Iterator[tuple[str, float]]:
    for (table, key), value in values.items():
        if table == "costs":
            yield key, value if SETTINGS[table, key] is _PART else value * MICROSECOND


def _fail(source: SourceFile, span: Span, code: str, message: str, label: str = "") -> None:
    sink = DiagnosticSink(source)
    sink.report(code, span, message, label)
    raise CompileError(source, sink.diagnostics)
