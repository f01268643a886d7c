"""An opened engine with everything that several shuffles may share: windows, kernels, operators."""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fuscoc_runtime.comm.requests import Request
from fuscoc_runtime.engine.ends import Event
from fuscoc_runtime.engine.handle import Handle
from fuscoc_runtime.engine.into import Into
from fuscoc_runtime.engine.linear import GeneralMaps, LinearMaps
from fuscoc_runtime.engine.node.engine import NodeEngine, current_device
from fuscoc_runtime.engine.node.exact_engine import Doubt, ExactEngine
from fuscoc_runtime.engine.node.exact_handle import ExactHandle
from fuscoc_runtime.engine.node.exact_maps import ExactMaps
from fuscoc_runtime.engine.node.handle import NodeHandle
from fuscoc_runtime.engine.node.into_repeats import IntoRepeats
from fuscoc_runtime.engine.node.maps import NodeMaps
from fuscoc_runtime.engine.node.repeats import Repeats
from fuscoc_runtime.engine.observer import Observer, TracedObserver
from fuscoc_runtime.engine.process import ProcessEngine
from fuscoc_runtime.engine.streams import communication_stream
from fuscoc_runtime.errors import FuscoRuntimeError, HopTimeoutError
from fuscoc_runtime.face import ops
from fuscoc_runtime.face.open import Engine
from fuscoc_runtime.face.stats import Memory, ShuffleStats, shuffle_stats
from fuscoc_runtime.face.traced import has_complex_fields
from fuscoc_runtime.kernels.trace import Span, write_trace
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan import keys_of_rank

T = TypeVar("T")


