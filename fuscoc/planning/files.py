"""Routings in files: what another program recorded, or a property test saved."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.files import NO_ARRAYS, whole_file
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.scalar import Extent, Load, Scope, evaluate
from fuscoc_runtime.topology import Topology

FORMAT = 1


class RoutingFileError(Exception):
    """A file that holds no routing of this shuffle."""


@dataclass(frozen=True, eq=False)
class Routing:
    """Extents and inputs of every rank, in rank order, for the shuffle called ``shuffle``.

    The sources are not part of it: ``fuscoc.testing.with_sources`` makes them up.
    """

    shuffle: str
    topology: Topology
    ranks: tuple[RankData, ...]

    def save(self, path: str | Path) -> None:
        """Write to an ``.npz`` file that holds no pickle and is the same for the same routing."""
        header = {
            "format": FORMAT,
            "shuffle": self.shuffle,
            "topology": str(self.topology),
            "extents": [dict(data.extents) for data in self.ranks],
        }
        arrays: dict[str, Any] = {"header": np.array(json.dumps(header))}
        for rank, data in enumerate(self.ranks):
            for name, tensor in data.inputs.items():
                arrays[f"{rank}.{name}"] = _to_numpy(tensor)
        with whole_file(path) as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: str | Path, shuffle: ShuffleSpec) -> Routing:
        """Read what ``save`` wrote.

        Raises:
            RoutingFileError: no such file, or one that does not fit ``shuffle``; says why.
        """
        try:
            with np.load(Path(path), allow_pickle=False) as file:
                header = json.loads(str(file["header"]))
                if header["format"] != FORMAT:
                    raise RoutingFileError(f"{path} has format {header['format']}, not {FORMAT}")
                if header["shuffle"] != shuffle.name:
                    raise RoutingFileError(
                        f"{path} is a routing of `{header['shuffle']}`, not of `{shuffle.name}`"
                    )
                ranks = tuple(
                    RankData(
                        {},
                        {
                            each.name: _to_torch(file[f"{rank}.{each.name}"], each.dtype)
                            for each in shuffle.inputs
                        },
                        {name: int(extents[name]) for name in shuffle.declared.extents},
                    )
                    for rank, extents in enumerate(header["extents"])
                )
                return cls(shuffle.name, Topology.parse(header["topology"]), ranks)
        except (OSError, *NO_ARRAYS) as error:
            reason = (
                error.strerror if isinstance(error, OSError) else "it is no file of `fuscoc test`"
            )
            raise RoutingFileError(
                f"{path} holds no routing of `{shuffle.name}`: {reason}"
            ) from error

    def lines(self) -> Iterator[str]:
        """A line for every rank; those with nothing to send are left out."""
        for rank, data in enumerate(self.ranks):
            if any(tensor.numel() for tensor in data.inputs.values()):
                extents = [f"{name}={value}" for name, value in data.extents.items()]
                inputs = [f"{name}={tensor.tolist()}" for name, tensor in data.inputs.items()]
                yield f"rank {rank}: {' '.join([*extents, *inputs])}"

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """How hypothesis shows it in a falsifying example."""
        printer.text(repr(self))

    def __repr__(self) -> str:
        return f"Routing({self.shuffle} on {self.topology}: {'; '.join(self.lines()) or 'nothing'})"


def _to_numpy(tensor: Tensor) -> Any:
    if tensor.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        return (
            tensor.contiguous().view(torch.uint8 if tensor.itemsize == 1 else torch.int16).numpy()
        )
    return tensor.numpy()


def _to_torch(array: Any, dtype: str) -> Tensor:
    wanted = TORCH_DTYPES[dtype]
    tensor = torch.from_numpy(array)
    if tensor.dtype == wanted:
        return tensor
    if tensor.itemsize != wanted.itemsize:
        raise RoutingFileError(f"an input is {tensor.dtype}; the spec says {dtype}")
    return tensor.view(wanted)


NUMBERS = "iuf"
"""Kinds of numpy's dtypes."""


class RoutingError(ValueError):
    """No routing can be made or read as asked; the message says why."""


