"""Answer a rank's requests with ``torch.distributed``: one process a rank, NCCL or gloo."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions

from fuscoc_runtime.arrays import Array
from fuscoc_runtime.comm import communicators
from fuscoc_runtime.comm.communicators import Listener
from fuscoc_runtime.comm.crossings import UnderWay, hop_of, post
from fuscoc_runtime.comm.gather import Deadline, finish, keep_until_next, start_gather
from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.comm.landing import Landing, as_bytes
from fuscoc_runtime.comm.liveness import GRACE_SECONDS, LOOK_SECONDS
from fuscoc_runtime.comm.requests import (
    PART,
    AllGather,
    AllToAll,
    AllToAlls,
    Crossing,
    HeldWindows,
    Phase,
    Request,
    StartGather,
    Window,
    Windows,
)
from fuscoc_runtime.comm.streams import shared_stream
from fuscoc_runtime.comm.subgroups import network_groups
from fuscoc_runtime.comm.windows import WindowPool, allocator, fitting
from fuscoc_runtime.defaults import on_the_cpu_by_default
from fuscoc_runtime.errors import FuscoRuntimeError

T = TypeVar("T")

# Short waits are polled with hardly a pause: calls end with a wait, and whatever a sleep adds to it
# is lost.
BUSY_SECONDS = 20e-3
POLL_SECONDS = 100e-6


class ProcessComm:
    """This process's side of the ranks' collectives.

    Tensors travel as bytes, so every dtype works on every transport. Waits on the host end in time,
    with the rank that is missing. On CUDA, ``AllToAll`` and ``Crossing`` are only ordered on the
    current stream; ``synchronize`` ends them.

    Attributes:
        is_out_of_step: whether this rank's node has raised what others know nothing of, as when it
            has no memory for larger windows, so that they go on with a call that it has left.
    """

    is_out_of_step = False

    def __init__(self, members: Membership) -> None:
        self.members = members
        self._windows = WindowPool(allocator(members))
        [self._network] = network_groups(members, 1)
        self._crossings: list[UnderWay] = []
        self._gathered = Landing()
        if members.device.type == "cuda":
            self._staged = torch.empty(4096, dtype=torch.uint8, pin_memory=True)
            self._ended: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._beside = shared_stream(members.device, "agreeing")

    def run(self, work: Generator[Request, Any, T]) -> T:
        """Drive a rank's generator to its end.

        Raises:
            HopTimeoutError: a rank ended or did not come in time.
            NetworkError: the communication library failed and every rank is alive.
        """
        answer: Any = None
        try:
            with on_the_cpu_by_default():
                while True:
                    answer = self._answer(work.send(answer))
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            work.close()

    @property
    def window_bytes(self) -> int:
        """Bytes of this rank's part of all windows."""
        return self._windows.num_bytes

    def listen(self, listener: Listener) -> None:
        """Let it hear of what is lost between nodes, whoever finds that."""
        network = self._network_group()
        if network is not None and self.members.topology.num_nodes > 1:
            communicators.listen(network, listener)

    def leave(self, loss: FuscoRuntimeError) -> None:
        """Come to no call of the others any more, between nodes of no shuffle, and let them know:
        what they have posted there is of this call."""
        if self._network is not None and self.members.topology.num_nodes > 1:
            communicators.lose(self._network, self.members.device, loss)
        self.members.liveness.give_up()

    def close(self) -> None:
        """Let go of the windows."""
        self._windows.clear()

    def _answer(self, request: Request) -> Any:
        match request:
            case AllGather():
                return self._guard("planning", lambda: self._start_gather(request.tensor, PART)())
            case StartGather(tensor, call):
                gathered = self._guard("planning", lambda: self._start_gather(tensor, call))
                return lambda: self._guard("planning", gathered)
            case AllToAll():
                return self._guard("planning", lambda: self._exchange([request])[0])
            case AllToAlls():
                return self._guard("planning", lambda: self._exchange(request.parts))
            case Windows():
                return self._get_windows(request)
            case HeldWindows():
                return self._windows.held
            case Crossing():
                return self._guard(hop_of(request.stage), lambda: self._cross(request))
            case Phase():
                return None

    def synchronize(self, hop: str) -> None:
        """Wait on the host for all work of the current stream.

        Raises:
            HopTimeoutError: it did not end in time; ``hop`` says what it was.
        """
        try:
            self._wait_for_stream(hop)
        finally:
            self._crossings = []

    def _wait_for_stream(self, hop: str) -> None:
        if self.members.device.type == "cuda":
            self._ended.record()
            # Kernels whose wait is stopped end before this does, and know whom it was for.
            self._wait_on_host(self._ended.query, hop, GRACE_SECONDS)

    def _get_windows(self, request: Windows) -> dict[str, Window]:
        there = fitting(self._windows.held, request.nbytes)
        if there is not None:
            return there
        # Memory is mapped, and let go of, by calls that wait for the whole device: for ever, if an
        # exchange is under way and one of its ranks is dead, or one of the node has not come.
        hop = "window allocation"
        self._wait_on_host(lambda: all(each.has_ended() for each in self._crossings), hop)
        self._wait_for_stream(hop)
        try:
            return self._guard(hop, lambda: self._windows.get(request.nbytes))
        except FuscoRuntimeError:
            self.is_out_of_step = self.members.topology.num_nodes > 1
            raise

    def _wait_on_host(self, ended: Callable[[], bool], hop: str, extra: float = 0.0) -> None:
        """Until ``ended``. An error names the first exchange that is late, or else ``hop``."""
        started = time.monotonic()
        try:
            self._poll(ended, extra)
        except (RuntimeError, TimeoutError) as error:
            late = next((each for each in self._crossings if not each.has_ended()), None)
            hop, suspect = (hop, None) if late is None else (hop_of(late.stage), late.peers[0])
            raise self._explain(hop, started, error, suspect) from error

    def _guard(self, hop: str, operation: Callable[[], T]) -> T:
        """Run a collective; turn the library's failure into an error that names a rank."""
        started = time.monotonic()
        try:
            return operation()
        except (FuscoRuntimeError, torch.OutOfMemoryError):
            raise  # it is this rank that lacks memory: nobody has been waited for
        except (RuntimeError, TimeoutError) as error:
            raise self._explain(hop, started, error) from error

    def _explain(
        self, hop: str, started: float, error: Exception, suspect: int | None = None
    ) -> FuscoRuntimeError:
        return self.members.liveness.explain(hop, time.monotonic() - started, error, suspect)

    def _poll(self, ready: Callable[[], bool], extra: float = 0.0) -> None:
        """Until ``ready``, for the timeout and ``extra`` seconds at most."""
        started = time.monotonic()
        look, deadline = LOOK_SECONDS, self.members.timeout + extra
        while not ready():
            waited = time.monotonic() - started
            if waited > deadline:
                raise TimeoutError(f"nothing for {waited:g} s")
            if waited > look:
                look += LOOK_SECONDS
                if self.members.liveness.someone_ended():
                    # What it sent before may still be on its way.
                    deadline = min(deadline, waited + GRACE_SECONDS)
            if waited > BUSY_SECONDS:
                time.sleep(POLL_SECONDS)
            else:
                # Other threads may run. A sleep of 0 s takes 50 us: so late may Linux's timers be.
                os.sched_yield()

    def _finish(self, work: dist.Work) -> None:
        """End a collective: on CUDA, let the current stream wait; else wait here, and no longer
        than the timeout."""
        members = self.members
        if members.device.type == "cuda":
            work.wait()
        else:
            finish(work, Deadline(members.timeout, members.liveness.someone_ended))

    def _to_device(self, sent: Tensor) -> Tensor:
        """Bytes on this rank's device. Those before have arrived: every gather is waited for."""
        if sent.device.type == self.members.device.type:
            return sent
        if self._staged.numel() < sent.numel():
            self._staged = torch.empty(2 * sent.numel(), dtype=torch.uint8, pin_memory=True)
        staged = self._staged[: sent.numel()].copy_(sent)
        return staged.to(self.members.device, non_blocking=True)

    def _bring(self, tensor: Tensor) -> Callable[[], NDArray[Any]]:
        """Begin to copy a tensor to the host. The result waits for it: a plain copy would do so for
        ever if a rank is dead."""
        if tensor.device.type != "cuda":
            return tensor.numpy
        copy, copied = self._gathered.copy(as_bytes(tensor)), self._gathered.copied
        landed = copy.view(tensor.dtype).view(tensor.shape)

        def arrived() -> NDArray[Any]:
            self._poll(copied.query)
            return landed.numpy().copy()

        return arrived

    def _start_gather(self, said: Array | NDArray[Any], call: str) -> Callable[[], NDArray[Any]]:
        group = self.members.group  # raises if the job has ended, and its lanes with it
        tensor = torch.from_numpy(said) if isinstance(said, np.ndarray) else said
        if tensor.device.type == self.members.device.type:
            return self._gather_on(group, tensor, call)
        # What is on the host does not wait for what the device has been given: on a stream of its
        # own, and between nodes by a communicator that the job's other work does not hold up.
        with torch.cuda.stream(self._beside):
            return self._gather_on(self._network_group(), tensor, call)

    def _network_group(self) -> dist.ProcessGroup | None:
        return self._network() if self._network is not None else None

    def _gather_on(
        self, group: dist.ProcessGroup | None, tensor: Tensor, call: str
    ) -> Callable[[], NDArray[Any]]:
        if group is None:
            return self._bring(tensor[None])
        sent, num_ranks = self._to_device(as_bytes(tensor)), self.members.topology.num_ranks
        if sent.device.type != "cuda":
            members = self.members
            given = members.timeout, call, members.liveness.someone_ended, members.opening
            framed = start_gather(sent, group, *given)
            return lambda: framed().view(tensor.dtype).view(num_ranks, *tensor.shape).numpy()
        gathered = sent.new_empty(num_ranks * sent.numel())
        if sent.numel():
            # ``dist.all_gather_single`` does the same, and looks at tensors and group first.
            options = AllgatherOptions()
            options.asyncOp = True
            self._finish(group._allgather_base(gathered, sent, options))
        return self._bring(gathered.view(tensor.dtype).view(num_ranks, *tensor.shape))

    def _exchange(self, requests: Sequence[AllToAll]) -> list[Tensor]:
        group, device = self.members.group, self.members.device
        if group is None:
            return [request.tensor for request in requests]
        if device.type != "cuda":
            return [self._post_exchange(group, request) for request in requests]
        group._start_coalescing(device)
        received = [self._post_exchange(group, request) for request in requests]
        group._end_coalescing(device).wait()
        return received

    def _post_exchange(self, group: dist.ProcessGroup, request: AllToAll) -> Tensor:
        """What will have been received: on CUDA at the end of what is posted as one.

        ``dist.all_to_all_single`` does the same, and looks at tensors and group first.
        """
        row_shape = request.tensor.shape[1:]
        row_bytes = row_shape.numel() * request.tensor.element_size()
        sent = as_bytes(request.tensor)
        received = sent.new_empty(sum(request.recv_counts) * row_bytes)
        options = dist.AllToAllOptions()
        options.asyncOp = True
        work = group.alltoall_base(
            received,
            sent,
            [count * row_bytes for count in request.recv_counts],
            [count * row_bytes for count in request.send_counts],
            options,
        )
        if self.members.device.type != "cuda":
            self._finish(work)
        return received.view(request.tensor.dtype).view(-1, *row_shape)

    def _cross(self, request: Crossing) -> None:
        """Post an exchange as one group. They are posted in the same order everywhere, so the
        peers' operations match."""
        network = self._network_group()
        peers = tuple(each.peer for each in (*request.receives, *request.sends))
        if network is None:
            return
        if self.members.device.type != "cuda":
            self._wait_for(post(network, request), request.stage)
            return
        if peers:
            network._start_coalescing(self.members.device)
            post(network, request)
            network._end_coalescing(self.members.device).wait()
            end: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
            end.record()
            self._crossings.append(UnderWay(request.stage, end, peers))

    def _wait_for(self, works: Sequence[tuple[int, dist.Work]], stage: int) -> None:
        keep_until_next([work for _, work in works])
        for peer, work in works:
            started = time.monotonic()
            try:
                work.wait(timedelta(seconds=self.members.timeout))
            except (RuntimeError, TimeoutError) as error:
                waited = time.monotonic() - started
                suspect = peer if waited >= self.members.timeout else None
                raise self._explain(hop_of(stage), started, error, suspect) from error