class Executor:
    """One rank's engine and the key under which operators find it.

    Attributes:
        key: names the engine in ``torch.ops.fuscoc``; ``back_key`` the one whose combine is the way
            back, which that of a reply is.
        into: where rows go on from their slots, if they do.
        repeats: dispatches that repeat earlier ones, if there can be such; ``into_repeats`` those
            into memory of the caller's, and ``repeats_back`` combines.
    """

    def __init__(
        self,
        engine: Engine,
        spec: ShuffleSpec,
        digest: str,
        zero_unused: bool,
        into: Into | None = None,
    ) -> None:
        self.engine, self.spec, self.into = engine, spec, into
        members = engine.members
        name = f"{spec.name} on rank {members.rank} of {members.topology}"
        tracer = members.tracer
        self.observer = Observer(name) if tracer is None else TracedObserver(name, tracer)
        self.observer.tally.nodes = members.nodes
        self.observer.tally.link = engine.link if isinstance(engine, ExactEngine) else None
        node = engine.node if isinstance(engine, NodeEngine) else None
        if spec.program.target.kind == "dense":  # has as many slots as a call says
            node = None
        self._registered = ops.Registered(
            self._maps(engine, zero_unused),
            members.rank,
            members.topology.num_ranks,
            None if node is None else len(node.rows[0]),
            None if node is None else node.limits.capacity,
            _num_local_keys(spec, engine),
        )
        self.key = self.back_key = ops.register(self._registered, digest)
        if engine.reply is not None:
            self._answers = replace(
                self._registered, maps=self._maps(engine.reply, zero_unused), num_local_keys=None
            )
            self.back_key = ops.register(self._answers, digest)
        self.repeats: Repeats | None = None
        self.repeats_back: Repeats | None = None
        if isinstance(engine, NodeEngine) and into is None and not has_complex_fields(spec):
            self.repeats = self.repeats_back = Repeats.of(engine, self.observer)
            if engine.reply is not None:
                self.repeats_back = Repeats.of(engine.reply, self.observer)
        self.into_repeats: IntoRepeats | None = None
        if isinstance(engine, NodeEngine) and into is not None and not has_complex_fields(spec):
            self.into_repeats = IntoRepeats.of(engine, into)
        _open.add(self)
        self.observer.opened(self.memory().num_bytes)

    @property
    def backend(self) -> Literal["cuda", "triton"]:
        """Whose kernels do the work."""
        return self.engine.backend if isinstance(self.engine, NodeEngine) else "triton"

    @property
    def takes_late_weights(self) -> bool:
        """Whether combine may be given weights that dispatch was not."""
        return not isinstance(self.engine, NodeEngine)

    @property
    def weighs_as_sent(self) -> bool:
        """Whether combine takes the weights that dispatch has sent, as they were then."""
        return not isinstance(self.engine, ProcessEngine) and self.engine.weighs_as_sent

    def dispatch(
        self,
        fields: Sequence[Tensor],
        named: Mapping[str, Any],
        earlier: Any,
        problem: FuscoRuntimeError | Doubt | None = None,
    ) -> tuple[dict[str, Tensor], Any]:
        """Rows, as views of the window, and the handle. A rank that knows a ``problem`` already
        takes its part only to raise it; only exact sizes leave one in doubt."""
        engine: Any = self.engine
        assert isinstance(engine, ExactEngine) or not isinstance(problem, Doubt)
        started = self.observer.begins_dispatch()
        done = engine.dispatch(fields, named, earlier, problem)
        self.observer.dispatched(done.handle, started)
        # Autograd shall not follow what is done to rows in place to the window and later calls.
        rows = {name: each.detach() for name, each in done.rows.items()}
        self.observer.lend([*rows.values()])
        if self.repeats is not None and earlier is None:
            assert isinstance(done.handle, NodeHandle)
            self.repeats.remember_dispatch(fields, named, done.handle)
        return rows, done.handle

    def repeat_into(
        self, fields: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[Tensor, NodeHandle] | None:
        """A dispatch into memory of the caller's where an earlier one is known whose arguments were
        alike: that memory, and the handle."""
        assert self.into_repeats is not None
        started = self.observer.begins_dispatch()
        found = self.into_repeats.dispatch(fields, named)
        if found is not None:
            self.observer.dispatched(found[1], started)
        return found

    def combine(self, rows: Any, handle: Any, named: Mapping[str, Any]) -> dict[str, Tensor]:
        started = time.perf_counter()
        result = (self.engine.reply or self.engine).combine(rows, handle, named)
        self.observer.combined(started)
        if self.repeats_back is not None:
            self.repeats_back.remember_combine(rows, handle)
        return result

    def check(self) -> None:
        """Wait for all calls so far, and raise what went wrong on this rank."""
        self.engine.check()
        if self.into is not None:
            self.into.check()

    def beside(self, call: Callable[[], T], given: Sequence[Any], after: Any) -> tuple[T, Event]:
        """Make a call on a stream of its own, behind what is enqueued now, or was when the event
        ``after`` was recorded; ``given`` is its data.

        The general engine's host waits for what it needs to plan, not for the rows. On a CPU the
        call is made here and now.
        """
        engine, device = self.engine, self.engine.members.device
        if device.type != "cuda":
            return call(), Event()
        with engine.unfinished() if isinstance(engine, ProcessEngine) else engine.watch.blaming():
            stream = self.observer.stream = communication_stream(device)
            current = torch.cuda.current_stream(device)
            stream.wait_event(after if after is not None else current.record_event())
            with torch.cuda.stream(stream):
                result = call()
                end = stream.record_event()
        _used_on(stream, given)
        _used_on(current, result)
        return result, Event(end, given)

    def stats(self) -> ShuffleStats | None:
        """Of the latest dispatch, which may be under way on another stream.

        Raises:
            as ``check`` does, unless that has been raised already.
        """
        self.engine.settle()
        if self.into is not None:
            self.into.check()
        if (stream := self.observer.stream) is not None:
            torch.cuda.current_stream(self.engine.members.device).wait_stream(stream)
        return shuffle_stats(self.observer.tally, self.into)

    def memory(self) -> Memory:
        """What is held now; see ``stats.Memory``."""
        return Memory(self.engine.window_bytes, self.engine.private_bytes)

    @property
    def spans(self) -> Sequence[Span]:
        """What this rank did when in all calls so far; nothing unless it was opened to trace. Waits
        for their end, unless a rank is lost."""
        tracer = self.engine.members.tracer
        if tracer is None:
            return ()
        tracer.settle(waits=not self.engine.is_stuck)
        return [*tracer.spans]

    def save_trace(self, path: str | Path) -> None:
        """Write the spans of all ranks; collective, and rank 0 writes."""
        members = self.engine.members
        everybody = members.gather("trace", [asdict(span) for span in self.spans])
        if members.rank == 0:
            write_trace(path, [Span(**span) for spans in everybody for span in spans])

    def close(self, together: bool = True) -> None:
        """Let go of the windows. Peers may still store into them, so the ranks meet first, unless
        they do not close ``together``.

        Raises:
            FuscoRuntimeError: what went wrong in calls whose end nobody has waited for; or a rank
                has ended, or does not come. The windows are let go of all the same, unless work
                of this GPU waits for that rank.
        """
        members, error = self.engine.members, None
        try:
            with current_device(members.device):
                error = _error_of(self.engine.settle)
                if self.into is not None:
                    error = error or _error_of(self.into.check)
                # Kernels give up in time, and what NCCL does for a lost rank may not.
                is_lost = self.engine.is_stuck
                if members.device.type == "cuda" and not is_lost:
                    # A GPU that has failed with a lost rank says so once more.
                    with nullcontext() if error is None else suppress(RuntimeError):
                        torch.cuda.synchronize(members.device)
                # A rank that did not come in time may not come now, either.
                if together and not is_lost and not isinstance(error, HopTimeoutError):
                    error = _error_of(lambda: members.meet("closing")) or error
                if not together:  # it has failed, and lives on, perhaps
                    members.liveness.give_up()
        finally:
            self.forget()
            self.observer.begins_dispatch()
            self.engine.close()
            members.liveness.close()
            self.observer.closed()
        if error is not None:
            raise error

    def forget(self) -> None:
        """Let no operator find it any more, nor the end of the process."""
        _open.discard(self)
        ops.unregister(self.key)
        ops.unregister(self.back_key)

    def _maps(self, engine: Engine, zero_unused: bool) -> LinearMaps:
        if isinstance(engine, NodeEngine):
            return NodeMaps(engine, self.observer, zero_unused)
        if isinstance(engine, ExactEngine):
            return ExactMaps(engine, self.observer)

        def run(work: list[Generator[Request, Any, Any]]) -> list[Any]:
            [only] = work
            return [engine.run("operator", only)]

        return GeneralMaps([engine.machine], run, self.observer)


_open: WeakSet[Executor] = WeakSet()


@atexit.register
def tell_at_exit() -> None:
    """Log what went wrong in calls that do not wait and that no later call could raise."""
    for executor in _open:
        engine = executor.engine
        if isinstance(engine, NodeEngine | ExactEngine):
            try:
                engine.settle_so_far()
            except FuscoRuntimeError as error:
                executor.observer.failed_at_exit(error)


def _error_of(step: Callable[[], object]) -> FuscoRuntimeError | None:
    try:
        step()
    except FuscoRuntimeError as error:
        return error
    return None


def _used_on(stream: Any, held: Any) -> None:
    """Let the memory of all tensors in ``held`` outlast what ``stream`` has been given by then."""
    for leaf in pytree.tree_leaves(held):
        tensors = [leaf]
        if isinstance(leaf, Handle):
            plan = leaf.plan
            tensors = [plan.keys, plan.key_counts, plan.key_offsets, plan.row_index]
        if isinstance(leaf, ExactHandle):
            tensors = [*leaf.known.tensors, *leaf.table.values()]
        for tensor in tensors:
            if isinstance(tensor, Tensor) and tensor.is_cuda:
                tensor.record_stream(stream)


def _num_local_keys(spec: ShuffleSpec, engine: Engine) -> int | None:
    """Keys of this rank; ``None`` where a table tells, which comes with every call."""
    members, target = engine.members, spec.program.target
    if target.is_placed_by_table:
        return None
    return len(keys_of_rank(target, members.topology, members.rank, {}))
