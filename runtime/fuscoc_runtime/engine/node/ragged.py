"""Sizes of a ragged domain, which inputs on the device give, without waiting for the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fuscoc_runtime.engine import sizes
from fuscoc_runtime.engine.arguments import Arguments, Checker
from fuscoc_runtime.engine.node.rings import Launched
from fuscoc_runtime.engine.node.state import NodeKernels
from fuscoc_runtime.kernels.loader import Kernel, address
from fuscoc_runtime.kernels.stored import kernel_of, own_kernel
from fuscoc_runtime.kernels.trace import Tracer
from fuscoc_runtime.kernels.traced import traced
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.manifest.program import RelationSpec
from fuscoc_runtime.manifest.schema import ShuffleSpec

MAX_PROGRAMS = 256
"""Of the kernel of extents, which go through further outer indices in turn."""

POINTS_AT_ONCE = 1024
"""Of a program of ``kernels/device/ragged.py``."""

ADDED_UP = (
    "num_outer", "least_cells", "most_cells", "room", "fanout",
    "table", "offsets", "totals", "state",
)  # fmt: skip
SPREAD = "num_points", "num_outer", "steps", "offsets", "outer"
LEFT_OUT = "num_points", "totals", "first", "second"


@dataclass(frozen=True, eq=False)
class RaggedSizes:
    """Where every outer index begins, for a launch over a fixed number of points.

    All are int64, on the device. ``outer`` [max_sources * fan-out]: the outer index of a point.
    ``point_offset``, ``cell_offset`` [num_outer + 1]: points and source cells before an outer
    index. ``totals`` [2]: the points that there are, of those that there is room for, 0 where the
    sizes cannot be; and those for which there is no room. Points that there are not are dropped,
    and their entries of ``outer`` only such that inputs can be read there.
    """

    outer: Tensor
    point_offset: Tensor
    cell_offset: Tensor
    totals: Tensor


@dataclass(frozen=True)
class EntrySizes:
    """Sizes that the kernels evaluate by themselves: the source has ``num_cells`` cells, or, where
    it is -1, those that it has are not told."""

    num_cells: int


class EntryEvaluator:
    """Looks at no more of the sizes than the host knows."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries

    def evaluate(self, checker: Checker, arguments: Arguments) -> EntrySizes | None:
        """None if there is no outer index, and so no segment.

        Raises:
            InputError: a size that the host knows is none, or too many outer indices.
        """
        num_outer = sizes.num_outer(checker, arguments)
        if not num_outer:
            sizes.check_cells(checker, arguments, 0)
            return None
        name, tensor = next(iter(arguments.fields.items()))
        if num_outer > self._max_entries:
            raise checker.problem(
                name, f"has {num_outer} entries of their own sizes; {self._max_entries} is the most"
            )
        return EntrySizes(len(tensor) if sizes.is_concatenated(checker) else -1)


class Extents:
    """The kernel that has the points and the cells of every outer index."""

    def __init__(
        self,
        artifact: Artifact,
        relation: RelationSpec,
        device: torch.device,
        tracer: Tracer | None = None,
    ) -> None:
        assert relation.extents_kernel is not None
        interpreted = device.type == "cpu"
        kernel = kernel_of(artifact, relation.extents_kernel, interpreted=interpreted)
        self._kernel = traced(kernel, tracer)
        self._kernel.compile()  # so that even the first launch can be captured
        self._block = relation.block

    def launch(self, values: Mapping[str, int]) -> None:
        """With inputs, extents, and where the results go; a program looks at a block at once."""
        programs = min(-(-values["num_outer"] // self._block), MAX_PROGRAMS)
        self._kernel.launch(values, programs)


class RaggedEvaluator:
    """Evaluates the sizes of one rank's calls, for as many source segments as there is room for.

    What is wrong with them is counted in ``state``, the words of the device (`NodeKernels.state`).
    """

    def __init__(
        self,
        artifact: Artifact,
        extents: Extents,
        max_sources: int,
        fanout: int,
        state: Tensor,
        tracer: Tracer | None = None,
    ) -> None:
        self._extents, self._state = extents, state
        self._room, self._fanout = max_sources * fanout, fanout

        def load(name: str, arguments: Sequence[str]) -> Kernel:
            return _own(artifact, name, arguments, state.device, tracer)

        self._add_up, self._spread = load("add_up", ADDED_UP), load("spread", SPREAD)
        self._drop = load("drop", ("totals", "routing"))

    def evaluate(self, checker: Checker, arguments: Arguments) -> RaggedSizes | None:
        """Only enqueues work. None if there is no outer index, and so no segment.

        Raises:
            InputError: a size that the host knows is none.
        """
        num_outer = sizes.num_outer(checker, arguments)
        if not num_outer:
            sizes.check_cells(checker, arguments, 0)
            return None
        num_bounds = num_outer + 1
        lengths = [3 * num_outer, num_bounds, num_bounds, 2, self._room]
        memory = torch.empty(sum(lengths), dtype=torch.int64, device=self._state.device)
        table, points, cells, totals, outer = torch.split(memory, lengths)
        values = {f"extent.{name}": value for name, value in arguments.extents.items()}
        values |= {f"input.{name}": address(each) for name, each in arguments.inputs.items()}
        values |= {
            name: address(table) + number * num_outer * table.element_size()
            for number, name in enumerate(("points", "cells", "status"))
        }
        values["num_outer"] = num_outer
        self._extents.launch(values)
        num_cells = [len(each) for each in arguments.fields.values()]
        told = (min(num_cells), max(num_cells)) if sizes.is_concatenated(checker) else (-1, -1)
        at = [address(each) for each in (table, points, totals, self._state)]
        self._add_up.start([num_outer, *told, self._room, self._fanout, *at], 1)
        steps = num_outer.bit_length()
        at = [address(points), address(outer)]
        self._spread.start([self._room, num_outer, steps, *at], -(-self._room // POINTS_AT_ONCE))
        return RaggedSizes(outer, points, cells, totals)

    def drop(self, sizes: RaggedSizes, launched: Launched) -> None:
        """Count the points for which there was no room as not moved; behind the launches of their
        dispatch."""
        self._drop.start([address(sizes.totals), address(launched.routing)], 1)


def _own(
    artifact: Artifact,
    name: str,
    arguments: Sequence[str],
    device: torch.device,
    tracer: Tracer | None,
) -> Kernel:
    """One of ``kernels/device/ragged.py``, compiled, so that even its first launch can be
    captured."""
    interpreted = device.type == "cpu"
    kernel = own_kernel(artifact, "ragged", name, arguments, interpreted=interpreted)
    kernel.compile()
    return traced(kernel, tracer)


def ragged_evaluator(
    artifact: Artifact, shuffle: ShuffleSpec, node: NodeKernels, tracer: Tracer | None = None
) -> RaggedEvaluator | EntryEvaluator | None:
    """What evaluates the sizes of a ragged shuffle; None for another one."""
    program = shuffle.program
    if program.relation.extents_kernel is None:
        return None
    if node.max_entries is not None:
        return EntryEvaluator(node.max_entries)
    extents = Extents(artifact, program.relation, node.state.device, tracer)
    max_sources = node.limits.max_sources
    fanout, state = program.fanout, node.state
    return RaggedEvaluator(artifact, extents, max_sources, fanout, state, tracer)
