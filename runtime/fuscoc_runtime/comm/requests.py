"""What a rank asks of the other ranks.

A rank's work is a generator that yields these requests and is sent their results. The same
generator runs in one process per rank, where a request is a collective, and in the lockstep
engine, where all ranks live in one process and are advanced request by request. Every rank yields
the same sequence of request kinds; counts are host integers because they size buffers.

Result tensors may be shared between ranks (lockstep hands out one tensor): never write to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from numpy.typing import NDArray

from fuscoc_runtime.arrays import Array

if TYPE_CHECKING:
    from torch import Tensor

PART = "a part of a call"
"""What gathers are that begin none."""


@dataclass(frozen=True, eq=False)
class AllGather:
    """``tensor`` of every rank, equal shapes. Result: an array of numpy, [num_ranks, *shape].

    On all ranks the tensor is on the host, where it may be an array of numpy, too, and then does
    not wait for the current stream of their devices; or on none.
    """

    tensor: Array | NDArray[Any]


@dataclass(frozen=True, eq=False)
class StartGather:
    """Begin an ``AllGather`` of ``tensor``. Result: a call that waits for it here and returns
    what that would, before the next gather. ``call`` is what it begins, for ranks that make
    different ones."""

    tensor: Array | NDArray[Any]
    call: str = PART


@dataclass(frozen=True, eq=False)
class AllToAll:
    """Rows to every rank along dimension 0, in rank order.

    ``tensor`` [sum(send_counts), ...]; result [sum(recv_counts), ...], ordered by source rank; in
    lockstep both may be arrays of numpy. ``recv_counts[s]`` must be what rank ``s`` has as
    ``send_counts[this rank]``.
    """

    tensor: Array
    send_counts: tuple[int, ...]
    recv_counts: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class AllToAlls:
    """Several at once, which take the network's latency once. Result: a list of theirs."""

    parts: tuple[AllToAll, ...]


@dataclass(frozen=True, eq=False)
class Window:
    """Memory of this rank that its whole node can address.

    ``local``: uint8 [nbytes], this rank's part. ``peer_bases``: int64 [ranks_per_node], on the
    compute device, the address of every local rank's part as seen from this rank.
    """

    local: Tensor
    peer_bases: Tensor


@dataclass(frozen=True)
class Windows:
    """Windows by name, at least so many bytes each. Result: ``dict[str, Window]``.

    Collective inside the node, with the same sizes on all its ranks. A window grows and never
    shrinks; its bytes are zero only when it is new.
    """

    nbytes: Mapping[str, int]


@dataclass(frozen=True)
class HeldWindows:
    """All windows as they are now, by name; nobody else is asked. Result: ``dict[str, Window]``.

    One that must grow should be forgotten first: a larger one may not fit beside it.
    """


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of every field, in field order, for or from rank ``peer``; equal lengths."""

    peer: int
    fields: tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class Crossing:
    """Rows to and from ranks of other nodes; on a CUDA device the current stream waits for them.
    Result: ``None``.

    Every rank asks for the same stages, in the same order, even without rows. ``sends``,
    ``receives``: at most one each of a peer, ascending.
    """

    sends: tuple[Rows, ...]
    receives: tuple[Rows, ...]
    stage: int = field(default=0, kw_only=True)


@dataclass(frozen=True)
class Phase:
    """All ranks have got here: a barrier in lockstep, nothing between processes. Result: None."""

    name: str


Request: TypeAlias = (
    AllGather | StartGather | AllToAll | AllToAlls | Windows | HeldWindows | Crossing | Phase
)
