"""A valid plan, broken in one way after the other: ``check_plan`` names what is broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuscoc.testing import PlanViolation, check_plan, plan_of
from fuscoc_runtime.plan import Plan
from tests.plan.specs import declaring
from tests.testing.broken import (
    TERM_COLUMNS,
    TEXT,
    column,
    edit,
    entry,
    lists,
    plan,
    routing,
    spec,
    swapped,
    without,
)

PADDING = 7
"""A slot of rank 0 that belongs to nobody."""

Break = Callable[[Plan], Plan]


def claim(made: Plan, **rules: Any) -> Plan:
    """A plan that says that it was made by other rules."""
    return replace(made, shuffle=spec().with_rules(**rules).shuffle)


def with_capacity(made: Plan, capacity: int) -> Plan:
    """A plan for a target that is declared to hold no more."""
    target = made.shuffle.declared.target
    assert target.kind == "packed"
    shuffle = declaring(made.shuffle, target=replace(target, capacity=capacity))
    return replace(made, shuffle=shuffle)


def without_dedup(option: str) -> Plan:
    """The plan of a dispatch with ``option``, which says that it has the default."""
    text = TEXT.replace("by_key[r(t, k), *]\n", f"by_key[r(t, k), *] {option}\n")
    return claim(plan_of(spec(text), routing()))


def useless_row(broken: Plan, forwarder: int) -> Plan:
    """Rank 0 sends its last row once more, to ``forwarder``, which makes nothing of it."""
    sender, receiver = broken.ranks[0], broken.ranks[forwarder]
    at = sum(sender.net_send_counts[: forwarder + 1])
    rows = sender.lists["net_send"]
    dst_row = np.concatenate([rows["dst_row"] + (rows["dst_row"] >= at), np.array([at])])
    src_offset = np.concatenate([rows["src_offset"], rows["src_offset"][-1:]])
    send_counts = list(sender.net_send_counts)
    send_counts[forwarder] += 1
    recv_counts = list(receiver.net_recv_counts)
    recv_counts[0] += 1
    broken = edit(
        lists(broken, 0, "net_send", {"src_offset": src_offset, "dst_row": dst_row}),
        0,
        net_send_counts=tuple(send_counts),
        rows=replace(sender.rows, slices=sender.rows.slices + 1, staging=sender.rows.staging + 1),
    )
    landed = receiver.net_recv_counts[0]
    src_row = receiver.lists["forward"]["src_row"]
    broken = lists(broken, forwarder, "forward", {"src_row": src_row + (src_row >= landed)})
    rows_now = broken.ranks[forwarder].rows
    broken = edit(
        broken,
        forwarder,
        net_recv_counts=tuple(recv_counts),
        rows=replace(rows_now, landing=rows_now.landing + 1),
    )
    for rank, each in enumerate(broken.ranks):
        names = ("target", "staging", "forward_staging", "slices", "landing")
        largest = {name: max(getattr(p.rows, name) for p in broken.ranks) for name in names}
        broken = edit(broken, rank, max_rows=replace(each.max_rows, **largest))
    return broken


def counts(name: str, index: int, by: int) -> Break:
    def change(broken: Plan) -> Plan:
        values = list(getattr(broken.ranks[0], name))
        values[index] += by
        return edit(broken, 0, **{name: tuple(values)})

    return change


def rows(name: str, by: int) -> Break:
    def change(broken: Plan) -> Plan:
        has = broken.ranks[0].rows
        return edit(broken, 0, rows=replace(has, **{name: getattr(has, name) + by}))

    return change


def tensor(rank: int, name: str, change: Callable[[Any], None]) -> Break:
    def changed(broken: Plan) -> Plan:
        values = getattr(broken.ranks[rank], name).copy()
        change(values)
        return edit(broken, rank, **{name: values})

    return changed


def at(rank: int, name: str, key: str, change: Callable[[Any], Any]) -> Break:
    return lambda broken: column(broken, rank, name, key, change)


def again(rank: int, name: str) -> Break:
    """The first descriptor a second time."""

    def change(broken: Plan) -> Plan:
        own = {
            key: np.concatenate([values, values[:1]])
            for key, values in broken.ranks[rank].lists[name].items()
            if key not in TERM_COLUMNS
        }
        return lists(broken, rank, name, own)

    return change


def lost(rank: int, name: str, index: int = 0) -> Break:
    return lambda broken: without(broken, rank, name, index)


def forget(rank: int, name: str) -> Break:
    def change(broken: Plan) -> Plan:
        every = broken.ranks[rank].lists
        return edit(broken, rank, lists={key: each for key, each in every.items() if key != name})

    return change


def larger(values: Any) -> None:
    values[0] += 1


def doubled(values: Any) -> None:
    values[1] = values[0]


def shorter(values: Any) -> Any:
    return values[:-1]


MUTATIONS: dict[str, tuple[str, Break]] = {
    "a list is gone": ("check_lists", forget(0, "local")),
    "a column is cut short": ("check_lists", at(0, "direct", "dst_slot", shorter)),
    "a slot below zero": ("check_lists", at(0, "direct", "dst_slot", entry(0, -1))),
    "a peer outside of the node": ("check_lists", at(0, "direct", "dst_peer", entry(0, 2))),
    "a landing row that never lands": ("check_lists", at(0, "forward", "src_row", entry(0, 99))),
    "a row of the slices filled twice": (
        "check_exchanges",
        at(0, "net_send", "dst_row", entry(1, 0)),
    ),
    "a lost network row": ("check_exchanges", lost(0, "net_send")),
    "a forwarder that expects more": ("check_exchanges", counts("net_recv_counts", 4, 1)),
    "a sender that sends less": ("check_exchanges", counts("net_send_counts", 4, -1)),
    "fewer weights than expected": ("check_exchanges", counts("point_recv_counts", 1, 1)),
    "more slots than the capacity": (
        "check_capacity",
        lambda broken: with_capacity(broken, 19),
    ),
    "a double write": ("check_writes", at(0, "local", "dst_slot", entry(0, 1))),
    "a write into padding": ("check_writes", at(0, "local", "dst_slot", entry(0, PADDING))),
    "a copy of nothing": ("check_writes", at(0, "local", "src_slot", entry(0, PADDING))),
    "a copy of a copy": ("check_writes", at(0, "local", "src_slot", entry(1, 0))),
    "two slots exchanged": ("check_delivery", at(0, "direct", "dst_slot", swapped(1, 2))),
    "two peers exchanged": ("check_writes", at(0, "direct", "dst_peer", swapped(0, 1))),
    "a wrong source": ("check_delivery", at(0, "direct", "src_offset", entry(0, 2))),
    "an address between segments": ("check_delivery", at(0, "direct", "src_offset", entry(0, 99))),
    "two network rows exchanged": (
        "check_delivery",
        at(0, "net_send", "src_offset", swapped(1, 2)),
    ),
    "a wrong landing row": ("check_delivery", at(0, "forward", "src_row", entry(0, 1))),
    "a lost copy inside the memory": ("check_delivery", lost(0, "local")),
    "a lost row inside the node": ("check_delivery", lost(0, "direct", 4)),
    "a lost forward": ("check_delivery", lost(0, "forward", 3)),
    "a byte too many in the slices": ("check_buffers", rows("slices", 1)),
    "a landing buffer too large": ("check_buffers", rows("landing", 1)),
    "a peer's window too small": (
        "check_buffers",
        lambda broken: edit(broken, 3, max_rows=replace(broken.ranks[3].max_rows, target=8)),
    ),
    "a key with fewer rows": ("check_keys", tensor(0, "key_counts", larger)),
    "a key at no multiple of the alignment": ("check_keys", tensor(0, "key_offsets", larger)),
    "a network row to the own node": ("check_hops", lambda broken: useless_row(broken, 1)),
    "a network row that is not passed on": ("check_hops", lambda broken: useless_row(broken, 5)),
    "no dedup of nodes": ("check_node_dedup", lambda _: without_dedup("dedup(rank)")),
    "no dedup of ranks": ("check_rank_dedup", lambda _: without_dedup("dedup(node)")),
    "wrong forwarders": (
        "check_groups",
        lambda _: claim(plan(forwarder="lpt"), forwarder="greedy"),
    ),
    "a weight to the wrong rank": ("check_points_sent", tensor(0, "point_order", swapped(0, -1))),
    "a weight twice": ("check_points_sent", tensor(0, "point_order", entry(0, 15))),
    "weights in another order": ("check_combine_terms", tensor(0, "point_order", swapped(0, 1))),
    "a row that never comes back": ("check_combine_rows", lost(0, "reduce_direct")),
    "a row that comes back twice": ("check_combine_rows", again(0, "reduce_direct")),
    "a forwarded row that never comes back": ("check_combine_rows", lost(0, "reduce_forward")),
    "an answer to nobody": ("check_combine_rows", at(0, "reduce_direct", "dst_row", entry(0, 7))),
    "answers to each other's rows": (
        "check_combine_terms",
        at(0, "reduce_forward", "dst_row", swapped(0, 1)),
    ),
    "sums of each other's landing rows": (
        "check_combine_rows",
        at(0, "reduce_node", "dst_row", swapped(0, 1)),
    ),
    "a landing row without a sum": ("check_combine_rows", lost(0, "reduce_node")),
    "a row left out of a sum": ("check_combine_rows", at(0, "reduce_node", "term_begin", larger)),
    "rows of another source": (
        "check_combine_rows",
        at(0, "reduce_source", "term_row", swapped(0, -1)),
    ),
    "results at another source": (
        "check_combine_rows",
        at(0, "reduce_source", "dst_offset", swapped(0, 1)),
    ),
    "another point's weight": (
        "check_combine_terms",
        at(0, "reduce_direct", "term_point", swapped(0, 1)),
    ),
    "another slot's row": ("check_combine_terms", at(0, "reduce_direct", "term_slot", entry(0, 3))),
    "a term left out": ("check_combine_terms", at(0, "reduce_direct", "term_end", entry(0, 1))),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_check_plan_catches(name: str) -> None:
    invariant, mutate = MUTATIONS[name]
    with pytest.raises(PlanViolation) as caught:
        check_plan(mutate(plan()), routing())
    assert caught.value.invariant == invariant, str(caught.value)


def test_the_unbroken_plan_is_valid() -> None:
    for forwarder in ("static", "greedy", "lpt", "split", "rebalance"):
        for schedule in (None, "pairwise", "fast"):
            check_plan(plan(forwarder=forwarder, schedule=schedule), routing())


# Rank 2 has no rows and sends some of rank 3, its neighbour.
HANDED_OVER: dict[str, tuple[str, Break]] = {
    "a row handed to the own rank": ("check_lists", at(3, "carry", "dst_peer", entry(0, 1))),
    "a row of a window filled twice": ("check_exchanges", at(3, "carry", "dst_row", entry(1, 0))),
    "a row of a window sent twice": ("check_exchanges", at(2, "carried", "src_row", entry(1, 0))),
    "a handed row that nobody sends": ("check_exchanges", lost(2, "carried")),
    "two handed rows exchanged": ("check_delivery", at(3, "carry", "src_offset", swapped(0, 1))),
    "each other's rows of a window": ("check_delivery", at(2, "carried", "src_row", swapped(0, 1))),
    "a row that is not handed back": ("check_combine_rows", lost(2, "hand_back")),
    "a row handed back twice": ("check_combine_rows", at(2, "hand_back", "src_row", doubled)),
    "rows handed back to each other's place": (
        "check_combine_rows",
        at(2, "hand_back", "dst_row", swapped(0, 1)),
    ),
    "no need to hand rows over": (
        "check_senders",
        lambda broken: claim(broken, forwarder="lpt"),
    ),
    "senders as they were": (
        "check_senders",
        lambda _: claim(plan(forwarder="split"), forwarder="rebalance"),
    ),
}


@pytest.mark.parametrize("name", HANDED_OVER)
def test_check_plan_catches_what_is_handed_over(name: str) -> None:
    invariant, mutate = HANDED_OVER[name]
    with pytest.raises(PlanViolation) as caught:
        check_plan(mutate(plan(forwarder="rebalance")), routing())
    assert caught.value.invariant == invariant, str(caught.value)


COMPACT = TEXT.replace("packed(s)", "packed(s) compact")


@cache
def compact() -> Plan:
    return plan_of(spec(COMPACT), routing())


def slot_of(row: int) -> int:
    """A slot of rank 0 that refers to ``row``; -1: padding."""
    return int(np.flatnonzero(compact().ranks[0].row_index == row)[0])


REFERENCES: dict[str, tuple[str, Break]] = {
    "a slot that refers to another row": (
        "check_row_index",
        tensor(0, "row_index", lambda index: np.maximum(index - 1, -1, out=index)),
    ),
    "padding that refers to a row": (
        "check_row_index",
        tensor(0, "row_index", lambda index: index.__setitem__(slot_of(-1), 0)),
    ),
    "slots that refer to each other's rows": (
        "check_row_index",
        tensor(0, "row_index", lambda index: swapped(slot_of(0), slot_of(1))(index)),
    ),
    "two rows exchanged": ("check_delivery", at(0, "direct", "dst_slot", swapped(1, 3))),
    "a row written twice": ("check_writes", at(0, "direct", "dst_slot", entry(3, 0))),
    "a copy inside the memory": (
        "check_writes",
        lambda broken: lists(
            broken, 0, "local", {"src_slot": np.array([0]), "dst_slot": np.array([1])}
        ),
    ),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_check_plan_catches_in_a_compact_target(name: str) -> None:
    check_plan(compact(), routing())
    invariant, mutate = REFERENCES[name]
    with pytest.raises(PlanViolation) as caught:
        check_plan(mutate(compact()), routing())
    assert caught.value.invariant == invariant, str(caught.value)


def stages(change: Callable[[Any], None], name: str) -> Break:
    def changed(broken: Plan) -> Plan:
        schedule = broken.schedule
        assert schedule is not None
        array = getattr(schedule, name).copy()
        change(array)
        return replace(broken, schedule=replace(schedule, **{name: array}))

    return changed


def incast(peer: Any) -> None:
    peer[0, :2] = 2


def itself(peer: Any) -> None:
    peer[0] = np.where(np.arange(len(peer[0])) == 0, 0, -1)


def idle(peer: Any) -> None:
    peer[-1] = -1


def last_cut(end: Any) -> None:
    end[end > 0] -= 1


def late(begin: Any) -> None:
    begin[begin == 0] += 1


SCHEDULES: dict[str, Break] = {
    "a stage with incast": stages(incast, "peer"),
    "a node that sends to itself": stages(itself, "peer"),
    "a stage in which nobody sends": stages(idle, "peer"),
    "a lost byte": stages(last_cut, "end"),
    "a gap": stages(late, "begin"),
    "a tile too large": stages(larger, "tile"),
    "a schedule of other forwarders": lambda broken: replace(
        broken, schedule=plan(forwarder="split", schedule="pairwise").schedule
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_check_plan_catches_a_broken_schedule(name: str) -> None:
    with pytest.raises(PlanViolation) as caught:
        check_plan(SCHEDULES[name](plan(schedule="pairwise")), routing())
    assert caught.value.invariant == "check_schedule", str(caught.value)


def test_a_violation_names_the_descriptor() -> None:
    broken = column(plan(), 0, "direct", "dst_slot", swapped(1, 2))
    with pytest.raises(PlanViolation) as caught:
        check_plan(broken, routing())
    error = caught.value
    assert (error.list, error.rank, error.index, error.hop) == ("direct", 0, 1, "NVLink")
    assert str(error) == (
        "check_delivery: direct[1] on rank 0 (NVLink hop) {src_offset 0, dst_peer 1, dst_slot 12}: "
        "writes segment 0 of rank 0 to slot 12 of rank 1, which is for point 5 (segment 1) "
        "of rank 0"
    )


class Forgetful(Plan):
    """Loses the last network row of rank 0 when it is saved."""

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        loaded = Plan.load(path)
        broken = column(loaded, 0, "net_send", "src_offset", larger)
        return cls(broken.shuffle, broken.topology, broken.ranks, broken.model)


def test_check_plan_catches_a_lossy_file() -> None:
    whole = plan()
    broken = Forgetful(whole.shuffle, whole.topology, whole.ranks, whole.model)
    with pytest.raises(PlanViolation, match=r"check_round_trip: plan.ranks\[0\].lists"):
        check_plan(broken, routing())
