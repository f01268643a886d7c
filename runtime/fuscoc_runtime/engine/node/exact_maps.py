"""The linear maps of calls whose sizes are exact; see ``engine.linear``.

Handles last, and weights may come as late as with combine: so pulling is a combine with weights of
1, and the backward pass of combine a dispatch along the same routing.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import Any

from torch import Tensor

from fuscoc_runtime.comm.requests import Request
from fuscoc_runtime.engine.arguments import unit_weights
from fuscoc_runtime.engine.handle import Handle
from fuscoc_runtime.engine.linear import (
    Fields,
    GeneralMaps,
    by_field,
    fresh_rows,
    rows_in_slots,
    weight_input,
)
from fuscoc_runtime.engine.node.maps import NodeMaps
from fuscoc_runtime.engine.weights import with_weights


class ExactMaps(NodeMaps):
    """The maps of an ``ExactEngine``; a routing is a handle of it, or of its general engine."""

    def combine(self, rows: Fields, routing: Sequence[Any], weights: Fields) -> Fields:
        """As without autograd, which may be on another rank: weights that dispatch was given are
        not sent again. They count as they are now; operators keep copies."""
        handle = routing[0]
        if self._engine.has_weights(handle):
            handle, weights = with_weights(handle, weight_input(self.spec, weights)), []
        return self._weighed_by(weights, rows, [handle])

    def pull(self, rows: Fields, routing: Sequence[Any]) -> Fields:
        handle = routing[0]
        ones = unit_weights(self.spec, handle.extents, self._engine.members.device)
        return self._weighed_by(ones, rows_in_slots(handle, rows), routing)

    def _weighed_by(self, weights: Fields, rows: Fields, routing: Sequence[Any]) -> Fields:
        started = time.perf_counter()
        named = by_field(self.spec, rows)
        result = self._engine.combine(named, routing[0], weight_input(self.spec, weights))
        self._observer.combined(started)
        return list(result.values())

    def combine_backward(
        self,
        grads: Fields,
        rows: Fields,
        routing: Sequence[Any],
        weights: Fields,
        num_rows: int,
    ) -> tuple[Fields, Fields]:
        [handle] = routing
        if isinstance(handle, Handle):
            return self._general().combine_backward(grads, rows, routing, weights, num_rows)
        # The gradients come to where a dispatch's rows are.
        rows = [row.clone() if self._engine.lends(row) else row for row in rows]
        done = self._dispatch(grads, weight_input(self.spec, weights), handle)
        with self._turn():
            return self._weighed(done.handle, list(done.rows.values()), rows, weights, num_rows)

    def _general(self) -> GeneralMaps:
        engine = self._engine.general

        def run(work: list[Generator[Request, Any, Any]]) -> list[Any]:
            [only] = work
            return [engine.run("operator", only)]

        return GeneralMaps([engine.machine], run, self._observer)

    def _fresh(self, handle: Any, rows: Fields) -> Fields:
        if isinstance(handle, Handle):
            names = [field.name for field in self.spec.program.buffers["target"]]
            return fresh_rows(handle, dict(zip(names, rows, strict=True)))
        return super()._fresh(handle, rows)

    def _points(self, handle: Any) -> Tensor:
        found: Tensor = self._engine.node.points()
        return found

    def _most_slots(self, handle: Any) -> int:
        slots: tuple[int, ...] = handle.known.slots
        return max(slots)
