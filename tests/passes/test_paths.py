"""Hops and lists for every policy: what build-hierarchy to form-slices make of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest

from fuscoc.dialect.base import PassError, ops_of
from fuscoc.dialect.l1 import Collect, Hop
from fuscoc.dialect.l2 import Descriptors, Exchange, GatherSend, Reduce, ScatterRecv
from fuscoc.dialect.l3 import Launch
from fuscoc.dialect.path import Path
from fuscoc.lang.checked import CheckedShuffle, Combine, Policy
from fuscoc.passes import derive_transpose
from fuscoc.pipeline import compile_to_ir
from tests import specs
from tests.dialect.support import PRELUDE, fresh_context, parse

Dedup = tuple[Literal["node", "rank"], ...]
# What a copy over the network, and one over NVLink, is for.
TIERS: list[tuple[Dedup, str, str]] = [
    ((), "point", "point"),
    (("rank",), "rank", "rank"),
    (("node",), "node", "point"),
    (("node", "rank"), "node", "rank"),
]
DEDUPS = [dedup for dedup, _, _ in TIERS]


def with_dedup(checked: CheckedShuffle, dedup: Dedup) -> CheckedShuffle:
    return replace(checked, policy=replace(checked.policy, dedup=dedup))


class Paths(dict[str, Any]):
    """The paths by direction, after a pass. Holds on to the module that they are part of."""

    def __init__(self, checked: CheckedShuffle, after: str) -> None:
        self.module = compile_to_ir(checked, after=after).module
        super().__init__((path.read("direction"), path) for path in ops_of(self.module, Path))


def lists(path: Any) -> dict[str, Any]:
    return {item.read("sym_name"): item for item in ops_of(path, Descriptors)}


@pytest.mark.parametrize(("dedup", "net", "nvlink"), TIERS)
def test_a_tier_is_crossed_once_a_destination(dedup: Dedup, net: str, nvlink: str) -> None:
    both = Paths(with_dedup(specs.moe(), dedup), "build-hierarchy")
    path = both["dispatch"]
    hops = [tuple(hop.read(key) for key in ("src", "dst", "per")) for hop in ops_of(path, Hop)]
    assert hops == [
        ("source", "landing", net),
        ("source", "target", nvlink),
        ("landing", "target", nvlink),
        ("target", "target", "point"),
    ]


@pytest.mark.parametrize("balance", ["rebalance", "auto"])
def test_rows_may_go_to_another_sender_first(balance: str) -> None:
    shuffle = specs.moe(policy=replace(specs.POLICY, balance=balance))
    both = Paths(shuffle, "build-hierarchy")
    path = both["dispatch"]
    hops = [
        tuple(hop.read(key) for key in ("scope", "per", "src", "dst")) for hop in ops_of(path, Hop)
    ]
    assert hops[:3] == [
        ("rank", "node", "source", "carrier"),
        ("node", "node", "source", "landing"),
        ("node", "node", "carrier", "landing"),
    ]


def test_lists_of_rows_for_other_senders() -> None:
    both = Paths(specs.moe(policy=specs.rebalanced()), "form-slices")
    found = {**lists(both["dispatch"]), **lists(both["combine"])}
    assert {name: found[name].read("columns") for name in ("carry", "carried", "hand_back")} == {
        "carry": ("src_offset", "dst_peer", "dst_row"),
        "carried": ("src_row", "dst_row"),
        "hand_back": ("src_row", "dst_peer", "dst_row"),
    }


@pytest.mark.parametrize("kind", ["sum", "copy"])
def test_partial_sums_are_handed_back_as_they_travel(kind: Literal["sum", "copy"]) -> None:
    shuffle = specs.moe(num_topk=1, weighted=False, policy=specs.rebalanced())
    cells = tuple(replace(field, dtype="f16") for field in shuffle.source.fields)
    shuffle = replace(
        shuffle,
        fields=cells,
        source=replace(shuffle.source, fields=cells),
        combine=replace(shuffle.combine, kind=kind),
    )
    both = Paths(shuffle, "form-slices")
    (back,) = (op for op in ops_of(both["combine"], GatherSend))
    assert back.read("rows") == ({"name": "x", "dtype": "f32" if kind == "sum" else "f16"},)


@pytest.mark.parametrize("dedup", DEDUPS)
@pytest.mark.parametrize("policy", [specs.POLICY, specs.rebalanced()])
def test_combine_is_dispatch_turned_around(policy: Policy, dedup: Dedup) -> None:
    both = Paths(with_dedup(specs.moe(policy=policy), dedup), "derive-transpose")
    there = [
        tuple(hop.read(key) for key in ("scope", "src", "dst"))
        for hop in ops_of(both["dispatch"], Hop)
    ]
    back = [
        tuple(hop.read(key) for key in ("scope", "dst", "src"))
        for hop in ops_of(both["combine"], Collect)
    ]
    assert back == there[::-1]
    assert {hop.read("kind") for hop in ops_of(both["combine"], Collect)} == {"sum"}


def test_weights_apply_while_rows_are_one_a_point() -> None:
    both = Paths(specs.moe(), "derive-transpose")
    path = both["combine"]
    weights = [(hop.read("scope"), hop.read("weight")) for hop in ops_of(path, Collect)]
    assert weights == [("local", "topk_weights"), ("rank", None), ("rank", None), ("node", None)]


def test_a_combine_needs_a_dispatch() -> None:
    with fresh_context():
        module = parse(PRELUDE + '"fsc.combine"() {kind = "copy"} : () -> ()')
        with pytest.raises(PassError, match=r"'fsc.combine' op has no dispatch to turn around"):
            derive_transpose.run(module)


BALANCES = [
    ("none", "static"),
    *((rule, rule) for rule in ("static", "greedy", "lpt", "split", "rebalance", "auto")),
]


@pytest.mark.parametrize(("balance", "rule"), BALANCES)
def test_the_balance_is_the_rule_by_which_sources_pick_forwarders(balance: str, rule: str) -> None:
    shuffle = specs.moe(policy=replace(specs.POLICY, balance=balance))
    both = Paths(shuffle, "choose-forwarders")
    for hop in ops_of(both["dispatch"], Hop):
        picks = (hop.read("src"), hop.read("dst")) == ("source", "landing")
        assert hop.read("forwarder") == (rule if picks else None)
    assert all("balance" not in path.attributes for path in both.values())


def test_lists_of_dispatch() -> None:
    both = Paths(specs.vit_patches(), "form-slices")
    found = lists(both["dispatch"])
    assert {name: item.read("columns") for name, item in found.items()} == {
        "net_send": ("src_offset", "src_stride0", "dst_row"),
        "direct": ("src_offset", "src_stride0", "dst_peer", "dst_slot"),
        "forward": ("src_row", "dst_peer", "dst_slot"),
        "local": ("src_slot", "dst_slot"),
    }


@pytest.mark.parametrize("weighted", [False, True])
def test_lists_of_combine(*, weighted: bool) -> None:
    both = Paths(specs.moe(weighted=weighted), "form-slices")
    found = lists(both["combine"])
    to_peer = ("dst_peer", "dst_row", "term_begin", "term_end")
    at_target = ("term_slot", "term_point") if weighted else ("term_slot",)
    assert {name: (item.read("columns"), item.read("terms")) for name, item in found.items()} == {
        "reduce_forward": (to_peer, at_target),
        "reduce_direct": (to_peer, at_target),
        "reduce_node": (("term_begin", "term_end", "dst_row"), ()),
        "reduce_source": (("dst_offset", "term_begin", "term_end"), ("term_row",)),
    }


def test_run_time_strides_have_columns_at_both_ends() -> None:
    both = Paths(specs.vit_patches(channels_first=True), "form-slices")
    sent = lists(both["dispatch"])["net_send"].read("columns")
    back = lists(both["combine"])["reduce_source"].read("columns")
    assert sent == ("src_offset", "src_stride0", "src_stride1", "dst_row")
    assert back == ("dst_offset", "dst_stride0", "dst_stride1", "term_begin", "term_end")


@pytest.mark.parametrize(("dedup", "net", "nvlink"), TIERS)
def test_every_list_says_what_a_row_stands_for(dedup: Dedup, net: str, nvlink: str) -> None:
    both = Paths(with_dedup(specs.moe(policy=specs.rebalanced()), dedup), "form-slices")
    there, back = lists(both["dispatch"]), lists(both["combine"])
    assert {name: item.read("per") for name, item in there.items()} == {
        "carry": net,
        "carried": net,
        "net_send": net,
        "direct": nvlink,
        "forward": nvlink,
        "local": "point",
    }
    assert {item.read("per") for item in back.values()} == {None}


def test_every_list_is_of_the_rank_that_reads_by_it() -> None:
    both = Paths(specs.moe(policy=specs.rebalanced()), "form-slices")
    found = {**lists(both["dispatch"]), **lists(both["combine"])}
    assert {name: item.read("builder") for name, item in found.items()} == {
        "carry": "source",
        "carried": "carrier",
        "net_send": "source",
        "direct": "source",
        "forward": "forwarder",
        "local": "target",
        "reduce_forward": "target",
        "reduce_direct": "target",
        "reduce_node": "forwarder",
        "hand_back": "carrier",
        "reduce_source": "source",
    }


PROGRAMS = [specs.moe(), specs.vit_patches(), specs.moe(policy=specs.rebalanced())]


@pytest.mark.parametrize("after", ["form-slices", "specialise-kernels"])
@pytest.mark.parametrize("checked", PROGRAMS)
def test_every_step_comes_after_what_it_needs(checked: CheckedShuffle, after: str) -> None:
    """After what writes the buffer that it reads, and sends what it waits for; of no others."""
    both = Paths(checked, after)
    for path in both.values():
        steps = ops_of(path, GatherSend, ScatterRecv, Reduce, Exchange, Launch)
        for number, step in enumerate(steps):
            earlier = steps[:number]
            needed = {
                other.operation
                for other in earlier
                if step.reads in other.writes or other.signals in step.waits
            }
            assert set(step.preceding) == needed
            assert needed or step.reads in ("source", "rows")
            assert set(step.waits) <= {other.signals for other in earlier}


@pytest.mark.parametrize(
    ("checked", "num_signals"),
    zip(PROGRAMS, (4, 4, 6), strict=True),
)
def test_every_signal_is_waited_for_once(checked: CheckedShuffle, num_signals: int) -> None:
    """Signals are bumped by copies into peers' memory; whoever reads that memory waits for them."""
    signals: list[int] = []
    waits: list[int] = []
    both = Paths(checked, "form-slices")
    for path in both.values():
        for step in ops_of(path, GatherSend, ScatterRecv, Reduce):
            if step.signals is not None:
                signals.append(step.signals)
            waits += step.waits
    assert sorted(signals) == sorted(waits) == list(range(num_signals))


