"""Domain points from the manifest's expressions, in numpy: the oracle of the relation kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fuscoc.testing.arrays import Bools, Ints, before, ints
from fuscoc_runtime.manifest.declared import PackedTarget
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan import Points
from fuscoc_runtime.reference import RankData, on_their_ranks
from fuscoc_runtime.scalar import BinaryOp, Extent, Index, Inside, Load, Scalar, subexpressions
from fuscoc_runtime.topology import Topology

OPERATORS: dict[str, Callable[..., Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.floor_divide,
    "//": np.floor_divide,
    "%": np.remainder,
    "min": np.minimum,
    "max": np.maximum,
    "cdiv": lambda lhs, rhs: -(-lhs // rhs),
}


class Domain:
    """The domain of one rank: the value of any expression at all of its points at once.

    Attributes:
        num_points: points of the domain, in row-major order.
        indices: int64 [num_points], the value of every index at every point.
    """

    def __init__(self, shuffle: ShuffleSpec, data: RankData) -> None:
        self._data = data
        outer, *inner = shuffle.declared.domain
        entries = self._range(outer.extent)
        extents = [self._at_entries(index.extent, outer.name, entries) for index in inner]
        counts = np.prod([np.ones_like(entries), *extents], axis=0)
        point_entry = np.repeat(entries, counts)
        rest = np.arange(len(point_entry)) - before(counts)[point_entry]
        digits: dict[str, Ints] = {}
        for index, extent in zip(reversed(inner), reversed(extents), strict=True):
            rest, digits[index.name] = np.divmod(rest, extent[point_entry])
        self.num_points = len(point_entry)
        self.indices: dict[str, Ints] = {outer.name: point_entry, **digits}

    def values(self, scalar: Scalar) -> Ints:
        """int64 [num_points]: ``scalar`` at every point."""
        value = evaluate(scalar, self._data, self.indices)
        return np.array(np.broadcast_to(value, self.num_points))

    def exists(self, scalar: Scalar) -> Bools:
        """bool [num_points]: whether all places exist that ``scalar`` is looked up by."""
        found = np.ones(self.num_points, np.bool_)
        for part in subexpressions(scalar):
            if isinstance(part, Inside):
                value = self.values(part.value)
                found &= (value >= 0) & (value < self.values(part.limit))
        return found

    def entries(self, load: Load) -> Ints:
        """int64 [num_points]: the flat position in ``load``'s input that every point reads."""
        at = tuple(self.values(position) for position in load.at)
        shape = tuple(self._data.inputs[load.input].shape)
        return np.asarray(np.ravel_multi_index(at, shape) if self.num_points else at[0])

    def cell_offsets(self, shuffle: ShuffleSpec) -> Ints:
        """int64 [num_points]: the first cell of every point's segment, rows major."""
        source = shuffle.declared.source
        entries = self._range(source.dims[0])
        sizes = np.ones_like(entries)
        for dim in source.dims[1:]:
            sizes *= self._at_entries(dim, shuffle.declared.domain[0].name, entries)
        starts = [self.values(subscript.start) for subscript in source.subscripts]
        inside = np.zeros(self.num_points, np.int64)
        for start, dim in zip(starts[1:], source.dims[1:], strict=True):
            inside = inside * self.values(dim) + start
        return inside + (before(sizes)[starts[0]] if self.num_points else 0)

    def strides(self, shuffle: ShuffleSpec, dim: int) -> Ints:
        """int64 [num_points]: cells from one step of source dimension ``dim`` to the next."""
        stride = np.ones(self.num_points, np.int64)
        for inner in shuffle.declared.source.dims[dim + 1 :]:
            stride *= self.values(inner)
        return stride

    def _range(self, extent: Scalar) -> Ints:
        return np.arange(int(evaluate(extent, self._data, {})), dtype=np.int64)

    def _at_entries(self, scalar: Scalar, name: str, entries: Ints) -> Ints:
        value = evaluate(scalar, self._data, {name: entries})
        return np.array(np.broadcast_to(value, entries.shape))


