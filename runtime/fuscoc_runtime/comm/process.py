"""Answer a rank's requests with ``torch.distributed``: one process a rank, NCCL or gloo."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore

from fuscoc_runtime.comm.group import Membership, node_group
from fuscoc_runtime.comm.liveness import Liveness
from fuscoc_runtime.comm.requests import AllGather, AllToAll, Phase, Request, Transfer, Windows
from fuscoc_runtime.comm.shared_memory import SharedAllocator
from fuscoc_runtime.comm.windows import Allocate, WindowPool, node_allocator, private_window
from fuscoc_runtime.errors import FuscoRuntimeError, HopTimeoutError, NetworkError

T = TypeVar("T")

# Short waits are polled without pause: a sleep costs more than most of them take.
BUSY_SECONDS = 1e-3
POLL_SECONDS = 100e-6
# Renamed in torch 2.13; the old name warns there.
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


class ProcessComm:
    """This process's side of the ranks' collectives.

    Tensors travel as bytes, so every dtype works on every transport. Waits on the host end after
    ``timeout`` seconds with the rank that is missing. On CUDA, ``Transfer`` is only ordered on the
    current stream; ``synchronize`` ends it.
    """

    def __init__(self, members: Membership, timeout: float) -> None:
        self.members = members
        self.timeout = timeout
        self._windows = WindowPool(_allocator(members, timeout))
        self._liveness = Liveness(members.store, members.rank, members.processes)

    def run(self, work: Generator[Request, Any, T]) -> T:
        """Drive a rank's generator to its end.

        Raises:
            HopTimeoutError: a rank ended or did not come in time.
            NetworkError: the communication library failed and every rank is alive.
        """
        answer: Any = None
        try:
            while True:
                answer = self._answer(work.send(answer))
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            work.close()

    def _answer(self, request: Request) -> Any:
        match request:
            case AllGather():
                return self._guard("planning", lambda: self._gather(request))
            case AllToAll():
                return self._guard("planning", lambda: self._exchange(request))
            case Windows():
                return self._guard("window allocation", lambda: self._windows.get(request.nbytes))
            case Transfer():
                return self._guard("network", lambda: self._transfer(request))
            case Phase():
                return None

    def synchronize(self, hop: str) -> None:
        """Wait on the host for all work of the current stream.

        Raises:
            HopTimeoutError: it did not end in time; ``hop`` says what it was.
        """
        if self.members.device.type == "cuda":
            event = torch.cuda.current_stream().record_event()
            self._guard(hop, lambda: self._poll(event.query))

    def blame(self, hop: str, seconds: float, suspect: int) -> HopTimeoutError:
        """The error for a wait for rank ``suspect``; names another rank if that one has ended."""
        culprit = self._liveness.find_missing(suspect)
        return HopTimeoutError(
            self.members.rank, hop, suspect if culprit is None else culprit, round(seconds, 1)
        )

    def _guard(self, hop: str, operation: Callable[[], T]) -> T:
        """Run a collective; turn the library's failure into an error that names a rank."""
        started = time.monotonic()
        try:
            return operation()
        except FuscoRuntimeError:
            raise
        except (RuntimeError, TimeoutError) as error:
            rank, culprit = self.members.rank, self._liveness.find_missing()
            if culprit is None:
                raise NetworkError(rank, f"the {hop} hop", str(error)) from error
            seconds = round(time.monotonic() - started, 1)
            raise HopTimeoutError(rank, hop, culprit, seconds) from error

    def _poll(self, ready: Callable[[], bool]) -> None:
        started = time.monotonic()
        while not ready():
            waited = time.monotonic() - started
            if waited > self.timeout:
                raise TimeoutError(f"nothing for {self.timeout:g} s")
            if waited > BUSY_SECONDS:
                time.sleep(POLL_SECONDS)

    def _finish(self, work: dist.Work) -> None:
        """End a collective on the host, within the timeout.

        NCCL's own ``wait`` only orders streams, and a dead peer would block the host in the next
        synchronisation; so its completion is polled.
        """
        if self.members.device.type == "cuda":
            self._poll(work.is_completed)
            work.wait()
        else:
            work.wait(timedelta(seconds=self.timeout))

    def _gather(self, request: AllGather) -> Tensor:
        sent = _as_bytes(request.tensor)
        num_ranks = self.members.topology.num_ranks
        gathered = sent.new_empty(num_ranks * sent.numel())
        if sent.numel():
            self._finish(_all_gather(gathered, sent, group=self.members.group, async_op=True))
        return gathered.view(request.tensor.dtype).view(num_ranks, *request.tensor.shape)

    def _exchange(self, request: AllToAll) -> Tensor:
        row_shape = request.tensor.shape[1:]
        row_bytes = row_shape.numel() * request.tensor.element_size()
        sent = _as_bytes(request.tensor)
        received = sent.new_empty(sum(request.recv_counts) * row_bytes)
        work = dist.all_to_all_single(
            received,
            sent,
            [count * row_bytes for count in request.recv_counts],
            [count * row_bytes for count in request.send_counts],
            group=self.members.group,
            async_op=True,
        )
        self._finish(work)
        return received.view(request.tensor.dtype).view(-1, *row_shape)

    def _transfer(self, request: Transfer) -> None:
        """Send and receive slice by slice: round i moves slice i of every pair of ranks.

        Rounds are posted in the same order everywhere, so the peers' operations match, and one
        round's receives may be in flight while the next is posted.
        """
        works: list[dist.Work] = []
        counts = (*request.send_counts, *request.recv_counts)
        for begin in range(0, max(counts), request.slice_rows):
            operations = self._slice_operations(request, begin)
            if operations:
                works += dist.batch_isend_irecv(operations)
        for work in works:
            if self.members.device.type == "cuda":
                work.wait()
            else:
                work.wait(timedelta(seconds=self.timeout))

    def _slice_operations(self, request: Transfer, begin: int) -> list[dist.P2POp]:
        operations = []
        for operation, buffers, counts in (
            (dist.isend, request.send, request.send_counts),
            (dist.irecv, request.recv, request.recv_counts),
        ):
            first_row = 0
            for peer, count in enumerate(counts):
                rows = slice(first_row + begin, first_row + min(begin + request.slice_rows, count))
                if begin < count:
                    operations += [
                        dist.P2POp(
                            operation,
                            _as_bytes(buffer[rows]),
                            group=self.members.group,
                            group_peer=peer,
                        )
                        for _, buffer in sorted(buffers.items())
                    ]
                first_row += count
        return operations


def _allocator(members: Membership, timeout: float) -> Allocate:
    topology, device = members.topology, members.device
    if topology.ranks_per_node == 1:
        return lambda nbytes: private_window(nbytes, device)
    if device.type == "cuda":
        return node_allocator(node_group(members), device)
    node = topology.node(members.rank)
    store = PrefixStore(f"node/{node}", members.store)
    local_rank = topology.local_rank(members.rank)
    return SharedAllocator(store, local_rank, topology.node_ranks(node), timeout)


def _as_bytes(tensor: Tensor) -> Tensor:
    """The tensor's bytes, 1-D; a view if it is contiguous."""
    return tensor.contiguous().view(-1).view(torch.uint8)