@pytest.mark.parametrize("schedule", ["pairwise", "fast"])
def test_exchanges_come_back_the_way_they_went(schedule: str) -> None:
    policy = replace(specs.POLICY, schedule=schedule)
    both = Paths(specs.moe(policy=policy), "form-slices")
    (out,), (back,) = (ops_of(both[name], Exchange) for name in ("dispatch", "combine"))
    assert {name: out.read(name) for name in out.attrs} == {
        "forwarder": "static",
        "schedule": schedule,
        "slice_bytes": policy.slice_bytes,
    }
    assert not [name for name in back.attrs if name in back.attributes]
    assert (out.reads, out.writes) == ("slices", ("landing",))
    assert (back.reads, back.writes) == ("return_slices", ("returned", "staging"))
    assert [list(path.attributes) for path in both.values()] == [["direction"]] * 2


def reductions(checked: CheckedShuffle) -> dict[str, tuple[str, tuple[str, Any, str]]]:
    """Each list's kind and the dtypes read, accumulated in and written for its first field."""
    both = Paths(checked, "form-slices")
    path = both["combine"]
    return {
        step.read("list"): (
            step.read("kind"),
            tuple(step.read("rows")[0][key] for key in ("src", "acc", "dst")),
        )
        for step in ops_of(path, Reduce)
    }


