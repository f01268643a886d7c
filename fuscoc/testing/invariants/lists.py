"""Lists that are well-formed, rows that are sent and received alike, buffers of the right size."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from fuscoc.testing.arrays import Bools, Ints, first
from fuscoc.testing.facts import TERMS, PlanFacts, require, require_all
from fuscoc.testing.violations import PlanViolation, Table
from fuscoc_runtime.plan import BufferRows


def check_lists(facts: PlanFacts) -> None:
    """Every list has its columns, equally long, and no entry points outside of its buffer.

    The other checks rely on this one.
    """
    rows = {name: facts.row_counts(name) for name in (f.name for f in fields(BufferRows))}
    num_terms = {name: np.diff(facts.terms[name].begin) for name in TERMS}
    weights = np.array([sum(plan.point_recv_counts) for plan in facts.ranks])
    slots = np.array([plan.num_slots for plan in facts.ranks])

    def inside(table: Table, column: str, limit: Ints) -> None:
        ok = (table[column] >= 0) & (table[column] < limit)
        require_all(table, ok, "check_lists", f"{column} points outside of its buffer")

    for table in facts.tables.values():
        if "dst_peer" in table.columns:
            limit = np.full(len(table), facts.topology.ranks_per_node)
            inside(table, "dst_peer", limit)
    for name, column, buffer in (
        ("net_send", "dst_row", "slices"),
        ("carried", "src_row", "carried"),
        ("carried", "dst_row", "slices"),
        ("hand_back", "src_row", "slices"),
        ("forward", "src_row", "landing"),
        ("local", "src_slot", "target"),
        ("local", "dst_slot", "target"),
        ("reduce_node", "dst_row", "landing"),
    ):
        inside(facts.tables[name], column, rows[buffer][facts.tables[name].rank])
    for name, column, buffer in (
        ("carry", "dst_row", "carried"),
        ("direct", "dst_slot", "target"),
        ("forward", "dst_slot", "target"),
        ("hand_back", "dst_row", "staging"),
        ("reduce_direct", "dst_row", "staging"),
        ("reduce_forward", "dst_row", "forward_staging"),
    ):
        table = facts.tables[name]
        inside(table, column, rows[buffer][facts.peer(table)])
    for name in ("reduce_direct", "reduce_forward"):
        terms = facts.terms[name]
        inside(terms, "term_slot", slots[terms.rank])
        inside(terms, "term_point", weights[terms.rank])
    staged = facts.terms["reduce_source"]
    inside(staged, "term_row", rows["staging"][staged.rank])
    for name, limits in (*num_terms.items(), ("reduce_node", rows["forward_staging"])):
        table = facts.tables[name]
        begin, end = table["term_begin"], table["term_end"]
        ok = (begin >= 0) & (begin <= end) & (end <= limits[table.rank])
        require_all(table, ok, "check_lists", "its terms lie outside of the term columns")


def check_exchanges(facts: PlanFacts) -> None:
    """What a rank sends to another, that rank expects, row for row and weight for weight.

    Rows of the network hop travel by position, so the slices must be filled from row 0 on, each
    row once. So must the windows of ranks that send rows for others.
    """
    _same_counts("network rows", facts.send_counts, facts.recv_counts)
    sent = np.array([plan.point_send_counts for plan in facts.ranks])
    received = np.array([plan.point_recv_counts for plan in facts.ranks])
    _same_counts("weights", sent, received)
    _check_handed(facts)
    num_sent = np.bincount(facts.sent.rank, minlength=len(facts.ranks))
    for rank, plan in enumerate(facts.ranks):
        num_listed = int(num_sent[rank])
        if num_listed != sum(plan.net_send_counts):
            raise PlanViolation(
                "check_exchanges",
                f"lists {num_listed} rows and sends {sum(plan.net_send_counts)}",
                list="net_send",
                rank=rank,
            )
        if len(plan.point_order) != sum(plan.point_send_counts):
            raise PlanViolation(
                "check_exchanges",
                f"orders {len(plan.point_order)} weights and sends {sum(plan.point_send_counts)}",
                rank=rank,
            )
    require_all(
        facts.sent,
        first_of(facts.sent.rank, facts.sent.row),
        "check_exchanges",
        "this row of the slices is filled twice",
    )


def _check_handed(facts: PlanFacts) -> None:
    """Every row that a rank hands to another, that one sends: once."""
    carry, carried = facts.tables["carry"], facts.tables["carried"]
    other = facts.peer(carry) != carry.rank
    require_all(carry, other, "check_exchanges", "hands a row to its own rank")
    filled = first_of(facts.peer(carry), carry["dst_row"])
    require_all(carry, filled, "check_exchanges", "this row of the window is filled twice")
    once = first_of(carried.rank, carried["src_row"])
    require_all(carried, once, "check_exchanges", "this row of the window is sent twice")
    num_ranks = len(facts.ranks)
    handed = np.bincount(facts.peer(carry), minlength=num_ranks)
    taken = np.bincount(carried.rank, minlength=num_ranks)
    at = first(handed != taken)
    if at is not None:
        problem = f"sends {taken[at]} rows for others, who hand it {handed[at]}"
        raise PlanViolation("check_exchanges", problem, list="carried", rank=at)


def check_buffers(facts: PlanFacts) -> None:
    """Bytes are conserved: every buffer has exactly the rows that are put into it."""
    length = {name: np.diff(table.begin) for name, table in facts.tables.items()}
    wanted = {
        "target": facts.expected.num_rows,
        "staging": length["direct"] + np.bincount(facts.sent.source, minlength=len(facts.ranks)),
        "forward_staging": length["forward"],
        "slices": facts.send_counts.sum(axis=1),
        "landing": facts.recv_counts.sum(axis=1),
        "carried": length["carried"],
    }
    for name, rows in wanted.items():
        has = facts.row_counts(name)
        at = first(has != rows)
        if at is not None:
            problem = f"its {name} buffer has {has[at]} rows and needs {rows[at]}"
            raise PlanViolation("check_buffers", problem, rank=at)
        for plan in facts.ranks:
            largest = getattr(plan.max_rows, name)
            if largest != has.max():
                problem = f"says that the largest {name} buffer has {largest} rows, not {has.max()}"
                raise PlanViolation("check_buffers", problem, rank=plan.rank)
    written = len(facts.writes.rank)
    expected = facts.expected
    if facts.shuffle.program.is_compact:
        moved, what = int(expected.num_rows.sum()), "segments of ranks"
    else:
        moved, what = len(expected.rank), "points"
    problem = f"{moved} {what} move and {written} rows are written"
    require(written == moved, "check_buffers", problem)


def first_of(*columns: Ints) -> Bools:
    """Mask of the rows that are the first of their kind."""
    order = np.lexsort(columns)
    new = np.ones(len(order), np.bool_)
    if len(order) > 1:
        same = [column[order][1:] == column[order][:-1] for column in columns]
        new[1:] = ~np.logical_and.reduce(same)
    mask = np.empty(len(order), np.bool_)
    mask[order] = new
    return mask


def _same_counts(what: str, sent: Ints, received: Ints) -> None:
    at = first((sent != received.T).ravel())
    if at is not None:
        source, target = divmod(at, len(sent))
        raise PlanViolation(
            "check_exchanges",
            f"rank {source} sends rank {target} {sent[source, target]} {what}, "
            f"and rank {target} expects {received[target, source]}",
            rank=source,
        )
