"""The shuffle as a user holds it: dispatch rows, work on them, combine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from fuscoc_runtime.artifact import Artifact, load_artifact
from fuscoc_runtime.engine.handle import Handle
from fuscoc_runtime.engine.node import NodeEngine, NodeHandle
from fuscoc_runtime.engine.open import Options, open_engine
from fuscoc_runtime.topology import Topology


class Shuffle:
    """A compiled shuffle on this rank. Every method is collective over the ranks of ``group``.

    ::

        shuffle = Shuffle("build/moe")
        rows, handle = shuffle.dispatch(x, topk_idx=topk_idx)
        y = shuffle.combine(experts(rows, handle.key_offsets), handle, topk_weights=weights)

    With ``max_sources`` the memory has a fixed size, and among the GPUs of one node the generated
    CUDA kernels do the work. Calls then only enqueue it on the current stream: they never wait, and
    a CUDA graph can capture them. Weights go with the rows, at dispatch::

        shuffle = Shuffle("build/moe", max_sources=8192)
        rows, handle = shuffle.dispatch(x, topk_idx=topk_idx, topk_weights=weights)
        y = shuffle.combine(experts(rows, handle.key_offsets), handle)

    Args:
        artifact: what ``fuscoc compile`` wrote, opened or as its path.
        name: which shuffle, if the artifact holds several.
        group: the ranks that take part; default: all of the job. Under torchrun the job is joined
            if that has not happened.
        topology: nodes and ranks, e.g. ``"2x4"``; default: found out from the hosts' names, or
            from NCCL_HOSTID where it is set.
        device: where this rank computes; default: its GPU if the group talks NCCL, else the CPU.
        timeout: seconds that a wait for another rank may take, about.
        num_programs: programs of every Triton launch. Default: two for every SM.
        num_sms: SMs that kernels may use at a time; default: all.
        max_sources: the most source segments that a rank will dispatch.
        capacity: rows that a rank has room for; default: the spec's ``capacity max``, else what the
            worst routing needs: ranks * max_sources * fan-out, and the padding. This is what most
            of the memory goes into: capacity rows and, for a sum, ranks * max_sources rows.
        num_handles: dispatches after which a handle is outdated.

    All ranks pass the same numbers. Those from ``max_sources`` on only concern the CUDA kernels;
    ``backend`` tells whether these are used.

    Raises:
        ArtifactError, TopologyError, ProtocolError: what was asked for does not fit together.
        BackendError: the spec says ``backend cuda``, and that cannot be.
        CudaError, KernelError: no compiler for the CUDA kernels; Triton is missing.
    """

    def __init__(
        self,
        artifact: Artifact | str | Path,
        name: str | None = None,
        *,
        group: dist.ProcessGroup | None = None,
        topology: Topology | str | None = None,
        device: torch.device | str | None = None,
        timeout: float = 60.0,
        num_programs: int | None = None,
        num_sms: int | None = None,
        max_sources: int | None = None,
        capacity: int | None = None,
        num_handles: int = 2,
    ) -> None:
        opened = artifact if isinstance(artifact, Artifact) else load_artifact(artifact)
        self.spec = opened.shuffle(name)
        self._engine = open_engine(
            opened,
            self.spec,
            group,
            Topology.parse(topology) if isinstance(topology, str) else topology,
            torch.device(device) if device is not None else None,
            Options(timeout, num_programs, num_sms, max_sources, capacity, num_handles),
        )

    @property
    def rank(self) -> int:
        """This rank, in ``group``."""
        return self._engine.members.rank

    @property
    def topology(self) -> Topology:
        """The nodes and ranks in use."""
        return self._engine.members.topology

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""
        return self._engine.members.device

    @property
    def backend(self) -> Literal["cuda", "triton"]:
        """Whose kernels do the work."""
        return "cuda" if isinstance(self._engine, NodeEngine) else "triton"

    def dispatch(self, *fields: Tensor, **named: Any) -> tuple[Any, Handle | NodeHandle]:
        """Bring every segment to its destinations.

        ``fields`` are the source's fields in the order of the spec; they may also be named, as
        every input has to be. Run-time extents are read off the tensors' shapes; those that are
        in none (``length=64``) are passed by name. The weights of ``combine`` may be given here,
        and have to be with the CUDA kernels.

        Returns ``(rows, handle)``. ``rows`` is a tensor [num_slots, *field shape], or a dict of
        them by field if a segment has several. It is a view of memory that peers store into, valid
        until this rank's next dispatch. Padding rows are left as they were. With the CUDA kernels
        ``num_slots`` is the capacity.

        Raises, on all ranks alike and before anything moves:
            InputError: an argument of the wrong shape, dtype or device, or a missing one.
            IndexOutOfRangeError, SlotOutOfRangeError, SlotOverlapError, InexactDivisionError,
            CapacityError, PlacementMismatchError: the routing asks for what cannot be.
        And on whichever rank it happens:
            HopTimeoutError: a rank ended or did not come in time; names it.

        The CUDA kernels look at routing on the device. They drop what cannot be, and this rank's
        next call that notices, or ``check``, raises KeyRangeError, NoSlotError or HopTimeoutError.
        """
        dispatched = self._engine.dispatch(fields, named)
        return _unwrap(dispatched.rows), dispatched.handle

    def combine(self, rows: Tensor | Mapping[str, Tensor], handle: Any, **inputs: Tensor) -> Any:
        """Bring the rows back and reduce them at their source, as the spec's ``combine`` says.

        ``rows`` is shaped like those of the dispatch that returned ``handle`` (any tensor will
        do), ``inputs`` holds the weights of a weighted combine, unless dispatch was given them.
        Returns a tensor shaped like the source, or a dict of them by field. Segments without a
        destination come back as 0.

        Raises:
            InputError: as ``dispatch`` does; also if the spec has no combine.
            HopTimeoutError: a rank ended or did not come in time.
        """
        return _unwrap(self._engine.combine(rows, handle, inputs))

    def check(self) -> None:
        """Wait for all calls so far and raise what went wrong on this rank; not collective.

        Raises:
            KeyRangeError, NoSlotError: points that were dropped.
            HopTimeoutError: a rank that did not come in time; the shuffle is then of no more use.
        """
        self._engine.check()

    def __repr__(self) -> str:
        return f"<Shuffle {self.spec.name}: rank {self.rank} of {self.topology} on {self.device}>"


def _unwrap(fields: Mapping[str, Tensor]) -> Tensor | Mapping[str, Tensor]:
    return next(iter(fields.values())) if len(fields) == 1 else fields
