"""Combine: the transpose of dispatch, every point adding exactly one term with its own weight."""

from __future__ import annotations

import numpy as np

from fuscoc.testing.arrays import Ints, before, first, ints, joined
from fuscoc.testing.facts import PlanFacts, require_all
from fuscoc.testing.invariants.lists import first_of
from fuscoc.testing.violations import PlanViolation


def check_points_sent(facts: PlanFacts) -> None:
    """Every live point's weight goes to the rank that holds the point's row, once."""
    expected, num_ranks = facts.expected, facts.topology.num_ranks
    first_point = np.searchsorted(expected.source_rank, np.arange(num_ranks + 1))
    for rank, plan in enumerate(facts.ranks):
        mine = slice(first_point[rank], first_point[rank + 1])
        order = ints(plan.point_order)
        to = np.repeat(np.arange(num_ranks), plan.point_send_counts)
        by_point = np.argsort(order, kind="stable")
        if not np.array_equal(order[by_point], expected.point[mine]):
            problem = f"sends the weights of points {order.tolist()}, not of its live points"
            raise PlanViolation("check_points_sent", problem, rank=rank)
        at = first(to[by_point] != expected.rank[mine])
        if at is not None:
            problem = (
                f"sends the weight of point {expected.point[mine][at]} to rank "
                f"{to[by_point][at]}; its row goes to rank {expected.rank[mine][at]}"
            )
            raise PlanViolation("check_points_sent", problem, rank=rank)


def check_combine_rows(facts: PlanFacts) -> None:
    """Every row that dispatch moved comes back: over the same hops, to the same segment."""
    for name, written in (("reduce_direct", "direct"), ("reduce_forward", "forward")):
        groups, moved = facts.tables[name], facts.tables[written]
        exists = groups["dst_row"] < np.diff(moved.begin)[facts.peer(groups)]
        require_all(groups, exists, "check_combine_rows", f"answers no row of {written}")
        row = moved.begin[facts.peer(groups)] + groups["dst_row"]
        aimed = facts.peer(moved)[row] == groups.rank
        require_all(groups, aimed, "check_combine_rows", "answers a row aimed at another rank")
        once = first_of(row)
        require_all(groups, once, "check_combine_rows", f"answers a row of {written} once more")
        answered = np.zeros(len(moved), np.bool_)
        answered[row] = True
        require_all(moved, answered, "check_combine_rows", "this row is never sent back")
    _check_node_sums(facts)
    _check_source_sums(facts)


def check_combine_terms(facts: PlanFacts) -> None:
    """Every point contributes one term: the row in its slot, with its own weight."""
    expected = facts.expected
    held = _points_received(facts)
    belongs: dict[str, tuple[Ints, Ints]] = {}
    for name, written in (("reduce_direct", "direct"), ("reduce_forward", "forward")):
        groups, terms = facts.tables[name], facts.terms[name]
        row = facts.tables[written].begin[facts.peer(groups)] + groups["dst_row"]
        segment = facts.segments["direct"]
        if name == "reduce_forward":
            segment = facts.sent.segment[facts.forward_row]
        group, at = facts.term_positions(name)
        weight_begin = before(ints([sum(plan.point_recv_counts) for plan in facts.ranks]))
        point = held[weight_begin[terms.rank[at]] + terms["term_point"][at]]
        right_slot = expected.slot[point] == terms["term_slot"][at]
        right_rank = expected.rank[point] == terms.rank[at]
        right_segment = facts.point_segment[point] == segment[row[group]]
        bad = first(~(right_slot & right_rank))
        if bad is not None:
            terms.fail(
                "check_combine_terms", "this term weighs a row with another point's weight", at[bad]
            )
        bad = first(~right_segment)
        if bad is not None:
            groups.fail("check_combine_terms", "adds a term of another segment", int(group[bad]))
        empty = np.ones(len(groups), np.bool_)
        empty[group] = False
        require_all(groups, ~empty, "check_combine_terms", "sends a row back without any term")
        belongs[name] = (point, group)
    points = np.concatenate([point for point, _ in belongs.values()])
    count = np.bincount(points, minlength=len(expected.point))
    at_fault = first(count != 1)
    if at_fault is not None:
        raise PlanViolation(
            "check_combine_terms",
            f"point {expected.point[at_fault]} of rank {expected.source_rank[at_fault]} "
            f"contributes {count[at_fault]} terms",
            rank=int(expected.rank[at_fault]),
        )


