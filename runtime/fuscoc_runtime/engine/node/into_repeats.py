"""Dispatches into memory of the caller's that repeat earlier ones.

As in `Repeats`: one whose arguments have the forms of an earlier one needs no checks but those of
what forms do not tell, and of what surrounds the kernels nothing is left but launches that look
places up, that see which are given twice where rows are put, and that leave out slots without one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.engine.into import NOWHERE, Given, Into
from fuscoc_runtime.engine.node.engine import NodeEngine, current_device
from fuscoc_runtime.engine.node.forms import Form, Known, addresses, are_plain
from fuscoc_runtime.engine.node.handle import NodeHandle
from fuscoc_runtime.engine.node.rings import Launched
from fuscoc_runtime.engine.row_kernels import accumulate_rows, put_rows


@dataclass(frozen=True, eq=False)
class _Dispatch:
    """What dispatches of one form have in common; positions are those among the arguments, of which
    each has so many ``sizes`` in bytes. ``numbers`` are `Into.numbers`, ``rows`` those that come,
    [num_parts, elements]."""

    form: Form
    source: int
    inputs: tuple[tuple[str, int], ...]
    tables: tuple[tuple[str, int], ...]
    memory: int
    sizes: tuple[int, ...]
    num_sources: int
    num_slots: int
    extents: Mapping[str, int]
    shapes: Mapping[str, torch.Size]
    numbers: Mapping[str, int]
    rows: Tensor


class IntoRepeats:
    """Those of one engine inside a node."""

    @staticmethod
    def of(engine: NodeEngine, into: Into) -> IntoRepeats | None:
        """None where calls are not alike enough."""
        program = engine.shuffle.program
        is_plain = not (engine.is_ragged or engine.reply or program.weight or program.numbers)
        is_single = len(program.buffers["source"]) == len(program.buffers["target"]) == 1
        if not is_plain or not is_single:
            return None
        return IntoRepeats(engine, into) if engine.node.rails is None else None

    def __init__(self, engine: NodeEngine, into: Into) -> None:
        self._engine, self._into = engine, into
        self._known = Known[_Dispatch]()
        [self._field] = engine.shuffle.program.buffers["source"]
        [self._rows] = engine.rows.values()
        self._window, *_ = engine.windows

    def dispatch(
        self, fields: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[Tensor, NodeHandle] | None:
        """The memory, with the rows in it, and the handle; None where it is for the engine to find
        out what is asked for."""
        tensors = (*fields, *named.values())
        known = self._known.find((len(fields), *named), tensors)
        if known is None:
            return None
        at = addresses(tensors, self._window)
        if at is None or _share(at, known.sizes, known.memory):
            return None
        engine, into, program = self._engine, self._into, self._engine.shuffle.program
        inputs = {name: tensors[position] for name, position in known.inputs}
        with engine.in_turn():
            launched = engine.node.dispatch(
                [tensors[known.source]],
                [inputs[name] for name in program.inputs],
                [known.extents[name] for name in program.extents],
                known.num_sources,
                num_slots=known.num_slots,
            )
            engine.entered(launched.entry)
            # Before the next call puts its rows where these are.
            memory: Tensor = tensors[known.memory]
            places = torch.empty(len(known.rows), dtype=torch.int64, device=memory.device)
            tables = {name: at[position] for name, position in known.tables}
            into.look_up(known.numbers, tables, places)
            into.latest = self._bring(known, launched, places, memory)
        if not memory.is_inference():
            torch.autograd.graph.increment_version(memory)
        return memory, NodeHandle(engine, launched, inputs, known.extents, known.shapes)

    def remember(
        self, fields: Sequence[Any], named: Mapping[str, Any], given: Given, handle: NodeHandle
    ) -> None:
        """This dispatch has been made; ``given`` is what `Into.prepare` has found of it."""
        tensors = (*fields, *named.values())
        key = len(fields), *named
        if not are_plain(tensors) or self._known.find(key, tensors):
            return
        if not handle.num_slots:  # nothing comes
            return
        names = [*([self._field.name] if fields else []), *named]
        numbers = self._into.numbers(given.extents)
        rows = self._rows[: handle.num_slots].view(numbers["num_points"], -1)
        positions = {name: position for position, name in enumerate(names)}
        known = _Dispatch(
            Form(key, tensors),
            positions[self._field.name],
            tuple((name, positions[name]) for name in handle.inputs),
            tuple((name, positions[name]) for name in given.inputs),
            positions[self._into.spec.argument],
            tuple(each.nbytes for each in tensors),
            handle.launched.num_sources,
            handle.num_slots,
            handle.extents,
            handle.source_shapes,
            numbers,
            rows,
        )
        self._known.remember(known)
        if not self._engine.is_capturing:  # load what a graph that captures the next call could not
            with current_device(given.places.device):
                nowhere = torch.full_like(given.places, NOWHERE)
                self._bring(known, handle.launched, nowhere, tensors[known.memory])

    def _bring(
        self, known: _Dispatch, launched: Launched, places: Tensor, memory: Tensor
    ) -> Tensor:
        """Put rows at these places, or add them to what is there; where they have gone."""
        into, num_places = self._into, known.numbers["num_places"]
        targets = into.settle(places, num_places, launched.filling)
        bring = put_rows if into.spec.kind == "copy" else accumulate_rows
        bring(known.rows, targets, memory.view(-1, known.rows.shape[1]))
        return targets


def _share(addresses: Sequence[int], sizes: Sequence[int], memory: int) -> bool:
    """Whether that one has memory in common with another."""
    begin, end = addresses[memory], addresses[memory] + sizes[memory]
    return any(
        position != memory and begin < address + size and address < end
        for position, (address, size) in enumerate(zip(addresses, sizes, strict=True))
    )
