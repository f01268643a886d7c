"""How many places slabs of exact sizes have: what all ranks decide alike, from numbers that they
all have read."""

from __future__ import annotations

from fuscoc_runtime.engine.node.slabs import MOST_SENT, bytes_sent, num_places
from fuscoc_runtime.engine.sizes import fixed_sources, worst_capacity
from fuscoc_runtime.manifest.schema import NodeSpec, ShuffleSpec
from fuscoc_runtime.room import num_slot_bits, room_for
from fuscoc_runtime.topology import Topology

FIRST_SOURCES, FIRST_SENT = 128, 16 << 20
"""Source segments that the first dispatch has places for, and bytes that it sends to other nodes,
at the most, unless the smallest slabs are more."""
STEPS = 8
"""Places are of so many sizes between a power of two and the next."""
ABATES = 3, 4
"""Of the places of a call the next one has this part at least: to send too many costs less than to
send all once more."""


class Places:
    """Those of one shuffle; every number is of source segments of a rank."""

    def __init__(self, shuffle: ShuffleSpec, node: NodeSpec, topology: Topology) -> None:
        self._given = shuffle, node, topology
        self._carried: dict[int, bool] = {}
        self._reply: Places | None = None  # those of answers
        if (reply := shuffle.reply) is not None:
            assert reply.node is not None, "kernels are there for both or none"
            self._reply = Places(reply, reply.node, topology)

    @property
    def first(self) -> int:
        """What the first dispatch has: what all need, if no call decides that."""
        shuffle, _, topology = self._given
        known = fixed_sources(shuffle, topology.num_ranks)
        if known is not None and self.are_carried(places := self.size_of(known)):
            return places
        places = self.size_of(1)
        while 2 * places <= FIRST_SOURCES and self._sent(2 * places) <= FIRST_SENT:
            if not self.are_carried(2 * places):
                break
            places *= 2
        return places

    def size_of(self, num_sources: int) -> int:
        """Enough for so many, and at most an eighth more than a power of two below asks for."""
        step = max(1, (1 << max(0, num_sources.bit_length() - 1)) // STEPS)
        return num_places(*self._given[:2], -(-num_sources // step) * step)

    def next(self, places: int, num_sources: int) -> int:
        """What follows a dispatch that had so many ``places``, and needed those for so many."""
        (part, whole), unit = ABATES, self.size_of(1)
        abated = places * part // whole // unit * unit
        return self.size_of(max(num_sources, abated))

    def are_carried(self, places: int) -> bool:
        """Whether slabs carry so many, and kernels count their slots on any rank."""
        if places not in self._carried:
            shuffle, _, topology = self._given
            slots = 0  # of a dense target hosts have looked at them
            if shuffle.program.target.kind == "packed":
                slots = worst_capacity(shuffle, topology.num_ranks, places)
            bits = num_slot_bits(room_for(topology.ranks_per_node))
            carried = self._sent(places) <= MOST_SENT and not slots >> bits
            if self._reply is not None:
                carried &= self._reply.are_carried(places // shuffle.segments_answered)
            self._carried[places] = carried
        return self._carried[places]

    def _sent(self, places: int) -> int:
        """Bytes to all other nodes."""
        return bytes_sent(*self._given, places)
