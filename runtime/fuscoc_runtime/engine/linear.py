"""A routing as linear maps, for autograd: dispatch, weighted combine, and their transposes.

Dispatch copies segments to slots, so its transpose is a sum of slots without weights. Combine with
weights w is y[s] = sum over the points p of s of w[p] * rows[slot(p)]; with g the gradient of y
brought along the same routing to the slots,

    grad rows[slot(p)] = w[p] * g[slot(p)]        grad w[p] = <rows[slot(p)], g[slot(p)]>

and the second is brought back to the source, a number a point. Rows made here are tensors of their
own, whose padding rows are 0: gradients neither come from nor go to them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from fuscoc_runtime.comm.requests import AllToAll, Request
from fuscoc_runtime.engine.arguments import unit_weights
from fuscoc_runtime.engine.combine import combine
from fuscoc_runtime.engine.dispatch import dispatch
from fuscoc_runtime.engine.handle import Handle
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.engine.observer import Observer
from fuscoc_runtime.engine.reply import own_handle
from fuscoc_runtime.engine.row_kernels import take_rows, weigh_rows
from fuscoc_runtime.manifest.schema import ShuffleSpec

Fields = list[Tensor]
"""A tensor a field, in the order of the spec; of several ranks, rank after rank."""


class LinearMaps(Protocol):
    """What the operators of ``fuscoc_runtime.face.ops`` execute, on the ranks of this process.

    ``routing`` is what ``dispatch`` returned; weights are a list of one tensor a rank, or empty.
    """

    spec: ShuffleSpec

    def dispatch(
        self,
        fields: Fields,
        inputs: Fields,
        extents: Sequence[int],
        weights: Fields,
        earlier: Sequence[Any],
    ) -> tuple[Fields, Sequence[Any]]:
        """Fresh rows and the handles of the ranks; ``extents`` below 0 are not given."""
        ...

    def combine(self, rows: Fields, routing: Sequence[Any], weights: Fields) -> Fields:
        """The spec's combine."""
        ...

    def pull(self, rows: Fields, routing: Sequence[Any]) -> Fields:
        """The transpose of dispatch."""
        ...

    def combine_backward(
        self,
        grads: Fields,
        rows: Fields,
        routing: Sequence[Any],
        weights: Fields,
        num_rows: int,
    ) -> tuple[Fields, Fields]:
        """Gradients of combine's rows and weights; the latter only if ``rows`` are given.

        Of the only rank's fixed capacity combine may have been given the first ``num_rows``.
        """
        ...


class GeneralMaps:
    """The maps of the engines whose work is a generator: of a process, and of all ranks at once.

    ``run`` drives one generator for each of ``machines`` to its end.
    """

    def __init__(
        self,
        machines: Sequence[Machine],
        run: Callable[[list[Generator[Request, Any, Any]]], list[Any]],
        observer: Observer,
    ) -> None:
        self.spec = machines[0].shuffle
        self._machines, self._run, self._observer = machines, run, observer

    def dispatch(
        self,
        fields: Fields,
        inputs: Fields,
        extents: Sequence[int],
        weights: Fields,
        earlier: Sequence[Any],
    ) -> tuple[Fields, list[Handle]]:
        given = zip(self._parts(inputs), self._parts(extents), self._parts(weights), strict=True)
        reuses = len(earlier) > 0
        named = [dispatch_inputs(self.spec, *each, reuses=reuses) for each in given]
        started = self._observer.begins_dispatch()
        handles = earlier or [None] * len(self._machines)
        arguments = zip(self._machines, self._parts(fields), named, handles, strict=True)
        done = self._run([_dispatch(*each) for each in arguments])
        self._observer.dispatched(done[0][1], started)
        return [row for rows, _ in done for row in rows], [handle for _, handle in done]

    def combine(self, rows: Fields, routing: Sequence[Any], weights: Fields) -> Fields:
        work = [
            combine(machine, by_field(self.spec, part), handle, weight_input(self.spec, held))
            for machine, part, handle, held in zip(
                self._machines, self._parts(rows), routing, self._parts(weights), strict=True
            )
        ]
        started = time.perf_counter()
        results = self._run(work)
        self._observer.combined(started)
        return [tensor for result in results for tensor in result.values()]

    def pull(self, rows: Fields, routing: Sequence[Any]) -> Fields:
        weights = []
        for handle in routing:
            weights += unit_weights(self.spec, handle.extents, handle.plan.point_order.device)
        parts = zip(routing, self._parts(rows), strict=True)
        placed = [row for handle, part in parts for row in rows_in_slots(handle, list(part))]
        return self.combine(placed, routing, weights)

    def combine_backward(
        self,
        grads: Fields,
        rows: Fields,
        routing: Sequence[Any],
        weights: Fields,
        num_rows: int,
    ) -> tuple[Fields, Fields]:
        self._observer.begins_dispatch()
        work = [
            _combine_backward(*each)
            for each in zip(
                self._machines,
                self._parts(grads),
                self._parts(rows),
                routing,
                self._parts(weights),
                strict=True,
            )
        ]
        done = self._run(work)
        return [row for grad_rows, _ in done for row in grad_rows], [
            grad for _, grad_weights in done for grad in grad_weights
        ]

    def _parts(self, flat: Sequence[Any]) -> list[Sequence[Any]]:
        """A list of all ranks, cut by rank."""
        size = len(flat) // len(self._machines)
        return [flat[i * size : (i + 1) * size] for i in range(len(self._machines))]


