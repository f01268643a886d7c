"""What a simulated (or a recorded) run leaves: arrays and a few words, as JSON of one format.

Times are seconds from the begin of a call, bandwidths bytes a second, amounts bytes. Whoever reads
a record needs neither the simulator nor the spec; the explorer is such a reader.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from fuscoc_runtime.files import whole_file

FORMAT = "fuscoc-simulation"
VERSION = 1

Float64Array = NDArray[np.float64]
Int64Array = NDArray[np.int64]

LinkKind = Literal["nvlink_out", "nvlink_in", "hbm", "nic_out", "nic_in", "rail", "leaf", "spine"]
OWNER: Mapping[str, str] = {
    "nvlink_out": "rank", "nvlink_in": "rank", "hbm": "rank", "nic_out": "rank", "nic_in": "rank",
    "rail": "rail", "leaf": "leaf", "spine": "cluster",
}  # fmt: skip
"""What the ``owner`` of a link of every kind is a number of."""


class RecordError(ValueError):
    """A file that is no record, or one of another version; the message names it."""


@dataclass(frozen=True, eq=False)
class Links:
    """Columns; a link's id is its index. ``kind``: of ``LinkKind``. ``owner``: int64 [L], whose it
    is (``OWNER``). ``bandwidth``: float64 [L], what the simulation lets pass. ``direction``: for a
    leaf ``up`` or ``down``, else empty."""

    kind: tuple[str, ...]
    owner: Int64Array
    bandwidth: Float64Array
    direction: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class ClusterRecord:
    """Rank = node * ``ranks_per_node`` + local rank. ``nodes_per_leaf``: 0 without leaves."""

    name: str
    title: str
    num_nodes: int
    ranks_per_node: int
    nodes_per_leaf: int
    links: Links


@dataclass(frozen=True)
class Bound:
    """Seconds that a leg cannot go below, whatever the order, because of one kind of link."""

    resource: str
    seconds: float


@dataclass(frozen=True, eq=False)
class Load:
    """How busy links were over time. ``times``: float64 [T + 1], edges of the samples; ``links``:
    int64 [K], ids; ``busy``: float64 [T, K], parts of their bandwidth, 0 to 1."""

    times: Float64Array
    links: Int64Array
    busy: Float64Array


@dataclass(frozen=True, eq=False)
class Spans:
    """What ran when; columns of equal length. ``lane`` and ``name`` are indices into ``lanes`` and
    ``names``. ``begin``, ``end``: float64 [S]. ``ranks``: int64, the ranks whose spans are here: of
    large runs not all are kept."""

    ranks: Int64Array
    lanes: tuple[str, ...]
    names: tuple[str, ...]
    rank: Int64Array
    lane: Int64Array
    name: Int64Array
    begin: Float64Array
    end: Float64Array


@dataclass(frozen=True, eq=False)
class Leg:
    """Dispatch or combine. ``bounds``: longest first; ``limit``: what the time is spent on, one of
    their resources, or ``latency`` or ``host``. ``bytes``, ``busy``: float64 [L], by link: what
    passed, and the part of the leg in which its whole bandwidth would have been needed."""

    seconds: float
    num_rounds: int
    bounds: tuple[Bound, ...]
    limit: str
    bytes: Float64Array
    busy: Float64Array
    load: Load | None
    spans: Spans


@dataclass(frozen=True, eq=False)
class Traffic:
    """Bytes, float64, from row to column. ``node_before``, ``node_after`` [n, n]: between nodes,
    if every point went straight to its slot, and as they go. ``rank_before``, ``rank_after`` [R,
    R]: likewise, over any wire; ``None`` where there are too many ranks to show."""

    node_before: Float64Array
    node_after: Float64Array
    rank_before: Float64Array | None
    rank_after: Float64Array | None


@dataclass(frozen=True, eq=False)
class Stage:
    """Bytes that nodes send each other in one stage of dispatch: float64 [n, n]."""

    bytes: Float64Array


@dataclass(frozen=True, eq=False)
class Run:
    """One contender. ``rewrite``: how its program differs from the spec's, in the spec's words.
    ``memory``: bytes of fuscoc's buffers on the rank that needs most, by buffer."""

    contender: str
    rewrite: str
    seconds: float
    dispatch: Leg
    combine: Leg | None
    stages: tuple[Stage, ...]
    traffic: Traffic
    memory: dict[str, float]


