"""Sizes of a ragged domain, which inputs on the device give, without waiting for the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fuscoc_runtime.engine import sizes
from fuscoc_runtime.engine.arguments import Arguments, Checker
from fuscoc_runtime.engine.node.state import BAD_SIZES, EXCESS, TROUBLES, NodeKernels
from fuscoc_runtime.kernels.loader import address, load_kernel
from fuscoc_runtime.kernels.trace import Tracer
from fuscoc_runtime.kernels.traced import traced
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.manifest.program import RelationSpec
from fuscoc_runtime.manifest.schema import ShuffleSpec

MAX_PROGRAMS = 256
"""Of the kernel of extents, which go through further outer indices in turn."""

MOST = 2.0**62
"""Points or cells beyond which sizes are refused: the kernels' integers would wrap unseen."""


@dataclass(frozen=True, eq=False)
class RaggedSizes:
    """Where every outer index begins, for a launch over a fixed number of points.

    All are int64, on the device. ``outer`` [max_sources * fan-out]: the outer index of a point.
    ``point_offset``, ``cell_offset`` [num_outer + 1]: points and source cells before an outer
    index. ``num_points`` []: the points that there are, of those that there is room for; the others
    are dropped, and their entries of ``outer`` only such that inputs can be read there. It is 0
    where the sizes cannot be. ``excess`` []: points for which there is no room.
    """

    outer: Tensor
    point_offset: Tensor
    cell_offset: Tensor
    num_points: Tensor
    excess: Tensor


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
        spec = artifact.kernels[relation.extents_kernel]
        path, code = artifact.kernel_file(spec), artifact.code[spec.file]
        kernel = load_kernel(path, spec, code, interpreted=device.type == "cpu")
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

    def __init__(self, extents: Extents, max_sources: int, fanout: int, state: Tensor) -> None:
        self._extents, self._fanout, self._state = extents, fanout, state
        self._points = torch.arange(max_sources * fanout, device=state.device)
        self._counted = torch.tensor([EXCESS, BAD_SIZES, TROUBLES], device=state.device)

    def evaluate(self, checker: Checker, arguments: Arguments) -> RaggedSizes | None:
        """Only enqueues work. None if there is no outer index, and so no segment.

        Raises:
            InputError: a size that the host knows is none.
        """
        num_outer = sizes.num_outer(checker, arguments)
        if not num_outer:
            sizes.check_cells(checker, arguments, 0)
            return None
        table = torch.empty(3, num_outer, dtype=torch.int64, device=self._state.device)
        values = {f"extent.{name}": value for name, value in arguments.extents.items()}
        values |= {f"input.{name}": address(each) for name, each in arguments.inputs.items()}
        values |= zip(("points", "cells", "status"), map(address, table), strict=True)
        values["num_outer"] = num_outer
        self._extents.launch(values)
        offsets = torch.nn.functional.pad(table[:2].cumsum(1), (1, 0))
        (num_points, num_cells), room = offsets[:, -1], len(self._points)
        bad = table[2].any() | (num_points < 0) | self._is_too_much(checker, arguments, num_outer)
        if sizes.is_concatenated(checker):
            for tensor in arguments.fields.values():
                bad = bad | (num_cells != len(tensor))
        # Of sizes that cannot be nothing is left: the kernel reads inputs where these tables say.
        num_points, offsets = torch.where(bad, 0, num_points), torch.where(bad, 0, offsets)
        excess = (num_points - room).clamp(min=0)
        self._count(excess // self._fanout, bad)
        # Points beyond the last one are of its outer index.
        at = torch.minimum(self._points, num_points - 1)
        outer = torch.searchsorted(offsets[0, 1:], at, right=True).clamp(max=num_outer - 1)
        return RaggedSizes(outer, offsets[0], offsets[1], num_points.clamp(max=room), excess)

    def _is_too_much(self, checker: Checker, arguments: Arguments, num_outer: int) -> Tensor:
        """bool []: whether an input of sizes is negative, or points or cells cannot be counted."""
        bad = torch.zeros((), dtype=torch.bool, device=self._state.device)
        highest: dict[str, Tensor] = {}
        for name, tensor in sizes.inputs_of_sizes(checker, arguments).items():
            low, high = tensor.aminmax()
            bad, highest[name] = bad | (low < 0), high.double()
        for _, most in sizes.magnitudes(checker, arguments, num_outer, highest):
            bad = bad | (most * num_outer > MOST)
        return bad

    def _count(self, excess: Tensor, bad: Tensor) -> None:
        counts = torch.stack([excess, bad.long(), excess + bad])
        self._state.index_add_(0, self._counted, counts.to(self._state.dtype))


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
    return RaggedEvaluator(extents, node.limits.max_sources, program.fanout, node.state)
