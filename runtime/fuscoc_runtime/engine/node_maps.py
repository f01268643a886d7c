"""The linear maps of the kernels of one node; see ``engine.linear``.

A handle's buffers are soon reused, so the backward pass of combine dispatches the gradient with the
routing's inputs once more: slots are the same every time. What combine needs of the new handle is
then live for the backward pass of dispatch, too. Nothing here waits for the device.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.comm.group import all_gather
from fuscoc_runtime.engine.dtypes import TORCH_DTYPES
from fuscoc_runtime.engine.linear import Fields, weight_input
from fuscoc_runtime.engine.node import NodeDispatched, NodeEngine, NodeHandle
from fuscoc_runtime.engine.node_state import SLOT_BITS
from fuscoc_runtime.engine.observer import Observer
from fuscoc_runtime.engine.row_kernels import keep_rows, weigh_rows

LOW_WORD = 0xFFFFFFFF
UNIT_WEIGHT = 0x3F800000 << 32  # the bits of 1.0f, where a point keeps its weight


class NodeMaps:
    """The maps of a ``NodeEngine``.

    A routing is a list of one handle, which a newer one of the same routing may replace.
    """

    def __init__(self, engine: NodeEngine, observer: Observer) -> None:
        self.spec = engine.shuffle
        self._engine, self._observer = engine, observer

    def dispatch(
        self,
        fields: Fields,
        inputs: Fields,
        extents: Sequence[int],
        weights: Fields,
        earlier: Sequence[Any],
    ) -> tuple[Fields, list[NodeHandle]]:
        names = [item.name for item in self.spec.inputs if item.role != "weight"]
        named: dict[str, Any] = dict(zip(names, inputs, strict=True)) if inputs else {}
        named |= {n: v for n, v in zip(self.spec.extents, extents, strict=False) if v >= 0}
        named |= weight_input(self.spec, weights)
        done = self._dispatch(fields, named, earlier[0] if earlier else None)
        return self._fresh(done.handle, list(done.rows.values())), [done.handle]

    def combine(self, rows: Fields, routing: Sequence[Any], weights: Fields) -> Fields:
        started = time.perf_counter()
        result = self._engine.combine(self._named(rows), routing[0], {})
        self._observer.combined(started)
        return list(result.values())

    def pull(self, rows: Fields, routing: Sequence[Any]) -> Fields:
        handle = routing[0]
        if not handle.is_live:
            handle = self._again(self._no_fields(handle), routing)[0]
        if handle.launched.weights is None:
            return self.combine(rows, [handle], [])
        self._engine.in_order()
        # The weights of points from other ranks lie in this rank's window: be they 1 for this call.
        points = self._engine.node.points(handle.launched)
        kept = points.clone()
        points.bitwise_and_(LOW_WORD).bitwise_or_(UNIT_WEIGHT)
        ones = torch.ones_like(handle.launched.weights)
        unweighted = replace(handle, launched=replace(handle.launched, weights=ones))
        result = self.combine(rows, [unweighted], [])
        points.copy_(kept)
        return result

    def combine_backward(
        self, grads: Fields, rows: Fields, routing: Sequence[Any], weights: Fields
    ) -> tuple[Fields, Fields]:
        handle, lent = self._again(grads, routing)
        if not weights:
            return self._fresh(handle, lent), []
        [weight], [grad], row = weights, lent, rows[0] if rows else None
        factors, holds = self._slot_weights(handle), self._holds_segment(handle)
        grad_rows, dots = weigh_rows(grad, factors, holds, row)
        if dots is None:
            return [grad_rows], []
        return [grad_rows], [self._at_points(handle, dots.to(weight.dtype)).view(weight.shape)]

    def _dispatch(
        self, fields: Fields, named: Mapping[str, Any], earlier: NodeHandle | None
    ) -> NodeDispatched:
        started = self._observer.begins_dispatch()
        done = self._engine.dispatch(fields, named, earlier)
        self._observer.dispatched(done.handle, started)
        return done

    def _again(self, fields: Fields, routing: Sequence[Any]) -> tuple[NodeHandle, Fields]:
        """Dispatch along a routing, which has a live handle afterwards; rows are views."""
        done = self._dispatch(fields, {}, routing[0])
        if isinstance(routing, list):
            routing[0] = done.handle
        return done.handle, list(done.rows.values())

    def _no_fields(self, handle: NodeHandle) -> Fields:
        device = self._engine.members.device
        return [
            torch.zeros(
                handle.source_shapes[field.name], dtype=TORCH_DTYPES[field.dtype], device=device
            )
            for field in self.spec.source.fields
        ]

    def _fresh(self, handle: NodeHandle, rows: Fields) -> Fields:
        """Copies of a dispatch's rows; those that hold no segment are 0."""
        holds = self._holds_segment(handle)
        return [keep_rows(row, holds) for row in rows]

    def _holds_segment(self, handle: NodeHandle) -> Tensor:
        """bool [capacity]: slots between the first and the last of a key's rows."""
        num_keys, launched = len(handle.keys), handle.launched
        slots = torch.arange(handle.num_slots, dtype=torch.int32, device=launched.codes.device)
        if not num_keys:
            return slots < 0
        starts, counts = launched.key_starts[:num_keys], launched.key_counts[:num_keys]
        key = torch.searchsorted(starts, slots, right=True) - 1
        return slots < (starts + counts)[key]

    def _slot_weights(self, handle: NodeHandle) -> Tensor:
        """f32 [capacity]: the weight of the point whose segment a slot holds, 0 without one."""
        node, launched, rank = self._engine.node, handle.launched, self._engine.members.rank
        points = node.points(launched)
        num_ranks, max_sources, fanout = points.shape
        weights = (points >> 32).int().view(torch.float32)
        codes = points.int()
        assert launched.weights is not None
        own = launched.weights.reshape(-1, fanout)  # a rank does not tell itself
        weights[rank, : len(own)] = own
        codes[rank] = launched.codes
        source = torch.arange(max_sources, device=codes.device)
        sent = source < launched.num_sources_of[:num_ranks, None]
        here = sent[..., None] & (codes >= 0) & (codes >> SLOT_BITS == rank)
        slot = torch.where(here, codes & (1 << SLOT_BITS) - 1, handle.num_slots)
        of_slot = weights.new_zeros(handle.num_slots + 1)  # the last one takes all other points
        return of_slot.scatter_(0, slot.flatten().long(), weights.flatten())[:-1]

    def _at_points(self, handle: NodeHandle, of_slot: Tensor) -> Tensor:
        """What every rank has for its slots [capacity], at this rank's points [num_points]."""
        everyone = all_gather(of_slot, self._engine.members.group)
        codes = handle.launched.codes[: handle.launched.num_sources].flatten().long()
        at = (codes >> SLOT_BITS) * handle.num_slots + (codes & (1 << SLOT_BITS) - 1)
        values = everyone.flatten()[torch.where(codes >= 0, at, 0)]
        return torch.where(codes >= 0, values, 0)

    def _named(self, rows: Fields) -> dict[str, Tensor]:
        return dict(zip([field.name for field in self.spec.source_fields], rows, strict=True))
