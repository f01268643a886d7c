"""The oracle: what a shuffle must do, one domain point at a time.

Slow and obviously right. It interprets the manifest's scalar expressions for every point of the
domain and shares nothing with the generated kernels or the planner. All ranks are in one process;
everything happens on the host.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.manifest.declared import (
    CastSpec,
    ComputedNumbers,
    DomainIndex,
    FieldSpec,
    GivenNumbers,
    Numbers,
    PackedTarget,
)
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.padding import blocks
from fuscoc_runtime.scalar import Scope, builtin_extents, evaluate, is_dropped

LEAST_AMAX = 2.0**-100
"""A block whose values are all smaller gets the scales of this magnitude, so that none is 0."""

Doubles: TypeAlias = np.ndarray[tuple[int], np.dtype[np.float64]]
BY_CHANNEL = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}
"""What casts compute of their numbers."""

MERGES = {"max": torch.maximum}
"""How reductions make two rows one."""


@dataclass(frozen=True, eq=False)
class RankData:
    """What one rank brings to a shuffle.

    ``source``: the tensor of every field, [*dims, *cell shape], or [cells, *cell shape] with the
    outer entries concatenated when the layout is ragged. ``memory``: by field, that which rows go
    into, if they do; it is the rank's own, and nobody else's.
    """

    source: Mapping[str, Tensor]
    inputs: Mapping[str, Tensor]
    extents: Mapping[str, int]
    memory: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Origin:
    """A domain point and its source segment.

    ``source`` is the segment's id on ``rank``, ``point`` the linear index of the domain point.
    """

    rank: int
    source: int
    point: int
    find_cells: Callable[[], Tensor]

    @property
    def cells(self) -> Tensor:
        """The indices of the segment's cells in the source layout, in the segment's order."""
        return self.find_cells()


@dataclass(frozen=True, eq=False)
class Delivery:
    """A live domain point and where its segment goes."""

    origin: Origin
    rank: int
    slot: int


@dataclass(frozen=True, eq=False)
class RankRows:
    """What one rank must hold after dispatch.

    ``fields``: [num_slots, *field shape] each; ``written`` [num_slots] is false for padding and
    for slots that nobody names, whose rows are zero here. ``keys``, ``key_counts`` and
    ``key_offsets`` are those of ``RankPlan``. ``row_index`` [num_slots] is of a compact target:
    dispatch returns the segments of the rank, ``num_rows`` of them by (source rank, source), and
    slot s refers to row ``row_index[s]``, or to none where that is -1.
    """

    fields: dict[str, Tensor]
    written: Tensor
    keys: tuple[int, ...]
    key_counts: tuple[int, ...]
    key_offsets: tuple[int, ...]
    row_index: Tensor | None = None
    num_rows: int = 0


@dataclass(frozen=True, eq=False)
class RankResult:
    """What one rank must hold after combine, shaped like its source.

    A sum is f64, and ``magnitude`` is the sum of absolute terms, which scales rounding errors. A
    copy has the field's dtype and no magnitude. Cells without any term are 0.
    """

    fields: dict[str, Tensor]
    magnitude: dict[str, Tensor]


@dataclass(frozen=True)
class SlotLayout:
    """The slots of one rank; a dense target has no keys."""

    num_slots: int
    keys: tuple[int, ...] = ()
    key_counts: tuple[int, ...] = ()
    key_offsets: tuple[int, ...] = (0,)


def on_their_ranks(ranks: Sequence[RankData]) -> list[RankData]:
    """The same data, where the extents say which rank of how many it belongs to."""
    return [
        replace(data, extents={**data.extents, **builtin_extents(rank, len(ranks))})
        for rank, data in enumerate(ranks)
    ]


def scope_of(data: RankData) -> Scope:
    """Its extents and integers. These are arrays of numpy, since reading an element takes a third
    of a tensor's time; they share the memory of tensors on the CPU."""
    integers = {name: each for name, each in data.inputs.items() if not each.is_floating_point()}
    return Scope(data.extents, {name: each.cpu().numpy() for name, each in integers.items()})


def dispatch(
    shuffle: ShuffleSpec, ranks: Sequence[RankData], only: int | None = None
) -> list[RankRows]:
    """The rows that every rank must receive from ``ranks``.

    ``only``: just what this rank sends or receives; other slots count as not written.
    """
    deliveries, layouts = route(shuffle, ranks)
    received = [_empty_rows(shuffle, layout) for layout in layouts]
    if shuffle.program.is_compact:
        received = [_compact(deliveries, rank, rows) for rank, rows in enumerate(received)]
    sources = [_cells(data.source, shuffle.declared.source.fields) for data in ranks]
    for delivery in deliveries:
        origin, rows = delivery.origin, received[delivery.rank]
        if only not in (None, origin.rank, delivery.rank):
            continue
        segment = origin.cells
        leaving = {name: cells[segment] for name, cells in sources[origin.rank].items()}
        for name, values in cast_fields(
            shuffle.declared.casts, leaving, shuffle.declared.fields, ranks[origin.rank].inputs
        ).items():
            row = rows.fields[name][delivery.slot]
            row.copy_(values.view(row.shape))
        rows.written[delivery.slot] = True
    return received


