"""Plans in files: an ``.npz`` of plain arrays and one JSON header. No pickle, nothing executed.

Arrays of all ranks are joined end to end, with their lengths beside them, and kept in the smallest
unsigned type that holds them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fuscoc_runtime.errors import ArtifactError
from fuscoc_runtime.files import NO_ARRAYS, whole_file
from fuscoc_runtime.manifest.decode import decode
from fuscoc_runtime.manifest.encode import encode
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan.cost import CostModel
from fuscoc_runtime.plan.flows import Int64Array
from fuscoc_runtime.plan.rounds import Side
from fuscoc_runtime.plan.schedule import Schedule, Transfers
from fuscoc_runtime.plan.traffic import Traffic
from fuscoc_runtime.plan.types import BufferRows, DescriptorList, Handover, RankPlan, Wire
from fuscoc_runtime.topology import Topology

FORMAT = 4
HEADER = "header"
TENSORS = ("point_order", "keys", "key_counts", "key_offsets", "row_index")
COUNTS = (
    "net_send_counts", "net_recv_counts", "flow_counts", "point_send_counts", "point_recv_counts"
)  # fmt: skip
STAGES = ("tile", "peer", "begin", "end")
SIDES = ("send", "receive")
SLICES = ("stage", "peer", "begin", "end")
ORDERS = ("send_order", "landing_order", "forward_order")
HANDOVER = ("handed", "own", "taken")


Parts = tuple[ShuffleSpec, Topology, tuple[RankPlan, ...], CostModel, Schedule | None]
"""Of a ``Plan``, in its order."""


def write(
    path: Path,
    shuffle: ShuffleSpec,
    topology: Topology,
    ranks: Sequence[RankPlan],
    model: CostModel,
    schedule: Schedule | None,
) -> None:
    """Write the parts of a plan, in one step, so that no reader sees half of it."""
    columns = {name: sorted(columns) for name, columns in sorted(ranks[0].lists.items())}
    header = {
        "format": FORMAT,
        "shuffle": encode(shuffle),
        "topology": str(topology),
        "model": asdict(model),
        "schedule": schedule.kind if schedule is not None else None,
        "columns": columns,
    }
    arrays: dict[str, Any] = {HEADER: np.array(json.dumps(header))}
    for name, names in columns.items():
        for column in names:
            _join(arrays, f"{name}.{column}", [each.lists[name][column] for each in ranks])
    for name in TENSORS:
        _join(arrays, name, [getattr(each, name) for each in ranks])
    _join_wires(arrays, [each.wire for each in ranks])
    for name in COUNTS:
        arrays[name] = _narrow(np.array([getattr(each, name) for each in ranks]))
    arrays["num_sources"] = np.array([each.num_sources for each in ranks])
    for name in ("rows", "max_rows"):
        arrays[name] = np.array([astuple(getattr(each, name)) for each in ranks])
    if schedule is not None:
        arrays |= {name: getattr(schedule, name) for name in STAGES}
    with whole_file(path) as file:
        np.savez(file, **arrays)


def read(path: Path) -> Parts:
    """Read what ``write`` wrote.

    Raises:
        ArtifactError: no such file, or not a plan of this version.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            header = json.loads(str(file[HEADER]))
            if header["format"] != FORMAT:
                raise ArtifactError(
                    str(path), f"has plan format {header['format']}; this runtime reads {FORMAT}"
                )
            return _read(header, file)
    except ArtifactError:
        raise
    except FileNotFoundError as error:
        raise ArtifactError(str(path), "there is no such file") from error
    except (OSError, *NO_ARRAYS) as error:
        raise ArtifactError(str(path), f"is not a plan: {error}") from error


