"""Calls that repeat earlier ones with other data: from arguments straight to a list of commands,
where the Triton kernels are launched by such lists.

Between calls a program runs code of its own, which displaces this one's from the caches, so what a
call costs the host is the code that it runs through. A call that `NodeEngine` has accepted is
remembered by the forms of its arguments. One of the same forms needs no checks but those of what
forms do not tell; addresses are all that its commands are given anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.engine.arguments import ALIGNMENT
from fuscoc_runtime.engine.ends import CallEnd, Ends, Event
from fuscoc_runtime.engine.node.engine import NodeEngine
from fuscoc_runtime.engine.node.handle import NodeHandle
from fuscoc_runtime.engine.node.prepared import Prepared
from fuscoc_runtime.engine.node.rings import Launched
from fuscoc_runtime.engine.node.triton import TritonNode
from fuscoc_runtime.engine.weights import version
from fuscoc_runtime.errors import HopTimeoutError, NetworkError
from fuscoc_runtime.kernels.commands import Turn

MAX_FORMS = 64
"""Calls of so many different forms are remembered."""


@dataclass(frozen=True, eq=False)
class _Dispatch:
    """What dispatches of one form have in common. ``order`` has the positions of the arguments that
    commands are given, in the order of these; ``weight`` is the name of the last of them."""

    prepared: Prepared
    order: tuple[int, ...]
    num_sources: int
    inputs: tuple[str, ...]
    weight: str | None
    extents: Mapping[str, int]
    shapes: Mapping[str, torch.Size]
    reply: _Reply | None


@dataclass(frozen=True, eq=False)
class _Reply:
    """What handles of replies to dispatches of one form have in common."""

    engine: NodeEngine
    inputs: tuple[str, ...]
    shapes: Mapping[str, torch.Size]


@dataclass(frozen=True, eq=False)
class _Combine:
    """What combines of one form have in common; ``like`` has the form of the result, which takes
    ``num_bytes``."""

    prepared: Prepared
    like: Tensor
    num_bytes: int


class Repeats:
    """The calls of one engine that repeat earlier ones. Each of them gives None where it is for the
    engine to find out what is asked for.

    Attributes:
        stream: of asynchronous calls; None on the CPU.
        window: what a dispatch fills, [capacity, *field shape].
    """

    stream: Any = None
    _ends: Ends | None = None

    @staticmethod
    def of(engine: NodeEngine) -> Repeats | None:
        """Those of an engine whose calls are alike enough."""
        node, program = engine.node, engine.shuffle.program
        is_plain = not (program.is_compact or engine.is_ragged or node.zeroes_results)
        is_single = len(program.buffers["source"]) == len(program.buffers["target"]) == 1
        if program.numbers or not is_plain or not is_single or program.target.kind != "packed":
            return None
        if not isinstance(node, TritonNode) or program.relation.apart:
            return None
        return Repeats(engine, node)

    def __init__(self, engine: NodeEngine, node: TritonNode) -> None:
        self._engine, self._node, self._order = engine, node, engine.order
        self._watch = engine.watch
        self._weight = engine.shuffle.back.program.weight
        self._dispatches: dict[tuple[Any, ...], _Dispatch] = {}
        self._combines: dict[tuple[Any, ...], _Combine] = {}
        [field] = engine.shuffle.program.buffers["source"]
        self._field = field.name
        [self.window] = engine.rows.values()
        window = self.window.untyped_storage()
        self._begin, self._behind = window.data_ptr(), window.data_ptr() + window.nbytes()
        device = engine.members.device
        if device.type == "cuda":
            self._watch_streams(Ends(device))

    def dispatch(
        self, fields: Sequence[Any], named: Mapping[str, Any], is_beside: bool
    ) -> tuple[NodeHandle, Event] | None:
        """`NodeEngine.dispatch` without an earlier handle. ``is_beside``: on the stream of
        asynchronous calls."""
        tensors = (*fields, *named.values())
        form: list[object] = [len(fields), *named]
        addresses = []
        weight = self._weight
        weigh = None if weight is None else named.get(weight.name)
        for tensor in tensors:
            address = look_at(tensor, form, may_require_grad=tensor is weigh)
            if address is None or self._begin <= address < self._behind:
                return None
            addresses.append(address)
        known = self._dispatches.get(tuple(form))
        if known is None or not self._is_eager():
            return None
        given = [addresses[position] for position in known.order]
        engine = self._engine
        with self._order.lock:
            stream, turn, end = self._start(is_beside, tensors)
            try:
                launched = self._node.start(
                    known.prepared,
                    given,
                    known.num_sources,
                    None if weigh is None else weigh.detach(),
                    stream=stream,
                    turn=turn,
                )
            except (HopTimeoutError, NetworkError) as error:
                engine.lose(error)
                raise
            engine.entered(launched.entry)
        inputs = {name: named[name] for name in known.inputs}
        weights = {} if known.weight is None else {known.weight: named[known.weight]}
        extents, reply = known.extents, None
        if known.reply is not None:
            assert launched.reply is not None
            answers, read = known.reply, {name: inputs[name] for name in known.reply.inputs}
            reply = NodeHandle(
                answers.engine, launched.reply, read, extents, answers.shapes, weights
            )
        return NodeHandle(engine, launched, inputs, extents, known.shapes, weights, reply), end

    def remember_dispatch(
        self, fields: Sequence[Any], named: Mapping[str, Any], handle: NodeHandle
    ) -> None:
        """An engine has made this dispatch."""
        names = [self._field] if fields else []
        names += named
        form: list[object] = [len(fields), *named]
        tensors = (*fields, *named.values())
        weight = None if self._weight is None else self._weight.name
        weigh = None if weight is None else named.get(weight)
        for each in tensors:
            if look_at(each, form, may_require_grad=each is weigh) is None or not each.numel():
                return
        # Others are made f32 on their way, or are those of an earlier call.
        if weight is not None and (weigh is None or weigh.dtype != torch.float32):
            return
        program = self._engine.shuffle.program
        num_sources = _own_sources(handle.launched)
        extents = [handle.extents[name] for name in program.extents]
        reply = None
        if handle.reply is not None:
            answers = handle.reply
            reply = _Reply(answers.engine, tuple(answers.inputs), answers.source_shapes)
        remember(
            self._dispatches,
            tuple(form),
            _Dispatch(
                self._node.prepared(extents, num_sources),
                tuple(names.index(name) for name in (self._field, *program.inputs)),
                num_sources,
                tuple(handle.inputs),
                weight,
                handle.extents,
                handle.source_shapes,
                reply,
            ),
        )

    def combine(self, rows: Any, handle: Any, is_beside: bool) -> tuple[Tensor, Event] | None:
        """`NodeEngine.combine` of rows in all slots."""
        engine = self._engine
        if type(handle) is NodeHandle and handle.reply is not None:
            handle = handle.reply
        if type(handle) is not NodeHandle or handle.engine is not engine:
            return None
        launched = handle.launched
        form = [handle.source_shapes[self._field], _own_sources(launched)]
        address = look_at(rows, form)
        if address is None:
            return None
        known = self._combines.get(tuple(form))
        if known is None or not self._is_eager() or not engine.can_combine(handle):
            return None
        for name, weight in handle.weights.items():
            if weight.requires_grad or version(weight) != handle.versions[name]:
                return None
        rows_ticket = 0
        if engine.lends(rows):
            rows_ticket = launched.entry.ticket
            if rows_ticket != engine.held:
                return None
        result = torch.empty_like(known.like, memory_format=torch.contiguous_format)
        given = address, result.data_ptr(), known.num_bytes
        with self._order.lock:
            stream, turn, end = self._start(is_beside, (rows, result))
            try:
                self._node.start_back(known.prepared, launched, given, rows_ticket, stream, turn)
            except (HopTimeoutError, NetworkError) as error:
                engine.lose(error)
                raise
        return result, end

    def remember_combine(self, rows: Any, handle: NodeHandle) -> None:
        """An engine has made this combine."""
        if handle.reply is not None:
            handle = handle.reply
        shape, num_sources = handle.source_shapes[self._field], _own_sources(handle.launched)
        if type(rows) is not Tensor or 0 in shape:
            return
        form = [shape, num_sources]
        if len(rows) != handle.num_slots or look_at(rows, form) is None:
            return
        [field] = self._engine.shuffle.program.buffers["source"]
        one = torch.empty(1, dtype=TORCH_DTYPES[field.dtype], device=self._engine.members.device)
        prepared = self._node.prepared_back(num_sources)
        known = _Combine(prepared, one.expand(shape), one.nbytes * shape.numel())
        remember(self._combines, tuple(form), known)

    def _watch_streams(self, ends: Ends) -> None:
        self._ends, self.stream = ends, ends.stream
        # The event that tells how far the caller's stream is.
        self._before, before = ends.take()
        self._ended = ended = self._order.ended
        self._alone, self._beside = Turn(ended=ended), Turn(ended=ended, before=before)

    def _is_eager(self) -> bool:
        """Whether calls are made here and now, on the device of the engine."""
        return self._ends is None or (
            torch._C._cuda_getDevice() == self._ends.device
            and not torch._C._cuda_isCurrentStreamCapturing()
        )

    def _start(
        self, is_beside: bool, used: Sequence[Tensor]
    ) -> tuple[int | None, Turn | None, Event]:
        """The stream of a call that uses these tensors, what it awaits there, and its end."""
        if self._watch.loss is not None or self._node.is_out_of_step:
            self._engine.check_can_follow()
        ends = self._ends
        if ends is None:
            return None, None, Event()
        caller = torch._C._cuda_getCurrentRawStream(ends.device)
        if not is_beside:
            turn = self._alone
            turn.awaited = self._ended if self._order.follows(caller) else None
            return caller, turn, Event()
        turn, (event, told) = self._beside, ends.take()
        turn.before_on, turn.told = caller, told
        turn.awaited = self._ended if self._order.follows(ends.address) else None
        return ends.address, turn, CallEnd(ends, event, told, caller, used)


def _own_sources(launched: Launched) -> int:
    """Segments of this rank."""
    return launched.num_sources if launched.sent is None else launched.sent.num_sources


def look_at(tensor: Any, form: list[Any], may_require_grad: bool = False) -> int | None:
    """The address of a tensor, if kernels can read it as it is; what else there is to check of it
    is added to the ``form``. None if the engine must look at it."""
    if type(tensor) is not Tensor or tensor.layout != torch.strided:
        return None
    if tensor.requires_grad:
        if not may_require_grad:
            return None
        form.append(torch.is_grad_enabled())
    try:
        address: int = tensor.data_ptr()
    except RuntimeError:  # has no memory of its own, as inside torch.func
        return None
    if not address or address % ALIGNMENT or not tensor.is_contiguous():
        return None
    form += tensor.dtype, tensor.shape, tensor.get_device()
    return address


def remember(known: dict[Any, Any], form: Any, what: Any) -> None:
    if len(known) >= MAX_FORMS:
        known.clear()
    known[form] = what
