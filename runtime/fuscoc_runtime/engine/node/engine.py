"""The kernels of one node behind the face of a shuffle: arguments, handles and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.comm.results import ResultMemory
from fuscoc_runtime.comm.windows import outlast_process
from fuscoc_runtime.engine import sizes
from fuscoc_runtime.engine.arguments import Arguments, Checker, aligned
from fuscoc_runtime.engine.handle import not_a_handle, overwritten
from fuscoc_runtime.engine.node.handle import NodeHandle
from fuscoc_runtime.engine.node.ragged import (
    EntryEvaluator,
    EntrySizes,
    RaggedEvaluator,
    RaggedSizes,
)
from fuscoc_runtime.engine.node.rings import Launched, RingEntry
from fuscoc_runtime.engine.node.state import NodeKernels, storage_of
from fuscoc_runtime.engine.node.watch import NodeWatch, out_of_step
from fuscoc_runtime.engine.numbers import cast_numbers
from fuscoc_runtime.engine.row_fields import like_the_source
from fuscoc_runtime.engine.streams import call_order
from fuscoc_runtime.errors import (
    FuscoRuntimeError,
    HopTimeoutError,
    InputError,
    NetworkError,
)
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan import keys_of_rank
from fuscoc_runtime.plan.agree import attempt


@dataclass(frozen=True, eq=False)
class NodeDispatched:
    """Rows by field, [capacity, *field shape], valid until this rank's next dispatch. Those of a
    compact target are `Limits.row_capacity`, those of a dense one as many as it has slots."""

    rows: dict[str, Tensor]
    handle: NodeHandle


@dataclass(frozen=True, eq=False)
class Ready:
    """Checked arguments of a dispatch, and what they say of it."""

    arguments: Arguments
    weights: Tensor | None
    num_slots: int
    num_sources: int
    ragged: RaggedSizes | EntrySizes | None
    numbers: tuple[Tensor, ...]


class NodeEngine:
    """This process's rank of one shuffle inside one node; construction is collective.

    Calls only enqueue work on the current stream. What goes wrong on the device is logged, and
    raised by ``check``; of earlier calls a call raises only that a rank was lost. A call that this
    rank raises an error for is a call all the same: it takes its turn without joining, and the
    peers go on without its rows.

    Where the spec has a reply, ``reply`` is the engine of that. It shares turns and watch with the
    one that ``asks``, whose handles it takes.

    Results lie in ``results`` where there is room, memory that peers store into.
    """

    reply: NodeEngine | None = None
    results: ResultMemory | None = None
    weighs_as_sent = True
    """As `ExactEngine` has it."""
    windows: list[range]
    """Addresses of the rows that are lent, of those of what a reply answers, too."""

    def __init__(
        self,
        shuffle: ShuffleSpec,
        members: Membership,
        node: NodeKernels,
        backend: Literal["cuda", "triton"],
        ragged: RaggedEvaluator | EntryEvaluator | None = None,
        asks: NodeEngine | None = None,
    ) -> None:
        self.shuffle, self.members, self.target = shuffle, members, shuffle.program.target
        self.node, self.backend, self.is_closed = node, backend, False
        self._ragged = ragged
        rank, topology, device = members.rank, members.topology, members.device
        self.checker = Checker(shuffle, rank, topology.num_ranks, device)
        self._own_keys: Tensor | None = None
        if not self.target.is_placed_by_table:
            self._own_keys = self.local_keys({})
        self.held = 0  # the ticket of the latest dispatch that was not captured
        self._newest = 0  # the ticket of the latest dispatch,
        self.out_of_step = 0  # and of that before a combine whose handle was none
        self.limits = node.limits
        self.order = call_order(device)
        self.windows = [storage_of(rows) for rows in node.rows]
        with current_device(device):
            self._watch = NodeWatch(node, shuffle, members) if asks is None else asks.watch
        if asks is not None:
            asks.reply = self
            self.windows += asks.windows
        self.rows = {
            field.name: rows.view(len(rows), *field.shape)
            for field, rows in zip(shuffle.program.buffers["target"], self.node.rows, strict=True)
        }

    @property
    def watch(self) -> NodeWatch:
        """What looks after the kernels."""
        return self._watch

    def local_keys(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """The keys of this rank, ascending; ``inputs`` holds the table that places them. A dense
        target has none."""
        if self._own_keys is not None:
            return self._own_keys
        members = self.members
        return keys_of_rank(self.target, members.topology, members.rank, inputs, members.device)

    def dispatch(
        self,
        positional: Sequence[Tensor],
        named: Mapping[str, Any],
        earlier: NodeHandle | None = None,
        problem: FuscoRuntimeError | None = None,
    ) -> NodeDispatched:
        """Enqueue a dispatch; the weights of a weighted combine are among ``named``. A ``problem``
        that is known already is raised like those that are found.

        With the handle of an ``earlier`` dispatch, segments go where they went then. Its weights
        are used again unless others are given.

        Raises:
            InputError: an argument does not fit the spec, ``max_sources`` or ``capacity``. For
                ranks that joined the call this one has no segments, and their ``check`` raises
                RefusedCallError.
            PreparationError: likewise, if this rank fails before it launches anything.
            HopTimeoutError: a rank was lost in an earlier call.
            ProtocolError: across nodes, this rank has refused a call that it cannot follow.
        """
        earlier = self._own(earlier)
        with self.in_turn():
            ready = self._ready(lambda: self._prepare(positional, named, earlier, problem))
            arguments, num_slots, ragged = ready.arguments, ready.num_slots, ready.ragged
            launched = self.node.dispatch(
                [*arguments.fields.values(), *ready.numbers],
                [readable(arguments.inputs[name]) for name in self.shuffle.program.inputs],
                [arguments.extents[name] for name in self.shuffle.program.extents],
                ready.num_sources,
                ready.weights,
                num_slots=num_slots,
                ragged=ragged,
            )
            if isinstance(ragged, RaggedSizes) and isinstance(self._ragged, RaggedEvaluator):
                self._ragged.drop(ragged, launched)
            self.entered(launched.entry)
        shapes = {name: tensor.shape for name, tensor in arguments.fields.items()}
        reply = None
        if self.reply is not None:
            reply = self.reply.answering(launched, arguments)
        inputs = {name: arguments.inputs[name] for name in self.shuffle.program.inputs}
        handle = NodeHandle(
            self, launched, inputs, arguments.extents, shapes, arguments.weights, reply
        )
        rows = self.rows
        if self.target.kind == "dense":
            rows = {name: each[:num_slots] for name, each in rows.items()}
        return NodeDispatched(rows, handle)

    def _ready(self, prepare: Callable[[], Ready]) -> Ready:
        """What that returns; a dispatch for which it raises an error takes its turn as well."""
        ready = attempt(self.members.rank, prepare)
        if isinstance(ready, FuscoRuntimeError):
            self.entered(self.node.refuse_dispatch())
            raise ready
        return ready

    def _prepare(
        self,
        positional: Sequence[Tensor],
        named: Mapping[str, Any],
        earlier: NodeHandle | None,
        problem: FuscoRuntimeError | None,
    ) -> Ready:
        if problem is not None:
            raise problem
        arguments = self._dispatch_arguments(positional, named, earlier)
        self.checker.check_not_lent(arguments, self.lends)
        back = self.reply or self
        weights = back.checker.weights(arguments.weights, arguments.extents)
        if weights is not None:  # which travel as f32, in which sums are made
            weights = aligned(weights.to(torch.float32))
        num_slots = self._num_slots(arguments)
        num_sources, ragged = self._num_sources(arguments)
        numbers = tuple(cast_numbers(self.shuffle, arguments.inputs).values())
        return Ready(arguments, weights, num_slots, num_sources, ragged, numbers)

    def answering(self, asked: Launched, arguments: Arguments) -> NodeHandle:
        """The handle by which rows of this reply come back for a dispatch of the other shuffle."""
        assert asked.reply is not None
        program = self.shuffle.program
        inputs = {name: arguments.inputs[name] for name in program.inputs}
        shapes = sizes.result_shapes(self.shuffle, arguments.extents)
        return NodeHandle(self, asked.reply, inputs, arguments.extents, shapes, arguments.weights)

    def combine(
        self,
        rows: Tensor | Mapping[str, Tensor],
        handle: NodeHandle,
        named: Mapping[str, Any],
        num_rows: int | None = None,
    ) -> dict[str, Tensor]:
        """Enqueue a combine of rows [num_slots, *field shape] of every field,
        `NodeHandle.num_slots` of them; the weights came with dispatch. Where rows lie in their
        slots there may be fewer, if only unused ones are missing.

        ``num_rows``: how many there are, if they do not lie in slots.

        Raises:
            InputError: an argument does not fit the dispatch. For ranks that joined the call sums
                that need this one's rows are NaN, and their ``check`` raises RefusedCallError.
            PreparationError: likewise, if this rank fails before it launches anything.
            HopTimeoutError: a rank was lost in an earlier call.
            ProtocolError: across nodes, this rank has refused a call that it cannot follow.
        """
        handle = self._own(handle)
        with self.in_turn():
            prepared = attempt(
                self.members.rank,
                lambda: (self._combine_rows(rows, handle, named, num_rows), self._results(handle)),
            )
            if isinstance(prepared, FuscoRuntimeError):
                self.refuse_combine(handle)
                raise prepared
            (given, rows_ticket), results = prepared
            launched = self.current(handle.launched)
            self.node.combine(given, launched, list(results.values()), rows_ticket)
        return results

    def _results(self, handle: NodeHandle) -> dict[str, Tensor]:
        """Memory of what a combine returns."""
        make: Callable[..., Tensor]
        make = torch.zeros if self.node.zeroes_results else torch.empty
        if self.results is not None:
            make = self.results.empty
        shapes = handle.source_shapes
        return like_the_source(self.shuffle.program, shapes, self.members.device, make)

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Around a call, behind all others, on this rank's device. Raises what ends all calls."""
        with self._watch.blaming(), current_device(self.members.device), self.order.turn():
            self.check_can_follow()
            try:
                yield
            except BaseException as error:
                self.failed(error)
                raise

    def check_can_follow(self) -> None:
        """Raise if this rank is out of step with the others: a call of its would be none."""
        self._watch.raise_loss()
        if self.node.is_out_of_step:
            raise out_of_step(self.members.rank)

    def failed(self, error: BaseException) -> None:
        """A call has raised that in its turn. None can follow if it has found that a rank is lost;
        nor if this rank has failed amid its launches, or before them without a refusal, as when it
        is interrupted: errors of this runtime alone are raised when the turn has been taken."""
        self._watch.blame(error)
        if isinstance(error, HopTimeoutError | NetworkError):
            self.lose(error)
        elif not isinstance(error, FuscoRuntimeError) and not self.is_capturing:
            self._watch.leave(error)

    def lose(self, error: HopTimeoutError | NetworkError) -> None:
        """A call has found that a rank is lost, or its network, with some of it under way: none can
        follow."""
        self._watch.lose(error)

    def can_combine(self, handle: NodeHandle) -> bool:
        """Whether a handle of this shuffle tells what peers combine."""
        entry = self.current(handle.launched).entry
        is_old = entry.ticket <= self.out_of_step
        return not (is_old or self.is_closed) and self.node.rings.is_live(entry)

    def is_live(self, launched: Launched) -> bool:
        """Whether calls can still follow the routing of a dispatch."""
        return self.node.rings.is_live(launched.entry)

    def current(self, launched: Launched) -> Launched:
        """That by which they follow it."""
        return launched

    def _dispatch_arguments(
        self, positional: Sequence[Tensor], named: Mapping[str, Any], earlier: NodeHandle | None
    ) -> Arguments:
        if earlier is None:
            return self.checker.dispatch_arguments(positional, named)
        self._check_handle(earlier)
        earlier.check_inputs()
        given = self.checker.fields_again(positional, named, earlier.source_shapes, earlier.extents)
        weights = {**earlier.weights, **given.weights}
        return replace(given, inputs={**earlier.inputs, **given.inputs}, weights=weights)

    def _num_slots(self, arguments: Arguments) -> int:
        """Slots that a dense target has on this rank, 0 for another target."""
        length = sizes.target_length(self.checker, arguments) or 0
        sizes.check_capacity(self.checker, length, self.limits.capacity)
        return length

    def _num_sources(self, arguments: Arguments) -> tuple[int, RaggedSizes | EntrySizes | None]:
        """Source segments to launch for, and where those of a ragged domain are."""
        if self._ragged is not None:
            found = self._ragged.evaluate(self.checker, arguments)
            return (0 if found is None else self.limits.max_sources), found
        if self.target.kind == "dense":
            sizes.num_points(self.checker, arguments)  # raises for what are no sizes
        count = sizes.num_sources(self.checker, arguments)
        if count > self.node.limits.max_sources:
            raise self.checker.problem(
                next(iter(arguments.fields)),
                f"has {count} segments; max_sources is {self.node.limits.max_sources}",
            )
        return count, None

    def _own(self, handle: Any) -> Any:
        """That of a reply where it is in the handle of the dispatch."""
        answers = isinstance(handle, NodeHandle) and handle.reply is not None
        return handle.reply if answers and handle.reply.engine is self else handle

    def _check_handle(self, handle: object) -> None:
        if not isinstance(handle, NodeHandle) or handle.engine is not self:
            problem = "is of another shuffle"
            if not isinstance(handle, NodeHandle):
                problem = not_a_handle(handle)
            raise self.checker.problem("handle", problem)

    def _combine_rows(
        self,
        rows: Tensor | Mapping[str, Tensor],
        handle: NodeHandle,
        named: Mapping[str, Any],
        num_rows: int | None,
    ) -> tuple[list[Tensor], int]:
        """The rows that a combine was given, a tensor a field, and the ticket of the dispatch that
        put some of them into the window, 0 if they are elsewhere."""
        if self.shuffle.program.combine is None:
            raise InputError(self.shuffle.name, self.members.rank, "has no combine in its spec")
        for name in named:
            problem = "is given at dispatch, whose kernels send the weights with the rows"
            raise self.checker.problem(
                name, problem if name == self._weight_input() else "is no argument of this call"
            )
        self._check_handle(handle)
        handle.check_live()
        if not self.can_combine(handle):
            problem = "is older than a combine that was given no handle: dispatch again"
            raise self.checker.problem("handle", problem)
        handle.check_weights()
        expected = handle.num_slots if num_rows is None else num_rows
        in_slots = num_rows is None and handle.is_in_slots
        tensors = self.checker.rows(rows, expected, or_fewer=in_slots)
        if in_slots:
            self._check_end(handle, *next(iter(tensors.items())))
        given = {next(iter(tensors)): rows} if isinstance(rows, Tensor) else rows
        lent = next((name for name in tensors if self.lends(given[name])), None)
        if lent is None:
            return list(tensors.values()), 0
        entry = handle.launched.entry
        if entry.ticket != self.held and not entry.captured:
            raise self.checker.problem(lent, overwritten(entry.ticket, self.held))
        return list(tensors.values()), entry.ticket

    def _check_end(self, handle: NodeHandle, name: str, rows: Tensor) -> None:
        """Refuse rows that end before those that came do. On a GPU that ends the process: nothing
        else stops the kernels, which read behind the last one."""
        if len(rows) == handle.num_slots:
            return
        end = handle.end
        assert end is not None
        if rows.device.type == "cuda":
            torch._assert_async(end <= len(rows), f"combine: `{name}` lacks rows that came")
        elif int(end) > len(rows):
            raise self.checker.problem(name, f"has {len(rows)} rows, and {int(end)} came")

    def lends(self, rows: Tensor) -> bool:
        """Whether rows lie in the window, where the next dispatch puts its own."""
        at = rows.data_ptr()  # others may have made a tensor of these, with a storage of its own
        return any(at in window for window in self.windows)

    def entered(self, entry: RingEntry) -> None:
        """A dispatch has taken its turn, refused or not."""
        self._newest = entry.ticket
        if not entry.captured:
            self.held = entry.ticket
        if self.reply is not None:
            self.reply.entered(entry)

    def refuse_combine(self, handle: object) -> None:
        """Take a combine's turn without joining it.

        A handle of this shuffle tells which combine the peers make, unless it is outdated, for then
        nobody makes any. Without one the peers find out at this rank's next dispatch, and combines
        with older handles, which the ranks have counted differently, cannot be matched.
        """
        if self.shuffle.program.combine is None or self.is_capturing:
            return
        if not isinstance(handle, NodeHandle) or handle.engine is not self:
            self.out_of_step = self._newest
            # Inside a node the peers find that out; between nodes they wait for what is not posted.
            self.node.is_out_of_step = self.node.rails is not None
        elif self.can_combine(handle):
            self.node.refuse_combine(self.current(handle.launched))

    def check(self) -> None:
        """Wait for everything enqueued so far, on whichever stream, and raise what went wrong."""
        with self._watch.blaming(), current_device(self.members.device), self.order.turn():
            self._watch.raise_new()

    def settle(self) -> None:
        """As ``check``, but a loss only if it has not been raised yet."""
        with self._watch.blaming(), current_device(self.members.device), self.order.turn():
            self._watch.settle()

    def settle_so_far(self) -> None:
        """As ``settle``, without waiting for calls that go on."""
        with self._watch.blaming():
            self._watch.settle(so_far=True)

    @property
    def is_ragged(self) -> bool:
        """Whether sizes inside the source are data."""
        return self._ragged is not None

    @property
    def is_stuck(self) -> bool:
        """Whether work of this GPU may wait for a lost rank for ever."""
        return self.node.rails is not None and self._watch.loss is not None

    @property
    def window_bytes(self) -> int:
        """Bytes of this rank that its peers can address; fixed."""
        return self.node.window_bytes + (0 if self.reply is None else self.reply.window_bytes)

    @property
    def private_bytes(self) -> int:
        """Bytes of the tables of planning and of handles; fixed."""
        return self.node.private_bytes + (0 if self.reply is None else self.reply.private_bytes)

    def close(self) -> None:
        """Let go of the window and the kernels; no call may follow. Memory that the network may
        still write to stays as long as the process."""
        self.is_closed = True
        if self.reply is not None:
            self.reply.close()
        if self.is_stuck and self.members.device.type == "cuda":
            outlast_process(self.node)
        self._watch.close()
        self.results = None
        del self.node, self.rows, self._watch

    @property
    def is_capturing(self) -> bool:
        """Whether a graph takes what is enqueued, so that nothing is launched. On a GPU that has
        failed none does."""
        try:
            on_gpu = self.members.device.type == "cuda"
            return on_gpu and torch.cuda.is_current_stream_capturing()
        except RuntimeError:
            return False

    def _weight_input(self) -> str | None:
        weight = self.shuffle.program.weight
        return weight.name if weight is not None else None


def readable(tensor: Tensor) -> Tensor:
    """An input of the relation, which reads the first entry for those that do not exist: of an
    empty input that is any memory."""
    return tensor if tensor.numel() else tensor.new_empty(1, *tensor.shape[1:])


def current_device(device: torch.device) -> AbstractContextManager[object]:
    """Makes a CUDA device the current one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
