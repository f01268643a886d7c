"""What ranks of the same place in their nodes send each other, in messages whose sizes both know.

Groups of sends and receives, each posted where its list has come, on the current stream or on one
beside it: no host waits for another, and none says how much it sends. On a GPU they are commands of
a list, which C hands to NCCL, and words of the host tell how far the stream has got: between
kernels these write them, as a write of the stream's own would be waited for. On the CPU, where gloo
moves bytes while the host waits, a call waits for them.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from copy import copy
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple
from weakref import ReferenceType

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.distributed_c10d import _world

from fuscoc_runtime.comm.communicators import Listener, communicator_of, listen, lose
from fuscoc_runtime.comm.crossings import post
from fuscoc_runtime.comm.gather import keep_until_next
from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.comm.requests import Crossing, Rows
from fuscoc_runtime.comm.streams import shared_stream
from fuscoc_runtime.comm.subgroups import network_groups
from fuscoc_runtime.errors import ClosedError, FuscoRuntimeError, InputError
from fuscoc_runtime.kernels.commands import (
    CommandList,
    Exchange,
    Numbers,
    Transfer,
    Transfers,
    as_numbers,
)
from fuscoc_runtime.kernels.nccl import NcclError
from fuscoc_runtime.kernels.stream_words import StreamWords

TRANSFER = np.dtype(Transfer)
NETWORK = "network"
"""The hop between nodes, in errors."""


class Beside:
    """The stream on which an exchange travels beside its list, and events of its own.

    Attributes:
        addresses: of the stream, of the event when the list has come to the exchange, 0 if it
            follows another one there, and of the event of its end.
    """

    def __init__(self, device: torch.device, lane: int = 0) -> None:
        """That of a ``lane``. Kernels of NCCL find room before those of the list, which fill the
        GPU."""
        stream = shared_stream(device, f"network {lane}", priority=-2)
        self._events = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]
        for event in self._events:
            event.record(stream)  # the driver has none before
        before, after = (event.cuda_event for event in self._events)
        self.addresses = stream.cuda_stream, before, after

    def behind(self) -> Beside:
        """The same for what follows another exchange there; it ends what has been posted so far."""
        stream, _, after = self.addresses
        other = copy(self)
        other.addresses = stream, 0, after
        return other


class Blank:
    """An exchange of lists whose sends and receives differ from call to call.

    Attributes:
        command: it, in lists.
    """

    def __init__(
        self,
        rails: Rails,
        transfers: Transfers | None,
        memory: Tensor,
        beside: Beside | None,
        lane: int,
    ) -> None:
        self._rails, self._transfers, self._memory = rails, transfers, memory
        self._filled: NDArray[Any] = np.empty(0, TRANSFER)
        self.command = Exchange(transfers, self._carry_out, beside, lane)

    def fill(self, transfers: NDArray[Any]) -> None:
        """``transfers``, of `TRANSFER`, are those of the calls that follow: of its memory, by
        address."""
        self._filled = transfers
        if self._transfers is not None:
            at = ctypes.cast(transfers.ctypes.data, ctypes.POINTER(Transfer))
            self._transfers.transfers, self._transfers.num_transfers = at, len(transfers)

    def _carry_out(self) -> None:
        sides: tuple[list[Rows], list[Rows]] = ([], [])  # received, and sent
        begin = self._memory.data_ptr()
        for at, num_bytes, peer, is_sent in self._filled.tolist():
            part = self._memory[at - begin : at - begin + num_bytes]
            sides[is_sent].append(Rows(peer, (part,)))
        self._rails._wait_for(Crossing(tuple(sides[1]), tuple(sides[0])))


def unfit(rank: int) -> InputError:
    """What a rank raises whose rows are not those that others expect, or the other way round."""
    problem = (
        "is of another dispatch than that of another rank, and rows of the two do not fit each "
        "other: open the shuffle again"
    )
    return InputError("handle", rank, problem)


class Ranges(NamedTuple):
    """Bytes of rows that travel, by the node that these go to or come from."""

    sends: Sequence[Sequence[range]]
    receives: Sequence[Sequence[range]]


class Rails:
    """This rank's rail: the ranks of its place in the other nodes. Construction is collective.

    Attributes:
        peers: these ranks, by node; this rank itself is not among them.
        num_lanes: communicators among which large exchanges are divided; 1 until `divide_among`.
        is_measured: whether what the network does may be measured, to divide among more.
        told: address of three words that kernels write, int32: numbers of calls that have come to
            an exchange, and beyond it, and whether rows that ranks send do not fit what others
            expect.
    """

    def __init__(self, members: Membership, is_measured: bool = False) -> None:
        self.num_lanes, self.is_measured = 1, is_measured
        topology, rank = members.topology, members.rank
        self._members, self._is_gpu = members, members.device.type == "cuda"
        forwarders = {node: topology.forwarder(rank, node) for node in range(topology.num_nodes)}
        self.peers = {node: peer for node, peer in forwarders.items() if peer != rank}
        self._lanes: list[ReferenceType[dist.ProcessGroup] | None] = []
        self._words, self._number = StreamWords(2, members.device), ctypes.c_int64()
        self._told = StreamWords(3, members.device)
        self.told = self._told.address
        # The CPU waits by itself, and what could not be posted is not waited for.
        self._is_watched = self._is_gpu
        self.open_lanes(1)

    def open_lanes(self, num_lanes: int) -> None:
        """Be ready for exchanges on so many communicators, or as many as are open already;
        collective over all ranks.

        Raises:
            HopTimeoutError, NetworkError: a rank has not come in time.
        """
        members, known = self._members, len(self._lanes)
        self._lanes = network_groups(members, max(known, num_lanes))
        # Who has not sent anything yet is not connected.
        nodes = members.topology.num_nodes
        there = torch.zeros(2, nodes, 1, dtype=torch.int64, device=members.device)
        for lane in range(known, num_lanes):
            self.exchange(self.between(there[0], there[1]), lane)
        members.meet("connection")

    def connect_nodes(self) -> None:
        """Be ready to exchange rows with every rank of the other nodes, on all lanes: NCCL connects
        two ranks in what they exchange first, and then kernels may be waiting for them; collective
        over all ranks.

        Raises:
            HopTimeoutError, NetworkError: a rank has not come in time.
        """
        members, topology = self._members, self._members.topology
        own, device = topology.node(members.rank), members.device
        there = torch.zeros(2, topology.num_ranks, 1, dtype=torch.uint8, device=device)
        sends, receives = (
            tuple(
                Rows(peer, (rows[peer],))
                for peer in range(topology.num_ranks)
                if topology.node(peer) != own
            )
            for rows in there
        )
        for lane in range(len(self._lanes)):
            self.exchange(Crossing(sends, receives), lane)
        members.meet("connection")

    def divide_among(self, num_lanes: int) -> None:
        """Divide large exchanges of lists that are made later among so many communicators;
        collective as `open_lanes`."""
        if num_lanes > len(self._lanes):
            self.open_lanes(num_lanes)
        self.num_lanes = num_lanes

    def between(self, sent: Tensor, received: Tensor, ranges: Ranges | None = None) -> Crossing:
        """An exchange of row n of ``sent`` for what node n sends, into row n of ``received``; or of
        ``ranges`` of these rows."""
        all_of_it = [None] * len(sent)
        sends, receives = (
            tuple(
                Rows(peer, tuple(_parts(rows[node].view(torch.uint8), of_node[node])))
                for node, peer in self.peers.items()
            )
            for rows, of_node in zip((sent, received), ranges or (all_of_it,) * 2, strict=True)
        )
        return Crossing(sends, receives)

    def command(
        self,
        what: Crossing,
        is_told: bool = False,
        beside: Beside | None = None,
        lane: int = 0,
    ) -> Exchange:
        """It as a command of lists, which `submit` enqueues. Its tensors are contiguous. Where it
        ``is_told`` kernels before and behind it write the words. ``beside``: how it travels beside
        the list; ``lane``: which communicator carries it."""
        transfers = self._transfers(what, is_told, beside, lane) if self._is_gpu else None
        return Exchange(transfers, partial(self._wait_for, what), (what, beside), lane)

    def blank(self, memory: Tensor, beside: Beside | None = None, lane: int = 0) -> Blank:
        """One of ``memory``, uint8 [bytes], that is filled in before each call."""
        none = Crossing((), ())
        transfers = self._transfers(none, True, beside, lane) if self._is_gpu else None
        return Blank(self, transfers, memory, beside, lane)

    def exchange(self, what: Crossing, lane: int = 0) -> None:
        """Post it; the current stream goes on when it has ended. As `submit`."""
        command = self.command(what, lane=lane)
        self.submit(CommandList(self._members.device, [command]), as_numbers(()))

    def submit(self, commands: CommandList, numbers: Numbers) -> None:
        """Enqueue a list with exchanges of this rail, as `CommandList.submit` does.

        Raises:
            HopTimeoutError, NetworkError: a rank has ended, or on the CPU does not come in time.
            ClosedError: the group has been destroyed.
        """
        self.group()
        try:
            commands.submit(numbers)
        except NcclError as error:
            raise self.explained(error) from error

    def explained(self, error: NcclError) -> FuscoRuntimeError:
        """What an exchange that could not be posted means."""
        self._is_watched = False
        return self._explain(time.monotonic(), error)

    def group(self, lane: int = 0) -> dist.ProcessGroup:
        """The ranks' group of a lane, with its communicator, which ends with it.

        Raises:
            ClosedError: it has been destroyed.
        """
        known = self._lanes[lane]
        group = known() if known is not None else None
        if group is None or _world.default_pg is None:
            raise ClosedError("the process group")
        return group

    def check(self) -> None:
        """Raise if the ranks' group has been destroyed, as `group` does; in fewer steps."""
        known = self._lanes[0]
        if known is None or known() is None or _world.default_pg is None:
            self.group()

    def under_way(self) -> int:
        """Which exchange the device is waiting for, by its number; 0 if for none."""
        for words in (self._words, self._told):
            begun, ended = words[0], words[1]
            if begun != ended and self._is_watched:
                return begun
        return 0

    @property
    def is_in_vain(self) -> bool:
        """Whether an exchange cannot end, as ranks follow different routings."""
        return self._told[2] != 0

    def listen(self, listener: Listener) -> None:
        """Let it hear of a loss before the GPU goes on without what was lost."""
        for lane in range(len(self._lanes)):
            listen(self.group(lane), listener)

    def abort(self, loss: FuscoRuntimeError) -> None:
        """A rank is lost: let the GPU, which may wait for what it should have sent, go on without.
        Nobody who posts along with this rail can do so any more, and all hear of it before."""
        for group in self._lanes:
            if group is not None:
                lose(group, self._members.device, loss)

    def _transfers(
        self,
        what: Crossing,
        is_told: bool = False,
        beside: Beside | None = None,
        lane: int = 0,
    ) -> Transfers:
        made = []
        for rows, is_sent in ((what.receives, 0), (what.sends, 1)):
            for peer, part in ((each.peer, part) for each in rows for part in each.fields):
                assert part.is_contiguous()
                if part.nbytes:
                    made.append(Transfer(part.data_ptr(), part.nbytes, peer, is_sent))
        return Transfers(
            ctypes.pointer(communicator_of(self.group(lane), self._members.device)),
            0 if is_told else ctypes.addressof(self._number),
            0 if is_told else self._words.address,
            len(made),
            (Transfer * len(made))(*made),
            *(() if beside is None else beside.addresses),
        )

    def _wait_for(self, what: Crossing) -> None:
        """Carry it out by gloo."""
        if self.is_in_vain:
            raise unfit(self._members.rank)
        group, started = self.group(), time.monotonic()
        awaited: int | None = None
        try:
            works = post(group, what)
            keep_until_next([work for _, work in works])
            for peer, work in works:
                awaited = peer
                work.wait(timedelta(seconds=self._members.timeout))
        except (RuntimeError, TimeoutError) as error:
            raise self._explain(started, error, awaited) from error

    def _explain(
        self, started: float, error: Exception, awaited: int | None = None
    ) -> FuscoRuntimeError:
        if self.is_in_vain:  # and has been ended
            return unfit(self._members.rank)
        seconds = time.monotonic() - started
        suspect = awaited if seconds >= self._members.timeout else None
        return self._members.liveness.explain(NETWORK, seconds, error, suspect)


def _parts(row: Tensor, ranges: Sequence[range] | None) -> list[Tensor]:
    """Of a row of bytes."""
    return [row] if ranges is None else [row[each.start : each.stop] for each in ranges]
