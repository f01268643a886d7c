"""Calls that repeat earlier ones with other data: from arguments straight to a list of commands,
where the Triton kernels are launched by such lists.

Between calls a program runs code of its own, which displaces this one's from the caches, so what a
call costs the host is the code that it runs through. A call that `NodeEngine` has accepted is
remembered by the forms of its arguments. One of the same forms needs no checks but those of what
forms do not tell; addresses are all that its commands are given anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from operator import itemgetter
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch._C._dynamo import guards

from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.engine.arguments import ALIGNMENT, LOW_ADDRESS, lacks_memory
from fuscoc_runtime.engine.ends import CallEnd, Ends, Event
from fuscoc_runtime.engine.node.engine import NodeEngine
from fuscoc_runtime.engine.node.forms import Form, Known, addresses, are_plain
from fuscoc_runtime.engine.node.handle import NodeHandle
from fuscoc_runtime.engine.node.prepared import NO_TURN, Prepared
from fuscoc_runtime.engine.node.rings import Launched, RingEntry, ring_size
from fuscoc_runtime.engine.node.triton import TritonNode
from fuscoc_runtime.engine.observer import Observer
from fuscoc_runtime.engine.weights import UNKNOWN
from fuscoc_runtime.kernels.commands import Turn

_increment_version = torch._C._increment_version
_hooks = torch._C._autograd._top_saved_tensors_default_hooks
_Parts = tuple[Any, ...]
"""Of `Launched` all but its entry."""


@dataclass(frozen=True, eq=False, slots=True)
class _Dispatch:
    """What dispatches of one form have in common. ``order`` picks of zero and the addresses of
    arguments the numbers that vary, ``weight`` is the name of a tensor that combine weighs rows by.
    ``parts`` and those ``of_reply`` are by entry; ``keeps`` says which of the two keeps a given
    weight, if one does."""

    form: Form
    prepared: Prepared
    order: itemgetter[tuple[int, ...]]
    inputs: tuple[str, ...]
    weight: str | None
    extents: Mapping[str, int]
    shapes: Mapping[str, torch.Size]
    parts: list[_Parts]
    of_reply: list[_Parts]
    keeps: tuple[bool, bool]
    reply: _Reply | None


@dataclass(frozen=True, eq=False, slots=True)
class _Reply:
    """What handles of replies to dispatches of one form have in common."""

    engine: NodeEngine
    inputs: tuple[str, ...]
    shapes: Mapping[str, torch.Size]


@dataclass(frozen=True, eq=False, slots=True)
class _Combine:
    """What combines of one form have in common: their results, of ``num_bytes``, too."""

    form: Form
    prepared: Prepared
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    num_bytes: int


class Repeats:
    """The calls of one engine that repeat earlier ones. Each of them gives None where it is for the
    engine to find out what is asked for."""

    _ends: Ends | None = None
    _ended = 0

    @staticmethod
    def of(engine: NodeEngine, observer: Observer) -> Repeats | None:
        """Those of an engine whose calls are alike enough."""
        node, program = engine.node, engine.shuffle.program
        is_plain = not (program.is_compact or engine.is_ragged or node.zeroes_results)
        is_single = len(program.buffers["source"]) == len(program.buffers["target"]) == 1
        if program.numbers or not is_plain or not is_single or program.target.kind != "packed":
            return None
        if not isinstance(node, TritonNode) or program.relation.apart:
            return None
        return Repeats(engine, node, observer)

    def __init__(self, engine: NodeEngine, node: TritonNode, observer: Observer) -> None:
        self._engine, self._node, self._order = engine, node, engine.order
        self._watch, self._observer, self._rings = engine.watch, observer, node.rings
        self._weight = engine.shuffle.back.program.weight
        self._dispatches = Known[_Dispatch]()
        self._combines = Known[_Combine]()
        [field] = engine.shuffle.program.buffers["source"]
        self._field = field.name
        [self.window] = engine.rows.values()
        # All rows that are lent share its count of changes.
        self._lent = () if self.window.is_inference() else (self.window,)
        self._own_window, *_ = engine.windows
        self._lowest = min(each.start for each in engine.windows)
        self._highest = max(each.stop for each in engine.windows)
        device = engine.members.device
        # By what compiled code calls: past torch's dispatcher, which costs more than the memory.
        self._empty = getattr(guards, f"_empty_strided_{device.type}")
        if device.type == "cuda":
            self._watch_streams(Ends(device))

    def dispatch(
        self, positional: Sequence[Any], named: Mapping[str, Any], is_beside: bool
    ) -> tuple[Any, ...] | None:
        """What ``Shuffle.dispatch`` returns, without an earlier handle. ``is_beside``: on the
        stream of asynchronous calls."""
        started = perf_counter()
        tensors = (*positional, *named.values())
        known = self._dispatches.find((len(positional), *named), tensors)
        if known is None:
            return None
        if _hooks(True) is not None and torch.is_grad_enabled():
            return None  # rows are views of a window, which these would save unchecked
        at = addresses(tensors, self._own_window)
        if at is None:
            return None
        engine = self._engine
        with self._order.lock:
            try:
                begun = self._begin(is_beside, tensors)
                if begun is None:
                    return None
                turn, end = begun
                entry = self._node.rings.next(False)
                index = entry.index
                launched = Launched(entry, *known.parts[index])
                _increment_version(self._lent)
                known.prepared.submit(index, turn, (entry.ticket, *known.order((0, *at))))
                engine.entered(entry)
            except BaseException as error:
                engine.failed(error)
                raise
        inputs, weights = {}, {}
        for name in known.inputs:
            inputs[name] = named[name]
        if known.weight is not None:
            weight = weights[known.weight] = named[known.weight]
            if known.keeps[0]:
                launched.weights = weight.detach()
        reply, extents = None, known.extents
        if (answers := known.reply) is not None:
            launched.reply = answered = Launched(entry, *known.of_reply[index])
            if known.keeps[1]:
                answered.weights = weight.detach()
            read = {name: inputs[name] for name in answers.inputs}
            reply = NodeHandle(answers.engine, answered, read, extents, answers.shapes, weights)
        handle = NodeHandle(engine, launched, inputs, extents, known.shapes, weights, reply)
        self._observer.dispatched(handle, started)
        # Autograd shall not follow what is done to rows in place to the window and later calls.
        rows = self.window.detach()
        return (rows, handle, end) if is_beside else (rows, handle)

    def remember_dispatch(
        self, positional: Sequence[Any], named: Mapping[str, Any], handle: NodeHandle
    ) -> None:
        """An engine has made this dispatch."""
        names = [self._field] if positional else []
        names += named
        tensors = (*positional, *named.values())
        weight = None if self._weight is None else self._weight.name
        weigh = None if weight is None else named.get(weight)
        # Other weights are made f32 on their way, or are those of an earlier call.
        if weight is not None and (weigh is None or weigh.dtype != torch.float32):
            return
        if weigh is not None and weigh.requires_grad and torch.is_grad_enabled():
            return  # autograd has to see such calls
        key = len(positional), *named
        if not are_plain(tensors, may_require_grad=weigh) or self._dispatches.find(key, tensors):
            return
        program, node = self._engine.shuffle.program, self._node
        sent, reply = handle.launched.sent or handle.launched, None
        if handle.reply is not None:
            answers = handle.reply
            reply = _Reply(answers.engine, tuple(answers.inputs), answers.source_shapes)
        zero, places = 0, {name: place for place, name in enumerate(names, start=1)}
        weighs = zero if weight is None else places[weight]
        read = (places[name] for name in (self._field, *program.inputs))
        left = [
            node.launched(RingEntry(index, 0, 0, False), sent.num_sources, weigh)
            for index in range(ring_size(node.limits.num_handles))
        ]
        replies = [each.reply for each in left if each.reply is not None]
        extents = [handle.extents[name] for name in program.extents]
        known = _Dispatch(
            Form(key, tensors),
            node.prepared(extents, sent.num_sources),
            itemgetter(weighs, zero, *read),
            tuple(handle.inputs),
            weight,
            handle.extents,
            handle.source_shapes,
            [_parts(each, weigh) for each in left],
            [_parts(each, weigh) for each in replies],
            (_keeps(left, weigh), _keeps(replies, weigh)),
            reply,
        )
        self._dispatches.remember(known)

    def combine(self, rows: Any, handle: Any, is_beside: bool) -> Any:
        """What ``Shuffle.combine`` returns, of rows in all slots."""
        started = perf_counter()
        if type(handle) is not NodeHandle:
            return None
        if handle.reply is not None:
            handle = handle.reply
        engine, launched = self._engine, handle.launched
        sent = launched.sent or launched
        # Handles of dispatches of one form share their shapes.
        known = self._combines.find((handle.source_shapes, sent.num_sources), (rows,))
        if known is None or handle.engine is not engine:
            return None
        entry = launched.entry  # as `NodeEngine.can_combine`
        if entry.ticket <= engine.out_of_step or engine.is_closed or not self._rings.is_live(entry):
            return None
        for name, weight in handle.weights.items():
            then = handle.versions[name]
            if weight.requires_grad or (then != UNKNOWN and then != weight._version):
                return None
        at = rows.data_ptr()
        if at % ALIGNMENT or (at < LOW_ADDRESS and lacks_memory(rows)):
            return None
        rows_ticket = 0
        if self._lowest <= at < self._highest:
            for window in engine.windows:
                if at in window:
                    rows_ticket = entry.ticket
            if rows_ticket and rows_ticket != engine.held:
                return None
        result = self._empty(known.shape, known.strides, known.dtype)
        weights = 0 if (weight := launched.weights) is None else weight.data_ptr()
        if weight is not None and weights < LOW_ADDRESS and lacks_memory(weight):
            return None
        with self._order.lock:
            varied = entry.ticket, rows_ticket, weights, at, result.data_ptr(), known.num_bytes
            try:
                begun = self._begin(is_beside, (rows, result, weight))
                if begun is None:
                    return None
                turn, end = begun
                known.prepared.submit(entry.index, turn, varied)
            except BaseException as error:
                engine.failed(error)
                raise
        self._observer.combined(started)
        return (result, end) if is_beside else result

    def remember_combine(self, rows: Any, handle: NodeHandle) -> None:
        """An engine has made this combine."""
        if handle.reply is not None:
            handle = handle.reply
        shape, launched = handle.source_shapes[self._field], handle.launched
        num_sources = (launched.sent or launched).num_sources  # of this rank
        if not are_plain((rows,)) or 0 in shape or len(rows) != handle.num_slots:
            return
        key = handle.source_shapes, num_sources
        if self._combines.find(key, (rows,)):
            return
        [field] = self._engine.shuffle.program.buffers["source"]
        like = torch.empty(shape, dtype=TORCH_DTYPES[field.dtype], device="meta")
        known = _Combine(
            Form(key, (rows,)),
            self._node.prepared_back(num_sources),
            tuple(shape),
            like.stride(),
            like.dtype,
            like.nbytes,
        )
        self._combines.remember(known)

    def _watch_streams(self, ends: Ends) -> None:
        self._ends = ends
        # The event that tells how far the caller's stream is.
        self._before, self._before_at = ends.take()
        self._ended, self._device = self._order.ended, ends.device
        self._whose, self._stream_of = torch._C._cuda_getDevice, torch._C._cuda_getCurrentRawStream
        self._captures = torch._C._cuda_isCurrentStreamCapturing

    def _begin(
        self, is_beside: bool, used: Sequence[Tensor | None]
    ) -> tuple[tuple[int, ...], Event | None] | None:
        """The `Turn` of a call that uses these tensors, and the end of one that ``is_beside``. None
        if it is not to be made here and now, on the device of the engine."""
        ends = self._ends
        if ends is not None and (self._whose() != self._device or self._captures()):
            return None
        if self._watch.loss is not None or self._node.is_out_of_step:
            self._engine.check_can_follow()
        if ends is None:
            return NO_TURN, Event() if is_beside else None
        caller, ended = self._stream_of(self._device), self._ended
        if not is_beside:
            return (caller, 0, 0, ended if self._order.follows(caller) else 0, ended, 0), None
        self._observer.stream, stream = ends.stream, ends.address
        event, told = ends.take()
        awaited = ended if self._order.follows(stream) else 0
        turn = Turn(stream, caller, self._before_at, awaited, ended, told)
        held = [each for each in used if each is not None]
        return turn, CallEnd(ends, event, told, caller, held)


def _parts(launched: Launched, given: Tensor | None) -> _Parts:
    """All but what differs from call to call, such as weights that were ``given``."""
    _, *others = (getattr(launched, each.name) for each in fields(Launched))
    return tuple(None if isinstance(each, Launched) or each is given else each for each in others)


def _keeps(left: Sequence[Launched], given: Tensor | None) -> bool:
    """Whether weights that are given are kept for combine."""
    return given is not None and any(each.weights is given for each in left)