@dataclass(frozen=True)
class SweepPoint:
    """``value`` of the parameter ``name`` -> seconds of a contender."""

    name: str
    value: float
    contender: str
    seconds: float


@dataclass(frozen=True)
class AblationRow:
    """``without``: the part that is off; ``change``: of the time with it, as a part of the time
    without: negative if the part saves time."""

    without: str
    seconds: float
    change: float


@dataclass(frozen=True, eq=False)
class Record:
    """``recorded``: spans of a real run, instead of ``runs`` or beside them. Of a trace alone,
    ``spec``, ``traffic`` and ``tokens`` are empty."""

    title: str
    source: Literal["simulation", "trace"]
    spec: str
    traffic: str
    tokens: int
    cluster: ClusterRecord | None
    runs: tuple[Run, ...]
    sweep: tuple[SweepPoint, ...] = ()
    ablation: tuple[AblationRow, ...] = ()
    recorded: Spans | None = None

    def to_json(self) -> str:
        """One JSON document; ``from_json`` gives an equal record."""
        return json.dumps({"format": FORMAT, "version": VERSION, **_encode(self)})

    @classmethod
    def from_json(cls, text: str) -> Record:
        """Raises RecordError."""
        try:
            document = json.loads(text)
            if document.get("format") != FORMAT:
                raise RecordError(f"is no {FORMAT}")
            if document.get("version") != VERSION:
                raise RecordError(f"has version {document.get('version')}, not {VERSION}")
            record = _decode(cls, document)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, RecordError):
                raise
            raise RecordError(f"is damaged: {error}") from error
        assert isinstance(record, cls)
        return record

    def save(self, path: Path) -> None:
        """Write the JSON, whole or not at all."""
        with whole_file(path) as file:
            file.write(self.to_json().encode())


def from_trace(path: Path) -> Record:
    """The spans of a real run, from what ``Shuffle.save_trace`` wrote.

    Raises:
        RecordError: it is no trace in Chrome's format.
        OSError: it cannot be read.
    """
    try:
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        named = {
            (event["pid"], event["tid"]): event["args"]["name"]
            for event in events
            if event["ph"] == "M" and event["name"] == "thread_name"
        }
        rows = [
            (e["pid"], named.get((e["pid"], e["tid"]), str(e["tid"])), e["name"], e["ts"], e["dur"])
            for e in events
            if e["ph"] == "X"
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path} is no trace in Chrome's format: {error}") from error
    spans = make_spans(
        [int(rank) for rank, *_ in rows],
        [str(lane) for _, lane, *_ in rows],
        [str(name) for _, _, name, *_ in rows],
        np.array([begin for *_, begin, _ in rows], np.float64) * 1e-6,
        np.array([begin + length for *_, begin, length in rows], np.float64) * 1e-6,
    )
    return Record(path.name, "trace", "", "", 0, None, (), recorded=spans)


def make_spans(
    ranks: list[int], lanes: list[str], names: list[str], begin: Float64Array, end: Float64Array
) -> Spans:
    """Columns with words in them -> ``Spans``."""
    rank = np.array(ranks, np.int64)
    lane_words, lane = np.unique(np.array(lanes, str), return_inverse=True)
    name_words, name = np.unique(np.array(names, str), return_inverse=True)
    return Spans(
        np.unique(rank),
        tuple(map(str, lane_words)),
        tuple(map(str, name_words)),
        rank,
        lane.astype(np.int64),
        name.astype(np.int64),
        begin,
        end,
    )


def _encode(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {each.name: _encode(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (tuple, list)):
        return [_encode(each) for each in value]
    return value


def _decode(kind: Any, value: Any) -> Any:
    """``value`` of a JSON document as the type ``kind``."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:
        [kind] = (each for each in arguments if each is not NoneType)
        return None if value is None else _decode(kind, value)
    if origin is np.ndarray:
        return np.array(value, get_args(arguments[1])[0])
    if origin is tuple:
        return tuple(_decode(arguments[0], each) for each in value)
    if origin is dict:
        return dict(value)
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        names = [each.name for each in dataclasses.fields(kind)]
        return kind(**{name: _decode(hints[name], value[name]) for name in names})  # type: ignore[operator]
    if origin is Literal:
        return value
    return kind(value)
