"""One rank as one process, on a GPU or on the CPU."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from fuscoc_runtime.artifact import Artifact
from fuscoc_runtime.comm.group import find_members, join
from fuscoc_runtime.comm.process import ProcessComm
from fuscoc_runtime.comm.requests import Request
from fuscoc_runtime.engine.combine import combine
from fuscoc_runtime.engine.dispatch import Dispatched, dispatch
from fuscoc_runtime.engine.handle import Handle
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.errors import TopologyError
from fuscoc_runtime.schema import ShuffleSpec
from fuscoc_runtime.topology import Topology

T = TypeVar("T")

PROGRAMS_PER_SM = 2
CPU_PROGRAMS = 2
"""Interpreted programs run one after the other: two are enough to share a list."""


class ProcessEngine:
    """This process's rank of one shuffle; collective over the ranks of ``group``.

    Args:
        timeout: seconds that any wait for another rank may take.
        num_programs: programs a kernel launch, equal on all ranks; on CUDA it caps the SMs that
            are used. Default: two for every SM.
    """

    def __init__(
        self,
        artifact: Artifact,
        shuffle: ShuffleSpec,
        group: dist.ProcessGroup | None,
        topology: Topology | None,
        device: torch.device | None,
        timeout: float,
        num_programs: int | None,
    ) -> None:
        chosen = _device(group, device, timeout)
        programs = num_programs if num_programs is not None else _default_programs(chosen)
        settings = (shuffle.name, artifact.manifest.spec.sha256, programs)
        members = find_members(group, topology, chosen, settings)
        self.comm = ProcessComm(members, timeout)
        self.machine = Machine(artifact, shuffle, members.topology, members.rank, chosen, programs)
        self.machine.set_timeout(timeout)

    def dispatch(self, positional: Sequence[Tensor], named: Mapping[str, Any]) -> Dispatched:
        """See ``engine.dispatch``. Returns when the rows are complete."""
        return self._run("dispatch", dispatch(self.machine, positional, named))

    def combine(
        self, rows: Tensor | Mapping[str, Tensor], handle: Handle, named: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        """See ``engine.combine``. Returns when the result is complete."""
        return self._run("combine", combine(self.machine, rows, handle, named))

    def _run(self, path: str, work: Generator[Request, Any, T]) -> T:
        started = time.monotonic()
        with self.machine.current_device():
            result = self.comm.run(work)
            self.comm.synchronize(path)
        late = self.machine.late()
        if late is not None:
            members = self.comm.members
            node = members.topology.node(members.rank)
            suspect = members.topology.node_ranks(node)[late.peer]
            seconds = time.monotonic() - started
            raise self.comm.blame(late.hop, seconds, suspect)
        return result


def _device(
    group: dist.ProcessGroup | None, device: torch.device | None, timeout: float
) -> torch.device:
    if not dist.is_initialized():
        if "RANK" not in os.environ:
            raise TopologyError(
                "this process belongs to no job: start it with torchrun, or call "
                "torch.distributed.init_process_group first"
            )
        device = join(timeout, device)
    if device is None:
        on_gpu = "nccl" in str(dist.get_backend(group))
        device = torch.device("cuda" if on_gpu else "cpu")
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return device


def _default_programs(device: torch.device) -> int:
    if device.type == "cpu":
        return CPU_PROGRAMS
    return PROGRAMS_PER_SM * torch.cuda.get_device_properties(device).multi_processor_count
