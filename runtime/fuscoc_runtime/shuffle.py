"""The shuffle as a user holds it: dispatch rows, work on them, combine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fuscoc_runtime.artifact import Artifact, load_artifact
from fuscoc_runtime.engine.handle import Handle
from fuscoc_runtime.engine.process import ProcessEngine
from fuscoc_runtime.topology import Topology


class Shuffle:
    """A compiled shuffle on this rank. Every method is collective over the ranks of ``group``.

    ::

        shuffle = Shuffle("build/moe")
        rows, handle = shuffle.dispatch(x, topk_idx=topk_idx)
        y = shuffle.combine(experts(rows, handle.key_offsets), handle, topk_weights=weights)

    Args:
        artifact: what ``fuscoc compile`` wrote, opened or as its path.
        name: which shuffle, if the artifact holds several.
        group: the ranks that take part; default: all of the job. Under torchrun the job is joined
            if that has not happened.
        topology: nodes and ranks, e.g. ``"2x4"``; default: found out from the hosts' names, or
            from NCCL_HOSTID where it is set.
        device: where this rank computes; default: its GPU if the group talks NCCL, else the CPU.
        timeout: seconds that a wait for another rank may take, about.
        num_programs: programs of every kernel launch, the same on all ranks; on a GPU this caps
            the SMs in use. Default: two for every SM.

    Raises:
        ArtifactError, TopologyError: what was asked for does not fit together.
        KernelError: Triton is missing.
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
    ) -> None:
        opened = artifact if isinstance(artifact, Artifact) else load_artifact(artifact)
        self.spec = opened.shuffle(name)
        self._engine = ProcessEngine(
            opened,
            self.spec,
            group,
            Topology.parse(topology) if isinstance(topology, str) else topology,
            torch.device(device) if device is not None else None,
            timeout,
            num_programs,
        )

    @property
    def rank(self) -> int:
        """This rank, in ``group``."""
        return self._engine.comm.members.rank

    @property
    def topology(self) -> Topology:
        """The nodes and ranks in use."""
        return self._engine.comm.members.topology

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""
        return self._engine.machine.device

    def dispatch(self, *fields: Tensor, **named: Any) -> tuple[Any, Handle]:
        """Bring every segment to its destinations.

        ``fields`` are the source's fields in the order of the spec; they may also be named, as
        every input has to be. Run-time extents are read off the tensors' shapes; those that are
        in none (``length=64``) are passed by name.

        Returns ``(rows, handle)``. ``rows`` is a tensor [num_slots, *field shape], or a dict of
        them by field if a segment has several. It is a view of memory that peers store into, valid
        until this rank's next dispatch. Padding rows are left as they were.

        Raises, on all ranks alike and before anything moves:
            InputError: an argument of the wrong shape, dtype or device, or a missing one.
            IndexOutOfRangeError, SlotOutOfRangeError, SlotOverlapError, InexactDivisionError,
            CapacityError, PlacementMismatchError: the routing asks for what cannot be.
        And on whichever rank it happens:
            HopTimeoutError: a rank ended or did not come in time; names it.
        """
        dispatched = self._engine.dispatch(fields, named)
        return _unwrap(dispatched.rows), dispatched.handle

    def combine(self, rows: Tensor | Mapping[str, Tensor], handle: Handle, **inputs: Tensor) -> Any:
        """Bring the rows back and reduce them at their source, as the spec's ``combine`` says.

        ``rows`` is shaped like those of the dispatch that returned ``handle`` (any tensor will
        do), ``inputs`` holds the weights of a weighted combine. Returns a tensor shaped like the
        source, or a dict of them by field. Segments without a destination come back as 0.

        Raises:
            InputError: as ``dispatch`` does; also if the spec has no combine.
            HopTimeoutError: a rank ended or did not come in time.
        """
        return _unwrap(self._engine.combine(rows, handle, inputs))

    def __repr__(self) -> str:
        return f"<Shuffle {self.spec.name}: rank {self.rank} of {self.topology} on {self.device}>"


def _unwrap(fields: Mapping[str, Tensor]) -> Tensor | Mapping[str, Tensor]:
    return next(iter(fields.values())) if len(fields) == 1 else fields
