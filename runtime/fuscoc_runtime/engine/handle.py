"""What a dispatch leaves behind: everything that combine, or a curious user, needs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn

import torch
from torch import Tensor

from fuscoc_runtime.comm.requests import Request
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.engine.meeting import meet
from fuscoc_runtime.engine.weights import SentWeights
from fuscoc_runtime.errors import InputError
from fuscoc_runtime.plan import RankPlan
from fuscoc_runtime.plan.traffic import copies_in_node
from fuscoc_runtime.topology import Topology

NUM_WORDS = 4

DISPATCH_AGAIN = "Save the routing, such as `topk_idx`, and dispatch again"


def overwritten(number: int, since: int) -> str:
    """What is wrong with rows of a dispatch that lie where a later one has put its own."""
    return (
        f"is what dispatch {number} returned, where dispatch {since} has put its own rows since: "
        "copy rows to keep them"
    )


def refuse_to_pickle(held: object, instead: str = DISPATCH_AGAIN) -> NoReturn:
    """A handle names buffers of this process and the calls of all ranks: elsewhere it is nothing.

    Raises:
        TypeError: always; says what to do ``instead``.
    """
    raise TypeError(
        f"a {type(held).__name__} cannot be saved or sent: it names buffers of this process. "
        f"{instead}"
    )


@dataclass(frozen=True)
class HopStats:
    """Segment rows that one rank moved over one kind of hop.

    ``saved_rows``: further rows that the same relation needs there without deduplication.
    """

    rows: int
    saved_rows: int
    row_bytes: int

    @property
    def num_bytes(self) -> int:
        return self.rows * self.row_bytes

    @property
    def saved_bytes(self) -> int:
        return self.saved_rows * self.row_bytes


@dataclass(frozen=True)
class DispatchStats:
    """What one rank's dispatch did.

    ``network``: rows sent to other nodes, also for other ranks. ``carried``: rows handed to other
    ranks of the node, which send them. ``nvlink``: rows stored into other ranks of the node, as
    source or as forwarder; its ``saved_rows`` are those that this rank, as destination, copied
    from its own memory instead. ``local``: rows copied inside this rank's memory.
    ``planning_ms``: host time from the call to the finished plan.
    """

    network: HopStats
    carried: HopStats
    nvlink: HopStats
    local: HopStats
    planning_ms: float

    def __str__(self) -> str:
        handed = f"handed over {self.carried.rows}, " if self.carried.rows else ""
        return (
            f"network {self.network.rows} rows (saved {self.network.saved_rows}), {handed}"
            f"NVLink {self.nvlink.rows} (saved {self.nvlink.saved_rows}), "
            f"local {self.local.rows}, planned in {self.planning_ms:.2f} ms"
        )


@dataclass(frozen=True, eq=False)
class Handle:
    """The routing of one dispatch, to be combined any number of times.

    Its tensors are copies: what is done to them in place is the caller's affair.

    Attributes:
        num_slots: slots of this rank, padding included: rows that combine takes.
        row_index: int64 [num_slots], which of the rows that dispatch returned every slot of a
            compact target refers to, -1 for padding; None for other targets, whose rows lie in
            their slots.
        keys: int64 [num_local_keys], the keys of a packed target that live here, ascending.
        key_counts: int64 [num_local_keys], slots of each that are no padding.
        key_offsets: int64 [num_local_keys + 1], first slot of each; the last is ``num_slots``.
        extents: run-time extents of this rank.
        source_shapes: shape of every source field.
        weights: the weight input if it was given at dispatch, by name.
        owner, number: which shuffle on this rank made it, and in which of its dispatches.
        sent_weights: those of them that have travelled already.
        token: what operators know the routing by, if one of them made it.
        reply: the routing of the way back, where its rows are those of a reply.
    """

    plan: RankPlan
    topology: Topology
    extents: Mapping[str, int]
    source_shapes: Mapping[str, torch.Size]
    row_bytes: int
    network_row_bytes: int
    planning_ms: float
    owner: object
    number: int
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    is_compact: bool = False
    sent_weights: SentWeights | None = None
    token: Tensor | None = None
    reply: Handle | None = None

    @property
    def num_slots(self) -> int:
        return self.plan.num_slots

    @property
    def num_rows(self) -> int:
        """Rows that this rank has got."""
        return self.plan.num_rows

    @property
    def row_index(self) -> Tensor | None:
        return self.plan.row_index.clone() if self.is_compact else None

    @property
    def keys(self) -> Tensor:
        return self.plan.keys.clone()

    @property
    def key_counts(self) -> Tensor:
        return self.plan.key_counts.clone()

    @property
    def key_offsets(self) -> Tensor:
        return self.plan.key_offsets.clone()

    @cached_property
    def row_of_slot(self) -> Tensor:
        """int64 [num_slots]: the row that a slot refers to, its own unless the target is compact;
        -1 where there is no segment."""
        if self.is_compact:
            return self.plan.row_index
        slots = self.plan.point_slots
        none = torch.full((self.num_slots,), -1, device=slots.device)
        return none.index_copy_(0, slots, slots)

    @cached_property
    def stats(self) -> DispatchStats:
        """Counted when first asked for: it reads device memory."""
        return _count(self)

    def __reduce__(self) -> NoReturn:
        refuse_to_pickle(self)

    def __repr__(self) -> str:
        return (
            f"<Handle of rank {self.plan.rank} of {self.topology}: {self.num_slots} slots, "
            f"{len(self.plan.keys)} keys; {self.stats}>"
        )


def check_handle(machine: Machine, handle: object) -> None:
    """Raise unless ``handle`` is of a dispatch of this machine."""
    problem = machine.checker.problem
    if not isinstance(handle, Handle):
        raise problem("handle", not_a_handle(handle))
    if handle.owner is not machine.identity:
        raise problem("handle", "is of another shuffle")


def not_a_handle(given: object) -> str:
    """What is wrong with something else, or with the handle of another kind of engine."""
    kind = "None" if given is None else f"a {type(given).__name__}"
    return f"is {kind}; it must be what this shuffle's dispatch returned"


def meet_with_handle(
    machine: Machine,
    handle: Handle | None,
    call: str,
    word: int = 0,
    meanwhile: Callable[[], None] | None = None,
) -> Generator[Request, Any, list[int]]:
    """``meet`` on a ``call``: raise on every rank what any rank is agreeing to raise, or if the
    ranks passed handles of different dispatches. Returns every rank's ``word``, 0 ..
    ``NUM_WORDS`` - 1.
    """
    number = 0 if handle is None else handle.number
    told = yield from meet(machine, None, call, number * NUM_WORDS + word, meanwhile)
    numbers, words = zip(*(divmod(each, NUM_WORDS) for each in told), strict=True)
    for rank, other in enumerate(numbers):
        if other != numbers[0]:
            problem = f"is of dispatch {other}; rank 0 passed that of dispatch {numbers[0]}"
            raise InputError("handle", rank, problem)
    return list(words)


def _count(handle: Handle) -> DispatchStats:
    plan, topology = handle.plan, handle.topology
    here = topology.local_rank(plan.rank)
    near = topology.node_ranks(topology.node(plan.rank))
    remote_points = sum(
        count for rank, count in enumerate(plan.point_send_counts) if rank not in near
    )
    network_rows = sum(plan.net_send_counts)
    handed = len(plan.lists["carry"]["dst_row"]) if plan.wire.hands_over else 0
    nvlink_rows, local_rows, duplicated = copies_in_node(plan, here)

    size = handle.row_bytes
    return DispatchStats(
        network=HopStats(
            network_rows, remote_points - sum(plan.flow_counts), handle.network_row_bytes
        ),
        carried=HopStats(handed, 0, handle.network_row_bytes),
        nvlink=HopStats(nvlink_rows, duplicated, size),
        local=HopStats(local_rows, 0, size),
        planning_ms=handle.planning_ms,
    )
