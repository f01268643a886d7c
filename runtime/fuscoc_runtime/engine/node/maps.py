"""The linear maps of the kernels of one node; see ``engine.linear``.

A handle's buffers are soon reused, so the backward pass of combine dispatches the gradient with the
routing's inputs once more: slots are the same every time, but where two points of a dense target
are given one, which may be another one's then. What combine needs of the new handle is then live
for the backward pass of dispatch, too. Nothing here waits for the device.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.comm.group import all_gather
from fuscoc_runtime.engine.linear import Fields, by_field, dispatch_inputs
from fuscoc_runtime.engine.node.engine import NodeDispatched, NodeEngine, current_device
from fuscoc_runtime.engine.node.exact_engine import ExactEngine
from fuscoc_runtime.engine.node.handle import NodeHandle
from fuscoc_runtime.engine.node.point_kernels import values_at_points, weights_of_slots
from fuscoc_runtime.engine.node.weights import WEIGHT_BITS, put_weights
from fuscoc_runtime.engine.observer import Observer
from fuscoc_runtime.engine.row_fields import like_the_source
from fuscoc_runtime.engine.row_kernels import take_rows, weigh_rows
from fuscoc_runtime.room import num_slot_bits, room_for

UNIT_WEIGHT = 0x3F800000 << WEIGHT_BITS  # the bits of 1.0f, where a point keeps its weight


class NodeMaps:
    """The maps of a ``NodeEngine``.

    A routing is a list of one handle, which a newer one of the same routing may replace.
    ``zero_unused`` is that of ``Shuffle``.
    """

    def __init__(
        self, engine: NodeEngine | ExactEngine, observer: Observer, zero_unused: bool = True
    ) -> None:
        self.spec = engine.shuffle
        self._zero_unused = zero_unused
        self._engine: Any = engine
        self._observer = observer

    def dispatch(
        self,
        fields: Fields,
        inputs: Fields,
        extents: Sequence[int],
        weights: Fields,
        earlier: Sequence[Any],
    ) -> tuple[Fields, list[NodeHandle]]:
        named = dispatch_inputs(self.spec, inputs, extents, weights, reuses=len(earlier) > 0)
        done = self._dispatch(fields, named, earlier[0] if earlier else None)
        with self._turn():
            return self._fresh(done.handle, list(done.rows.values())), [done.handle]

    def combine(self, rows: Fields, routing: Sequence[Any], weights: Fields) -> Fields:
        return self._combine(rows, routing[0])

    def pull(self, rows: Fields, routing: Sequence[Any]) -> Fields:
        handle = routing[0]
        if not handle.is_live:
            handle = self._again(self._no_fields(handle), routing)[0]
        launched = handle.launched
        if launched.weights is None and launched.row_index is None:
            return self.combine(rows, [handle], [])
        # Points of other ranks lie in this rank's window. For this call be their weights 1, and
        # rows be where dispatch has put them.
        with self._turn():
            try:
                points = self._points(handle)
                changed = [points] if launched.row_index is None else [points, launched.codes]
                kept = [each.clone() for each in changed]
                ones = None if launched.weights is None else torch.ones_like(launched.weights)
                codes: list[Tensor] = []
                if launched.row_index is not None:
                    codes = [
                        self._codes_of_rows(launched.row_index, each.int()) for each in changed
                    ]
            except Exception:
                self._engine.refuse_combine(handle)
                raise
            try:
                for tensor, rows_of in zip(changed[: len(codes)], codes, strict=True):
                    tensor.copy_(rows_of)
                put_weights(points, UNIT_WEIGHT)
                unweighted = replace(handle, launched=replace(launched, weights=ones))
                return self._combine(rows, unweighted, len(rows[0]))
            finally:
                for tensor, before in zip(changed, kept, strict=True):
                    tensor.copy_(before)

    def combine_backward(
        self,
        grads: Fields,
        rows: Fields,
        routing: Sequence[Any],
        weights: Fields,
        num_rows: int,
    ) -> tuple[Fields, Fields]:
        # The gradients come to where a dispatch's rows are.
        rows = [row.clone() if self._engine.lends(row) else row for row in rows]
        handle, lent = self._again(grads, routing)
        with self._turn():
            return self._weighed(handle, lent, rows, weights, num_rows)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Around what reads the window: the next call, on whatever stream, changes it behind."""
        with current_device(self._engine.members.device), self._engine.order.turn():
            yield

    def _weighed(
        self, handle: NodeHandle, lent: Fields, rows: Fields, weights: Fields, num_rows: int
    ) -> tuple[Fields, Fields]:
        """Gradients of combine's rows and weights, from those of its results, which a dispatch has
        just brought."""
        end = self._end(handle)
        if not weights:
            index = self._row_of_slot(handle)[:num_rows]
            return [take_rows(grad, index, end) for grad in lent], []
        [weight] = weights
        worked: Sequence[Tensor | None] = rows or [None] * len(lent)
        of_slot, held = self._slot_weights(handle)
        row_index = handle.launched.row_index
        index = (held if row_index is None else row_index)[:num_rows]
        weighed = [
            weigh_rows(grad, of_slot, index, row, end)
            for grad, row in zip(lent, worked, strict=True)
        ]
        grad_rows = [each for each, _ in weighed]
        products = [each for _, each in weighed if each is not None]
        if not products:
            return grad_rows, []
        dots = sum(products[1:], products[0]).to(weight.dtype)
        return grad_rows, [self._at_points(handle, dots).view(weight.shape)]

    def _dispatch(
        self, fields: Fields, named: Mapping[str, Any], earlier: NodeHandle | None
    ) -> NodeDispatched:
        started = self._observer.begins_dispatch()
        done: NodeDispatched = self._engine.dispatch(fields, named, earlier)
        self._observer.dispatched(done.handle, started)
        return done

    def _combine(self, rows: Fields, handle: NodeHandle, num_rows: int | None = None) -> Fields:
        started = time.perf_counter()
        result = self._engine.combine(by_field(self.spec, rows), handle, {}, num_rows)
        self._observer.combined(started)
        return list(result.values())

    def _again(self, fields: Fields, routing: Sequence[Any]) -> tuple[NodeHandle, Fields]:
        """Dispatch along a routing, which has a live handle afterwards; rows are views."""
        [earlier] = routing
        done = self._dispatch(fields, {}, earlier)
        if isinstance(routing, list):
            answers = earlier.engine is not self._engine  # it is in the handle of what it answers
            routing[0] = replace(earlier, reply=done.handle) if answers else done.handle
        return done.handle, list(done.rows.values())

    def _no_fields(self, handle: NodeHandle) -> Fields:
        shapes, device = handle.source_shapes, self._engine.members.device
        return list(like_the_source(self.spec.program, shapes, device).values())

    def _fresh(self, handle: NodeHandle, rows: Fields) -> Fields:
        """Copies of a dispatch's rows; those that hold no segment are 0."""
        index = self._row_of_slot(handle)
        if self.spec.program.is_compact:  # a row holds one if a slot refers to it; -1 is the last
            none = index.new_full((len(rows[0]) + 1,), -1)
            index = none.scatter_(0, index % len(none), index)[:-1]
        return [take_rows(row, index, self._end(handle)) for row in rows]

    def _end(self, handle: NodeHandle) -> Tensor | None:
        """Where a dispatch's rows end, if nothing is to be written behind; int64 [1]."""
        return None if self._zero_unused else handle.end

    def _row_of_slot(self, handle: NodeHandle) -> Tensor:
        """int64 [num_slots]: the row that a slot refers to, its own unless the target is compact;
        -1 where there is no segment."""
        if handle.launched.row_index is not None:
            return handle.launched.row_index
        num_keys, launched = handle.num_keys, handle.launched
        slots = torch.arange(handle.num_slots, dtype=torch.int32, device=launched.codes.device)
        if launched.has_given_slots:
            return torch.where(launched.filled, slots, -1).long()
        if not num_keys:
            return torch.full_like(slots, -1, dtype=torch.int64)
        # Between the first and the last of a key's rows.
        starts, counts = launched.key_starts[:num_keys], launched.key_counts[:num_keys]
        key = torch.searchsorted(starts, slots, right=True) - 1
        return torch.where(slots < (starts + counts)[key], slots, -1).long()

    def _codes_of_rows(self, row_index: Tensor, codes: Tensor) -> Tensor:
        """Slot codes [..., fanout], those of this rank for the rows that the slots refer to, once
        for every segment."""
        rank = self._rank_in_node
        bits = num_slot_bits(room_for(self._engine.members.topology.ranks_per_node))
        here = (codes >= 0) & (codes >> bits == rank)
        slot = torch.where(here, codes & (1 << bits) - 1, 0).clamp(max=len(row_index) - 1)
        first = here & (here.cumsum(-1) == 1)
        own = torch.where(first, row_index[slot].int() | rank << bits, -1)
        return torch.where(here, own, codes)

    def _slot_weights(self, handle: NodeHandle) -> tuple[Tensor, Tensor]:
        """[num_slots], f32 and int64: the weight of the point whose segment a slot holds, and the
        slot; 0 and -1 without one."""
        points, rank = self._points(handle), self._rank_in_node
        return weights_of_slots(points, handle.launched, rank, handle.num_slots)

    @property
    def _rank_in_node(self) -> int:
        """What slot codes call this rank."""
        members = self._engine.members
        return int(members.topology.local_rank(members.rank))

    def _points(self, handle: Any) -> Tensor:
        found: Tensor = self._engine.node.points(handle.launched)
        return found

    def _most_slots(self, handle: Any) -> int:
        """Slots of the rank that has the most."""
        most: int = self._engine.limits.capacity
        return most

    def _at_points(self, handle: NodeHandle, of_slot: Tensor) -> Tensor:
        """What every rank has for its slots [num_slots], at this rank's points [num_points]."""
        if padding := self._most_slots(handle) - len(of_slot):
            of_slot = torch.nn.functional.pad(of_slot, (0, padding))
        node, launched = self._engine.node, handle.launched
        if launched.sent is None:
            return values_at_points(all_gather(of_slot, self._engine.members.group), launched)
        # Those of the segments that this rank has taken on go back to where these came from.
        values = values_at_points(node.gather(of_slot), launched)
        found: Tensor = node.bring_back(values)[: launched.sent.num_sources]
        return found