def read_routing(shuffle: ShuffleSpec, topology: Topology, path: Path) -> list[RankData]:
    """Extents and inputs of every rank from ``path``; docs/planning.md tells the formats.

    Raises:
        RoutingError: a file that cannot be read or does not fit the shuffle and the topology.
    """
    arrays = _load(shuffle, path)
    if "header" in arrays:
        return _read_saved(shuffle, topology, path)
    for name, array in arrays.items():
        if array.dtype.kind not in NUMBERS or array.itemsize > 8:
            raise RoutingError(
                f"{path}: `{name}` holds {array.dtype} and no numbers of at most 64 bits"
            )
    named = {
        name: torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
        for name, array in arrays.items()
    }
    return [_rank_data(shuffle, topology, named, rank, path) for rank in range(topology.num_ranks)]


def _load(shuffle: ShuffleSpec, path: Path) -> dict[str, Any]:
    """The arrays of a file by name; the only one of a ``.npy`` has that of the keys' input."""
    try:
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.lib.npyio.NpzFile):
            with file:
                return {name: file[name] for name in file.files}
    except OSError as error:
        raise RoutingError(f"{path}: {error.strerror}") from error
    except NO_ARRAYS as error:
        raise RoutingError(f"{path} is no {path.suffix} file of plain arrays") from error
    return {route_input(shuffle): file}


def route_input(shuffle: ShuffleSpec) -> str:
    """The input that a packed target's keys are read from, as they are."""
    if shuffle.declared.target.kind == "packed" and isinstance(shuffle.declared.target.key, Load):
        return shuffle.declared.target.key.input
    raise RoutingError(f"`{shuffle.name}` reads no key from an input: pass a .npz file")


def _read_saved(shuffle: ShuffleSpec, topology: Topology, path: Path) -> list[RankData]:
    try:
        saved = Routing.load(path, shuffle)
    except RoutingFileError as error:
        raise RoutingError(str(error)) from error
    if saved.topology != topology:
        raise RoutingError(f"{path} is a routing for {saved.topology}, not for {topology}")
    return list(saved.ranks)


def _rank_data(
    shuffle: ShuffleSpec,
    topology: Topology,
    arrays: Mapping[str, Tensor],
    rank: int,
    path: Path,
) -> RankData:
    """A rank's inputs: ``<rank>.<input>``, or row ``rank`` of ``<input>``; weights may be left out.

    Extents are read off the shapes.
    """
    inputs, extents = {}, {}
    for spec in shuffle.inputs:
        own, shared = arrays.get(f"{rank}.{spec.name}"), arrays.get(spec.name)
        if own is None and shared is not None and spec.role != "placement":
            num_rows = shared.shape[0] if shared.dim() else 0
            if num_rows != topology.num_ranks:
                raise RoutingError(
                    f"{path}: `{spec.name}` has {num_rows} rows, one for each of "
                    f"{topology.num_ranks} ranks is needed"
                )
            own = shared[rank]
        tensor = own if own is not None else shared
        if tensor is None:
            if spec.role in ("weight", "cast"):
                continue
            raise RoutingError(f"{path} holds no `{rank}.{spec.name}` and no `{spec.name}`")
        if tensor.dim() != len(spec.shape):
            raise RoutingError(
                f"{path}: `{spec.name}` of rank {rank} has {tensor.dim()} dimensions, the spec "
                f"says {len(spec.shape)}"
            )
        if spec.role not in ("weight", "cast") and tensor.is_floating_point():
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise RoutingError(f"{path}: `{spec.name}` holds {dtype}, the spec says {spec.dtype}")
        inputs[spec.name] = tensor
        for scalar, size in zip(spec.shape, tensor.shape, strict=True):
            if isinstance(scalar, Extent):
                extents[scalar.name] = size
    for name in shuffle.declared.extents:
        if name not in extents:
            given = arrays.get(name)
            if given is None or given.shape != (topology.num_ranks,):
                raise RoutingError(
                    f"{path} says no `{name}`: an array with a number for every rank"
                )
            extents[name] = int(given[rank])
    _check_shapes(shuffle, inputs, extents, rank, path)
    return RankData({}, inputs, extents)


def _check_shapes(
    shuffle: ShuffleSpec,
    inputs: Mapping[str, Tensor],
    extents: Mapping[str, int],
    rank: int,
    path: Path,
) -> None:
    for spec in shuffle.inputs:
        wanted = [evaluate(size, Scope(extents, inputs)) for size in spec.shape]
        if spec.name in inputs and list(inputs[spec.name].shape) != wanted:
            raise RoutingError(
                f"{path}: `{spec.name}` of rank {rank} is {list(inputs[spec.name].shape)}, the "
                f"spec says {wanted}"
            )
