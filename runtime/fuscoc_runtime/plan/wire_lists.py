"""Lists of the network hop as they are worked off: in the order of the wire, round by round.

A plan's lists number rows in the order of the peers. In rings, rows lie as they travel.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from fuscoc_runtime.plan.arrays import inverse, iota
from fuscoc_runtime.plan.rounds import Side
from fuscoc_runtime.plan.types import DescriptorList, Wire


@dataclass(frozen=True)
class Entries:
    """Which entries of a list belong to which round: ``parts[r]`` are those of round ``r``."""

    before: range
    parts: tuple[range, ...]

    @classmethod
    def cut(cls, counts: Iterable[int], num_before: int = 0) -> Entries:
        parts, begin = [], num_before
        for count in counts:
            parts.append(range(begin, begin + count))
            begin += count
        return cls(range(num_before), tuple(parts))


def in_rounds(name: str, wire: Wire) -> Entries | None:
    """The entries of a list in every round; ``None`` for one that has nothing to do with them.

    ``wire.entries`` are on the host, if the list is not one that fills slices.
    """
    if not wire.num_rounds:
        return None
    if wire.handover is not None:
        handed = wire.handover
        handed_over = {"carry": handed.handed, "net_send": handed.own, "carried": handed.taken}
        if name in handed_over:
            return Entries.cut(handed_over[name])
    if name in ("net_send", "hand_back"):
        return Entries.cut(rows_in_rounds(wire.send, wire.num_rounds))
    if name == "reduce_node":
        return Entries.cut(rows_in_rounds(wire.receive, wire.num_rounds))
    rounds = wire.num_rounds
    if name == "local":
        before, *counts = wire.entries[2 * rounds :].tolist()
        return Entries.cut(counts, before)
    place = {"forward": 0, "reduce_forward": rounds}.get(name)
    return None if place is None else Entries.cut(wire.entries[place : place + rounds].tolist())


def in_wire_order(name: str, columns: DescriptorList, wire: Wire) -> DescriptorList:
    """A list that reads or writes rows of a ring, as they lie there."""
    if name == "hand_back":  # its entries are in this order
        return {**columns, "src_row": iota(columns["src_row"])}
    if name == "forward":
        if wire.landing_order is None or wire.forward_order is None:
            return columns
        place = inverse(wire.landing_order)[columns["src_row"]]
        return _sorted({**columns, "src_row": place}, wire.forward_order)
    order = wire.landing_order if name == "reduce_node" else wire.send_order
    if order is None:
        return columns
    if wire.handover is not None and name != "reduce_node":  # its entries are in this order
        return {**columns, "dst_row": inverse(order)[columns["dst_row"]]}
    return {**_sorted(columns, order), "dst_row": iota(order)}  # an entry is a row


def rows_in_rounds(side: Side, num_rounds: int) -> list[int]:
    """The rows that are sent, or received, in every round."""
    rows = [0] * num_rounds
    for number, _, _, length in side.listed:
        rows[number] += length
    return rows


def _sorted(columns: DescriptorList, order: Tensor) -> DescriptorList:
    return {name: column[order] for name, column in columns.items()}
