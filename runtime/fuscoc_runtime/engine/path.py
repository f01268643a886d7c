"""The steps of a path, one after the other on the current stream.

What comes before the network hop puts all rows into the buffer that they travel from; every stage
is one exchange; what comes behind works off all that has arrived. So dispatch gathers rows straight
from the source and forwards them to their slots, and combine, the mirror image, reduces rows at
their ranks and at their forwarder before they travel. Which is which, the tokens say.

Every rank of a node launches what signals as often as its peers: once a call.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.comm.landing import as_bytes
from fuscoc_runtime.comm.requests import Crossing, Phase, Request, Rows
from fuscoc_runtime.engine.buffers import Buffers, named
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.engine.steps import PreparedStep
from fuscoc_runtime.manifest.program import LaunchStep, PathSpec
from fuscoc_runtime.plan import RankPlan, Wire
from fuscoc_runtime.plan.wire import Part

FORTH, BACK = ("slices", "landing"), ("return_slices", "returned")
"""Buffers that rows leave from, and arrive in."""

HANDED_OVER = ("carried", "returned")
"""Buffers of what ranks of a node send for one another, where they do."""


class PreparedPath:
    """One path on one rank, ready to run: what has to be known of the plan is looked up, and
    nothing is launched. ``buffers`` lack those of the network hop."""

    def __init__(self, machine: Machine, path: PathSpec, plan: RankPlan, buffers: Buffers) -> None:
        self._machine, self._wire = machine, plan.wire
        sides = plan.wire.send, plan.wire.receive
        self._sends, self._receives = sides[::-1] if _is_back(machine, path) else sides
        leaves, arrives = BACK if _is_back(machine, path) else FORTH
        self._sent = _rows(machine, leaves, self._sends.num_rows)
        self._received = _rows(machine, arrives, self._receives.num_rows)
        if _is_back(machine, path) and not plan.wire.hands_over:
            # Behind the direct rows, where they belong.
            first = plan.rows.staging - self._receives.num_rows
            self._received = {name: rows[first:] for name, rows in buffers.rows("staging").items()}
        crossing = {**named(leaves, self._sent), **named(arrives, self._received)}
        bound = Buffers({**buffers.tensors, **crossing}, buffers.windows)
        self._before, self._beside, self._behind = (
            [
                (step, PreparedStep(machine, step, plan.lists[step.list], bound))
                for step in steps
                if _has_work(step, plan.wire)
            ]
            for steps in (path.before if plan.wire.num_stages else (), path.beside, path.behind)
        )

    def run(self) -> Generator[Request, Any, None]:
        """Carry it out; collective over all ranks."""
        yield from self._launch(self._before)
        yield from self._cross()
        yield from self._launch(self._beside)
        yield from self._launch(self._behind)

    def _cross(self) -> Generator[Request, Any, None]:
        num_stages = self._wire.num_stages
        sends, receives = (side.in_stages(num_stages) for side in (self._sends, self._receives))
        for stage, (there, here) in enumerate(zip(sends, receives, strict=True)):
            with self._machine.tracer.span("wire", f"stage {stage}"):
                yield Crossing(_parts(self._sent, there), _parts(self._received, here), stage=stage)

    def _launch(
        self, steps: Iterable[tuple[LaunchStep, PreparedStep]]
    ) -> Generator[Request, Any, None]:
        for step, prepared in steps:
            if step.wait:
                yield Phase(step.kernel)
            with self._machine.tracer.span(step.list.replace("_", " "), "all rows"):
                prepared.launch()


def _is_back(machine: Machine, path: PathSpec) -> bool:
    return path is machine.shuffle.program.combine


def _has_work(step: LaunchStep, wire: Wire) -> bool:
    """Whether there is any for a step, on some rank."""
    ends = {step.src, step.dst}
    if not wire.num_stages and ends & {*FORTH, *BACK}:
        return False
    return wire.hands_over or not ends & {*HANDED_OVER}


def _rows(machine: Machine, buffer: str, num_rows: int) -> dict[str, Tensor]:
    """Memory for rows, by field."""
    return {
        each.name: torch.empty(num_rows, *each.shape, dtype=each.dtype, device=machine.device)
        for each in machine.row_fields.get(buffer, ())
    }


def _parts(rows: Mapping[str, Tensor], parts: Iterable[Part]) -> tuple[Rows, ...]:
    return tuple(
        Rows(each.peer, tuple(as_bytes(field[each.begin : each.end]) for field in rows.values()))
        for each in parts
    )
