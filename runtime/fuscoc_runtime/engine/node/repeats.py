"""Calls that repeat earlier ones with other data: from arguments straight to a list of commands.

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
from fuscoc_runtime.engine.node.engine import NodeDispatched, NodeEngine
from fuscoc_runtime.engine.node.handle import NodeHandle
from fuscoc_runtime.engine.node.prepared import Prepared
from fuscoc_runtime.engine.node.rails import RailNode
from fuscoc_runtime.engine.streams import communication_stream
from fuscoc_runtime.engine.weights import version
from fuscoc_runtime.errors import HopTimeoutError
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


@dataclass(frozen=True, eq=False)
class _Combine:
    """What combines of one form have in common; ``like`` has the form of the result."""

    prepared: Prepared
    like: Tensor


class Repeats:
    """The calls of one engine between nodes that repeat earlier ones. Each of them gives None where
    it is for the engine to find out what is asked for.

    Attributes:
        stream: of asynchronous calls; None on the CPU.
    """

    @staticmethod
    def of(engine: NodeEngine) -> Repeats | None:
        """Those of an engine whose calls are alike enough."""
        node, program = engine.node, engine.shuffle.program
        is_plain = not (program.is_compact or engine.is_ragged or node.zeroes_results)
        is_single = len(program.buffers["source"]) == len(program.buffers["target"]) == 1
        if not isinstance(node, RailNode) or not is_plain or not is_single:
            return None
        return Repeats(engine, node)

    def __init__(self, engine: NodeEngine, node: RailNode) -> None:
        self._engine, self._node, self._order = engine, node, engine.order
        self._weight = engine.shuffle.program.weight
        self._dispatches: dict[tuple[Any, ...], _Dispatch] = {}
        self._combines: dict[tuple[Any, ...], _Combine] = {}
        [field] = engine.shuffle.program.buffers["source"]
        self._field = field.name
        [rows] = engine.rows.values()
        window = rows.untyped_storage()
        self._window = window.data_ptr(), window.data_ptr() + window.nbytes()
        device = engine.members.device
        self._device = device.index if device.type == "cuda" else None
        self.stream: Any = None
        self._before: Any = None
        if self._device is not None:
            self.stream = communication_stream(device)
            self._before = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._before.record(self.stream)

    def dispatch(
        self, fields: Sequence[Any], named: Mapping[str, Any], is_beside: bool
    ) -> tuple[NodeDispatched, Any] | None:
        """`NodeEngine.dispatch` without an earlier handle. ``is_beside``: on the stream of
        asynchronous calls; then there is an event of its end."""
        tensors = (*fields, *named.values())
        try:
            form = len(fields), *named, *[_form(each) for each in tensors]
        except AttributeError:  # no tensor
            return None
        known = self._dispatches.get(form)
        if known is None or not self._is_eager():
            return None
        addresses = [each.data_ptr() for each in tensors]
        if not self._can_address(tensors, addresses) or any(map(self._is_lent, addresses)):
            return None
        given = [addresses[position] for position in known.order]
        if known.weight is None:
            given.append(0)
        engine = self._engine
        with self._order.lock:
            engine.check_can_follow()
            stream, turn = self._begin(is_beside)
            try:
                launched = self._node.dispatch_prepared(
                    known.prepared, given, known.num_sources, None, stream, turn
                )
            except HopTimeoutError as error:
                engine.lose(error)
                raise
            engine.entered(launched.entry)
            end = self._end(is_beside, tensors)
        handle = NodeHandle(
            engine,
            launched,
            {name: named[name] for name in known.inputs},
            known.extents,
            known.shapes,
            {} if known.weight is None else {known.weight: named[known.weight]},
        )
        return NodeDispatched(engine.rows, handle), end

    def remember_dispatch(
        self, fields: Sequence[Any], named: Mapping[str, Any], handle: NodeHandle
    ) -> None:
        """An engine has made this dispatch."""
        names = [self._field] if fields else []
        names += named
        tensors = (*fields, *named.values())
        if not all(_is_plain(each) for each in tensors):
            return
        weight = None
        if self._weight is not None:
            weight = self._weight.name
            if named[weight].dtype != torch.float32:  # which it is made on its way
                return
        program, sent = self._engine.shuffle.program, handle.launched.sent
        assert sent is not None
        taken = [self._field, *program.inputs, *([weight] if weight is not None else [])]
        extents = [handle.extents[name] for name in program.extents]
        form = len(fields), *named, *[_form(each) for each in tensors]
        _remember(
            self._dispatches,
            form,
            _Dispatch(
                self._node.prepare_dispatch(extents, sent.num_sources),
                tuple(names.index(name) for name in taken),
                sent.num_sources,
                tuple(handle.inputs),
                weight,
                handle.extents,
                handle.source_shapes,
            ),
        )

    def combine(self, rows: Any, handle: Any, is_beside: bool) -> tuple[Tensor, Any] | None:
        """`NodeEngine.combine` of rows in all slots."""
        engine = self._engine
        if type(handle) is not NodeHandle or handle.engine is not engine:
            return None
        sent = handle.launched.sent
        assert sent is not None
        try:
            form = handle.source_shapes[self._field], sent.num_sources, *_form(rows)
        except AttributeError:
            return None
        known = self._combines.get(form)
        if known is None or not self._is_eager() or not engine.can_combine(handle):
            return None
        for name, weight in handle.weights.items():
            if weight.requires_grad or version(weight) != handle.versions[name]:
                return None
        addresses, ticket = [rows.data_ptr()], handle.launched.entry.ticket
        is_lent = self._is_lent(addresses[0])
        if not self._can_address((rows,), addresses) or (is_lent and ticket != engine.held):
            return None
        rows_ticket = ticket if is_lent else 0
        result = torch.empty_like(known.like, memory_format=torch.contiguous_format)
        addresses += result.data_ptr(), result.nbytes
        with self._order.lock:
            engine.check_can_follow()
            stream, turn = self._begin(is_beside)
            try:
                self._node.combine_prepared(
                    known.prepared, handle.launched, addresses, rows_ticket, stream, turn
                )
            except HopTimeoutError as error:
                engine.lose(error)
                raise
            end = self._end(is_beside, (rows, result))
        return result, end

    def remember_combine(self, rows: Any, handle: NodeHandle) -> None:
        """An engine has made this combine."""
        sent, shape = handle.launched.sent, handle.source_shapes[self._field]
        if not _is_plain(rows) or len(rows) != handle.num_slots or 0 in shape or sent is None:
            return
        [field] = self._engine.shuffle.program.buffers["source"]
        one = torch.empty(1, dtype=TORCH_DTYPES[field.dtype], device=self._engine.members.device)
        prepared = self._node.prepare_combine(sent.num_sources)
        form = shape, sent.num_sources, *_form(rows)
        _remember(self._combines, form, _Combine(prepared, one.expand(shape)))

    def _is_eager(self) -> bool:
        """Whether calls are made here and now, on the device of the engine."""
        return self._device is None or (
            torch._C._cuda_getDevice() == self._device
            and not torch._C._cuda_isCurrentStreamCapturing()
        )

    def _can_address(self, tensors: Sequence[Tensor], addresses: Sequence[int]) -> bool:
        """Whether kernels can read them."""
        for tensor, address in zip(tensors, addresses, strict=True):
            if address % ALIGNMENT or not tensor.is_contiguous():
                return False
        return True

    def _is_lent(self, address: int) -> bool:
        return self._window[0] <= address < self._window[1]

    def _begin(self, is_beside: bool) -> tuple[int | None, Turn | None]:
        """The stream of a call, and what it awaits there."""
        if self._device is None:
            return None, None
        stream = current = torch._C._cuda_getCurrentRawStream(self._device)
        if is_beside:
            stream = self.stream.cuda_stream
        turn = self._order.around(stream)
        turn.before_on = current if is_beside else None
        turn.before = self._before.cuda_event if is_beside else None
        return stream, turn

    def _end(self, is_beside: bool, tensors: Sequence[Tensor]) -> Any:
        """An event of the end of a call on the stream of such calls, which uses these tensors."""
        if self._device is None or not is_beside:
            return None
        for tensor in tensors:
            tensor.record_stream(self.stream)
        end = torch.cuda.Event()  # type: ignore[no-untyped-call]
        end.record(self.stream)
        return end


def _form(tensor: Any) -> tuple[object, ...]:
    """What there is to check of a tensor, but for its strides and where it lies."""
    return (
        type(tensor),
        tensor.dtype,
        tensor.shape,
        tensor.device,
        tensor.layout,
        tensor.requires_grad,
    )


def _is_plain(tensor: Any) -> bool:
    """Whether a form says all that matters of it."""
    is_tensor = type(tensor) is Tensor and tensor.layout == torch.strided
    return is_tensor and not tensor.requires_grad and tensor.numel() > 0


def _remember(known: dict[Any, Any], form: Any, what: Any) -> None:
    if len(known) >= MAX_FORMS:
        known.clear()
    known[form] = what
