"""What the Triton kernels of fixed capacity that move rows take of a rank: its window and, between
nodes, slabs; and the same for the rows of a reply. And what CUDA's take for results of pieces.

Formulae of ``max_sources``, as ``segments``, and of the ``capacity`` of a dense target whose length
only calls say. Every part begins at a multiple of ``ALIGNMENT``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from fuscoc.explain.facts import segment_bytes, target_slots
from fuscoc.explain.formula import (
    NODES,
    PER_NODE,
    RANKS,
    Formula,
    Product,
    Symbol,
    arithmetic,
    least,
    product,
    with_values,
)
from fuscoc.lang.dtypes import ITEM_BYTES
from fuscoc_runtime.comm.results import NUM_RESULTS
from fuscoc_runtime.engine.node.crossing import crossing
from fuscoc_runtime.engine.node.slabs import (
    COUNT_BYTES,
    HEADER_BYTES,
    POINT_BYTES,
    STEP,
    counted_columns,
    num_columns,
    num_places,
    num_turns,
    places_step,
    rooms_for_places,
    table_bytes,
)
from fuscoc_runtime.engine.node.state import ALIGNMENT, Limits
from fuscoc_runtime.engine.sizes import fixed_length
from fuscoc_runtime.manifest.schema import CudaSpec, NodeSpec, ShuffleSpec
from fuscoc_runtime.topology import Topology

ENTRIES = Limits(max_sources=1, capacity=1).num_entries
"""Memories of handles: of eager dispatches, and of captured ones."""
FLAG_BYTES = 4


@dataclass(frozen=True)
class Part:
    """Memory of a rank, ``count`` times so many bytes before they are rounded up."""

    name: str
    use: str
    num_bytes: Formula
    count: int = 1

    @property
    def taken(self) -> Formula:
        """Bytes, with what lies unused behind each."""
        return product(self.count, _rounded(self.num_bytes))


def window(
    shuffle: ShuffleSpec, node: NodeSpec, topology: Topology, segments: Formula
) -> tuple[Part, ...]:
    """What other ranks of the node store into, largest parts first."""
    shuffle = shuffle.among(topology.num_ranks)
    segments = _whole_rows(shuffle, segments)
    slots = _slots(shuffle, topology, segments)
    parts = [*_window(shuffle, node, topology, segments, slots)]
    if (reply := shuffle.reply) is not None and reply.node is not None:
        answered = _answered(shuffle, node, topology, segments)
        parts += _of_reply(_window(reply, reply.node, topology, answered, slots))
    return tuple(parts)


def slabs(
    shuffle: ShuffleSpec, node: NodeSpec, topology: Topology, segments: Formula
) -> tuple[Part, ...]:
    """What travels between nodes, at both ends of both directions; nothing inside one."""
    if topology.num_nodes == 1:
        return ()
    shuffle = shuffle.among(topology.num_ranks)
    segments = _whole_rows(shuffle, segments)
    parts = [*_slabs(shuffle, node, topology, segments)]
    if (reply := shuffle.reply) is not None and reply.node is not None:
        answered = _answered(shuffle, node, topology, segments)
        parts += _of_reply(_slabs(reply, reply.node, topology, answered))
    return tuple(parts)


def _slabs(
    shuffle: ShuffleSpec, node: NodeSpec, topology: Topology, segments: Formula
) -> tuple[Part, ...]:
    nodes, target = topology.num_nodes, shuffle.program.buffers["target"]
    places = _slab_places(shuffle, node, topology, segments)
    of_own_node = product(_places(shuffle, node, segments), shuffle.program.fanout * POINT_BYTES)
    # Before each point, of its key and, for a compact target, of its rank; then tile by tile.
    per_point = COUNT_BYTES * shuffle.program.fanout
    counted = list[Formula]()
    if shuffle.program.target.kind == "packed":
        counted = [product(places, per_point)] * (1 + shuffle.program.is_compact)
        tiles = arithmetic("/", places, node.tile_sources)
        counted.append(product(tiles, COUNT_BYTES * counted_columns(shuffle, topology)))
    if table := table_bytes(shuffle):
        counted.append(table)
    rows = (_rounded(product(places, each.num_elems * ITEM_BYTES[each.dtype])) for each in target)
    points = _rounded(product(places, shuffle.program.fanout * POINT_BYTES))
    back = (_rounded(product(places, each)) for each in (FLAG_BYTES, node.partial_bytes))
    forth = _sum(HEADER_BYTES, points, *map(_rounded, counted), *rows)
    if _crosses(shuffle, topology) is not None:
        forth = arithmetic("max", forth, _rounded(_sum(HEADER_BYTES, of_own_node)))
    return (
        Part("slabs", "segments to every node, and what comes", forth, 2 * nodes),
        Part(
            "slabs back", "sums to every node, and what comes", _sum(HEADER_BYTES, *back), 2 * nodes
        ),
    )


def results(
    shuffle: ShuffleSpec,
    topology: Topology,
    segments: Formula,
    kernels: CudaSpec | NodeSpec | None,
) -> Part | None:
    """Those that peers store into by these kernels; none where there are none."""
    program = shuffle.program
    lends = kernels is not None and kernels.pieces and not kernels.pieces.entry_points
    if not lends or program.combine is None or topology.ranks_per_node == 1:
        return None
    num_points = program.num_points_each(topology.num_ranks)
    row_bytes = segment_bytes(program.buffers["target"][:1]) * num_points
    use = "what comes back, of two calls, at the source"
    return Part("results", use, product(segments, row_bytes), NUM_RESULTS)


def total(parts: tuple[Part, ...]) -> Formula:
    """Bytes of all."""
    return _sum(*(each.taken for each in parts))


def _whole_rows(shuffle: ShuffleSpec, segments: Formula) -> Formula:
    """Segments of which a reply answers so many by a row, up to the last of these."""
    answered = shuffle.segments_answered
    if answered == 1:
        return segments
    return product(answered, arithmetic("cdiv", segments, answered))


def _answered(
    shuffle: ShuffleSpec, node: NodeSpec, topology: Topology, segments: Formula
) -> Formula:
    """Rows of a reply that there is room for."""
    asked = segments if topology.num_nodes == 1 else _places(shuffle, node, segments)
    answered = shuffle.segments_answered
    return asked if answered == 1 else arithmetic("/", asked, answered)


def _of_reply(parts: Iterable[Part]) -> list[Part]:
    return [replace(each, name=f"{each.name} of the reply") for each in parts]


def _window(
    shuffle: ShuffleSpec, node: NodeSpec, topology: Topology, segments: Formula, slots: Formula
) -> Iterator[Part]:
    ranks, nodes, program = topology.ranks_per_node, topology.num_nodes, shuffle.program
    taken_on = segments if nodes == 1 else product(nodes, _places(shuffle, node, segments))
    sources = product(ranks, taken_on)
    num_rows = least(slots, sources) if program.is_compact else slots
    for each in program.buffers["target"]:
        row_bytes = segment_bytes([each])
        yield Part(
            "rows", f"`{each.name}`, {row_bytes:,} bytes for a row", product(num_rows, row_bytes)
        )
    if node.combines and ranks > 1:
        use = f"sums of another rank for every segment, {node.partial_bytes:,} bytes"
        staged: Formula = segments
        if nodes > 1:
            places = _slab_places(shuffle, node, topology, segments)
            others = product(nodes - 1, _staged_places(places, ranks, nodes, node.partial_bytes))
            staged = arithmetic("+", _places(shuffle, node, segments), others)
        yield Part("staging", use, product(ranks - 1, node.partial_bytes, staged))
    points = product(sources, program.fanout, node.point_bytes(nodes))
    yield Part("points", "slots and weights of every point, for every handle", points, ENTRIES)
    if program.is_compact:
        yield Part("row index", "the row of every slot", product(slots, 8), ENTRIES)
    if program.target.kind == "dense":
        yield Part("claims", "calls that have filled a slot", product(slots, 4), ENTRIES)
        columns, told = 1, "slots"
    else:
        columns = num_columns(shuffle, topology)
        told = f"rows of {columns} keys"
    counts = product(2 * ranks * nodes * (columns + 1), 4)
    yield Part("counts", f"{told} from every rank", counts)
    if table_bytes(shuffle):
        yield Part(
            "tables", "what each rank has of the one that places keys", 2 * ranks * nodes * 8
        )
    blocks = max(1, -(-columns // node.key_block)) * nodes
    yield Part("flags", "who has planned,", ranks * blocks * 4)
    yield Part("flags", "sent rows", product(sources, 4))
    yield Part("flags", "or sums, with the call,", product(sources, 8))
    kinds = 2 if nodes == 1 else 3
    yield Part("flags", "begun and refused combines", ranks * 8, kinds * ENTRIES)


def _slots(shuffle: ShuffleSpec, topology: Topology, segments: Formula) -> Formula:
    """Slots that a rank has room for."""
    ranks = topology.num_ranks
    if shuffle.program.target.kind == "dense":
        return fixed_length(shuffle, ranks) or Symbol("capacity", "capacity")
    known = {NODES.name: topology.num_nodes, PER_NODE.name: topology.ranks_per_node}
    return with_values(target_slots(shuffle, segments), known | {RANKS.name: ranks})


def _places(shuffle: ShuffleSpec, node: NodeSpec, segments: Formula) -> Formula:
    """`slabs.num_places` as a formula."""
    step = places_step(shuffle, node)
    return product(step, arithmetic("cdiv", segments, step))


def _slab_places(
    shuffle: ShuffleSpec, node: NodeSpec, topology: Topology, segments: Formula
) -> Formula:
    """`slabs.slab_places` likewise, with as many as cross."""
    places, crosses = _places(shuffle, node, segments), _crosses(shuffle, topology)
    return places if crosses is None else least(places, num_places(shuffle, node, crosses))


def _crosses(shuffle: ShuffleSpec, topology: Topology) -> int | None:
    """The most segments that go from any rank to any other node, if ranks alone decide it."""
    found = crossing(shuffle, topology)
    return None if found is None else int(found.amax())


def _staged_places(places: Formula, ranks: int, nodes: int, partial_bytes: int) -> Formula:
    """`slabs.staged_places` as a formula."""
    room, most = rooms_for_places(ranks, nodes, partial_bytes)
    wanted, of_a_turn = (
        product(STEP, arithmetic("cdiv", places, n * STEP)) for n in (2, num_turns(nodes))
    )
    if num_turns(nodes) > 2:
        wanted = arithmetic("max", of_a_turn, least(wanted, most))
    return least(places, arithmetic("max", wanted, room))


def _rounded(num_bytes: Formula) -> Formula:
    if isinstance(num_bytes, Product) and num_bytes.number % ALIGNMENT == 0:
        return num_bytes
    return product(ALIGNMENT, arithmetic("cdiv", num_bytes, ALIGNMENT))


def _sum(*parts: Formula) -> Formula:
    found: Formula = 0
    for each in parts:
        found = arithmetic("+", found, each)
    return found
