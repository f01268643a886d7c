"""What a manifest says of one shuffle, worked out: sizes, strides, runs, hops and buffers.

Every number is a formula of the run-time extents and the topology. Buffers have at most that many
rows, if all ranks have as many source segments; where only the routing tells more, the worst is
taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fuscoc.explain.formula import (
    NODES,
    PER_NODE,
    RANKS,
    Formula,
    arithmetic,
    least,
    of_scalar,
    product,
    symbols,
    total,
)
from fuscoc.lang.dtypes import ITEM_BYTES
from fuscoc.lang.padding import DEFAULT_PADDING
from fuscoc_runtime.manifest.declared import FieldSpec
from fuscoc_runtime.manifest.program import FieldRuns
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.padding import pads_empty
from fuscoc_runtime.scalar import Index


@dataclass(frozen=True)
class FieldLayout:
    """A field in a layout, as a tensor of its own: bytes of a cell, and from one to the next."""

    field: FieldSpec
    cell_bytes: int
    strides: tuple[Formula, ...]


@dataclass(frozen=True)
class Layout:
    """A layout of a rank: its extents, outermost first, and its cells."""

    name: str
    role: str
    dims: tuple[Formula, ...]
    cells: Formula
    fields: tuple[FieldLayout, ...]


@dataclass(frozen=True)
class FieldCopy:
    """How a field of one segment is read: runs of bytes, in loops of (count, stride in bytes)."""

    name: str
    run_bytes: int
    num_runs: int
    loops: tuple[tuple[int, Formula], ...]
    vector_bytes: int


@dataclass(frozen=True)
class Hop:
    """A leg of the way out; ``copies`` of one segment at most."""

    scope: str
    path: str
    copies: Formula


@dataclass(frozen=True)
class Buffer:
    """A row buffer of a rank for the fields of a segment."""

    name: str
    use: str
    rows: Formula
    row_bytes: int


# What the buffers that kernels are bound to are for, in the order in which they are used.
BUFFERS = {
    "carried": "of other ranks of the node, to be sent for them",
    "slices": "gathered to be sent over the network",
    "landing": "arrived from the network",
    "target": "arrived: what dispatch returns",
    "staging": "on the way back: partial results at the source",
    "forward_staging": "on the way back: partial results at the forwarder",
    "return_slices": "on the way back: to be sent over the network",
    "returned": "on the way back: of other ranks too, to be handed back",
}


TRAVELLING = ("slices", "landing", "return_slices", "returned")
"""Buffers of rows that cross the network."""


WINDOWS = ("carried", "target", "staging", "forward_staging")
"""Buffers that other ranks of a node store into."""
SIGNAL_BYTES = 4
"""Of the word by which a rank tells one of its peers that a step is done."""


def num_segments(shuffle: ShuffleSpec) -> Formula:
    """Source segments of a rank."""
    outer, *inner = shuffle.declared.domain[: shuffle.declared.num_source_dims]
    each = product(*(of_scalar(index.extent) for index in inner))
    return total(outer.name, of_scalar(outer.extent), each)


def segment_bytes(fields: Sequence[FieldSpec]) -> int:
    """Bytes of a segment, all fields together."""
    return sum(each.num_elems * ITEM_BYTES[each.dtype] for each in fields)


def layouts(shuffle: ShuffleSpec, target_dims: Sequence[Formula] = ()) -> tuple[Layout, ...]:
    """The source, the target and, where rows go on from there, memory of the caller's.

    ``target_dims``: the extents of a dense target, which a manifest makes one of.
    """
    source, target = shuffle.declared.source, shuffle.declared.target
    dims = tuple(of_scalar(dim) for dim in source.dims)
    start = source.subscripts[0].start
    index = start.name if isinstance(start, Index) else ""
    cells = total(index, dims[0], product(*dims[1:]))
    rows = target_rows(shuffle, num_segments(shuffle))
    row_dims = tuple(target_dims) if target.kind == "dense" and target_dims else (rows,)
    source_fields = tuple(_field_layouts(source.fields, dims))
    target_fields = tuple(_field_layouts(shuffle.declared.fields, row_dims))
    found = (
        Layout(source.layout, "source", dims, cells, source_fields),
        Layout(target.layout, "target", row_dims, rows, target_fields),
    )
    if shuffle.into is None:
        return found
    given = tuple(of_scalar(dim) for dim in shuffle.into.dims)
    fields = tuple(_field_layouts(shuffle.into.fields, given))
    return *found, Layout(shuffle.into.argument, "memory", given, product(*given), fields)


def _field_layouts(fields: Sequence[FieldSpec], dims: Sequence[Formula]) -> Iterator[FieldLayout]:
    for each in fields:
        cell_bytes = segment_bytes([each])
        strides = [product(cell_bytes, *dims[position + 1 :]) for position in range(len(dims))]
        yield FieldLayout(each, cell_bytes, tuple(strides))


def target_rows(shuffle: ShuffleSpec, segments: Formula) -> Formula:
    """Rows of a rank's target: its slots, or all segments if it is compact."""
    slots = target_slots(shuffle, segments)
    return least(slots, product(RANKS, segments)) if shuffle.program.is_compact else slots


