"""The shuffle as a user holds it: dispatch rows, work on them, combine."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, Self
from weakref import WeakSet

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from fuscoc_runtime.comm.group import Group, process_group
from fuscoc_runtime.engine.handle import refuse_to_pickle
from fuscoc_runtime.errors import ClosedError, FuscoRuntimeError, OptionError
from fuscoc_runtime.face import calls
from fuscoc_runtime.face.calls import AnyHandle
from fuscoc_runtime.face.executor import Executor
from fuscoc_runtime.face.limits import slots_for
from fuscoc_runtime.face.open import Engine, sms_to_use
from fuscoc_runtime.face.options import Options, as_device, as_topology
from fuscoc_runtime.face.pool import Pool
from fuscoc_runtime.face.stats import Memory, ShuffleStats
from fuscoc_runtime.kernels.trace import Span
from fuscoc_runtime.manifest.artifact import Artifact, load_artifact
from fuscoc_runtime.topology import Topology

_log = logging.getLogger("fuscoc.runtime")


class Shuffle:
    """A compiled shuffle on this rank. Calls are collective over the ranks of ``group``, but for
    ``check``, ``stats`` and ``memory``.

    ::

        shuffle = Shuffle("build/moe")
        rows, handle = shuffle.dispatch(x, topk_idx=topk_idx)
        y = shuffle.combine(experts(rows, handle.key_offsets), handle, topk_weights=weights)

    With ``max_sources`` the memory has a fixed size, and kernels plan on the device: those in CUDA
    inside one node of GPUs, or those in Triton between nodes and where the spec, the GPU or the CPU
    wants them. Calls then only enqueue work on the current stream: they never wait, and a CUDA
    graph can capture them, if all nodes are of one host. Weights go with the rows, at dispatch::

        shuffle = Shuffle("build/moe", max_sources=8192)
        rows, handle = shuffle.dispatch(x, topk_idx=topk_idx, topk_weights=weights)
        y = shuffle.combine(experts(rows, handle.key_offsets), handle)

    Gradients flow through both, to rows and to weights, and ``torch.compile`` traces both without
    a break. A process that belongs to no job is a job of one rank.

    Args:
        artifact: what ``fuscoc compile`` wrote, opened or as its path.
        name: which shuffle, if the artifact holds several.
        group: the ranks that take part: a process group, a device mesh of one dimension, or a mesh
            and the name of one of its dimensions; default: all of the job. Under torchrun the job
            is joined if that has not happened.
        topology: nodes and ranks, e.g. ``"2x4"``; default: found out from the GPUs' NVLink domains
            where these span hosts, else from the hosts' names, or from NCCL_HOSTID where it is set.
        device: where this rank computes; default: its GPU if the group talks NCCL, else the CPU;
            without a job, a GPU if there is one.
        timeout: seconds that a wait for another rank may take, about; default: the process group's
            own time-out, less a little. A rank that has ended is noticed after a second or two,
            whatever this is.
        num_sms: SMs that kernels may use at a time; default: all. ``"overlap"``: few enough for
            work that runs beside them, such as GEMMs that take longer than the shuffle.
        max_sources: the most source segments that a rank will dispatch.
        capacity: slots that a rank has room for; default: the spec's ``capacity max``, else what
            the worst routing needs: ranks * max_sources * fan-out, and the padding. This is what
            most of the memory goes into: capacity rows (of a compact target ranks * max_sources,
            if that is less) and, for a combine, ranks * max_sources rows. A dense target needs as
            many as it ever has on a rank, by default what the spec says; where that differs from
            call to call there is no default.
        num_handles: dispatches after which a handle is outdated.
        pool: what to share memory with other shuffles by; default: share none.
        slice_bytes: the most that a rank sends or gets over the network at a time, where that is
            not fixed; default: the ``slice`` of the spec.
        nic_bandwidth: bytes a second of a rank's network, for ``auto``; default: measured between
            the GPUs of several nodes where calls go along rails, once for each group (``stats``
            tells), else 50e9.
        zero_unused: whether rows that autograd keeps, and gradients of rows, are 0 from
            ``key_offsets[-1]`` on. False writes nothing there, so they cost as much as there are
            rows, not as much as the capacity, and may hold anything, NaN too: for work that stops
            where the rows end, such as grouped GEMMs and what is done to every row alone. Has no
            effect but on packed targets of a fixed capacity that are not compact.
        trace: whether to collect what ``save_trace`` writes. A call's kernels then begin one after
            the other, each behind the end of the one before it. What a CUDA graph captures is left
            out, with a note.

    All ranks pass the same numbers. Those from ``max_sources`` to ``num_handles`` only concern
    shuffles with kernels of fixed capacity, for which the manifest's ``cuda`` and ``node`` say what
    they are; ``backend`` tells whose kernels are used. Where several nodes cannot have it, the log
    says why, and sizes are exact. Static shuffles on GPUs take these kernels without
    ``max_sources``, too: their handles last, and all ranks raise the mistakes of any.

    Raises:
        ArtifactError, TopologyError, ProtocolError: what was asked for does not fit together.
        OptionError: a number that makes no sense, a device that is not there, or what is no
            topology or pool.
        BackendError: the spec says ``backend cuda``, and that cannot be.
        CudaError, KernelError: no compiler for the CUDA kernels; Triton is missing.
    """

    def __init__(
        self,
        artifact: Artifact | str | Path,
        name: str | None = None,
        *,
        group: Group | None = None,
        topology: Topology | str | None = None,
        device: torch.device | str | None = None,
        timeout: float | None = None,
        num_sms: int | Literal["overlap"] | None = None,
        max_sources: int | None = None,
        capacity: int | None = None,
        num_handles: int = 2,
        pool: Pool | None = None,
        slice_bytes: int | None = None,
        nic_bandwidth: float | None = None,
        trace: bool = False,
        zero_unused: bool = True,
    ) -> None:
        opened = artifact if isinstance(artifact, Artifact) else load_artifact(artifact)
        self.spec = opened.shuffle(name)
        self._num_sms = num_sms
        if not isinstance(pool, Pool | None):
            raise OptionError("pool", f"is {pool!r}; it must be a Pool")
        self._pool = pool if pool is not None else Pool()
        self._held: Executor | None = self._pool.take(
            opened,
            self.spec,
            process_group(group),
            as_topology(topology),
            as_device(device),
            Options(
                timeout,
                num_sms,
                max_sources,
                capacity,
                num_handles,
                slice_bytes,
                nic_bandwidth,
                trace,
                zero_unused,
            ),
        )
        _opened.add(self)

    @property
    def _executor(self) -> Executor:
        if self._held is None:
            raise ClosedError(f"the shuffle {self.spec.name}")
        return self._held

    @property
    def rank(self) -> int:
        """This rank, in ``group``."""
        return self._executor.engine.members.rank

    @property
    def topology(self) -> Topology:
        """The nodes and ranks in use."""
        return self._executor.engine.members.topology

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""
        return self._executor.engine.members.device

    @property
    def num_sms(self) -> int:
        """SMs that its kernels may use at a time; 0 on a CPU."""
        return sms_to_use(self.device, self._num_sms)

    @property
    def engine(self) -> Engine:
        """What executes the calls; for measurements, its attributes are not promised."""
        return self._executor.engine

    @property
    def backend(self) -> Literal["cuda", "triton"]:
        """Whose kernels do the work."""
        return self._executor.backend

    def dispatch(
        self,
        *fields: Tensor,
        handle: AnyHandle | None = None,
        async_op: bool = False,
        after: torch.cuda.Event | None = None,
        **named: Any,
    ) -> Any:
        """Bring every segment to its destinations.

        ``fields`` are the source's fields in the order of the spec; they may also be named, as
        every input has to be. Run-time extents are read off the tensors' shapes; those that are
        in none (``length=64``) are passed by name. The weights of ``combine`` may be given here,
        and have to be with ``max_sources``. With the ``handle`` of an earlier dispatch, segments
        go where they went then, and only the fields are given (and, with ``max_sources``, the
        weights).

        Returns ``(rows, handle)``. ``rows`` is a tensor [num_slots, *field shape], or a dict of
        them by field if a segment has several. Of a compact target it holds every segment of this
        rank once, [num_rows, *field shape], and ``handle.row_index``, int64 [num_slots], says which
        of them every slot refers to (-1: padding); combine takes a row for every slot. It is a view
        of memory that peers store into, valid until this rank's next dispatch, whose source it
        cannot be. Padding rows are left as they were. With ``max_sources`` ``num_slots`` is the
        capacity, unless the target is dense, and of the rows of a compact target those that no slot
        refers to are unused. Where the spec says ``into``, rows go on into memory that the call is
        given by its name, and ``dispatch`` returns that, changed in place, instead of ``rows``.

        If a field requires grad, and in compiled functions, rows are tensors of their own instead,
        and padding rows are 0. The backward pass is collective as well: it brings the rows'
        gradients back by the derived combine, without weights.

        With ``async_op`` the call is made on the communication stream that all shuffles of a GPU
        share, and ``(rows, handle, event)`` is returned; ``event.wait()`` lets the current stream
        wait, without the host. The call waits for what the current stream has been given so far,
        or only for what it had been given when the event ``after`` was recorded: by then the
        arguments are there, and nothing reads this shuffle's rows any more. Without
        ``max_sources`` the host of a call that plans waits for that, too, and returns when the rows
        are under way; others, and ``combine``, return at once, those of the general engine when the
        ranks' hosts have agreed.

        Raises, on all ranks alike and before anything moves:
            InputError: an argument of the wrong shape, dtype or device, or a missing one.
            IndexOutOfRangeError, SlotOutOfRangeError, SlotOverlapError, SourceOverlapError,
            InexactDivisionError, DivisorError, CapacityError, PlacementMismatchError,
            ExtentMismatchError, PlaceRangeError, PlaceOverlapError: the routing asks for what
            cannot be.
            NativeBuildError, PreparationError: a rank lacks what planning takes; names it.
        And on whichever rank it happens:
            HopTimeoutError: a rank ended or did not come in time; names it.
            NetworkError: the communication library failed.

        With ``max_sources`` arguments are checked on this rank alone, and kernels look at routing
        on the device. They drop what cannot be: ``handle.dropped`` counts it, and ``check`` raises
        it. If this rank raises InputError or PreparationError, the others go on without its rows.
        Without, inside one node of GPUs, that is so for a dispatch with a ``handle``: then nothing
        is moved.
        """
        executor = self._held or self._executor
        repeats = executor.repeats
        if repeats is not None and handle is None and after is None and not is_dynamo_compiling():
            done = repeats.dispatch(fields, named, async_op)
            if done is not None:
                return done
        return calls.dispatch(executor, fields, named, handle, async_op, after)

    def dispatch_fresh(
        self, *fields: Tensor, handle: AnyHandle | None = None, **named: Any
    ) -> tuple[Any, Any]:
        """``dispatch`` into tensors of their own, whose padding rows are 0, whatever requires grad.

        For rows that are kept, as by autograd for the gradient of what works on them.
        """
        return calls.dispatch_fresh(self._executor, fields, named, handle)

    def combine(
        self,
        rows: Tensor | Mapping[str, Tensor],
        handle: AnyHandle,
        *,
        async_op: bool = False,
        after: torch.cuda.Event | None = None,
        **inputs: Tensor,
    ) -> Any:
        """Bring the rows back and reduce them at their source, as the spec's ``combine`` says.

        With a ``reply`` in its place, rows and result are those of the reply: a row of its segment
        for every slot, and its own shape. ``rows`` [num_slots, *field shape] lie in the slots of
        the dispatch that returned ``handle`` (any tensor will do), ``inputs`` holds the weights of
        a weighted combine, unless dispatch was given them. With ``max_sources``, and unless the
        target is compact or dense, rows that nobody uses may be left out: the first
        ``capacity_for`` ones are enough. Returns a tensor shaped like the source, or a dict of them
        by field. Segments without a destination come back as 0.

        The gradient of the rows is that of the result, dispatched along the same routing and times
        the weights; that of the weights is a dot product for every point, sent to the source.

        With ``async_op``, ``(result, event)`` is returned; see ``dispatch``.

        Raises:
            InputError: as ``dispatch`` does; also if the spec has no combine. Inside one node of
                GPUs on this rank alone: the others' sums that need its rows are NaN, and their
                ``check`` raises RefusedCallError.
            HopTimeoutError: a rank ended or did not come in time.
        """
        executor = self._held or self._executor
        repeats = executor.repeats_back
        if repeats is not None and not inputs and after is None and not is_dynamo_compiling():
            done = repeats.combine(rows, handle, async_op)
            if done is not None:
                return done
        return calls.combine(executor, rows, handle, inputs, async_op, after)

    def capacity_for(self, num_sources: int) -> int:
        """Slots that a rank needs if no rank dispatches more than ``num_sources`` source segments,
        whatever the routing; not collective. Others are unused then, and ``rows`` may be cut to
        these, so that work on them costs less than the capacity.

        Raises:
            OptionError: it is no number of segments; or the target is compact or dense.
        """
        return slots_for(self.spec, self.topology.num_ranks, num_sources)

    def check(self) -> None:
        """Wait for all calls so far, replayed ones too, and raise what went wrong on this rank; not
        collective. Each thing is raised once, and one kind of error at a time, but a lost rank
        always.

        Raises:
            KeyRangeError, DestinationError, NoSlotError, SlotClashError, SourceClashError,
            ExcessError: points that were dropped, or share a place with others.
            PlaceRangeError, PlaceOverlapError: rows that went nowhere from their slots.
            SizesError: calls of which nothing was moved, for want of sizes.
            RefusedCallError: a peer raised an error for calls that this rank had joined.
            InputError: ranks passed handles of different dispatches, to calls that do not wait.
            OutdatedError: combines whose rows or handle had been replaced.
            HopTimeoutError: a rank that did not come in time; the shuffle is then of no more use.
        """
        self._executor.check()

    def stats(self) -> ShuffleStats | None:
        """The latest dispatch in numbers; None before the first. Waits for it.

        Shuffles that share a pool share these, too.

        Raises:
            as ``check`` does, what has not been raised yet.
        """
        return self._executor.stats()

    def memory(self) -> Memory:
        """Bytes that this rank holds for the shuffle and those that share its pool.

        With ``max_sources`` this never changes. Rows take capacity * row bytes of it (see there), a
        sum's partial rows ranks * max_sources * row bytes.
        """
        return self._executor.memory()

    def close(self) -> None:
        """Free the memory, if no other shuffle of the pool uses it; collective over the ranks.

        Rows that were lent out must not be used any more. What is not closed is freed
        when the process ends. Leaving a ``with`` block closes; by an exception, without the other
        ranks, which are told, and what this method would raise is logged under ``fuscoc`` instead.

        Raises:
            as ``check`` does, after the memory is free, what has not been raised yet.
        """
        self._close(together=True)

    def _close(self, together: bool) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._pool.give_back(held, together)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._close(together=kind is None)
        except FuscoRuntimeError as error:
            if kind is None:
                raise
            _log.error("%s: found while closing it: %s", self.spec.name, error)

    @property
    def spans(self) -> Sequence[Span]:
        """What this rank did when in all calls so far, with ``trace=True``; waits for their end."""
        return self._executor.spans

    def save_trace(self, path: str | Path) -> None:
        """Write the spans of all ranks, for Perfetto; collective, and rank 0 writes."""
        self._executor.save_trace(path)

    def __deepcopy__(self, _: Any) -> Self:
        """Itself: a copy of a module, such as for averaged weights, shuffles by the same memory."""
        return self

    def __reduce__(self) -> NoReturn:
        refuse_to_pickle(self, "Save a module's `state_dict`, and open the shuffle again")

    def __repr__(self) -> str:
        if self._held is None:
            return f"<Shuffle {self.spec.name}: closed>"
        return f"<Shuffle {self.spec.name}: rank {self.rank} of {self.topology} on {self.device}>"


_opened: WeakSet[Shuffle] = WeakSet()


def _leave_to_the_parent() -> None:
    """In a forked process: close all shuffles of a job, whose other ranks answer its parent. What
    they hold stays, as the parent's does."""
    for shuffle in list(_opened):
        held = shuffle._held
        if held is not None and held.engine.members.known_group is not None:
            held.forget()
            shuffle._held = None


os.register_at_fork(after_in_child=_leave_to_the_parent)