@pytest.mark.parametrize(
    ("dtype", "acc", "partial"),
    [
        ("bf16", "f32", "bf16"),
        ("f16", "f32", "f32"),
        ("f32", "f32", "f32"),
        ("f64", "f64", "f64"),
    ],
)
def test_partial_sums_are_wide_inside_a_node_and_where_they_may_overflow(
    dtype: str, acc: str, partial: str
) -> None:
    checked = specs.moe()
    fields = (replace(checked.fields[0], dtype=dtype),)
    checked = replace(checked, fields=fields, source=replace(checked.source, fields=fields))
    assert reductions(checked) == {
        "reduce_forward": ("sum", (dtype, acc, acc)),
        "reduce_direct": ("sum", (dtype, acc, partial)),
        "reduce_node": ("sum", (acc, acc, partial)),
        "reduce_source": ("sum", (partial, acc, dtype)),
    }


def test_copies_convert_nothing() -> None:
    assert set(reductions(specs.vit_patches()).values()) == {("copy", ("u8", None, "u8"))}


@pytest.mark.parametrize("after", ["derive-transpose", "form-slices"])
def test_a_shuffle_may_go_one_way(after: str) -> None:
    checked = replace(specs.moe(), combine=None)
    assert list(Paths(checked, after)) == ["dispatch"]


def test_sums_over_one_destination_are_sums() -> None:
    checked = specs.moe(num_topk=1)
    assert {kind for kind, _ in reductions(checked).values()} == {"sum"}
    copied = replace(checked, combine=Combine("copy", None, checked.span))
    assert {kind for kind, _ in reductions(copied).values()} == {"copy"}