def evaluate(scalar: Scalar, data: RankData, indices: Mapping[str, Ints]) -> Ints:
    """``scalar`` with arrays for its indices; the result broadcasts against them."""
    match scalar:
        case int():
            return np.asarray(scalar, np.int64)
        case Index(name):
            return indices[name]
        case Extent(name):
            return np.asarray(data.extents[name], np.int64)
        case Load(name, at):
            where = tuple(evaluate(position, data, indices) for position in at)
            return ints(data.inputs[name])[where]
        case BinaryOp(op, lhs, rhs):
            values = evaluate(lhs, data, indices), evaluate(rhs, data, indices)
            return np.asarray(OPERATORS[op](*values))
        case Inside(inner, limit):
            place = evaluate(inner, data, indices)
            return np.where((place >= 0) & (place < evaluate(limit, data, indices)), place, 0)


def points_of(shuffle: ShuffleSpec, topology: Topology, ranks: Sequence[RankData]) -> list[Points]:
    """What the relation kernel has to compute on every rank, for the planner to plan.

    Evaluates the manifest's expressions; shares nothing with the generated kernels, nor with the
    planner. Keys and ranks out of range are marked with rank -2, as the kernels do.
    """
    return [_points(shuffle, topology, data) for data in on_their_ranks(ranks)]


def owners(target: PackedTarget, topology: Topology, data: RankData) -> Ints:
    """int64 [num_keys]: the rank that every key is placed on."""
    keys = np.arange(target.num_keys, dtype=np.int64) // target.group
    match target.placement.kind:
        case "block":
            return keys * topology.num_ranks // (target.num_keys // target.group)
        case "cyclic":
            return keys % topology.num_ranks
        case "table":
            return ints(data.inputs[str(target.placement.table)])


def _points(shuffle: ShuffleSpec, topology: Topology, data: RankData) -> Points:
    domain, target = Domain(shuffle, data), shuffle.declared.target
    columns = {
        "source": np.arange(domain.num_points)
        // shuffle.program.num_points_each(topology.num_ranks),
        "src_offset": domain.cell_offsets(shuffle),
        **{name: domain.strides(shuffle, dim) for name, dim in stride_dims(shuffle).items()},
    }
    owner = length = None
    if target.kind == "packed":
        owner = owners(target, topology, data)
        key = columns["key"] = domain.values(target.key)
        in_range = (key >= 0) & (key < target.num_keys)
        columns["rank"] = np.where(in_range, owner[np.where(in_range, key, 0)], -2)
    else:
        rank = domain.values(target.rank)
        columns["rank"] = np.where((rank >= -1) & (rank < topology.num_ranks), rank, -2)
        columns["slot"] = domain.values(target.slot)
        length = int(evaluate(target.length, data, {}))
    for place in shuffle.declared.places:
        columns["rank"][~domain.exists(place)] = -2
    for scalar in shuffle.declared.drops:
        dropped = domain.exists(scalar) & (domain.values(scalar) == -1)
        columns["rank"][dropped] = -1
        if target.kind == "packed":
            columns["key"][dropped] = -1
    return Points(
        {name: torch.from_numpy(column) for name, column in columns.items()},
        None if owner is None else torch.from_numpy(owner),
        length,
        data.inputs,
        data.extents,
    )


def stride_dims(shuffle: ShuffleSpec) -> dict[str, int]:
    """The source dimension whose stride every stride column holds.

    A copy's runs and outer run dimensions are the segment's block of cells, innermost first; each
    covers one or more of the block's dimensions and has the stride of the innermost of them.
    """
    source = shuffle.declared.source
    lengths = [(dim, source.subscripts[dim].length or 1) for dim in source.runs]
    block = [(dim, length) for dim, length in lengths if length > 1]
    runs = shuffle.program.runs[0]
    found: dict[str, int] = {}
    _take(block, runs.run_elems // runs.cell_elems)
    for run in reversed(runs.run_dims):
        dim = _take(block, run.count)
        if isinstance(run.src_stride, str):
            found[run.src_stride] = dim
    return dict(sorted(found.items()))


def _take(block: list[tuple[int, int]], count: int) -> int:
    """Remove the innermost dimensions that make up ``count`` cells; the innermost of them."""
    innermost = block[-1][0] if block else -1
    taken = 1
    while taken < count and block:
        taken *= block.pop()[1]
    if taken != count:
        raise ValueError(f"runs of {count} do not cover whole dimensions of the segment")
    return innermost
