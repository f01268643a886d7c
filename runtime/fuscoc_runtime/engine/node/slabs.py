"""What travels between nodes, and where it lands; see kernels/device/slabs.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from fuscoc_runtime.comm.rails import Ranges
from fuscoc_runtime.engine.node.crossing import Packing
from fuscoc_runtime.engine.node.state import lay_out
from fuscoc_runtime.kernels.loader import address
from fuscoc_runtime.manifest.schema import NodeSpec, ShuffleSpec
from fuscoc_runtime.room import MOST_TURNS, room_for
from fuscoc_runtime.topology import Topology

HEADER_BYTES = 1024
POINT_BYTES = 8
ENTRY_BYTES = 8
"""Of a table that places keys."""
COUNT_BYTES = 2
"""Of what a rank counts in the tiles of one program, which have no more points than that holds
(`fuscoc/dialect/node_tiles.py`)."""
WORDS = ("within", "within_rows", "counts", "table")
"""Parts of a slab that tables of calls say the places of."""
MAX_GROUP = 2
"""Segments under one flag at most: those of two nodes share none."""
ROUND_BYTES = 14_000_000
"""Of rows, about, that travel in the first round and in the last: nothing hides what is done before
that one and behind this one, and it takes little time beside the wire; so does the begin of a
round. Inside a host all travels at once: NVLink is as fast as what would be hidden, and NCCL gives
a message of up to 16 MB a channel half of the channels."""
MESSAGE_BYTES = 1_000_000
"""Of rows, about, that a round brings to a rank at least: with many ranks messages would be small
else."""
MOST_SENT = 256 << 20
"""Bytes that a rank sends other nodes in slabs of a dispatch of exact sizes: what 50 GB/s carry in
5 ms. Segments have a place in every slab, whether they go there or not, and slabs of every node
have memory; beyond this rows travel as flows, which have places for those alone that go."""
RECEIPTS = 3
"""Kinds of points that are not moved; see kernels/device/slabs.py."""
STEP = 8
"""Rounds are of multiples of so many places, whose flags are aligned."""
JOINED_BYTES = 16 << 10
"""That lie between two parts of a slab which one message carries all the same, where nothing else
is there: another message takes longer."""
STAGING_BYTES = 32 << 20
"""Of partial rows of other nodes' segments, about, for which a window has room in any case. Where
those of all places are more they come in turns, before each of which peers wait for each other,
some microseconds: in two."""
MOST_STAGING_BYTES = 512 << 20
"""If half of them are more than so many bytes, there are up to as many turns as other nodes, so
that all these take as much room as the own one."""


def places_step(shuffle: ShuffleSpec, node: NodeSpec) -> int:
    """What places are a multiple of, so that no program plans those of two nodes; nor of a reply,
    which has a place for all that a row of it answers."""
    step = math.lcm(node.tile_sources, MAX_GROUP)
    if shuffle.reply is None:
        return step
    assert shuffle.reply.node is not None, "kernels are there for both or none"
    of_reply = places_step(shuffle.reply, shuffle.reply.node)
    return math.lcm(step, shuffle.segments_answered * of_reply)


def num_places(shuffle: ShuffleSpec, node: NodeSpec, max_sources: int) -> int:
    """Source segments of a rank, and more; see `places_step`."""
    step = places_step(shuffle, node)
    return -(-max(1, max_sources) // step) * step


def slab_places(
    shuffle: ShuffleSpec, node: NodeSpec, max_sources: int, crossing: int | None
) -> int:
    """Those of a slab, if at most ``crossing`` segments go from any rank to any other node; without
    that number every segment has a place in every slab."""
    places = num_places(shuffle, node, max_sources)
    return places if crossing is None else min(places, num_places(shuffle, node, crossing))


def most_keys(shuffle: ShuffleSpec, topology: Topology) -> int:
    """Keys of the node that has most of them; none where slots are given."""
    target = shuffle.program.target
    if target.kind == "dense":
        return 0
    if target.placement.kind == "table":  # it may change from call to call
        return target.num_keys
    if target.placement.kind == "block":
        return target.num_keys // topology.num_nodes
    turns, rest = divmod(target.num_keys // target.group, topology.num_ranks)
    node = topology.ranks_per_node
    return (turns * node + min(rest, node)) * target.group


def num_columns(shuffle: ShuffleSpec, topology: Topology) -> int:
    """What is counted of a tile that leaves: rows of every key and, for a compact target, rank."""
    of_ranks = room_for(topology.ranks_per_node) if shuffle.program.is_compact else 0
    return most_keys(shuffle, topology) + of_ranks


def counted_columns(shuffle: ShuffleSpec, topology: Topology) -> int:
    """With one more where they do not fill whole words, which device code counts by."""
    columns = num_columns(shuffle, topology)
    return columns + columns % 2


def table_bytes(shuffle: ShuffleSpec) -> int:
    """Bytes of the table that places keys, 0 if none does."""
    target = shuffle.program.target
    if target.kind == "dense" or target.placement.kind != "table":
        return 0
    return target.num_keys * ENTRY_BYTES


def lay_out_slab(
    shuffle: ShuffleSpec,
    node: NodeSpec,
    topology: Topology,
    max_sources: int,
    crossing: int | None = None,
    has_rows: bool = True,
) -> tuple[dict[str, list[int]], int]:
    """Offsets of the parts of a slab of a dispatch, and its bytes; without rows if they travel as
    flows. ``crossing`` is as in `slab_places`. The slab of the own node has no rows, and points of
    all segments instead."""
    places = slab_places(shuffle, node, max_sources, crossing)
    points, compact = places * shuffle.program.fanout, shuffle.program.is_compact
    counted = points * (shuffle.program.target.kind == "packed")
    counts = places // node.tile_sources * counted_columns(shuffle, topology)
    of_own_node = num_places(shuffle, node, max_sources) * shuffle.program.fanout * POINT_BYTES
    parts, num_bytes = lay_out(
        {
            "header": [HEADER_BYTES],
            "points": [points * POINT_BYTES],
            "within": [counted * COUNT_BYTES],
            "within_rows": [counted * COUNT_BYTES * compact],
            "counts": [counts * COUNT_BYTES],
            "table": [table_bytes(shuffle)],
            "rows": [
                places * field.num_bytes * has_rows for field in shuffle.program.buffers["target"]
            ],
        }
    )
    return parts, max(num_bytes, lay_out({"points": [HEADER_BYTES + of_own_node]})[1])


def bytes_sent(shuffle: ShuffleSpec, node: NodeSpec, topology: Topology, max_sources: int) -> int:
    """What a rank sends all others in a dispatch, where every segment has a place."""
    return (topology.num_nodes - 1) * lay_out_slab(shuffle, node, topology, max_sources)[1]


def staged_places(places: int, num_ranks: int, num_nodes: int, partial_bytes: int) -> int:
    """Of so many places of every other node those whose partial rows a window has room for at a
    time."""
    if num_ranks == 1 or num_nodes == 1 or partial_bytes == 0:
        return places
    half, of_a_turn = (-(-places // (n * STEP)) * STEP for n in (2, num_turns(num_nodes)))
    least, most = rooms_for_places(num_ranks, num_nodes, partial_bytes)
    return min(places, max(least, of_a_turn, min(half, most)))


def num_turns(num_nodes: int) -> int:
    """In which partial rows come, at the most."""
    return min(max(2, num_nodes - 1), MOST_TURNS)


def rooms_for_places(num_ranks: int, num_nodes: int, partial_bytes: int) -> tuple[int, int]:
    """Those for which there is room in any case, and for which there is if they are half."""
    of_a_place = (num_ranks - 1) * (num_nodes - 1) * partial_bytes
    least, most = (
        each // of_a_place // STEP * STEP for each in (STAGING_BYTES, MOST_STAGING_BYTES)
    )
    return least, most


def lay_out_back(
    shuffle: ShuffleSpec,
    node: NodeSpec,
    max_sources: int,
    crossing: int | None = None,
    has_rows: bool = True,
) -> tuple[dict[str, list[int]], int]:
    """The same of a slab of a combine."""
    places = slab_places(shuffle, node, max_sources, crossing)
    rows = [places * node.partial_bytes * has_rows]
    return lay_out({"header": [HEADER_BYTES], "flags": [places * 4], "rows": rows})


def divide(places: int, row_bytes: int, num_nodes: int) -> list[range]:
    """The rounds in which so many places of a slab travel, whose rows have so many bytes: at most
    three, of which that between the others is the largest."""
    to_a_rank = places * row_bytes
    rounds = min(to_a_rank * (num_nodes - 1) // ROUND_BYTES, to_a_rank // MESSAGE_BYTES)
    rounds = max(1, rounds)
    step = -(-places // (rounds * STEP)) * STEP
    last = max(step, (places - 1) // step * step)
    bounds = sorted({0, min(step, places), min(last, places), places})
    return [range(*each) for each in pairwise(bounds)]


@dataclass(frozen=True, eq=False)
class SlabMemory:
    """Memory of all slabs of one rank, of every node a row of each. Its headers are zeroed.

    Attributes:
        out, landed: slabs of a dispatch; ``back_out`` and ``back`` are those of a combine.
        receipts_out, receipts: int64 [num_nodes, RECEIPTS], points that were not moved.
    """

    out: Tensor
    landed: Tensor
    back_out: Tensor
    back: Tensor
    receipts_out: Tensor
    receipts: Tensor

    @property
    def num_bytes(self) -> int:
        """Bytes of all slabs."""
        return 2 * (self.out.nbytes + self.back_out.nbytes)


def new_slab_memory(
    shuffle: ShuffleSpec,
    node: NodeSpec,
    topology: Topology,
    max_sources: int,
    device: torch.device,
    crossing: int | None = None,
    with_rows: int | None = None,
) -> SlabMemory:
    """Room for so many source segments of a rank; if they are more than those ``with_rows`` their
    rows travel as flows. ``crossing`` as in `slab_places`."""
    num_nodes, most = topology.num_nodes, with_rows if with_rows is not None else max_sources
    sizes = [(min(max_sources, most), crossing, True)] * (most > 0)
    sizes.append((max_sources, crossing, False))
    nbytes = max(lay_out_slab(shuffle, node, topology, *each)[1] for each in sizes)
    back_bytes = max(lay_out_back(shuffle, node, *each)[1] for each in sizes)

    def new(nbytes: int) -> Tensor:
        return torch.zeros(num_nodes, nbytes, dtype=torch.uint8, device=device)

    out, landed = new(nbytes), new(nbytes)
    if crossing is not None:
        # Places that no segment has are never packed, and no points are there.
        for each in (out, landed):
            each[:, HEADER_BYTES:].fill_(0xFF)
    receipts_out, receipts = (new(8 * RECEIPTS).view(torch.int64) for _ in range(2))
    return SlabMemory(out, landed, new(back_bytes), new(back_bytes), receipts_out, receipts)


class Slabs:
    """The slabs of calls of so many source segments of a rank, in memory that has room for them.

    Attributes:
        memory: where they are.
        rounds: places that travel together, in their order.
        finished: which of this rank's segments, in their order, each round brings the last sums of.
        tables: on the device: the places of these segments in every slab, and that order; see
            `Packing`. Without them all segments have their own places.
        rows_at: where the rows of a field begin in a slab, by value name.
        words: of a table.
    """

    def __init__(
        self,
        shuffle: ShuffleSpec,
        node: NodeSpec,
        topology: Topology,
        max_sources: int,
        memory: SlabMemory,
        is_one_round: bool,
        crossing: int | None = None,
        packing: Packing | None = None,
        has_rows: bool = True,
    ) -> None:
        """``is_one_round``: whether all travels at once, as where all nodes are of one host, or
        rows travel as flows and slabs have none. ``packing`` says which segments have places where
        at most ``crossing`` cross."""
        self.memory = memory
        forth, _ = lay_out_slab(shuffle, node, topology, max_sources, crossing, has_rows)
        back, _ = lay_out_back(shuffle, node, max_sources, crossing, has_rows)
        places = slab_places(shuffle, node, max_sources, crossing)
        fields = shuffle.program.buffers["target"]
        row_bytes = [field.num_bytes for field in fields]
        self.rounds = [range(places)]
        # Rows of compact targets are not moved round by round.
        if not (is_one_round or shuffle.program.is_compact):
            widest = max(sum(row_bytes), node.partial_bytes)
            self.rounds = divide(places, widest, topology.num_nodes)
        self._counts = ((places,) * topology.num_nodes,) * 2  # that go, and that come
        self._told = [(forth["rows"][0], 0)]  # all of points, before any row
        self.finished, self.tables = self.rounds, list[Tensor]()
        if packing is not None:
            self._counts = packing.sent, packing.received
            self._told = [(HEADER_BYTES, shuffle.program.fanout * POINT_BYTES)]
            order, self.finished = packing.finishing(self.rounds, MAX_GROUP)
            self.tables = [each.to(memory.out.device) for each in (packing.at, order)]
        self._places = list(zip(forth["rows"], row_bytes, strict=True)) if has_rows else []
        sums_at = back["rows"][0]
        self._places_back = [(HEADER_BYTES, 4)] + [(sums_at, node.partial_bytes)] * has_rows
        self.rows_at = {
            f"slab_at.{field.name}": at for field, at in zip(fields, forth["rows"], strict=True)
        }
        places_at, order_at = map(address, self.tables) if self.tables else (0, 0)
        self.words = {
            "slabs_out": address(memory.out),
            "slabs_in": address(memory.landed),
            "slab_bytes": memory.out.shape[1],
            **{f"slab_{name}": forth[name][0] for name in WORDS},
            "slab_columns": counted_columns(shuffle, topology),
            "slab_keys": most_keys(shuffle, topology),
            "slab_places": places,
            "places_at": places_at,
            "order_at": order_at,
            "backs_out": address(memory.back_out),
            "backs_in": address(memory.back),
            "back_bytes": memory.back.shape[1],
            "back_rows": sums_at,
            "receipts_out": address(memory.receipts_out),
            "receipts_in": address(memory.receipts),
        }

    def ranges(self, places: range) -> Ranges:
        """Bytes of a slab of a dispatch that travel with these places: before the first ones all
        points, by which slots are planned."""
        told = self._told * (places.start == 0)
        return self._travelling(self._counts, places, self._places, told)

    def ranges_back(self, places: range) -> Ranges:
        """The same of a combine, where what has come goes back. With every round goes a header:
        what it says of the call is known with the first, and who refuses it with the last one."""
        header = [(HEADER_BYTES, 0)]
        return self._travelling(self._counts[::-1], places, self._places_back, header)

    def at_segments(self, of_places: Tensor) -> Tensor:
        """Of numbers [num_nodes, places, n] by node and place of a slab those of this rank's
        segments, 0 where one has no place."""
        if not self.tables:
            return of_places
        at = self.tables[0][..., None].long()
        there = of_places.gather(1, at.clamp(min=0).expand(-1, -1, of_places.shape[2]))
        return torch.where(at >= 0, there, 0)

    def _travelling(
        self,
        counts: Sequence[Sequence[int]],
        places: range,
        parts: Sequence[tuple[int, int]],
        told: Sequence[tuple[int, int]],
    ) -> Ranges:
        """Of slabs that so many segments of every node go and come with: what is told of them, with
        which a slab begins, and of parts what lies in these places. Each is where it begins, and
        the bytes of a place."""
        most = JOINED_BYTES if len(self.rounds) == 1 else 0  # else other places may lie between

        def of_node(count: int) -> list[range]:
            there = range(places.start, min(places.stop, count))
            begins = [range(at + count * size) for at, size in told]
            return _joined([*begins, *_bytes_of(there, parts)], most)

        return Ranges(*([of_node(count) for count in each] for each in counts))


def _bytes_of(places: range, parts: Sequence[tuple[int, int]]) -> list[range]:
    """Of parts of a slab, by where they begin and the bytes of a place there."""
    return [range(at + places.start * size, at + places.stop * size) for at, size in parts]


def _joined(parts: Sequence[range], most: int) -> list[range]:
    """Those that are not empty, in their order; what lies between two of them and is at ``most`` so
    long goes with them."""
    made = list[range]()
    for each in filter(len, parts):
        if made and each.start - made[-1].stop <= most:
            each = range(made.pop().start, each.stop)
        made.append(each)
    return made