def _check_node_sums(facts: PlanFacts) -> None:
    """The forwarder reduces all rows that it forwarded, each into the landing row it came from."""
    sums, forward = facts.tables["reduce_node"], facts.tables["forward"]
    once = first_of(sums.rank, sums["dst_row"])
    require_all(sums, once, "check_combine_rows", "this landing row is reduced twice")
    missing = np.diff(sums.begin) != facts.row_counts("landing")
    at = first(missing)
    if at is not None:
        problem = "does not reduce every landing row"
        raise PlanViolation("check_combine_rows", problem, list="reduce_node", rank=at)
    base = forward.begin[sums.rank]
    lengths = sums["term_end"] - sums["term_begin"]
    group = np.repeat(np.arange(len(sums)), lengths)
    row = np.arange(len(group)) - before(lengths)[group] + (base + sums["term_begin"])[group]
    at = first(forward["src_row"][row] != sums["dst_row"][group])
    if at is not None:
        sums.fail("check_combine_rows", "adds up rows of another landing row", int(group[at]))
    added = np.bincount(row, minlength=len(forward))
    require_all(forward, added == 1, "check_combine_rows", "comes back, but is not added up once")


def _check_source_sums(facts: PlanFacts) -> None:
    """Every source adds up its own rows: those sent directly, then those of the network."""
    sums, terms = facts.tables["reduce_source"], facts.terms["reduce_source"]
    num_sources = np.diff(facts.source_begin)
    for rank, plan in enumerate(facts.ranks):
        if not plan.num_sources == num_sources[rank] == sums.begin[rank + 1] - sums.begin[rank]:
            raise PlanViolation(
                "check_combine_rows",
                f"reduces {sums.begin[rank + 1] - sums.begin[rank]} sources of {num_sources[rank]}",
                list="reduce_source",
                rank=rank,
            )
    right = facts.segments["reduce_source"] == facts.segments["source"]
    require_all(sums, right, "check_combine_rows", "writes to another source's address")
    staged, staging_begin = _staged_segments(facts)
    group, at = facts.term_positions("reduce_source")
    row = staging_begin[terms.rank[at]] + terms["term_row"][at]
    bad = first(staged[row] != facts.segments["source"][group])
    if bad is not None:
        sums.fail("check_combine_rows", "adds a row of another segment", int(group[bad]))
    count = np.bincount(row, minlength=len(staged))
    bad = first(count != 1)
    if bad is not None:
        rank = int(np.searchsorted(staging_begin, bad, side="right")) - 1
        raise PlanViolation(
            "check_combine_rows",
            f"staging row {bad - staging_begin[rank]} is added up {count[bad]} times",
            list="reduce_source",
            rank=rank,
        )


def _staged_segments(facts: PlanFacts) -> tuple[Ints, Ints]:
    """The segment of every staging row of all ranks, and where each rank's rows begin."""
    direct, sent, back = facts.tables["direct"], facts.sent, facts.tables["hand_back"]
    num_direct = np.diff(direct.begin)
    begin = before(facts.row_counts("staging"))
    staged = np.full(int(facts.row_counts("staging").sum()), -1, np.int64)
    staged[begin[direct.rank] + direct.index] = facts.segments["direct"]
    if not facts.ranks[0].wire.hands_over:
        staged[(begin + num_direct)[sent.rank] + sent.row] = sent.segment
        return staged, begin
    slices = before(facts.send_counts.sum(axis=1))
    returned = np.empty(len(sent), np.int64)
    returned[slices[sent.rank] + sent.row] = sent.segment
    row = slices[back.rank] + back["src_row"]
    require_all(back, first_of(row), "check_combine_rows", "hands a row back once more")
    missing = first(np.bincount(row, minlength=len(sent)) == 0)
    if missing is not None:
        sent.fail("check_combine_rows", "this row is never handed back", missing)
    staged[begin[facts.peer(back)] + back["dst_row"]] = returned[row]
    return staged, begin


def _points_received(facts: PlanFacts) -> Ints:
    """For every rank's received weights, end to end: which expected point each belongs to."""
    expected, num_ranks = facts.expected, facts.topology.num_ranks
    first_point = before(ints([len(points.columns["rank"]) for points in facts.points]))
    number = np.full(first_point[-1] + len(facts.points[-1].columns["rank"]), -1, np.int64)
    number[first_point[expected.source_rank] + expected.point] = np.arange(len(expected.point))
    sent = joined([number[first_point[r] + ints(p.point_order)] for r, p in enumerate(facts.ranks)])
    counts = np.array([plan.point_send_counts for plan in facts.ranks])
    to = np.repeat(np.tile(np.arange(num_ranks), num_ranks), counts.ravel())
    return sent[np.argsort(to, kind="stable")]
