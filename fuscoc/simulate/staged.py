"""A path as separate operators carry it out: permutes and collectives, one behind the other.

Steps that move rows to other ranks become a permute that packs them, a collective, and a permute
that places them; steps of the same depth share theirs. A collective begins when all ranks have
called it, and gets the parts of NVLink's and of a NIC's rate that ``Costs`` says. Where collectives
know layouts, nothing is permuted: operators are left where rows are copied or added up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuscoc.simulate.amounts import ListAmounts
from fuscoc.simulate.counts import Counts
from fuscoc.simulate.hop import NetworkPlan
from fuscoc.simulate.pipelined import Host
from fuscoc.simulate.steps import Wires
from fuscoc_runtime.manifest.program import PathSpec

Float64Array = NDArray[np.float64]
Int64Array = NDArray[np.int64]


class Staged:
    """The tasks of one path on all ranks."""

    def __init__(
        self,
        wires: Wires,
        path: PathSpec,
        plan: NetworkPlan,
        counts: Counts,
        amounts: ListAmounts,
        host: Host,
        permutes: bool,
    ) -> None:
        """``permutes``: whether collectives need their rows in order of rank."""
        self._permutes = permutes
        self._wires, self._path, self._plan = wires, path, plan
        self._counts, self._amounts = counts, amounts
        self._costs, self._builder = wires.cluster.costs, wires.builder
        self._ranks = np.arange(wires.cluster.num_ranks)
        # Operators need the sizes of all that they receive before the first of them.
        before = host.plan + host.describe
        self._end = self._builder.add(self._ranks, "plan", ("sizes and layouts",), before)
        self._hands_over = plan.assignment.hands_over

    def build(self) -> Int64Array:
        """Add all tasks; returns the last one of every rank, [R]."""
        path = self._path
        if path.exchange.forwarder is not None:
            self._forth()
        else:
            self._back()
        return self._end

    def _forth(self) -> None:
        """Rows are packed by destination, cross, are passed on inside the node, and are placed."""
        counts, wires = self._counts, self._wires
        sent = self._amounts.of("net_send").entries.sum() > 0
        if self._hands_over:
            self._collective("hand over", self._moved("carry", "carried"))
        if self._permutes:
            read = counts.sources * wires.row_bytes("source")
            self._permute("pack", read, self._packed())
        moves = [self._moved("direct", "target")]
        straight = self._goes_straight
        if sent:
            self._collective("all to all", *(moves if straight else ()), network=True)
            moves = [] if straight else moves
        landed = self._by_rank("forward") * wires.row_bytes("landing")
        if not straight:
            if sent:
                if self._permutes:
                    self._permute("pack again", landed, landed)
                moves.append(self._moved("forward", "target"))
            self._collective("all to all in the node", *moves)
        elif not sent:
            self._collective("all to all", *moves)
        filled = counts.pairs if wires.program.is_compact else counts.points
        arrived, placed = (each.sum(axis=0) for each in (counts.pairs, filled))
        if self._permutes or (placed > arrived).any():
            row = wires.row_bytes("target")
            self._permute("place", arrived * row, placed * row)

    def _back(self) -> None:
        """The mirror image; what is packed are sums of a segment's rows on a rank."""
        counts = self._counts
        points, pairs = counts.points.sum(axis=0), counts.pairs.sum(axis=0)
        sent = self._amounts.of("net_send").entries.sum() > 0
        self._sum("reduce", points, "rows", pairs, "staging")
        moves = [self._moved("reduce_direct", "staging")]
        if not self._goes_straight:
            if sent:
                moves.append(self._moved("reduce_forward", "staging"))
            self._collective("all to all in the node", *moves)
            moves = []
            if sent:
                landed = self._by_rank("reduce_node", terms=True)
                sums = self._by_rank("reduce_node")
                self._sum("reduce again", landed, "staging", sums, "return_slices")
        if sent:
            self._collective("all to all", *moves, network=True)
        elif self._goes_straight:
            self._collective("all to all", *moves)
        if self._hands_over:
            self._collective("hand back", self._moved("hand_back", "staging"))
        came = self._by_rank("reduce_source", terms=True)
        self._sum("sum", came, "staging", counts.sources, "result")

    @property
    def _goes_straight(self) -> bool:
        """Whether rows land at the rank that wants them: then one collective does everything."""
        return self._plan.stages is None

    def _packed(self) -> Float64Array:
        """Bytes [R] that every rank writes into send buffers."""
        rows = self._by_rank("direct") + self._by_rank("net_send")
        if self._hands_over:
            rows += self._by_rank("carry")
        return rows * self._wires.row_bytes("slices")

    def _by_rank(self, name: str, terms: bool = False) -> Float64Array:
        amounts = self._amounts.of(name)
        column = amounts.terms if terms else amounts.entries
        return np.asarray(np.bincount(amounts.rank, column, len(self._ranks)), np.float64)

    def _moved(self, name: str, buffer: str) -> tuple[Int64Array, Int64Array, Float64Array]:
        """Rank, peer and bytes of a list whose rows go to other ranks."""
        amounts = self._amounts.of(name)
        return amounts.rank, amounts.peer, amounts.entries * self._wires.row_bytes(buffer)

    def _permute(self, name: str, read: NDArray[Any], written: NDArray[Any]) -> None:
        self._end = self._wires.operator(name, self._end, read, written, self._costs.permute)

    def _sum(self, name: str, terms: NDArray[Any], src: str, sums: NDArray[Any], dst: str) -> None:
        """``terms`` and ``sums``: rows by rank, of these buffers."""
        if self._permutes or (terms > sums).any():
            read, written = terms * self._wires.row_bytes(src), sums * self._wires.row_bytes(dst)
            self._end = self._wires.operator(name, self._end, read, written, self._costs.reduce)

    def _collective(
        self,
        name: str,
        *moves: tuple[Int64Array, Int64Array, Float64Array],
        network: bool = False,
    ) -> None:
        """All ranks meet, and are done when all that they send and receive is."""
        builder, wires, costs = self._builder, self._wires, self._costs
        met = builder.join(self._end[None, :])
        end = builder.add(self._ranks)
        builder.after(met, end)
        for rank, peer, num_bytes in moves:
            away = rank != peer
            rank, peer, num_bytes = rank[away], peer[away], num_bytes[away]
            ids = builder.add(rank, "collective", (name,), costs.collective)
            wires.nvlink(ids, rank, peer, num_bytes / costs.collective_nvlink)
            wires.hbm(ids, rank, num_bytes)
            wires.hbm(ids, peer, num_bytes)
            self._between(met, ids, end, rank, peer)
        if network:
            self._cross(met, end, name)
        self._end = end

    def _cross(self, met: Int64Array, end: Int64Array, name: str) -> None:
        """All that the network hop has for a pair of ranks, all pairs at once."""
        forth = self._path.exchange.forwarder is not None
        sender, receiver = np.nonzero(self._plan.assignment.pairs)
        rows = self._plan.assignment.pairs[sender, receiver]
        if not forth:
            sender, receiver = receiver, sender
        costs, wires = self._costs, self._wires
        latency = costs.collective + wires.cluster.latency
        ids = self._builder.add(sender, "collective", (name,), latency)
        num_bytes = np.asarray(
            rows * float(wires.row_bytes("slices" if forth else "return_slices")), np.float64
        )
        relay = wires.cluster.collective_sender(sender, receiver)
        part = costs.collective_nic if self._plan.is_straight else costs.hop_nic
        wires.network(ids, relay, receiver, num_bytes / part)
        self._relay(ids, sender, relay, num_bytes)
        self._between(met, ids, end, sender, receiver)

    def _relay(
        self, ids: Int64Array, sender: Int64Array, relay: Int64Array, num_bytes: Float64Array
    ) -> None:
        """Rows that another rank's NIC sends reach its memory as those of a collective do."""
        wires, away = self._wires, sender != relay
        ids, num_bytes = ids[away], num_bytes[away]
        nvlink = num_bytes / self._costs.collective_nvlink
        wires.nvlink(ids, sender[away], relay[away], nvlink)
        wires.hbm(ids, sender[away], num_bytes)
        wires.hbm(ids, relay[away], num_bytes)

    def _between(
        self, met: Int64Array, ids: Int64Array, end: Int64Array, *ranks: Int64Array
    ) -> None:
        self._builder.after(met, ids)
        for rank in ranks:
            self._builder.after(ids, end[rank])
