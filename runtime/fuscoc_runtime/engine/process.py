"""One rank as one process, on a GPU or on the CPU."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor

from fuscoc_runtime.artifact import Artifact
from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.comm.process import ProcessComm
from fuscoc_runtime.comm.requests import Request
from fuscoc_runtime.engine.combine import combine
from fuscoc_runtime.engine.dispatch import Dispatched, dispatch
from fuscoc_runtime.engine.handle import Handle
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.schema import ShuffleSpec

T = TypeVar("T")


class ProcessEngine:
    """This process's rank of one shuffle; collective over the ``members``.

    Args:
        timeout: seconds that any wait for another rank may take.
        num_programs: programs a kernel launch, equal on all ranks; on CUDA it caps the SMs that
            are used.
    """

    def __init__(
        self,
        artifact: Artifact,
        shuffle: ShuffleSpec,
        members: Membership,
        num_programs: int,
        timeout: float,
    ) -> None:
        self.members = members
        self.comm = ProcessComm(members, timeout)
        self.machine = Machine(
            artifact, shuffle, members.topology, members.rank, members.device, num_programs
        )
        self.machine.set_timeout(timeout)

    def dispatch(self, positional: Sequence[Tensor], named: Mapping[str, Any]) -> Dispatched:
        """See ``engine.dispatch``. Returns when the rows are complete.

        Weights may be given now or with ``combine``.
        """
        combines = self.machine.shuffle.combine
        weight = combines.weight if combines is not None else None
        arguments, weights = dict(named), {}
        if weight is not None and weight.input in arguments:
            weights[weight.input] = arguments.pop(weight.input)
        done = self._run("dispatch", dispatch(self.machine, positional, arguments))
        return replace(done, handle=replace(done.handle, weights=weights))

    def combine(
        self, rows: Tensor | Mapping[str, Tensor], handle: Handle, named: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        """See ``engine.combine``. Returns when the result is complete."""
        return self._run("combine", combine(self.machine, rows, handle, named))

    def check(self) -> None:
        """Nothing is left to tell: every call has waited for its work and raised its errors."""

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
