"""Plans in files: an ``.npz`` of integer arrays and one JSON header. No pickle, nothing executed.

Columns of all ranks are joined end to end, with their lengths beside them, and kept as progressions
(``progressions.py``): their forms stand in the header, the ``.npz`` holds their pools.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import IO, Any

import numpy as np

from fuscoc_runtime.arrays import Array, on_host, split
from fuscoc_runtime.errors import ArtifactError
from fuscoc_runtime.files import NO_ARRAYS
from fuscoc_runtime.manifest.decode import decode
from fuscoc_runtime.manifest.encode import encode
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan.cost import CostModel
from fuscoc_runtime.plan.flows import Int64Array
from fuscoc_runtime.plan.progressions import pack, unpack
from fuscoc_runtime.plan.schedule import Schedule, Transfers
from fuscoc_runtime.plan.traffic import Traffic
from fuscoc_runtime.plan.types import BufferRows, DescriptorList, RankPlan
from fuscoc_runtime.plan.wire import Side, Wire
from fuscoc_runtime.topology import Topology

FORMAT = 7
HEADER = "header"
TENSORS = ("point_order", "keys", "key_counts", "key_offsets", "row_index")
COUNTS = (
    "net_send_counts", "net_recv_counts", "flow_counts", "point_send_counts", "point_recv_counts"
)  # fmt: skip
STAGES = ("tile", "peer", "begin", "end")
SIDES = ("send", "receive")
TRANSFERS = ("stage", "peer", "begin", "end")
WIRE = ("num_stages", "hands_over")


Column = tuple[str, Int64Array]
"""A part of what a file holds: its name, and int64 of one dimension."""

Columns = dict[str, Int64Array]
"""All of it, by name."""

Parts = tuple[ShuffleSpec, Topology, tuple[RankPlan, ...], CostModel, Schedule | None]
"""Of a ``Plan``, in its order."""


def write(
    file: IO[bytes],
    shuffle: ShuffleSpec,
    topology: Topology,
    ranks: Sequence[RankPlan],
    model: CostModel,
    schedule: Schedule | None,
) -> None:
    """Write the parts of a plan."""
    lists = {name: sorted(columns) for name, columns in sorted(ranks[0].lists.items())}
    forms, pools = pack(_columns(lists, ranks, schedule))
    header = {
        "format": FORMAT,
        "shuffle": encode(shuffle),
        "topology": str(topology),
        "model": asdict(model),
        "schedule": schedule.kind if schedule is not None else None,
        "lists": lists,
        "forms": forms,
    }
    text = json.dumps(header, separators=(",", ":"))
    arrays: dict[str, Any] = {HEADER: np.array(text.encode()), **pools}
    np.savez(file, **arrays)


def read(path: Path) -> Parts:
    """Read what ``write`` wrote.

    Raises:
        ArtifactError: no such file, or not a plan of this version.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            header = json.loads(np.asarray(file[HEADER]).item())
            if header["format"] != FORMAT:
                found = f"has plan format {header['format']}; this runtime reads {FORMAT}"
                raise ArtifactError(str(path), f"{found}: compile or plan it again")
            return _read(header, unpack(header["forms"], file))
    except ArtifactError:
        raise
    except FileNotFoundError as error:
        raise ArtifactError(str(path), "there is no such file") from error
    except (OSError, *NO_ARRAYS) as error:
        raise ArtifactError(str(path), f"is not a plan: {error}") from error


def _columns(
    lists: Mapping[str, Sequence[str]], ranks: Sequence[RankPlan], schedule: Schedule | None
) -> Iterator[Column]:
    """What a file holds, made one by one: columns of all ranks may take much memory."""
    for name, names in lists.items():
        for column in names:
            yield from _join(f"{name}.{column}", [each.lists[name][column] for each in ranks])
    for name in TENSORS:
        yield from _join(name, [getattr(each, name) for each in ranks])
    for name in WIRE:
        yield _flatten(name, [getattr(each.wire, name) for each in ranks])
    for side in SIDES:
        for name in TRANSFERS:
            parts = [getattr(getattr(each.wire, side).transfers, name) for each in ranks]
            yield from _join(f"{side}.{name}", parts)
    for name in COUNTS:
        yield _flatten(name, [getattr(each, name) for each in ranks])
    yield _flatten("num_sources", [each.num_sources for each in ranks])
    for name in ("rows", "max_rows"):
        yield _flatten(name, [astuple(getattr(each, name)) for each in ranks])
    if schedule is not None:
        for name in STAGES:
            yield _flatten(name, getattr(schedule, name))


