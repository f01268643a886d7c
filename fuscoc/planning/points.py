"""A shuffle's regions evaluated on the host: all points of a rank at once, in arrays of numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from fuscoc.codegen.language import RaggedLanguage
from fuscoc.codegen.regions import Region, is_packed, regions_of
from fuscoc_runtime.arrays import on_host
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan import Points, key_to_rank
from fuscoc_runtime.plan.explain import explain_extents
from fuscoc_runtime.plan.flows import Int64Array
from fuscoc_runtime.scalar import Scope, builtin_extents, evaluate
from fuscoc_runtime.topology import Topology


def _quotient(lhs: Int64Array, rhs: Int64Array) -> Int64Array:
    """Rounded towards 0; divisors are positive."""
    return np.where(lhs < 0, -(-lhs // rhs), lhs // rhs)


ARITHMETIC: Mapping[str, Callable[[Int64Array, Int64Array], Int64Array]] = {
    "addi": np.add,
    "subi": np.subtract,
    "muli": np.multiply,
    "divsi": _quotient,
    "remsi": np.fmod,
    "floordivsi": np.floor_divide,
    "andi": np.logical_and,
    "ori": np.logical_or,
    "eq": np.equal,
    "ne": np.not_equal,
    "slt": np.less,
    "sge": np.greater_equal,
}


class Given(Protocol):
    """What a rank's points depend on: ``RankData`` and ``Scope`` say it."""

    @property
    def inputs(self) -> Mapping[str, Any]: ...

    @property
    def extents(self) -> Mapping[str, int]: ...


def points_of(
    module: Any, shuffle: ShuffleSpec, topology: Topology, ranks: Sequence[Given]
) -> list[Points]:
    """What the relation kernel computes on every rank, for the planner to plan.

    ``module`` is the shuffle's own, from coalesce-segments on, until specialise-kernels.

    Raises:
        FuscoRuntimeError: sizes or a placement that every dispatch would refuse.
    """
    return list(each_points(module, shuffle, topology, ranks))


def each_points(
    module: Any, shuffle: ShuffleSpec, topology: Topology, ranks: Sequence[Given]
) -> Iterator[Points]:
    """``points_of``, rank by rank."""
    for rank, given in enumerate(ranks):
        here = Scope({**given.extents, **builtin_extents(rank, len(ranks))}, given.inputs)
        with module.context:
            found = _points(module, shuffle, topology, rank, here)
        yield found


def _points(
    module: Any, shuffle: ShuffleSpec, topology: Topology, rank: int, given: Scope
) -> Points:
    op, domain, point = regions_of(module)
    arrays, names, packed = _Arrays(given), op.read("indices"), is_packed(op)
    owners = length = None
    target, slots = shuffle.declared.target, shuffle.program.target
    if slots.kind == "packed":
        owners = arrays.owners = on_host(key_to_rank(slots, topology, rank, given.inputs))
    if target.kind == "dense":
        length = evaluate(target.length, given)
    outer, *extents = domain.extents
    (argument,) = op.domain.blocks[0].arguments
    entries = np.arange(Region(arrays, {}).value(outer).item())
    counts, arrays.cell_offset = _sizes(
        Region(arrays, {argument: entries}), len(entries), extents, list(domain.cells),
        partial(explain_extents, shuffle, rank, given.inputs, given.extents),
    )  # fmt: skip
    of_point = np.repeat(entries, counts)
    indices = [of_point]
    if names[1:]:
        here = Region(arrays, {argument: of_point})
        inner = np.arange(len(of_point)) - _before(counts)[of_point]
        indices += here.row_major(inner, names[1:], here.extents(names[2:], extents[1:]))
    region = Region(arrays, dict(zip(op.relation.blocks[0].arguments, indices, strict=True)))
    columns = {
        "source": np.arange(len(of_point)) // shuffle.program.num_points_each(topology.num_ranks),
        "src_offset": region.value(point.src_offset),
        **{f"src_stride{i}": region.value(each) for i, each in enumerate(point.src_strides)},
    }
    ends = region.destination(point, arrays.constant(topology.num_ranks), packed)
    columns |= zip(("rank", "key" if packed else "slot"), ends, strict=True)
    full: dict[str, Any] = {
        name: each if len(each) == len(of_point) else np.repeat(each, len(of_point))
        for name, each in columns.items()
    }
    return Points(full, owners, length, given.inputs, given.extents)


def _sizes(
    region: Region[Int64Array],
    num_outer: int,
    extents: Sequence[Any],
    cells: Sequence[Any],
    explain: Callable[[int], Exception],
) -> tuple[Int64Array, Int64Array]:
    """Points of every outer index and, where it has ``cells``, source cells before it: int64
    [num_outer] each.

    Raises what ``explain`` says of the first outer index whose sizes are none.
    """
    sizes = [np.broadcast_to(region.value(value), num_outer) for value in (*extents, *cells)]
    bad = np.zeros(num_outer, np.bool_)
    for wrong in [
        *(size < 0 for size in sizes),
        *(np.fmod(lhs, rhs) != 0 for lhs, rhs in region.exact),
    ]:
        bad |= wrong
    if bad.any():
        raise explain(int(bad.argmax()))
    counts, num_cells = sizes[: len(extents)], sizes[len(extents) :]
    ones = np.ones(num_outer, np.int64)
    return np.prod([ones, *counts], axis=0), _before(*(num_cells or [ones]))


def _before(counts: Int64Array) -> Int64Array:
    return np.asarray(counts.cumsum() - counts)


class _Arrays(RaggedLanguage[Int64Array]):
    """A value of every point, or of length 1 where all points share it."""

    def __init__(self, given: Scope) -> None:
        self.extents = given.extents
        self.inputs = given.inputs
        self.owners = self.cell_offset = np.empty(0, np.int64)

    def constant(self, value: int) -> Int64Array:
        return np.array([value], np.int64)

    def arithmetic(self, op: str, lhs: Int64Array, rhs: Int64Array) -> Int64Array:
        return ARITHMETIC[op](lhs, rhs)

    def compare(self, predicate: str, lhs: Int64Array, rhs: Int64Array) -> Int64Array:
        return ARITHMETIC[predicate](lhs, rhs)

    def select(self, condition: Int64Array, then: Int64Array, otherwise: Int64Array) -> Int64Array:
        return np.where(condition, then, otherwise)

    def extent(self, name: str) -> Int64Array:
        return self.constant(self.extents[name])

    def lookup(self, name: str, offset: Int64Array) -> Int64Array:
        values = on_host(self.inputs[name]).reshape(-1).astype(np.int64, copy=False)
        # What is looked up at a place that does not exist counts for nothing.
        return values[offset] if len(values) else np.zeros_like(offset)

    def owner(self, key: Int64Array) -> Int64Array:
        return self.owners[key]

    def cell_base(self, outer: Int64Array) -> Int64Array:
        return self.cell_offset[outer]
