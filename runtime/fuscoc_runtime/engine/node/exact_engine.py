"""Exact sizes: calls without ``max_sources``, by kernels that plan themselves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.comm.windows import outlast_process
from fuscoc_runtime.defaults import on_the_cpu_by_default
from fuscoc_runtime.engine import sizes
from fuscoc_runtime.engine.arguments import Arguments, Checker, aligned
from fuscoc_runtime.engine.dispatch import Dispatched, dispatch
from fuscoc_runtime.engine.handle import Handle, not_a_handle, overwritten
from fuscoc_runtime.engine.node.engine import current_device, readable
from fuscoc_runtime.engine.node.exact import ExactNode, Known, Work
from fuscoc_runtime.engine.node.exact_handle import ExactHandle
from fuscoc_runtime.engine.node.ragged import Extents
from fuscoc_runtime.engine.node.report import Planned
from fuscoc_runtime.engine.node.watch import NodeWatch, out_of_step
from fuscoc_runtime.engine.numbers import cast_numbers
from fuscoc_runtime.engine.process import ProcessEngine, lasting
from fuscoc_runtime.engine.relation import Ragged, add_up
from fuscoc_runtime.engine.row_fields import like_the_source
from fuscoc_runtime.engine.streams import call_order
from fuscoc_runtime.errors import (
    FuscoRuntimeError,
    HopTimeoutError,
    InputError,
    NetworkError,
    OptionError,
    RefusedCallError,
)
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan import keys_of_rank
from fuscoc_runtime.plan.agree import attempt
from fuscoc_runtime.plan.links import Link

_log = logging.getLogger("fuscoc.runtime")


@dataclass(frozen=True, eq=False)
class ExactDispatched:
    """Rows by field, [num_rows, *field shape], valid until this rank's next dispatch, and the
    handle that combine takes."""

    rows: dict[str, Tensor]
    handle: ExactHandle


@dataclass(frozen=True, eq=False)
class Doubt:
    """What only the device knows of a dispatch yet: there is a mistake if ``faults``, int64 [1], is
    above 0, and ``explain`` says which, for which it waits."""

    faults: Tensor
    explain: Callable[[], FuscoRuntimeError | None]


@dataclass(frozen=True, eq=False)
class _Prepared:
    """Checked arguments of a dispatch, and what they say of one that plans."""

    arguments: Arguments
    weights: Tensor | None
    num_sources: int
    num_slots: int
    work: Work | None
    numbers: tuple[Tensor, ...]
    ragged: Ragged | None


class ExactEngine:
    """This process's rank of one shuffle; construction is collective.

    A dispatch that plans waits for the counts, and before that, where the source is ragged, for how
    many segments this rank has. If they say that a rank cannot join it, all ranks
    make the call once more by the general engine: what is wrong on any of them is raised on all,
    and what kernels cannot count is carried out. Calls along a routing that is known wait for
    nothing. One that this rank raises an error for takes its turn all the same; peers go on without
    this rank's rows, and their ``check`` says so.

    Args:
        general: opens the general engine; collective.
        asks: the engine of what this one's shuffle is the reply to, whose handles it takes.
        extents: what has the sizes of a ragged source.
    """

    reply: ExactEngine | None = None
    watch: NodeWatch
    """What looks after the kernels."""
    weighs_as_sent: bool
    """Whether combine takes the weights that dispatch has sent, as they were then."""

    def __init__(
        self,
        shuffle: ShuffleSpec,
        members: Membership,
        node: ExactNode,
        general: Callable[[], ProcessEngine],
        asks: ExactEngine | None = None,
        extents: Extents | None = None,
    ) -> None:
        self.shuffle, self.members, self.target = shuffle, members, shuffle.program.target
        self.node = node
        self.checker = Checker(shuffle, members.rank, members.topology.num_ranks, members.device)
        self.order = call_order(members.device)
        self._open_general = general
        self._number = self._held = 0  # dispatches so far, and that whose rows are in the window
        self._found: list[FuscoRuntimeError] = []
        self._asks, self._extents = asks, extents
        self.weighs_as_sent = node.rails is not None
        self._own_keys: Tensor | None = None
        if not self.target.is_placed_by_table:
            self._own_keys = self.local_keys({})
        if asks is not None:
            asks.reply = self
        with current_device(members.device):
            self.watch = NodeWatch(node, shuffle, members)

    def local_keys(self, table: Mapping[str, Tensor]) -> Tensor:
        """The keys of this rank, ascending, as a ``table`` places them, if one does; a dense target
        has none."""
        if self._own_keys is not None:
            return self._own_keys
        members = self.members
        return keys_of_rank(self.target, members.topology, members.rank, table, members.device)

    @cached_property
    def general(self) -> ProcessEngine:
        """The engine of calls that these kernels leave out, opened by the first; collective."""
        return self._open_general()

    def general_reply(self) -> ProcessEngine:
        """What that answers with."""
        reply = self.general.reply
        assert reply is not None
        return reply

    def dispatch(
        self,
        positional: Sequence[Tensor],
        named: Mapping[str, Any],
        earlier: ExactHandle | Handle | None = None,
        problem: FuscoRuntimeError | Doubt | None = None,
    ) -> ExactDispatched | Dispatched:
        """See ``engine.dispatch``; with an ``earlier`` handle only this rank raises its mistakes,
        and there may be no doubt.

        Weights may be given now or with ``combine``.
        """
        doubt = problem if isinstance(problem, Doubt) else None
        problem = None if isinstance(problem, Doubt) else problem
        if isinstance(earlier, Handle):
            return self.general.dispatch(positional, named, earlier, problem)
        own, reply = self._own(earlier), None
        with self._turn():
            self._number += 1
            prepared: _Prepared | FuscoRuntimeError | None = problem
            if prepared is None:
                prepared = attempt(self.members.rank, lambda: self._prepare(positional, named, own))
                self.watch.raise_loss()  # it may have ended while sizes were waited for
            with self.watch.joined(self.node):
                known = self._move(prepared, own, doubt)
            if isinstance(known, FuscoRuntimeError):
                raise known
            if isinstance(known, Known):
                self._held = self._number  # even if there is no memory for answers
                assert isinstance(prepared, _Prepared)
                table = self._table(prepared.arguments) if own is None else own.table
                if self.reply is not None:
                    reply = self.reply.answering(known, prepared, table)
        if isinstance(known, Planned):
            problem = prepared if isinstance(prepared, FuscoRuntimeError) else None
            if problem is None and doubt is not None:
                problem = attempt(self.members.rank, doubt.explain)
            work = dispatch(self.general.machine, positional, named, problem=problem)
            return self.general.run("dispatch", work)
        assert isinstance(prepared, _Prepared)
        arguments = prepared.arguments
        shapes = {name: tensor.shape for name, tensor in arguments.fields.items()}
        handle = ExactHandle(
            self, known, arguments.extents, shapes, arguments.weights, reply, table=table
        )
        fields = zip(self.shuffle.program.buffers["target"], self.node.rows, strict=True)
        rows = {
            field.name: each[: known.num_rows].view(known.num_rows, *field.shape)
            for field, each in fields
        }
        return ExactDispatched(rows, handle)

    def answering(
        self, asked: Known, prepared: _Prepared, table: Mapping[str, Tensor]
    ) -> ExactHandle:
        """The handle by which rows of this reply come back for a dispatch of the other shuffle,
        whose keys that ``table`` places, if one does."""
        assert self._asks is not None
        arguments, each = prepared.arguments, self._asks.shuffle.segments_answered
        with self.watch.joined(self.node):
            known = self.node.follow(asked, each, prepared.weights)
        if isinstance(known, FuscoRuntimeError):
            raise known
        shapes = sizes.result_shapes(self.shuffle, arguments.extents)
        return ExactHandle(self, known, arguments.extents, shapes, arguments.weights, table=table)

    def combine(
        self,
        rows: Tensor | Mapping[str, Tensor],
        handle: ExactHandle | Handle,
        named: Mapping[str, Any],
    ) -> dict[str, Tensor]:
        """Enqueue a combine of rows [num_slots, *field shape] of every field.

        Raises:
            InputError: an argument does not fit the dispatch. For the other ranks sums that need
                this one's rows are NaN, and their ``check`` raises RefusedCallError.
            HopTimeoutError: a rank was lost in an earlier call.
            OptionError: a CUDA graph is being captured.
        """
        if isinstance(handle, Handle):
            return self.general.combine(rows, handle, named)
        own = self._own(handle)
        if self.shuffle.program.combine is None:
            raise self.checker.problem(self.shuffle.name, "has no combine in its spec")
        is_late = self._brings_weights(own, named)
        with self._turn():
            try:
                given, weights = self._combined(rows, own, named)
                make = torch.zeros if self.node.zeroes_results else torch.empty
                results = like_the_source(
                    self.shuffle.program, own.source_shapes, self.members.device, make
                )
            except Exception:
                with self.watch.joined(self.node):
                    self.node.refuse_combine(self._known(own), is_late)
                raise
            with self.watch.joined(self.node):
                self.node.combine(given, own.known, list(results.values()), weights, is_late)
        return results

    def lends(self, rows: Tensor) -> bool:
        """Whether rows lie in the window, where the next dispatch puts its own."""
        if rows.data_ptr() in self.node.lent:
            return True
        return self._asks is not None and self._asks.lends(rows)

    def check(self) -> None:
        """Wait for everything enqueued so far, and raise what went wrong and no call has raised."""
        with self.watch.blaming(), current_device(self.members.device), self.order.turn():
            self.watch.raise_new()
            self._raise_found()
        for engine in self._beside:
            engine.check()

    def settle(self) -> None:
        """As ``check``, but a loss only if it has not been raised yet."""
        with self.watch.blaming(), current_device(self.members.device), self.order.turn():
            self.watch.settle()
            self._raise_found()
        for engine in self._beside:
            engine.settle()

    def settle_so_far(self) -> None:
        """As ``settle``, without waiting for calls that go on."""
        with self.watch.blaming():
            self.watch.settle(so_far=True)
        self._raise_found()
        if self.reply is not None:
            self.reply.settle_so_far()

    @property
    def link(self) -> Link | None:
        """What was measured of the network; None also where nothing follows from it."""
        return self.node.link

    @property
    def window_bytes(self) -> int:
        """Bytes of this rank that its peers can address, now: they grow with the batches."""
        return self.node.window_bytes + sum(engine.window_bytes for engine in self._beside)

    @property
    def private_bytes(self) -> int:
        """Bytes held between calls, besides: those of handles are not the engine's."""
        of_reply = 0 if self.reply is None else self.reply.private_bytes
        return self.node.private_bytes + of_reply

    def close(self) -> None:
        """Let go of the window and the kernels; no call may follow. Memory that the network may
        still write to stays as long as the process."""
        if self.is_stuck and self.members.device.type == "cuda":
            outlast_process(self.node)
        self.watch.close()
        for engine in self._beside:
            engine.close()
        del self.node, self.watch

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Around a call, of which autograd may use later what it leaves."""
        with self.watch.blaming(), current_device(self.members.device):
            # The order of calls would take a refused one for a part of the graph.
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                problem = "is not given: calls of exact sizes cannot be captured by a CUDA graph"
                raise OptionError("max_sources", problem)
            with self.order.turn(), lasting(), on_the_cpu_by_default():
                for each in (self, self.reply, self._asks):
                    if each is not None:
                        each.watch.raise_loss()
                        each._check_step()
                self._find()
                try:
                    yield
                except BaseException as error:
                    if isinstance(error, HopTimeoutError | NetworkError):
                        if self.node.rails is not None:  # what of the call is under way stays so
                            self.watch.lose(error)
                    elif not isinstance(error, Exception):  # an interrupt, wherever in the call
                        self.watch.leave(error)
                    raise

    def _check_step(self) -> None:
        """Raise if this rank is out of step with others, in calls of the general engine, too."""
        if self.node.is_out_of_step:
            raise out_of_step(self.members.rank)
        if "general" in vars(self):
            self.general.raise_loss()

    @property
    def is_stuck(self) -> bool:
        """Whether work of this GPU may wait for a lost rank for ever."""
        is_lost = self.node.rails is not None and self.watch.loss is not None
        return is_lost or any(engine.is_stuck for engine in self._beside)

    @property
    def _beside(self) -> list[ExactEngine | ProcessEngine]:
        """The reply's, and the general one where one was opened; a reply has that of what it
        answers."""
        found: list[ExactEngine | ProcessEngine] = [] if self.reply is None else [self.reply]
        return [*found, self.general] if "general" in vars(self) and self._asks is None else found

    def _prepare(
        self, positional: Sequence[Tensor], named: Mapping[str, Any], earlier: ExactHandle | None
    ) -> _Prepared:
        checker = self.checker
        if earlier is None:
            arguments = checker.dispatch_arguments(positional, named)
        else:
            self._check_handle(earlier)
            shapes = earlier.source_shapes
            arguments = checker.fields_again(positional, named, shapes, earlier.extents)
            arguments = replace(arguments, weights={**earlier.weights, **arguments.weights})
        checker.check_not_lent(arguments, self.lends)
        weights = None
        if arguments.weights:
            weights = (self.reply or self)._weights(arguments.weights, arguments.extents)
        numbers = tuple(cast_numbers(self.shuffle, arguments.inputs).values())
        if earlier is not None:
            return _Prepared(arguments, weights, 0, 0, None, numbers, None)
        num_sources, ragged = self._sized(arguments)
        num_slots = sizes.target_length(checker, arguments) or 0
        work = self.node.new_work(num_sources, num_slots)
        return _Prepared(arguments, weights, num_sources, num_slots, work, numbers, ragged)

    def _sized(self, arguments: Arguments) -> tuple[int, Ragged | None]:
        """Source segments, and where those of a ragged domain are, for which the host waits."""
        if self._extents is None:
            sizes.num_points(self.checker, arguments)  # raises for what are no sizes
            return sizes.num_sources(self.checker, arguments), None
        ragged = add_up(self.checker, arguments, self._extents.launch)
        return ragged.num_points // self.shuffle.program.fanout, ragged

    def _move(
        self,
        prepared: _Prepared | FuscoRuntimeError,
        earlier: ExactHandle | None,
        doubt: Doubt | None,
    ) -> Known | Planned | FuscoRuntimeError:
        """Plan and move the rows of a dispatch. Returns what was planned, if all ranks find out in
        time that nothing is moved, and an error after which calls may follow."""
        if isinstance(prepared, FuscoRuntimeError):
            if earlier is not None:
                self.node.refuse_again(self._number, self._known(earlier))
                return prepared
            return self._refused()
        fields = [*prepared.arguments.fields.values(), *prepared.numbers]
        # Those of a reply are told before its combine, but between nodes.
        tells = self.reply is None or self.weighs_as_sent
        weights = prepared.weights if tells else None
        if earlier is not None:
            return self.node.dispatch_again(self._number, fields, earlier.known, weights)
        if prepared.work is None:  # there is more than kernels can count
            return self._refused()
        program, arguments = self.shuffle.program, prepared.arguments
        known = self.node.dispatch(
            self._number,
            fields,
            [readable(arguments.inputs[name]) for name in program.inputs],
            [arguments.extents[name] for name in program.extents],
            prepared.num_sources,
            weights,
            prepared.num_slots,
            prepared.work,
            None if doubt is None else doubt.faults,
            prepared.ragged,
        )
        if isinstance(known, Planned) and known.is_aborted:
            self.watch.raise_loss()
        return known

    def _refused(self) -> Planned:
        """Refuse a dispatch that plans: nothing is moved on any rank."""
        self.node.refuse_dispatch(self._number)
        return Planned((), (), 0, is_aborted=False)

    def _table(self, arguments: Arguments) -> dict[str, Tensor]:
        """A copy of the table that places keys, if one does: no caller changes it."""
        if self.target.kind == "dense" or self.target.placement.table is None:
            return {}
        name = self.target.placement.table
        return {name: arguments.inputs[name].clone()}

    def _weights(self, given: Mapping[str, Any], extents: Mapping[str, int]) -> Tensor | None:
        """Weights as they travel: in f32, in which sums are made."""
        weights = self.checker.weights(given, extents)
        return None if weights is None else aligned(weights.to(torch.float32))

    def _combined(
        self, rows: Tensor | Mapping[str, Tensor], handle: ExactHandle, named: Mapping[str, Any]
    ) -> tuple[list[Tensor], Tensor | None]:
        """The rows of a combine and its weights."""
        self._check_handle(handle)
        tensors = self.checker.rows(rows, handle.num_slots)
        given = {next(iter(tensors)): rows} if isinstance(rows, Tensor) else rows
        held = (self._asks or self)._held
        if handle.known.number != held:
            for name in tensors:
                if self.lends(given[name]):
                    problem = overwritten(handle.known.number, held)
                    raise self.checker.problem(name, problem)
        held_weights = {} if self.reply is not None else handle.weights  # which are the reply's
        if held_weights and not named:
            handle.check_weights()
        weights = self._weights({**held_weights, **named}, handle.extents)
        return list(tensors.values()), weights

    def _brings_weights(self, handle: object, named: Mapping[str, Any]) -> bool:
        """Whether a combine is given weights, where those of the other ranks are, too."""
        weight = self.shuffle.program.weight
        if weight is None or not isinstance(handle, ExactHandle):
            return False
        return weight.name in named or not handle.weights

    def has_weights(self, handle: object) -> bool:
        """Whether weights for a combine have come with the dispatch of a handle."""
        own = self._own(handle)
        return isinstance(own, ExactHandle) and bool(own.weights)

    def _own(self, handle: Any) -> Any:
        """That of a reply where it is in the handle of the dispatch."""
        answers = isinstance(handle, ExactHandle) and handle.reply is not None
        return handle.reply if answers and handle.reply.engine is self else handle

    def _known(self, handle: object) -> Known | None:
        """The routing of a handle of this shuffle."""
        if not isinstance(handle, ExactHandle) or handle.engine is not self:
            return None
        return handle.known

    def _check_handle(self, handle: object) -> None:
        if not isinstance(handle, ExactHandle):
            raise self.checker.problem("handle", not_a_handle(handle))
        if handle.engine is not self:
            raise self.checker.problem("handle", "is of another shuffle")

    def _find(self) -> None:
        """Log what peers have said of calls meanwhile, for ``check`` to raise."""
        rank, topology = self.members.rank, self.members.topology
        for other in self.node.report.take_others():
            peer = topology.node_ranks(topology.node(rank))[other.peer]
            error: FuscoRuntimeError = RefusedCallError(rank, peer, 1)
            if other.theirs >= 0:
                problem = (
                    f"is of dispatch {other.number}; rank {peer} passed that of dispatch "
                    f"{other.theirs}, and nothing was moved between the two"
                )
                error = InputError("handle", rank, problem)
            _log.error("%s: %s", self.shuffle.name, error)
            self._found.append(error)

    def _raise_found(self) -> None:
        self._find()
        if self._found:
            raise self._found.pop(0)
