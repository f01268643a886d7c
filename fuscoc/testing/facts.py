"""A plan laid flat: every descriptor list of all ranks in one table, and what they add up to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fuscoc.planning.files import Routing
from fuscoc.testing.arrays import Bools, Ints, before, first, group_ids, ints, joined, ranges
from fuscoc.testing.oracle import Expected, expect
from fuscoc.testing.points import points_of
from fuscoc.testing.violations import PlanViolation, Sent, Table
from fuscoc_runtime.plan import Plan, Points, RankPlan

GROUP = ("term_begin", "term_end")
COLUMNS: dict[str, tuple[str, ...]] = {
    "carry": ("src_offset", "dst_peer", "dst_row"),
    "carried": ("src_row", "dst_row"),
    "net_send": ("src_offset", "dst_row"),
    "direct": ("src_offset", "dst_peer", "dst_slot"),
    "forward": ("src_row", "dst_peer", "dst_slot"),
    "local": ("src_slot", "dst_slot"),
    "reduce_direct": ("dst_peer", "dst_row", *GROUP),
    "reduce_forward": ("dst_peer", "dst_row", *GROUP),
    "reduce_node": ("dst_row", *GROUP),
    "hand_back": ("src_row", "dst_peer", "dst_row"),
    "reduce_source": ("dst_offset", *GROUP),
}
HANDOVER = ("carry", "carried", "hand_back")
"""Lists of plans in which ranks send rows for one another."""
TERMS: dict[str, tuple[str, ...]] = {
    "reduce_direct": ("term_slot", "term_point"),
    "reduce_forward": ("term_slot", "term_point"),
    "reduce_source": ("term_row",),
}


UNWRITTEN = -2


@dataclass(frozen=True, eq=False)
class Rows:
    """Where the rows of the network hop go, in the order of ``PlanFacts.sent``.

    ``forwarder``: the rank that receives it; ``landing``: its row there. ``landing_row`` maps
    position ``landing_begin[f] + landing`` back to the row.
    """

    forwarder: Ints
    landing: Ints
    landing_begin: Ints
    landing_row: Ints


@dataclass(frozen=True, eq=False)
class Writes:
    """Rows written into targets: first ``direct``, then ``forward``, then ``local``.

    ``rank`` and ``slot``, of a compact target the row, are written with the segment ``segment``
    (see ``PlanFacts.segments``); ``UNWRITTEN`` when a copy inside the memory reads a slot that no
    other rank wrote.
    """

    rank: Ints
    slot: Ints
    segment: Ints


class PlanFacts:
    """A plan and its routing, laid flat for the checks; computed once, shared by all of them."""

    def __init__(self, plan: Plan, routing: Routing) -> None:
        self.plan = plan
        self.shuffle, self.topology = plan.shuffle, plan.topology
        self.routing = routing
        self.points: list[Points] = points_of(plan.shuffle, plan.topology, routing.ranks)
        self.expected: Expected = expect(plan.shuffle, plan.topology, routing.ranks, self.points)

    @property
    def ranks(self) -> Sequence[RankPlan]:
        """The plans of all ranks."""
        return self.plan.ranks

    @cached_property
    def tables(self) -> dict[str, Table]:
        """Every list, without its term columns."""
        return {name: self._flatten(name, self.columns(name)) for name in COLUMNS}

    @cached_property
    def terms(self) -> dict[str, Table]:
        """The term columns of the reductions: positions here are what ``term_begin`` counts."""
        return {name: self._flatten(name, columns) for name, columns in TERMS.items()}

    def columns(self, name: str) -> tuple[str, ...]:
        """Names of the columns of a list, its terms aside."""
        side = {"carry": "src", "net_send": "src", "direct": "src", "reduce_source": "dst"}.get(
            name
        )
        strides = len(self.shuffle.program.relation.addresses) - 1 if side else 0
        return (*COLUMNS[name], *(f"{side}_stride{i}" for i in range(strides)))

    @property
    def place(self) -> str:
        """What is written in a target: a slot, or a row of a compact one."""
        return "row" if self.shuffle.program.is_compact else "slot"

    def row_counts(self, name: str) -> Ints:
        """int64 [num_ranks]: what ``RankPlan.rows`` says of a buffer."""
        return ints([getattr(plan.rows, name) for plan in self.ranks])

    @cached_property
    def send_counts(self) -> Ints:
        """int64 [num_ranks, num_ranks]: network rows, sender x forwarder, as senders say."""
        return np.array([plan.net_send_counts for plan in self.ranks], np.int64)

    @cached_property
    def recv_counts(self) -> Ints:
        """The same, as forwarders say: [forwarder, sender]."""
        return np.array([plan.net_recv_counts for plan in self.ranks], np.int64)

    @cached_property
    def segments(self) -> dict[str, Ints]:
        """Which segment every source, and every descriptor with an address, means.

        A segment is numbered by its rank and address, so sources that share an address share the
        number. Keys: ``source`` and the names of lists; -1 where no source has that address.
        """
        addressed = ("carry", "net_send", "direct", "reduce_source")
        parts = [self._source_addresses, *(self._addresses(name) for name in addressed)]
        ids = group_ids(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
        cuts = np.cumsum([len(part[0]) for part in parts])[:-1]
        sources, *rest = np.split(ids, cuts)
        known = np.isin(ids, sources)
        found = [
            np.where(k, each, -1) for each, k in zip(rest, np.split(known, cuts)[1:], strict=True)
        ]
        return {"source": sources, **dict(zip(addressed, found, strict=True))}

    @cached_property
    def source_begin(self) -> Ints:
        """int64 [num_ranks + 1]: the first source of every rank among all sources."""
        counts = [
            len(each.columns["rank"]) // self.shuffle.program.num_points_each(len(self.points))
            for each in self.points
        ]
        return joined([ints([0]), np.cumsum(counts)])

    @cached_property
    def point_segment(self) -> Ints:
        """int64 [num_live]: the segment of every expected point."""
        at = self.source_begin[self.expected.source_rank] + self.expected.source
        return np.asarray(self.segments["source"][at])

    @cached_property
    def segment_sharing(self) -> Ints:
        """int64 [num_segments]: how many sources have a segment's address."""
        return np.asarray(np.bincount(self.segments["source"]))

    @cached_property
    def sent(self) -> Sent:
        """The rows of the network hop; needs lists that point into their buffers."""
        net, carry, carried = (self.tables[name] for name in ("net_send", "carry", "carried"))
        # What lies in the windows of those that send for others: its source and its segment.
        begin = before(self.row_counts("carried"))
        held = np.full((2, int(self.row_counts("carried").sum())), -1, np.int64)
        held[:, begin[self.peer(carry)] + carry["dst_row"]] = carry.rank, self.segments["carry"]
        source, segment = held[:, begin[carried.rank] + carried["src_row"]]
        return Sent(
            net,
            carried,
            np.concatenate([net.rank, carried.rank]),
            np.concatenate([net.rank, source]),
            np.concatenate([net["dst_row"], carried["dst_row"]]),
            np.concatenate([self.segments["net_send"], segment]),
        )

    @cached_property
    def rows(self) -> Rows:
        """Where every row of the network hop lands; needs consistent counts."""
        sent, num_ranks = self.sent, self.topology.num_ranks
        ends = self.send_counts.cumsum(axis=1)
        forwarder = (ends[sent.rank] <= sent.row[:, None]).sum(axis=1)
        forwarder = np.minimum(forwarder, num_ranks - 1)
        in_block = sent.row - (ends - self.send_counts)[sent.rank, forwarder]
        landing_first = self.recv_counts.cumsum(axis=1) - self.recv_counts
        landing = landing_first[forwarder, sent.rank] + in_block
        begin = before(self.recv_counts.sum(axis=1))
        landing_row = np.empty(len(sent), np.int64)
        landing_row[begin[forwarder] + landing] = np.arange(len(sent))
        return Rows(forwarder, landing, begin, landing_row)

    @cached_property
    def forward_row(self) -> Ints:
        """The network row that every descriptor of ``forward`` reads."""
        forward = self.tables["forward"]
        landed = self.rows.landing_begin[forward.rank] + forward["src_row"]
        return np.asarray(self.rows.landing_row[landed])

    def peer(self, table: Table) -> Ints:
        """The rank that ``dst_peer`` means."""
        m = self.topology.ranks_per_node
        return table.rank // m * m + table["dst_peer"]

    @cached_property
    def writes(self) -> Writes:
        """Every row that dispatch writes."""
        direct, forward, local = (self.tables[name] for name in ("direct", "forward", "local"))
        rank = np.concatenate([self.peer(direct), self.peer(forward)])
        slot = np.concatenate([direct["dst_slot"], forward["dst_slot"]])
        segment = np.concatenate([self.segments["direct"], self.sent.segment[self.forward_row]])
        first_slot = before(self.row_counts("target"))
        held = np.full(self.row_counts("target").sum(), UNWRITTEN, np.int64)
        held[first_slot[rank] + slot] = segment
        copied = held[first_slot[local.rank] + local["src_slot"]]
        return Writes(
            np.concatenate([rank, local.rank]),
            np.concatenate([slot, local["dst_slot"]]),
            np.concatenate([segment, copied]),
        )

    def writer(self, at: int) -> tuple[Table, int]:
        """The descriptor of write ``at``."""
        for name in ("direct", "forward", "local"):
            table = self.tables[name]
            if at < len(table):
                return table, at
            at -= len(table)
        raise IndexError(at)

    def term_positions(self, name: str) -> tuple[Ints, Ints]:
        """(group, position in ``terms[name]``) of every term of every group."""
        table, terms = self.tables[name], self.terms[name]
        base = terms.begin[table.rank]
        return ranges(base + table["term_begin"], base + table["term_end"])

    @cached_property
    def _source_addresses(self) -> list[Ints]:
        fanout = self.shuffle.program.num_points_each(len(self.points))
        names = self.shuffle.program.relation.addresses
        rank = np.repeat(np.arange(len(self.points)), np.diff(self.source_begin))
        columns = [joined([ints(p.columns[n])[::fanout] for p in self.points]) for n in names]
        return [rank, *columns]

    def _addresses(self, name: str) -> list[Ints]:
        table = self.tables[name]
        address = [each for each in self.columns(name) if "offset" in each or "stride" in each]
        return [table.rank, *(table[column] for column in address)]

    def _flatten(self, name: str, columns: tuple[str, ...]) -> Table:
        parts = [self._columns_of(plan, name, columns) for plan in self.ranks]
        lengths = [len(part[columns[0]]) for part in parts]
        for plan, part, length in zip(self.ranks, parts, lengths, strict=True):
            uneven = [c for c in columns if len(part[c]) != length]
            if uneven:
                raise PlanViolation(
                    "check_lists",
                    f"column {uneven[0]} has {len(part[uneven[0]])} entries, {columns[0]} {length}",
                    list=name,
                    rank=plan.rank,
                )
        return Table(
            name,
            np.repeat(np.arange(len(parts)), lengths),
            joined([np.arange(length) for length in lengths]),
            np.concatenate([[0], np.cumsum(lengths)]),
            {c: joined([part[c] for part in parts]) for c in columns},
        )

    def _columns_of(self, plan: RankPlan, name: str, columns: tuple[str, ...]) -> dict[str, Ints]:
        if name in HANDOVER and not plan.wire.hands_over:
            return {column: np.zeros(0, np.int64) for column in columns}
        missing = [column for column in columns if column not in plan.lists.get(name, {})]
        if missing:
            problem = f"has no column {missing[0]}"
            raise PlanViolation("check_lists", problem, list=name, rank=plan.rank)
        return {column: ints(plan.lists[name][column]) for column in columns}


def require(ok: bool, invariant: str, problem: str) -> None:
    """Raise a violation that no single descriptor is to blame for."""
    if not ok:
        raise PlanViolation(invariant, problem)


def require_all(table: Table | Sent, ok: Bools, invariant: str, problem: str) -> None:
    """Raise about the first descriptor for which ``ok`` is false."""
    at = first(~ok)
    if at is not None:
        table.fail(invariant, problem, at)