def target_slots(shuffle: ShuffleSpec, segments: Formula) -> Formula:
    """Slots of a rank: as computed, limited, or all that could ever arrive, with their padding.

    ``segments``: what each rank has.
    """
    target = shuffle.declared.target
    if target.kind == "dense":
        return of_scalar(target.length)
    if target.capacity is not None:
        return target.capacity
    keys: Formula = target.num_keys  # of this rank, at most
    if target.placement.kind == "block":
        keys = arithmetic("/", keys, RANKS)
    elif target.placement.kind == "cyclic":
        groups = arithmetic("+", RANKS, target.num_keys // target.group - 1)
        keys = product(arithmetic("/", groups, RANKS), target.group)
    arriving, copies = product(RANKS, segments), num_destinations(shuffle)
    points = product(arriving, least(copies, keys) if target.distinct else copies)
    padded = keys if pads_empty(target) else least(keys, points)
    most = arithmetic("+", points, product(padded, target.most_padding))
    if not target.distinct or target.padding != DEFAULT_PADDING:
        return most
    return least(most, product(keys, target.align, arithmetic("cdiv", arriving, target.align)))


def copies(shuffle: ShuffleSpec) -> tuple[FieldCopy, ...]:
    """How the fields of a source segment are read, and written on the way back."""
    columns = _run_time_strides(shuffle)
    return tuple(_copy(runs, columns) for runs in shuffle.program.runs)


def _copy(runs: FieldRuns, columns: Sequence[Formula]) -> FieldCopy:
    item = ITEM_BYTES[runs.dtype]
    loops = tuple(
        (
            dim.count,
            product(
                runs.cell_elems * item,
                dim.src_stride
                if isinstance(dim.src_stride, int)
                else columns[int(dim.src_stride.removeprefix("src_stride"))],
            ),
        )
        for dim in runs.run_dims
    )
    num_runs = runs.seg_elems // runs.run_elems
    return FieldCopy(runs.name, runs.run_elems * item, num_runs, loops, runs.unit_bytes)


def _run_time_strides(shuffle: ShuffleSpec) -> list[Formula]:
    """The strides in cells that only the run knows, those of outer loops first."""
    found: list[Formula] = []
    continued: Formula = 1  # the stride at which the loop inside goes on
    source = shuffle.declared.source
    strides: list[Formula] = [1]
    for dim in reversed(source.dims[1:]):
        strides.insert(0, product(strides[0], of_scalar(dim)))
    for at in reversed(source.runs):
        length, stride = source.subscripts[at].length, strides[at]
        if length is not None and length > 1:
            if stride != continued and symbols(stride):
                found.insert(0, stride)
            continued = product(length, stride)
    return found


def num_destinations(shuffle: ShuffleSpec) -> Formula:
    """Slots that a segment goes to at most."""
    return product(shuffle.program.fanout, RANKS if shuffle.program.every_rank else 1)


def hops(shuffle: ShuffleSpec) -> tuple[Hop, ...]:
    """The way out and how many copies of a segment each leg carries at most."""
    fanout = num_destinations(shuffle)
    copied = shuffle.program.copies_once("rank") and not shuffle.program.is_compact
    local = arithmetic("-", fanout, 1) if copied else 0
    network = least(fanout, _network_copies(shuffle))
    handed = [Hop("NVLink", "source → another sender of its node", network)]
    return (
        *(handed if shuffle.program.exchange.balances_senders else ()),
        Hop("network", "source → forwarder of each other node", network),
        Hop("NVLink", "source or forwarder → rank", least(fanout, _copies_to(shuffle, RANKS))),
        Hop("local", "slot → slot of a rank", local),
    )


def _network_copies(shuffle: ShuffleSpec) -> Formula:
    """Network rows of a source segment, if it goes everywhere."""
    others = arithmetic("-", NODES, 1)
    return (
        others
        if shuffle.program.copies_once("node")
        else product(others, _copies_to(shuffle, PER_NODE))
    )


def _copies_to(shuffle: ShuffleSpec, ranks: Formula) -> Formula:
    """Copies of a segment to some ranks, if it goes to all of them."""
    return ranks if shuffle.program.copies_once("rank") else num_destinations(shuffle)


def buffers(shuffle: ShuffleSpec, segments: Formula) -> tuple[Buffer, ...]:
    """The row buffers that the kernels of a rank use, with the rows they have at most.

    ``segments``: what each rank has.
    """
    rows, used = buffer_rows(shuffle, segments), shuffle.program.buffers
    return tuple(
        Buffer(name, use, rows[name], segment_bytes(used[name]))
        for name, use in BUFFERS.items()
        if name in used
    )


def window_bytes(shuffle: ShuffleSpec, rows: Mapping[str, Formula]) -> Formula:
    """Bytes of a rank that its peers can address: rows by buffer, of the rank that has most, and a
    signal of every peer for every step that gives one. Windows that grow have up to a quarter more.
    """
    used, launches = shuffle.program.buffers, shuffle.program.launches
    num_signals = 1 + max((each.signal for each in launches if each.signal is not None), default=-1)
    found = product(num_signals * SIGNAL_BYTES, PER_NODE)
    for name in WINDOWS:
        if name in used:
            found = arithmetic("+", found, product(rows[name], segment_bytes(used[name])))
    return found


def buffer_rows(shuffle: ShuffleSpec, segments: Formula) -> dict[str, Formula]:
    """The rows that the buffers of a rank have at most, if each rank has so many segments."""
    fanout = num_destinations(shuffle)
    others = arithmetic("-", NODES, 1)
    network, in_node = _network_copies(shuffle), _copies_to(shuffle, PER_NODE)
    by_node = shuffle.program.copies_once("node")  # then a forwarder makes the copies in its node
    # A forwarder has one sender in each other node, unless rows are balanced among forwarders.
    is_balanced = shuffle.program.exchange.forwarder != "static"
    senders = product(PER_NODE, others) if is_balanced else others
    landing = product(segments, senders, 1 if by_node else least(fanout, in_node))
    sent = product(segments, least(fanout, network))
    if shuffle.program.exchange.balances_senders:
        # A rank sends its node's mean, rounded up for every other node; all may be of its peers.
        sent = arithmetic("+", sent, others)
    return {
        "carried": sent,
        "returned": sent,
        "slices": sent,
        "landing": landing,
        "target": target_rows(shuffle, segments),
        "staging": product(segments, least(fanout, arithmetic("+", in_node, network))),
        "forward_staging": product(landing, least(fanout, in_node) if by_node else 1),
        "return_slices": landing,
    }
