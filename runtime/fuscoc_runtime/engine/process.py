"""One rank as one process, on a GPU or on the CPU."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
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
from fuscoc_runtime.plan.cost import CostModel
from fuscoc_runtime.schema import ShuffleSpec

T = TypeVar("T")


class ProcessEngine:
    """This process's rank of one shuffle; collective over the ``members``.

    Args:
        timeout: seconds that any wait for another rank may take.
        num_programs: programs a kernel launch, equal on all ranks; on CUDA it caps the SMs that
            are used.
        model: what the network is taken to do; see ``PlanContext``.
        trace: whether to collect spans.
    """

    def __init__(
        self,
        artifact: Artifact,
        shuffle: ShuffleSpec,
        members: Membership,
        num_programs: int,
        timeout: float,
        *,
        model: CostModel | None = None,
        trace: bool = False,
    ) -> None:
        self.members = members
        self.comm = ProcessComm(members, timeout)
        self.machine = Machine(
            artifact,
            shuffle,
            members.topology,
            members.rank,
            members.device,
            num_programs,
            model=model,
            trace=trace,
        )
        self.machine.set_timeout(timeout)

    def dispatch(
        self,
        positional: Sequence[Tensor],
        named: Mapping[str, Any],
        earlier: Handle | None = None,
    ) -> Dispatched:
        """See ``engine.dispatch``. Returns when the rows are complete.

        Weights may be given now or with ``combine``.
        """
        return self.run("dispatch", dispatch(self.machine, positional, named, earlier))

    def combine(
        self, rows: Tensor | Mapping[str, Tensor], handle: Handle, named: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        """See ``engine.combine``. Returns when the result is complete."""
        return self.run("combine", combine(self.machine, rows, handle, named))

    def check(self) -> None:
        """Nothing is left to tell: every call has waited for its work and raised its errors."""

    @property
    def window_bytes(self) -> int:
        """Bytes of this rank that its peers can address, now: they grow with the batches."""
        return self.comm.window_bytes

    @property
    def private_bytes(self) -> int:
        """Bytes held between calls, besides: none."""
        return 0

    def close(self) -> None:
        """Let go of the windows; no call may follow."""
        self.comm.close()

    def run(self, path: str, work: Generator[Request, Any, T]) -> T:
        """Drive ``work``, collective over all ranks, to its end; ``path`` is for messages."""
        started = time.monotonic()
        with self.machine.current_device():
            result = self.comm.run(work)
            self.comm.synchronize(path)
            self.machine.tracer.settle()
        late = self.machine.late()
        if late is not None:
            members = self.comm.members
            node = members.topology.node(members.rank)
            suspect = members.topology.node_ranks(node)[late.peer]
            seconds = time.monotonic() - started
            raise self.comm.blame(late.hop, seconds, suspect)
        return result
