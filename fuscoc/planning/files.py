"""Routings in files: what another program recorded, or a property test saved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fuscoc.planning.saved import Routing, RoutingFileError
from fuscoc_runtime.files import NO_ARRAYS
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.scalar import Extent, Load, Scope, evaluate
from fuscoc_runtime.schema import ShuffleSpec
from fuscoc_runtime.topology import Topology

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
    for spec in shuffle.declared.inputs:
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
            if spec.role == "weight":
                continue
            raise RoutingError(f"{path} holds no `{rank}.{spec.name}` and no `{spec.name}`")
        if tensor.dim() != len(spec.shape):
            raise RoutingError(
                f"{path}: `{spec.name}` of rank {rank} has {tensor.dim()} dimensions, the spec "
                f"says {len(spec.shape)}"
            )
        if spec.role != "weight" and tensor.is_floating_point():
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
    for spec in shuffle.declared.inputs:
        wanted = [evaluate(size, Scope(extents, inputs)) for size in spec.shape]
        if spec.name in inputs and list(inputs[spec.name].shape) != wanted:
            raise RoutingError(
                f"{path}: `{spec.name}` of rank {rank} is {list(inputs[spec.name].shape)}, the "
                f"spec says {wanted}"
            )