def _join(name: str, parts: Sequence[Array]) -> Iterator[Column]:
    yield name, np.concatenate([on_host(part) for part in parts])
    yield _flatten(f"{name}.length", [len(part) for part in parts])


def _flatten(name: str, table: Any) -> Column:
    """A table, row by row, such as of some numbers of every rank."""
    return name, np.array(table, np.int64).reshape(-1)


def _read(header: Mapping[str, Any], columns: Columns) -> Parts:
    topology = Topology.parse(header["topology"])
    num_ranks = topology.num_ranks
    lists: list[dict[str, DescriptorList]] = [{} for _ in range(num_ranks)]
    parts: dict[str, list[Any]] = {name: _split(columns, name, num_ranks) for name in TENSORS}
    for name in COUNTS:
        parts[name] = _rows(columns, name, num_ranks)
    parts["wire"] = _split_wires(columns, [parts[name] for name in COUNTS[:2]])
    parts["num_sources"] = _entries(columns, "num_sources", num_ranks)
    for name in ("rows", "max_rows"):
        parts[name] = [BufferRows(*row) for row in _rows(columns, name, num_ranks)]
    for name, names in header["lists"].items():
        for column in names:
            joined = _split(columns, f"{name}.{column}", num_ranks)
            for mine, part in zip(lists, joined, strict=True):
                mine.setdefault(name, {})[column] = part
    ranks = tuple(
        RankPlan(rank=rank, lists=lists[rank], **{name: each[rank] for name, each in parts.items()})
        for rank in range(num_ranks)
    )
    schedule = None
    if header["schedule"] is not None:
        stages = [columns[name].reshape(-1, topology.num_nodes) for name in STAGES]
        forwarders = Traffic.of(topology, ranks).forwarders
        schedule = Schedule(header["schedule"], forwarders, *stages)
    shuffle, model = decode(ShuffleSpec, header["shuffle"]), CostModel(**header["model"])
    return shuffle, topology, ranks, model, schedule


def _split_wires(columns: Columns, counts: Sequence[Sequence[tuple[int, ...]]]) -> list[Wire]:
    """``counts``: those of ``SIDES``, by rank."""
    num_ranks = len(counts[0])
    sides = []
    for side, of_ranks in zip(SIDES, counts, strict=True):
        parts = [_split(columns, f"{side}.{name}", num_ranks) for name in TRANSFERS]
        of_side = zip(zip(*parts, strict=True), of_ranks, strict=True)
        sides.append([Side(Transfers(*each), of) for each, of in of_side])
    num_stages, hands_over = (_entries(columns, name, num_ranks) for name in WIRE)
    return [
        Wire(num, send, receive, bool(hands))
        for num, send, receive, hands in zip(num_stages, *sides, hands_over, strict=True)
    ]


def _split(columns: Columns, name: str, num_ranks: int) -> list[Array]:
    lengths = _entries(columns, f"{name}.length", num_ranks)
    # A column has memory of its own: kernels are given its address.
    return [part.copy() for part in split(columns[name], lengths)]


def _entries(columns: Columns, name: str, num_ranks: int) -> list[int]:
    """A number of every rank."""
    if len(columns[name]) != num_ranks:
        entries = len(columns[name])
        raise ValueError(f"`{name}` has entries for {entries} ranks, not {num_ranks}")
    found: list[int] = columns[name].tolist()
    return found


def _rows(columns: Columns, name: str, num_ranks: int) -> list[tuple[int, ...]]:
    """Some numbers of every rank."""
    return list(map(tuple, columns[name].reshape(num_ranks, -1).tolist()))
