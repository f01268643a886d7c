"""A shuffle's regions evaluated on the host: all points of a rank at once, as int64 tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fuscoc.codegen.language import RaggedLanguage
from fuscoc.codegen.regions import Region, is_packed, regions_of
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan import Points, key_to_rank
from fuscoc_runtime.plan.explain import explain_extents
from fuscoc_runtime.reference import RankData, on_their_ranks
from fuscoc_runtime.scalar import Scope, evaluate
from fuscoc_runtime.topology import Topology

ARITHMETIC: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "addi": torch.add,
    "subi": torch.sub,
    "muli": torch.mul,
    "divsi": partial(torch.div, rounding_mode="trunc"),
    "remsi": torch.fmod,
    "floordivsi": torch.floor_divide,
    "andi": torch.logical_and,
    "ori": torch.logical_or,
    "eq": torch.eq,
    "ne": torch.ne,
    "slt": torch.lt,
    "sge": torch.ge,
}


def points_of(
    module: Any, shuffle: ShuffleSpec, topology: Topology, ranks: Sequence[RankData]
) -> list[Points]:
    """What the relation kernel computes on every rank, for the planner to plan.

    ``module`` is the shuffle's own, from coalesce-segments on, until specialise-kernels; ``ranks``
    need no source.

    Raises:
        FuscoRuntimeError: sizes or a placement that every dispatch would refuse.
    """
    return list(each_points(module, shuffle, topology, ranks))


def each_points(
    module: Any, shuffle: ShuffleSpec, topology: Topology, ranks: Sequence[RankData]
) -> Iterator[Points]:
    """``points_of``, rank by rank."""
    for rank, data in enumerate(on_their_ranks(ranks)):
        with module.context:
            found = _points(module, shuffle, topology, rank, data)
        yield found


def _points(
    module: Any, shuffle: ShuffleSpec, topology: Topology, rank: int, data: RankData
) -> Points:
    op, domain, point = regions_of(module)
    tensors, names, packed = _Tensors(data), op.read("indices"), is_packed(op)
    owners = length = None
    target, slots = shuffle.declared.target, shuffle.program.target
    if slots.kind == "packed":
        owners = tensors.owners = key_to_rank(slots, topology, rank, data.inputs)
    if target.kind == "dense":
        length = evaluate(target.length, Scope(data.extents, data.inputs))
    outer, *extents = domain.extents
    (argument,) = op.domain.blocks[0].arguments
    entries = torch.arange(int(Region(tensors, {}).value(outer)))
    counts, tensors.cell_offset = _sizes(
        Region(tensors, {argument: entries}), len(entries), extents, list(domain.cells),
        partial(explain_extents, shuffle, rank, data.inputs, data.extents),
    )  # fmt: skip
    of_point = entries.repeat_interleave(counts)
    inner = torch.arange(len(of_point)) - _before(counts)[of_point]
    here = Region(tensors, {argument: of_point})
    indices = [of_point, *here.row_major(inner, names[1:], here.extents(names[2:], extents[1:]))]
    region = Region(tensors, dict(zip(op.relation.blocks[0].arguments, indices, strict=True)))
    columns = {
        "source": torch.arange(len(of_point))
        // shuffle.program.num_points_each(topology.num_ranks),
        "src_offset": region.value(point.src_offset),
        **{f"src_stride{i}": region.value(each) for i, each in enumerate(point.src_strides)},
    }
    ends = region.destination(point, torch.tensor(topology.num_ranks), packed)
    columns |= zip(("rank", "key" if packed else "slot"), ends, strict=True)
    full = {name: column.expand(len(of_point)).clone() for name, column in columns.items()}
    return Points(full, owners, length, data.inputs, data.extents)


def _sizes(
    region: Region[Tensor],
    num_outer: int,
    extents: Sequence[Any],
    cells: Sequence[Any],
    explain: Callable[[int], Exception],
) -> tuple[Tensor, Tensor]:
    """Points of every outer index and, where it has ``cells``, source cells before it: int64
    [num_outer] each.

    Raises what ``explain`` says of the first outer index whose sizes are none.
    """
    sizes = [region.value(value).expand(num_outer) for value in (*extents, *cells)]
    bad = torch.zeros(num_outer, dtype=torch.bool)
    for wrong in [
        *(size < 0 for size in sizes),
        *(torch.fmod(lhs, rhs) != 0 for lhs, rhs in region.exact),
    ]:
        bad |= wrong
    if bad.any():
        raise explain(int(bad.nonzero()[0]))
    counts, num_cells = sizes[: len(extents)], sizes[len(extents) :]
    ones = torch.ones(num_outer, dtype=torch.int64)
    return torch.stack([ones, *counts]).prod(0), _before(*(num_cells or [ones]))


def _before(counts: Tensor) -> Tensor:
    return counts.cumsum(0) - counts


class _Tensors(RaggedLanguage[Tensor]):
    """Tensors over all points, or of no dimension where all points share a value."""

    def __init__(self, data: RankData) -> None:
        self.extents = data.extents
        self.inputs = {name: each.flatten().long() for name, each in data.inputs.items()}
        self.owners = self.cell_offset = torch.empty(0, dtype=torch.int64)

    def constant(self, value: int) -> Tensor:
        return torch.tensor(value)

    def arithmetic(self, op: str, lhs: Tensor, rhs: Tensor) -> Tensor:
        return ARITHMETIC[op](lhs, rhs)

    def compare(self, predicate: str, lhs: Tensor, rhs: Tensor) -> Tensor:
        return ARITHMETIC[predicate](lhs, rhs)

    def select(self, condition: Tensor, then: Tensor, otherwise: Tensor) -> Tensor:
        return torch.where(condition, then, otherwise)

    def extent(self, name: str) -> Tensor:
        return torch.tensor(self.extents[name])

    def lookup(self, name: str, offset: Tensor) -> Tensor:
        values = self.inputs[name]
        # What is looked up at a place that does not exist counts for nothing.
        return values[offset] if len(values) else torch.zeros_like(offset)

    def owner(self, key: Tensor) -> Tensor:
        return self.owners[key]

    def cell_base(self, outer: Tensor) -> Tensor:
        return self.cell_offset[outer]
