"""The specs of this folder: an artifact for each set of constants, and shuffles of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fuscoc_runtime.comm.group import all_gather
from fuscoc_runtime.comm.subgroups import group_on
from fuscoc_runtime.deep_ep.refusals import is_capturing, refusal
from fuscoc_runtime.engine.node.engine import NodeEngine
from fuscoc_runtime.errors import FuscoRuntimeError
from fuscoc_runtime.face.shuffle import Shuffle
from fuscoc_runtime.manifest.artifact import MANIFEST, Artifact, load_artifact
from fuscoc_runtime.topology import Topology

FOLDER = "FUSCOC_DEEP_EP"
"""The variable that names a folder of artifacts, for machines without the compiler."""


def artifact_name(kind: str, constants: Mapping[str, int]) -> str:
    """How a folder of artifacts calls that of ``kind``.fsc with these constants."""
    return "-".join([kind, *(f"{name}{value}" for name, value in constants.items())])


def spec_path(kind: str) -> Path:
    """Where ``kind``.fsc lies."""
    return Path(__file__).parent / f"{kind}.fsc"


def find_artifact(kind: str, constants: Mapping[str, int]) -> Artifact:
    """The artifact of ``kind``.fsc with these constants: from the folder that ``FOLDER`` names,
    else compiled into the cache of specs, which processes share.

    Raises:
        AdapterError: there is no such artifact and no compiler; says how to make it elsewhere.
    """
    name, spec = artifact_name(kind, constants), spec_path(kind)
    given = os.environ.get(FOLDER)
    if given is not None and (Path(given) / name / MANIFEST).exists():
        return load_artifact(Path(given) / name)
    try:
        # By name, since a runtime without its compiler is complete: it may be on another machine.
        artifact: Artifact = import_module("fuscoc.torch").as_artifact(spec, constants)
    except ImportError as error:
        options = " ".join(f"-D {name}={value}" for name, value in constants.items())
        raise refusal(
            f"{given or f'${FOLDER}'} has no {name}, and the compiler is not here ({error}): where "
            f"it is, run `fuscoc compile {spec} {options} -o FOLDER/{name}`, and set {FOLDER} to "
            "that folder"
        ) from error
    return artifact


def check_fixed(shuffle: Shuffle) -> None:
    """Raises AdapterError: its memory was to have a fixed size, and has not."""
    if not isinstance(shuffle.engine, NodeEngine):
        raise refusal(
            "num_worst_tokens, and do_cpu_sync=False, are not supported for "
            f"{shuffle.topology}: it has no memory of a fixed size, and the log says why"
        )


class Shuffles:
    """The shuffles of one buffer, opened when they are first needed, which is collective. The group
    may be one for CPUs, as vLLM's is, since DeepEP only lets ranks meet there."""

    def __init__(self, group: dist.ProcessGroup, topology: Topology | str | None) -> None:
        self.group, self.topology = group, topology
        self._open: dict[tuple[Any, ...], Shuffle] = {}

    def of_all(self, tensor: Tensor) -> Tensor:
        """``tensor`` of every rank, equal shapes, where it lies: [num_ranks, *shape]. The host
        waits for no GPU."""
        return all_gather(tensor, group_on(self.group, tensor.device))

    def get(
        self,
        kind: str,
        constants: dict[str, int],
        device: torch.device,
        num_sms: int,
        copy: int = 0,
        **options: Any,
    ) -> Shuffle:
        """The shuffle of a spec: ``copy`` tells those apart whose rows are to last side by side;
        ``options`` are those of ``Shuffle``, ``num_sms`` counts on GPUs, 0 is all."""
        key = kind, tuple(constants.items()), device, num_sms, copy, tuple(options.items())
        if key not in self._open:
            if is_capturing():
                problem = "the first call of its kind opens shuffles, which no CUDA graph captures"
                raise refusal(f"{problem}: make it once before")
            self._open[key] = Shuffle(
                find_artifact(kind, constants),
                group=group_on(self.group, device),
                topology=self.topology,
                device=device,
                num_sms=num_sms or None if device.type == "cuda" else None,
                **options,
            )
        return self._open[key]

    def close(self) -> None:
        """Close all of them, then raise the first error of any; collective."""
        found: list[FuscoRuntimeError] = []
        while self._open:
            try:
                self._open.popitem()[1].close()
            except FuscoRuntimeError as error:
                found.append(error)
        if found:
            raise found[0]
