"""Windows and kernels that shuffles of one kind share, such as the layers of a model."""

from __future__ import annotations

from typing import Any
from weakref import ref

import torch
import torch.distributed as dist

from fuscoc_runtime.defaults import on_the_cpu_by_default
from fuscoc_runtime.face.executor import Executor
from fuscoc_runtime.face.open import open_engine, open_into
from fuscoc_runtime.face.options import Options
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.topology import Topology


class Pool:
    """Lets shuffles that are opened with it share what is alike: spec, group, device and options.

    They then take turns in the same windows: rows that one has dispatched last until the next
    dispatch of any of them. What a handle may still be used for does not change: one that is
    outdated is refused. The memory goes when the last of them is closed.
    """

    def __init__(self) -> None:
        self._held: dict[Any, tuple[Executor, int]] = {}

    def take(
        self,
        artifact: Artifact,
        spec: ShuffleSpec,
        group: dist.ProcessGroup | None,
        topology: Topology | None,
        device: torch.device | None,
        options: Options,
    ) -> Executor:
        """The executor for these settings, opened by the first who asks; collective then."""
        digest = artifact.digest
        # As of a membership, the group is not kept alive.
        known_group = ref(group) if group is not None else None
        settings = (digest, spec.name, known_group, topology, device, options)
        executor, num_users = self._held.get(settings, (None, 0))
        if executor is None:
            # What is made here serves calls of inference and those that autograd records.
            with torch.inference_mode(False), on_the_cpu_by_default():
                engine = open_engine(artifact, spec, group, topology, device, options)
                executor = Executor(
                    engine, spec, digest, options.zero_unused, open_into(artifact, spec, engine)
                )
        self._held[settings] = executor, num_users + 1
        return executor

    def give_back(self, executor: Executor, together: bool = True) -> None:
        """One user less; after the last one the executor is closed, by all ranks ``together``.

        Raises:
            FuscoRuntimeError: see ``Executor.close``.
        """
        [settings] = [key for key, (held, _) in self._held.items() if held is executor]
        num_users = self._held[settings][1] - 1
        if num_users:
            self._held[settings] = executor, num_users
        else:
            del self._held[settings]
            executor.close(together)

    def __len__(self) -> int:
        """How many sets of windows are held."""
        return len(self._held)

    def __repr__(self) -> str:
        return f"<Pool of {len(self)} sets of windows>"