def put(
    shuffle: ShuffleSpec, ranks: Sequence[RankData], rows: Sequence[RankRows], rank: int
) -> dict[str, Tensor]:
    """What memory of the caller's must hold on a rank, by field, when ``rows`` have arrived.

    Parts of rows are added to what is there, in f32 or f64 and rounded once, where the spec says
    so; elsewhere two of them in one place are none of this function's business.
    """
    into = shuffle.into
    assert into is not None
    assert into.declared.target.kind == "dense"
    data = on_their_ranks(ranks)[rank]
    scope = scope_of(data)
    memory = {name: tensor.cpu().clone() for name, tensor in data.memory.items()}
    arrived, drops = rows[rank], into.declared.drops
    sums: dict[tuple[str, int], Tensor] = {}
    points = [scope.at(at) for at in _domain(into.declared.domain, scope)]
    for number, here in enumerate(points):
        slot = number * len(arrived.written) // len(points)
        if not arrived.written[slot] or is_dropped(drops, here):
            continue
        place = evaluate(into.declared.target.slot, here)
        for part in into.declared.fields:
            cut = arrived.fields[part.name].reshape(len(points), *part.shape)
            there = memory[part.name].view(-1, *part.shape)
            if into.kind == "copy":
                there[place] = cut[number]
                continue
            wide = torch.promote_types(there.dtype, torch.float32)
            before = sums.setdefault((part.name, place), there[place].to(wide))
            sums[part.name, place] = before + cut[number].to(wide)
    for (name, place), value in sums.items():
        memory[name].view(-1, *value.shape)[place] = value.to(memory[name].dtype)
    return memory


def combine(
    shuffle: ShuffleSpec,
    ranks: Sequence[RankData],
    rows: Sequence[Mapping[str, Tensor]],
    only: int | None = None,
) -> list[RankResult]:
    """What every source must get back when the ranks hold ``rows`` [num_slots, *field shape].

    Rows are of the source's segment: where fields are cast, what comes back was never cast.
    Weights multiply the rows; terms are added in f64. Without terms a reduction is 0.
    With a reply, rows and results are those of the reply.
    ``only``: just what this rank gets back.
    """
    if shuffle.reply is not None:
        return combine(shuffle.reply, _with_results(shuffle.reply, ranks), rows, only)
    spec = shuffle.declared.combine
    if spec is None:
        raise ValueError(f"{shuffle.name} has no combine")
    is_sum, fields = spec.kind == "sum", shuffle.declared.source.fields
    results = [_empty_result(data, is_sum) for data in ranks]
    cells_of = [_cells(result.fields, fields) for result in results]
    magnitudes = [_cells(result.magnitude, fields if is_sum else ()) for result in results]
    held = [{field.name: each[field.name].cpu() for field in fields} for each in rows]
    weights = None
    if spec.weight is not None:
        weights = [data.inputs[spec.weight.input].flatten().tolist() for data in ranks]
    begun: set[tuple[int, int]] = set()
    for delivery in route(shuffle, ranks)[0]:
        origin = delivery.origin
        if only not in (None, origin.rank):
            continue
        segment = origin.cells
        for field in fields:
            row = held[delivery.rank][field.name][delivery.slot]
            row = row.reshape(len(segment), *field.shape)
            cells = cells_of[origin.rank][field.name]
            if spec.kind == "copy":
                cells[segment] = row
                continue
            if not is_sum:
                first = (origin.rank, origin.source) not in begun
                cells[segment] = row if first else MERGES[spec.kind](cells[segment], row)
                continue
            term = row.double()
            if weights is not None:
                term = term * weights[origin.rank][origin.point]
            cells[segment] += term
            magnitudes[origin.rank][field.name][segment] += term.abs()
        begun.add((origin.rank, origin.source))
    return results