def _read(header: Mapping[str, Any], file: Mapping[str, Any]) -> Parts:
    topology = Topology.parse(header["topology"])
    num_ranks = topology.num_ranks
    lists: list[dict[str, DescriptorList]] = [{} for _ in range(num_ranks)]
    parts: dict[str, list[Any]] = {name: _split(file, name, num_ranks) for name in TENSORS}
    for name in COUNTS:
        parts[name] = [tuple(row) for row in _table(file, name, num_ranks)]
    parts["wire"] = list(map(_wire, _split_wires(file, num_ranks), *(parts[n] for n in COUNTS[:2])))
    parts["num_sources"] = _table(file, "num_sources", num_ranks)
    for name in ("rows", "max_rows"):
        parts[name] = [BufferRows(*row) for row in _table(file, name, num_ranks)]
    for name, columns in header["columns"].items():
        for column in columns:
            joined = _split(file, f"{name}.{column}", num_ranks)
            for mine, part in zip(lists, joined, strict=True):
                mine.setdefault(name, {})[column] = part
    ranks = tuple(
        RankPlan(rank=rank, lists=lists[rank], **{name: each[rank] for name, each in parts.items()})
        for rank in range(num_ranks)
    )
    schedule = None
    if header["schedule"] is not None:
        stages = [np.asarray(file[name], np.int64) for name in STAGES]
        forwarders = Traffic.of(topology, ranks).forwarders
        schedule = Schedule(header["schedule"], forwarders, *stages)
    shuffle, model = decode(ShuffleSpec, header["shuffle"]), CostModel(**header["model"])
    return shuffle, topology, ranks, model, schedule


def _join_wires(arrays: dict[str, Any], wires: Sequence[Wire]) -> None:
    none = torch.zeros(0, dtype=torch.int64)
    arrays["num_rounds"] = np.array([each.num_rounds for each in wires])
    _join(arrays, "entries", [each.entries for each in wires])
    for side in SIDES:
        for name in SLICES:
            slices = [getattr(getattr(each, side).slices, name) for each in wires]
            _join(arrays, f"{side}.{name}", [torch.from_numpy(each.copy()) for each in slices])
    for name in ORDERS:
        orders = [getattr(each, name) for each in wires]
        _join(arrays, name, [none if each is None else each for each in orders])
    for name in HANDOVER:
        handed = [getattr(each.handover, name, ()) for each in wires]
        _join(arrays, name, [torch.tensor(each, dtype=torch.int64) for each in handed])


def _split_wires(file: Mapping[str, Any], num_ranks: int) -> list[dict[str, Any]]:
    """What ``_wire`` takes, by rank."""
    names = [
        "entries",
        *ORDERS,
        *HANDOVER,
        *(f"{side}.{name}" for side in SIDES for name in SLICES),
    ]
    columns: dict[str, list[Any]] = {name: _split(file, name, num_ranks) for name in names}
    columns["rank"] = list(range(num_ranks))
    columns["num_rounds"] = _table(file, "num_rounds", num_ranks)
    return [{name: each[rank] for name, each in columns.items()} for rank in range(num_ranks)]


def _wire(
    found: Mapping[str, Any], send_counts: tuple[int, ...], recv_counts: tuple[int, ...]
) -> Wire:
    def side(name: str, counts: tuple[int, ...]) -> Side:
        return Side(Transfers(*(found[f"{name}.{column}"].numpy() for column in SLICES)), counts)

    def order(name: str) -> Tensor | None:
        return found[name] if len(found[name]) else None

    handed = [tuple(found[name].tolist()) for name in HANDOVER]

    return Wire(
        found["rank"],
        found["num_rounds"],
        side("send", send_counts),
        side("receive", recv_counts),
        order("send_order"),
        order("landing_order"),
        order("forward_order"),
        found["entries"],
        Handover(*handed) if any(handed) else None,
    )


def _join(arrays: dict[str, Any], name: str, parts: Sequence[Tensor]) -> None:
    arrays[name] = _narrow(torch.cat(list(parts)).cpu().numpy())
    arrays[f"{name}.length"] = _narrow(np.array([len(part) for part in parts]))


def _split(file: Mapping[str, Any], name: str, num_ranks: int) -> list[Tensor]:
    lengths = _table(file, f"{name}.length", num_ranks)
    joined = torch.from_numpy(np.asarray(file[name]).astype(np.int64))
    # A column's memory is a tensor of its own: kernels are given its address.
    return [part.clone() for part in torch.split(joined, lengths)]


def _table(file: Mapping[str, Any], name: str, num_ranks: int) -> list[Any]:
    """One entry a rank, as Python numbers."""
    table: list[Any] = np.asarray(file[name]).astype(np.int64).tolist()
    if len(table) != num_ranks:
        raise ValueError(f"`{name}` has entries for {len(table)} ranks, not {num_ranks}")
    return table


def _narrow(values: Int64Array) -> Any:
    low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
    return values.astype(np.min_scalar_type(high)) if low >= 0 else values
