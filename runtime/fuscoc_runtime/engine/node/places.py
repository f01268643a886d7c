"""How many places slabs of exact sizes have, and whether rows travel in them: what all ranks decide
alike, from numbers that they all have read."""

from __future__ import annotations

from fuscoc_runtime.engine.node.slabs import MOST_SENT, bytes_sent, num_places
from fuscoc_runtime.engine.sizes import fixed_sources, worst_capacity
from fuscoc_runtime.manifest.program import Rules
from fuscoc_runtime.manifest.schema import NodeSpec, ShuffleSpec
from fuscoc_runtime.room import num_slot_bits, room_for
from fuscoc_runtime.topology import Topology

FIRST_SOURCES, FIRST_SENT = 128, 16 << 20
"""Source segments that the first dispatch has places for, and bytes that it sends to other nodes,
at the most, unless the smallest slabs are more."""
MOST_FLOWING = 4 << 30
"""Bytes that rows may be which travel as flows, if every segment of a rank went to all other nodes.
Flows have memory for those that go, but a node has places for the points of all."""
STEPS = 8
"""Places are of so many sizes between a power of two, of what they are a multiple of, and the
next."""
ABATES = 3, 4
"""Of the places of a call the next one has this part at least: to send too many costs less than to
send all once more."""


def have_ways(rules: Rules, topology: Topology) -> bool:
    """Whether a policy leaves anything to choose: who of a node sends, or which nodes first."""
    in_stages = rules.schedule != "pairwise" and topology.num_nodes > 2
    return are_balanced(rules, topology) or in_stages


def are_balanced(rules: Rules, topology: Topology) -> bool:
    """Whether ranks exchange rows with others than those of their place."""
    return rules.forwarder != "static" and topology.ranks_per_node > 1


class Places:
    """Those of one shuffle; every number is of source segments of a rank."""

    def __init__(self, shuffle: ShuffleSpec, node: NodeSpec, topology: Topology) -> None:
        self._given = shuffle, node, topology
        self._carried, self._are_flows = dict[int, bool](), dict[int, bool]()
        self._has_policy = have_ways(shuffle.program.exchange, topology)
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
        """Enough for so many, and at most an eighth more than a power of two below asks for; of a
        size itself no more, whatever places are a multiple of."""
        unit = num_places(*self._given[:2], 1)
        units = -(-max(1, num_sources) // unit)
        step = max(1, (1 << (units.bit_length() - 1)) // STEPS)
        return -(-units // step) * step * unit

    def next(self, places: int, num_sources: int) -> int:
        """What follows a dispatch that had so many ``places``, and needed those for so many."""
        (part, whole), unit = ABATES, self.size_of(1)
        abated = places * part // whole // unit * unit
        return self.size_of(max(num_sources, abated))

    def are_flows(self, places: int) -> bool:
        """Whether the rows of calls with so many travel as flows, and not in slabs: always if there
        is a policy for them, where slabs would be too large, and where those of a reply would, as
        what asks counts its rows."""
        if places not in self._are_flows:
            are_flows = self._has_policy or self._sent(places) > MOST_SENT
            if self._reply is not None:
                answered = self._given[0].segments_answered
                are_flows |= self._reply.are_flows(places // answered)
            self._are_flows[places] = are_flows
        return self._are_flows[places]

    def are_carried(self, places: int) -> bool:
        """Whether slabs carry so many, and kernels count their slots on any rank."""
        if places not in self._carried:
            shuffle, _, topology = self._given
            slots = 0  # of a dense target hosts have looked at them
            if shuffle.program.target.kind == "packed":
                slots = worst_capacity(shuffle, topology.num_ranks, places)
            bits = num_slot_bits(room_for(topology.ranks_per_node))
            carried = self._sent(places) <= MOST_FLOWING and not slots >> bits
            if self._reply is not None:
                carried &= self._reply.are_carried(places // shuffle.segments_answered)
            self._carried[places] = carried
        return self._carried[places]

    def _sent(self, places: int) -> int:
        """Bytes to all other nodes."""
        return bytes_sent(*self._given, places)
