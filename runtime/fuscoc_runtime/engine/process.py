"""One rank as one process, on a GPU or on the CPU."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from typing import Any, TypeVar

import torch
from torch import Tensor

from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.comm.process import ProcessComm
from fuscoc_runtime.comm.requests import Request
from fuscoc_runtime.comm.watch import unwatch, watch
from fuscoc_runtime.comm.windows import outlast_process
from fuscoc_runtime.engine.combine import combine
from fuscoc_runtime.engine.dispatch import Dispatched, dispatch
from fuscoc_runtime.engine.handle import Handle
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.engine.streams import call_order
from fuscoc_runtime.engine.waits import Patience
from fuscoc_runtime.errors import FuscoRuntimeError, HopTimeoutError, PreparationError
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan.cost import CostModel

T = TypeVar("T")


class ProcessEngine:
    """This process's rank of one shuffle; collective over the ``members``.

    Args:
        num_programs: programs a kernel launch, equal on all ranks; on CUDA it caps the SMs that
            are used.
        model: what the network is taken to do; see ``PlanContext``.
        reply: brings back the rows of the shuffle's reply, if it has one.

    Attributes:
        loss: what has put the ranks out of step for good; no call follows.
    """

    loss: FuscoRuntimeError | None = None

    def __init__(
        self,
        artifact: Artifact,
        shuffle: ShuffleSpec,
        members: Membership,
        num_programs: int,
        *,
        model: CostModel,
        reply: ProcessEngine | None = None,
    ) -> None:
        self.members, self.reply = members, reply
        self.comm = ProcessComm(members)
        self.machine = Machine(
            artifact,
            shuffle,
            members.topology,
            members.rank,
            members.device,
            num_programs,
            model=model,
            tracer=members.tracer,
        )
        if reply is not None:
            self.machine.answered_by(reply.machine)
        self._patience = Patience(self.machine.waits, members)
        watch(self._patience)
        self._order = call_order(members.device)
        self._waits = True
        self._under_way = False
        self.comm.listen(self)

    def dispatch(
        self,
        positional: Sequence[Tensor],
        named: Mapping[str, Any],
        earlier: Handle | None = None,
        problem: FuscoRuntimeError | None = None,
    ) -> Dispatched:
        """See ``engine.dispatch``. Returns when the rows are complete, if not ``unfinished``.

        Weights may be given now or with ``combine``.
        """
        return self.run("dispatch", dispatch(self.machine, positional, named, earlier, problem))

    def combine(
        self, rows: Tensor | Mapping[str, Tensor], handle: Handle, named: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        """See ``engine.combine``. Returns when the result is complete, if not ``unfinished``."""
        return self.run("combine", combine(self.machine, rows, handle, named))

    def check(self) -> None:
        """Wait for calls that have not waited themselves, and raise what went wrong."""
        try:
            with self._in_turn(), self._noticing_a_loss():
                self._end("an earlier call", time.monotonic())
        finally:
            if self.reply is not None:
                self.reply.check()

    def settle(self) -> None:
        """As ``check``, if there are calls that have not waited themselves, and that may end."""
        if self._under_way and self.loss is None:
            self.check()
        elif self.reply is not None:
            self.reply.settle()

    def raise_loss(self) -> None:
        """Raise if ranks are out of step: whoever comes now answers another call."""
        if self.loss is not None:
            raise copy(self.loss)

    @contextmanager
    def unfinished(self) -> Iterator[None]:
        """Calls meanwhile end when their work is enqueued on the current stream. What goes wrong
        then is raised by the next call that waits, or by ``check``."""
        self._waits = False
        try:
            with nullcontext() if self.reply is None else self.reply.unfinished():
                yield
        finally:
            self._waits = True

    @property
    def is_stuck(self) -> bool:
        """Whether work of this GPU may wait for a lost rank for ever."""
        return self.loss is not None or (self.reply is not None and self.reply.is_stuck)

    @property
    def window_bytes(self) -> int:
        """Bytes of this rank that its peers can address, now: they grow with the batches."""
        return self.comm.window_bytes + (0 if self.reply is None else self.reply.window_bytes)

    @property
    def private_bytes(self) -> int:
        """Bytes held between calls, besides: none."""
        return 0

    def hear(self, loss: FuscoRuntimeError) -> None:
        """A rank was lost, as another shuffle has found: what this one would post next meets what
        others have posted for that."""
        if self.loss is None:
            if self.members.device.type == "cuda":
                outlast_process((self.comm, self.machine.waits))
            self.loss = copy(loss)

    def close(self) -> None:
        """Let go of the windows; no call may follow.

        A GPU frees memory when all its work has ended, and some never does after a loss: then the
        windows stay as long as the process.
        """
        try:
            if self.reply is not None:
                self.reply.close()
        finally:
            unwatch(self._patience)
            if self.loss is None or self.members.device.type != "cuda":
                self.comm.close()

    def run(self, path: str, work: Generator[Request, Any, T]) -> T:
        """Drive ``work``, collective over all ranks, to its end; ``path`` is for messages."""
        if self.machine.waits.are_stopped:
            self.settle()
        started = time.monotonic()
        with self._in_turn(), self._noticing_a_loss():
            with lasting():
                result = self.comm.run(work)
            self._under_way = True
            if self._waits:
                self._end(path, started)
        return result

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        with self.machine.current_device(), self._order.turn():
            yield

    @contextmanager
    def _noticing_a_loss(self) -> Iterator[None]:
        self.raise_loss()
        try:
            yield
        except FuscoRuntimeError as error:
            is_left = self.comm.is_out_of_step
            if is_left or isinstance(error, HopTimeoutError):
                self._lose(error)
            if is_left:
                self.comm.leave(error)
            raise
        except BaseException as error:  # of this rank alone, amid a call that the others go on with
            if self.members.topology.num_ranks > 1:
                loss = PreparationError.of(self.members.rank, error)
                self._lose(loss)
                self.comm.leave(loss)
            raise

    def _lose(self, error: FuscoRuntimeError) -> None:
        if self.members.device.type == "cuda":
            outlast_process((self.comm, self.machine.waits))
            self.machine.waits.stop()  # what waits for that rank is still on the GPU
        self.loss = copy(error)

    def _end(self, path: str, started: float) -> None:
        """Wait on the host for what is enqueued on the current stream, and raise its errors."""
        self._under_way = False
        with self.machine.current_device():
            self.machine.waits.tell()
            self.comm.synchronize(path)
            with self.machine.waits.lock:
                self.machine.waits.resume()
            self.machine.tracer.settle()
        late = self.machine.late()
        if late is not None:
            members = self.comm.members
            node = members.topology.node(members.rank)
            suspect = members.topology.node_ranks(node)[late.peer]
            seconds = time.monotonic() - started
            raise members.liveness.explain(late.hop, seconds, late, suspect)


def lasting() -> AbstractContextManager[object]:
    """Inside, no inference tensors are made: what a call leaves, such as windows that have grown,
    serves later calls, and those may be recorded by autograd."""
    return _outside_inference() if torch.is_inference_mode_enabled() else nullcontext()


@contextmanager
def _outside_inference() -> Iterator[None]:
    with torch.inference_mode(False), torch.no_grad():
        yield