def cast_fields(
    casts: Sequence[CastSpec],
    fields: Mapping[str, Tensor],
    wanted: Sequence[FieldSpec],
    inputs: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Any number of segments as another kind of segment, either way through ``casts``.

    ``fields`` are tensors whose elements go by segment, in order; so are the results. ``inputs``
    are those of the rank that sends them.
    """
    result = dict(fields)
    dtypes = {field.name: TORCH_DTYPES[field.dtype] for field in wanted}
    for spec in casts:
        values, dtype = fields[spec.field].flatten().float(), dtypes[spec.field]
        block = spec.block or 1
        if spec.normalise is not None:
            shifts, factors = (
                torch.from_numpy(_numbers(each, inputs or {})).float().to(values.device)
                for each in (spec.normalise.shifts, spec.normalise.factors)
            )
            channels = max(len(shifts), len(factors))
            values = ((values.view(-1, channels) - shifts) * factors).flatten()
        if spec.scales is not None and spec.scales in fields:
            scales = fields[spec.scales].flatten()
            values = (values.view(-1, block) * scales.unsqueeze(1)).flatten()
            del result[spec.scales]
        elif spec.scales is not None:
            blocks = values.view(-1, block)
            finite = torch.where(blocks.isfinite(), blocks.abs(), 0.0)
            amax = finite.amax(1).clamp(min=LEAST_AMAX)
            largest = torch.full_like(amax, torch.finfo(dtype).max)
            result[spec.scales] = amax * torch.ones_like(amax).div(largest)
            values = (blocks * (largest / amax).unsqueeze(1)).flatten()
        result[spec.field] = _to_dtype(values, dtype)
    return {field.name: result[field.name] for field in wanted}


def _numbers(numbers: Numbers, inputs: Mapping[str, Tensor]) -> Doubles:
    """The numbers of a cast, one for all channels or one for each."""
    match numbers:
        case GivenNumbers(input=name):
            return np.array(inputs[name].flatten().tolist())
        case ComputedNumbers(op=op, lhs=lhs, rhs=rhs):
            with np.errstate(all="ignore"):
                return BY_CHANNEL[op](_numbers(lhs, inputs), _numbers(rhs, inputs))
    return np.array(numbers)


def _to_dtype(values: Tensor, dtype: torch.dtype) -> Tensor:
    """f32 to nearest even; the 8-bit floats saturate, and have one NaN."""
    if dtype not in (torch.float8_e4m3fn, torch.float8_e5m2):
        return values.to(dtype)
    largest = torch.finfo(dtype).max
    return torch.where(values.isnan(), math.nan, values.clamp(-largest, largest)).to(dtype)


def route(
    shuffle: ShuffleSpec, ranks: Sequence[RankData]
) -> tuple[list[Delivery], list[SlotLayout]]:
    """Every live point of every rank, by (source rank, domain order), and the slots of each rank.

    In a packed target, the slots of a key follow this order.
    """
    scopes = [scope_of(data) for data in on_their_ranks(ranks)]
    target = shuffle.declared.target
    if target.kind == "dense":
        layouts = [SlotLayout(evaluate(target.length, scope)) for scope in scopes]
        return [
            Delivery(origin, evaluate(target.rank, here), evaluate(target.slot, here))
            for origin, here in _points(shuffle, scopes)
        ], layouts

    arrivals: dict[int, list[Origin]] = defaultdict(list)
    for origin, here in _points(shuffle, scopes):
        arrivals[evaluate(target.key, here)].append(origin)
    deliveries, layouts = [], []
    for rank, scope in enumerate(scopes):
        owned = [k for k in range(target.num_keys) if _owner(target, k, len(ranks), scope) == rank]
        layout = _pack(owned, [len(arrivals[key]) for key in owned], target)
        layouts.append(layout)
        for key, first in zip(owned, layout.key_offsets, strict=False):
            deliveries += [
                Delivery(origin, rank, first + number)
                for number, origin in enumerate(arrivals[key])
            ]
    return sorted(deliveries, key=lambda each: (each.origin.rank, each.origin.point)), layouts


def _points(shuffle: ShuffleSpec, scopes: Sequence[Scope]) -> Iterator[tuple[Origin, Scope]]:
    """Every domain point of every rank that is not dropped, with the values of its indices."""
    drops = shuffle.declared.drops
    fanout = math.prod(evaluate(each.extent, scopes[0]) for each in shuffle.declared.fan_out)
    for rank, scope in enumerate(scopes):
        entries = _cell_ids(shuffle, scope)
        for point, at in enumerate(_domain(shuffle.declared.domain, scope)):
            here = scope.at(at)
            if is_dropped(drops, here):
                continue
            cells = partial(_segment_cells, shuffle, entries, here)
            yield Origin(rank, point // fanout, point, cells), here


def _domain(
    domain: Sequence[DomainIndex], scope: Scope, at: Mapping[str, int] | None = None
) -> Iterator[dict[str, int]]:
    """The domain's points in order, as values of its indices."""
    at = dict(at or {})
    if not domain:
        yield at
        return
    for value in range(evaluate(domain[0].extent, scope.at(at))):
        yield from _domain(domain[1:], scope, {**at, domain[0].name: value})


def _cell_ids(shuffle: ShuffleSpec, scope: Scope) -> Tensor | list[Tensor]:
    """The indices of the source layout's cells, [*dims]; where the sizes of its outer entries
    differ, one array [*dims[1:]] for each of them."""
    outer, *inner = shuffle.declared.source.dims
    shapes = []
    for entry in range(evaluate(outer, scope)):
        here = scope.at({shuffle.declared.domain[0].name: entry})
        shapes.append([evaluate(dim, here) for dim in inner])
    sizes = [math.prod(shape) for shape in shapes]
    ids = torch.arange(sum(sizes))
    if shapes and all(shape == shapes[0] for shape in shapes):
        return ids.view(len(shapes), *shapes[0])
    return [each.view(shape) for each, shape in zip(torch.split(ids, sizes), shapes, strict=True)]


def _segment_cells(shuffle: ShuffleSpec, entries: Tensor | list[Tensor], scope: Scope) -> Tensor:
    """The indices of a segment's cells, flat."""
    at: list[int | slice] = []
    for subscript in shuffle.declared.source.subscripts:
        start = evaluate(subscript.start, scope)
        at.append(start if subscript.length is None else slice(start, start + subscript.length))
    outer, *inner = at
    if isinstance(entries, Tensor):
        block = entries[tuple(at)]
    elif isinstance(outer, slice):
        block = torch.stack([entry[tuple(inner)] for entry in entries[outer]])
    else:
        block = entries[outer][tuple(inner)]
    if order := shuffle.declared.source.order:
        block = block.permute([sorted(order).index(position) for position in order])
    return block.flatten()


def _owner(target: PackedTarget, key: int, num_ranks: int, scope: Scope) -> int:
    placed = key // target.group
    match target.placement.kind:
        case "block":
            return placed * num_ranks // (target.num_keys // target.group)
        case "cyclic":
            return placed % num_ranks
        case "table":
            return int(scope.inputs[str(target.placement.table)][placed])


def _pack(keys: Sequence[int], counts: Sequence[int], target: PackedTarget) -> SlotLayout:
    """Keys in order, each in so many blocks of ``align`` slots as its rule says."""
    offsets = [0]
    for count in counts:
        offsets.append(offsets[-1] + blocks(target, count) * target.align)
    return SlotLayout(offsets[-1], tuple(keys), tuple(counts), tuple(offsets))


def _empty_rows(shuffle: ShuffleSpec, layout: SlotLayout) -> RankRows:
    rows = {
        field.name: torch.zeros(layout.num_slots, *field.shape, dtype=TORCH_DTYPES[field.dtype])
        for field in shuffle.declared.fields
    }
    written = torch.zeros(layout.num_slots, dtype=torch.bool)
    return RankRows(rows, written, layout.keys, layout.key_counts, layout.key_offsets)


def _compact(deliveries: Sequence[Delivery], rank: int, rows: RankRows) -> RankRows:
    """With the row that every slot of a rank refers to."""
    arriving = [each for each in deliveries if each.rank == rank]
    segments = sorted({(each.origin.rank, each.origin.source) for each in arriving})
    row_index = torch.full((len(rows.written),), -1)
    for each in arriving:
        row_index[each.slot] = segments.index((each.origin.rank, each.origin.source))
    return replace(rows, row_index=row_index, num_rows=len(segments))


def _with_results(reply: ShuffleSpec, ranks: Sequence[RankData]) -> list[RankData]:
    """The data of the ranks, with the rows that come back in the place of what was sent."""
    declared, results = reply.declared, []
    for data, here in zip(ranks, on_their_ranks(ranks), strict=True):
        dims = [evaluate(dim, Scope(here.extents)) for dim in declared.source.dims]
        rows = {
            field.name: torch.zeros(*dims, *field.shape, dtype=TORCH_DTYPES[field.dtype])
            for field in declared.source.fields
        }
        results.append(replace(data, source=rows))
    return results


def _empty_result(data: RankData, is_sum: bool) -> RankResult:
    dtype = torch.float64 if is_sum else None
    fields = {
        name: torch.zeros(tensor.shape, dtype=dtype or tensor.dtype)
        for name, tensor in data.source.items()
    }
    magnitude = {name: torch.zeros_like(tensor) for name, tensor in fields.items()}
    return RankResult(fields, magnitude if is_sum else {})


def _cells(layout: Mapping[str, Tensor], fields: Sequence[FieldSpec]) -> dict[str, Tensor]:
    """Tensors of a source layout on the host, as views of their cells: [num_cells, *cell shape]."""
    views = {}
    for field in fields:
        tensor = layout[field.name].cpu()
        num_cells = math.prod(tensor.shape[: tensor.dim() - len(field.shape)])
        views[field.name] = tensor.view(num_cells, *field.shape)
    return views