def _dispatch(
    machine: Machine,
    fields: Sequence[Tensor],
    named: Mapping[str, Any],
    earlier: Handle | None,
) -> Generator[Request, Any, tuple[Fields, Handle]]:
    """Fresh rows and the handle of one rank."""
    done = yield from dispatch(machine, fields, named, earlier)
    return fresh_rows(done.handle, done.rows), done.handle


def _combine_backward(
    machine: Machine,
    grads: Sequence[Tensor],
    rows: Sequence[Tensor],
    handle: Handle,
    weights: Sequence[Tensor],
) -> Generator[Request, Any, tuple[Fields, Fields]]:
    handle = own_handle(machine, handle)
    # The gradients come to where a dispatch's rows are.
    rows = [row.clone() if machine.lends(row) else row for row in rows]
    done = yield from dispatch(machine, grads, {}, handle)
    index = done.handle.row_of_slot
    if not weights:
        return [take_rows(row, index) for row in done.rows.values()], []
    [weight], plan = weights, handle.plan
    ordered = weight.reshape(-1)[plan.point_order]
    received = yield AllToAll(ordered, plan.point_send_counts, plan.point_recv_counts)
    slots = plan.point_slots
    of_slot = weight.new_zeros(handle.num_slots).index_copy(0, slots, received)
    worked: Sequence[Tensor | None] = rows or [None] * len(grads)
    brought = zip(done.rows.values(), worked, strict=True)
    weighed = [weigh_rows(grad, of_slot, index, row) for grad, row in brought]
    grad_rows = [each for each, _ in weighed]
    if not rows:
        return grad_rows, []
    products = [each for _, each in weighed if each is not None]
    dots = sum(products[1:], products[0]).to(weight.dtype)[slots]
    returned = yield AllToAll(dots, plan.point_recv_counts, plan.point_send_counts)
    of_point = weight.new_zeros(weight.numel()).index_copy(0, plan.point_order, returned)
    return grad_rows, [of_point.view(weight.shape)]


def fresh_rows(handle: Handle, rows: Mapping[str, Tensor]) -> Fields:
    """Copies of a dispatch's rows that later calls leave alone; padding rows are 0.

    Nothing here waits for the device, which may only have begun to move the rows.
    """
    if handle.is_compact:
        return [row.clone() for row in rows.values()]
    return [take_rows(row, handle.row_of_slot) for row in rows.values()]


def rows_in_slots(handle: Any, rows: Fields) -> Fields:
    """Every row in one of its slots; the others are 0, so that sums of slots have it once."""
    index = handle.row_index
    if index is None:
        return rows
    slots = torch.arange(handle.num_slots, device=index.device)
    first = slots.new_empty(handle.num_rows + 1)  # the last one is for padding, -1
    at = index % len(first)
    first.scatter_reduce_(0, at, slots, "amin", include_self=False)
    of_slot = torch.where(first.gather(0, at) == slots, index, -1)
    return [take_rows(row, of_slot) for row in rows]


def dispatch_inputs(
    spec: ShuffleSpec,
    inputs: Sequence[Tensor],
    extents: Sequence[int],
    weights: Sequence[Tensor],
    *,
    reuses: bool,
) -> dict[str, Any]:
    """One rank's inputs by name, only numbers for casts where it ``reuses`` a routing; of extents
    below 0, nothing."""
    program = spec.program
    names = program.numbers if reuses else program.given
    named: dict[str, Any] = dict(zip(names, inputs, strict=True))
    named |= {n: v for n, v in zip(program.extents, extents, strict=False) if v >= 0}
    return named | weight_input(spec, weights)


def by_field(spec: ShuffleSpec, rows: Sequence[Tensor]) -> dict[str, Tensor]:
    """Rows that come back, by the names of the source's fields."""
    names = [field.name for field in spec.program.buffers["source"]]
    return dict(zip(names, rows, strict=True))


def weight_input(spec: ShuffleSpec, weights: Sequence[Tensor]) -> dict[str, Tensor]:
    """One rank's weights by the name of their input; empty without weights."""
    weight = spec.back.program.weight
    return {weight.name: weights[0]} if weights and weight is not None else {}
