"""What all ranks bring to one shuffle: extents and inputs. Saved without pickle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.files import NO_ARRAYS, whole_file
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.schema import ShuffleSpec
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
                            for each in shuffle.declared.inputs
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
