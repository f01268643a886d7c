"""What tests let the processes of a ``Pool`` do: the calls of DeepEP's ``Buffer`` beside torch's.

Every function runs on one rank and returns what is wrong.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

import fuscoc_runtime.deep_ep as deep_ep
from fuscoc_runtime.deep_ep.rows import Tokens
from fuscoc_runtime.errors import FuscoRuntimeError
from tests.deep_ep.cases import (
    SMALL,
    Case,
    Checks,
    Shape,
    as_f32,
    as_tuple,
    every_number,
    from_fp8,
    in_order,
    make_case,
    outputs,
    raised,
    to_fp8,
)


def normal(
    group: Any, device: str, shape: Shape, sizes: list[int], options: dict[str, Any]
) -> list[str]:
    """Layout, dispatch with and without what the router says, cached, worst case, combine."""
    case = make_case(group, device, shape, sizes, seed=1)
    case = replace(case, is_node="2x2" not in options.values())
    buffer = deep_ep.Buffer(group, explicitly_destroy=True, **options)
    checks = Checks()
    counted = check_layout(checks, buffer, case)
    for is_fp8, with_topk in product((False, True), (False, True)):
        check_dispatch(checks, buffer, case, counted, is_fp8, with_topk)
    buffer.destroy()
    return checks.wrong


def check_layout(checks: Checks, buffer: Any, case: Case) -> dict[str, Tensor]:
    mine, experts = case.idx[case.rank], case.shape.experts
    per_rank, per_node, per_expert, goes, _ = buffer.get_dispatch_layout(mine, experts)
    wanted = torch.stack([case.goes(case.rank, peer) for peer in range(case.num_ranks)], 1)
    checks.equal("is_token_in_rank", goes, wanted)
    checks.equal("num_tokens_per_rank", per_rank, wanted.sum(0).int())
    checks.equal("num_tokens_per_rdma_rank", per_node, None)
    numbers = torch.stack([(mine == expert).sum() for expert in range(experts)])
    checks.equal("num_tokens_per_expert", per_expert, numbers.int())
    names = "num_tokens_per_rank", "num_tokens_per_expert", "is_token_in_rank"
    return dict(zip(names, (per_rank, per_expert, goes), strict=True))


def check_dispatch(
    checks: Checks,
    buffer: Any,
    case: Case,
    counted: dict[str, Tensor],
    is_fp8: bool,
    with_topk: bool,
) -> None:
    rank, first, is_async = case.rank, case.rank * case.local, is_fp8
    sent = [every_number(*to_fp8(x)) if is_fp8 else x for x in case.x]
    x: Tokens = sent[rank]
    order: dict[str, Any] = {}
    if is_async:
        order = {"async_finish": True, "previous_event": buffer.capture()}
        order["allocate_on_comm_stream"] = with_topk
    topk = {"topk_idx": case.idx[rank], "topk_weights": case.weights[rank]} if with_topk else {}
    found = buffer.dispatch(x, **counted, **topk, expert_alignment=4, **order)
    recv, idx, weights, per_expert, handle, event = found
    wait(event, is_async)

    def check_rows(what: str, rows: Any) -> None:
        if is_fp8:
            parts = zip(("values", "scales"), rows, zip(*sent, strict=True), strict=True)
            for name, found, wanted in parts:
                checks.equal(f"{what}, {name}", found, case.received(list(wanted), rank))
        else:
            checks.equal(what, rows, case.received(case.x, rank))

    check_rows("recv_x", recv)
    experts = torch.cat(case.idx).flatten()
    numbers = [int((experts == first + i).sum()) for i in range(case.local)]
    checks.equal("aligned numbers", per_expert, [-(-each // 4) * 4 for each in numbers])
    for peer in range(case.num_ranks):
        before = [case.goes(source, rank).sum() for source in range(peer + 1)]
        checks.equal("prefix", int(handle[0][peer, rank]), int(sum(before)))
    if with_topk:
        wanted_idx = case.received(case.idx, rank) - first
        here = (wanted_idx >= 0) & (wanted_idx < case.local)
        wanted_idx = torch.where(here, wanted_idx, -1)
        wanted_weights = torch.where(here, case.received(case.weights, rank), 0)
        checks.equal("recv_topk_idx", idx, wanted_idx)
        checks.equal("recv_topk_weights", weights, wanted_weights)
        if case.is_node:
            check_worst(checks, buffer, case, counted, x, (recv, wanted_idx, wanted_weights), order)
    else:
        checks.equal("recv_topk_idx", (idx, weights), (None, None))

    again, *nothing, event = buffer.dispatch(x, handle=handle, **order)
    wait(event, is_async)
    check_rows("cached", again)
    checks.equal("cached", nothing, [None] * 4)
    if not with_topk:
        other = case.x if is_fp8 else [to_fp8(each)[0] for each in case.x]
        one = other[rank] if is_fp8 else to_fp8(case.x[rank])
        again = as_tuple(buffer.dispatch(one, handle=handle)[0])[0]
        checks.equal("cached, of another kind", again, case.received(other, rank))

    goes = counted["is_token_in_rank"]
    y = outputs(case, case.num_ranks)
    biases = (case.x[rank], None if is_async else case.x[rank].flip(0))
    added = [each for each in biases if each is not None]
    given = weights if with_topk else None
    for bias, begun in ((None, []), (biases, added))[is_async:]:
        rows = case.received(y, rank)[:, rank]
        if is_async:
            order["previous_event"] = buffer.capture()  # rows have been made since the last one
        back, sums, event = buffer.combine(rows, handle, topk_weights=given, bias=bias, **order)
        wait(event, is_async)
        wanted = in_order(y[rank], goes, begun)
        if begun:
            checks.equal("combined with biases", back, wanted)
        else:  # engines have an order of their own
            size = in_order(y[rank].abs(), goes).float()
            checks.near("combined", back, wanted.float(), 2**-7, size)
        if with_topk:
            there = torch.where(case.idx[rank] >= 0, case.weights[rank], 0)
            checks.equal("combined weights", sums, there)
        else:
            checks.equal("combined weights", sums, None)


def check_worst(
    checks: Checks,
    buffer: Any,
    case: Case,
    counted: dict[str, Tensor],
    x: Any,
    wanted: tuple[Any, Tensor, Tensor],
    order: dict[str, Any],
) -> None:
    """``num_worst_tokens``: the same rows first, none after them."""
    rank, most = case.rank, max(len(each) for each in case.x) * case.num_ranks
    topk = {"topk_idx": case.idx[rank], "topk_weights": case.weights[rank]}
    recv, idx, weights, per_expert, handle, event = buffer.dispatch(
        x, **counted, **topk, num_worst_tokens=most, **order
    )
    wait(event, bool(order))
    checks.equal("numbers of the worst case", per_expert, [])
    num = len(wanted[1])
    for found, right in zip(as_tuple(recv), as_tuple(wanted[0]), strict=True):
        checks.equal("rows of the worst case", found[:num], right)
        checks.equal("rows of the worst case", len(found), most)
    checks.equal("experts of the worst case", idx[:num], wanted[1])
    checks.equal("experts of no rows", bool((idx[num:] == -1).all()), True)
    checks.equal("weights of the worst case", weights[:num], wanted[2])
    goes, y = counted["is_token_in_rank"], outputs(case, case.num_ranks)
    there = torch.where(case.idx[rank] >= 0, case.weights[rank], 0)
    for begun in ([],) if order else ([], [case.x[rank]]):
        rows = y[rank].new_full((most, case.shape.hidden), torch.nan)
        rows[:num] = case.received(y, rank)[:, rank]
        if order:
            order = {**order, "previous_event": buffer.capture()}  # rows have been made since
        bias = begun[0] if begun else None
        back, sums, event = buffer.combine(rows, handle, topk_weights=weights, bias=bias, **order)
        wait(event, bool(order))
        added = in_order(y[rank], goes, begun)
        if begun:
            checks.equal("combined of the worst case with a bias", back, added)
        else:
            checks.near("combined of the worst case", back, added.float(), 2**-6)
        checks.equal("weights combined of the worst case", sums, there)


def wait(event: Any, is_async: bool) -> None:
    if is_async:
        event.current_stream_wait()
    else:
        assert event.event is None


def low_latency(
    group: Any, device: str, shape: Shape, sizes: list[int], options: dict[str, Any]
) -> list[str]:
    """Low-latency dispatch and combine, with hooks and without, in bf16 and in fp8."""
    case, experts = make_case(group, device, shape, sizes, seed=2), shape.experts
    most = max(sizes) + 2
    num_bytes = deep_ep.Buffer.get_low_latency_rdma_size_hint(
        most, shape.hidden, case.num_ranks, experts
    )
    buffer = deep_ep.Buffer(group, 0, num_bytes, True, explicitly_destroy=True, **options)
    checks, held = Checks(), None
    kinds = [{"use_fp8": each} for each in (False, False, True)]
    kinds += [{"use_fp8": True, "round_scale": True, "use_ue8m0": each} for each in (False, True)]
    for hooked, kind in zip((True, False, True, False, True), kinds, strict=True):
        is_fp8 = kind["use_fp8"]
        stats = torch.ones(case.local, dtype=torch.int32, device=case.device)
        rank = case.rank
        rows, count, handle, event, hook = buffer.low_latency_dispatch(
            case.x[rank],
            case.idx[rank],
            most,
            experts,
            **kind,
            cumulative_local_expert_recv_stats=stats,
            async_finish=not hooked,
            return_recv_hook=hooked,
        )
        hook() if hook is not None else event.current_stream_wait()
        if held is not None:  # of the dispatch before: they last
            check_slots(checks, case, *held)
        held = rows, count, handle, kind
        check_slots(checks, case, *held)
        checks.equal("stats", stats, count + 1)
        work = from_fp8(rows[0], as_f32(rows[1])) if is_fp8 else rows.clone()
        zero_copy = hooked
        if zero_copy:
            buffer.get_next_low_latency_combine_buffer(handle)[:] = work
        out = torch.empty_like(case.x[rank]) if hooked else None
        back, event, hook = buffer.low_latency_combine(
            work,
            case.idx[rank],
            case.weights[rank],
            handle,
            zero_copy=zero_copy,
            async_finish=not hooked,
            return_recv_hook=hooked,
            out=out,
        )
        hook() if hook is not None else event.current_stream_wait()
        checks.equal("out", out is None or back is out, True)
        there = torch.where(case.idx[rank] >= 0, case.weights[rank], 0).sum(1, keepdim=True)
        mine = case.x[rank].float()
        checks.near("low-latency combine", back, mine * there, 2**-3 if is_fp8 else 2**-7)
    buffer.clean_low_latency_buffer(most, shape.hidden, experts)
    buffer.destroy()
    return checks.wrong


def check_slots(
    checks: Checks, case: Case, rows: Any, count: Tensor, handle: Any, kind: dict[str, bool]
) -> None:
    """Rows of every local expert, in order, and what the handle says of them."""
    info, ranges = handle[0], handle[1]
    for i in range(case.local):
        expert = case.rank * case.local + i
        points = [(each == expert).nonzero()[:, 0] for each in case.idx]
        tokens = torch.cat(points)
        num = len(tokens)
        checks.equal("recv_count", int(count[i]), num)
        checks.equal("src_info", info[i, :num], tokens.int())
        lengths = [len(each) for each in points]
        begins = [sum(lengths[:peer]) for peer in range(len(lengths))]
        pairs = zip(begins, lengths, strict=True)
        checks.equal("layout_range", ranges[i].tolist(), [at << 32 | each for at, each in pairs])
        wanted = torch.cat([x[at] for x, at in zip(case.x, points, strict=True)])
        if isinstance(rows, tuple):
            checks.equal("strides", rows[1].stride()[1], 1)
            scales = as_f32(rows[1][i, :num])
            checks.near("fp8 rows", from_fp8(rows[0][i, :num], scales), wanted.float(), 2**-3)
            exact = to_fp8(wanted)[1]
            if "round_scale" in kind:
                checks.equal("rounded scales", scales, torch.exp2(torch.log2(exact).ceil()))
            else:
                checks.near("scales", scales, exact, 2**-22)
        else:
            checks.equal("rows", rows[i, :num], wanted)


def defaults(group: Any) -> list[str]:
    """A program whose new tensors are elsewhere and narrow, as DeepEP's tests have them."""
    case = make_case(group, "cpu", SMALL, [3, 2], seed=4)
    checks, rank = Checks(), case.rank
    torch.set_default_device("meta")
    torch.set_default_dtype(torch.bfloat16)
    try:
        buffer = deep_ep.Buffer(group, explicitly_destroy=True, low_latency_mode=True)
        few = case.x[rank], case.idx[rank], 3, SMALL.experts
        slots, count, _, _, _ = buffer.low_latency_dispatch(*few, use_fp8=False)
        per_rank, _, per_expert, goes, _ = buffer.get_dispatch_layout(case.idx[rank], SMALL.experts)
        rows, *_, handle, _event = buffer.dispatch(
            case.x[rank],
            num_tokens_per_rank=per_rank,
            num_tokens_per_expert=per_expert,
            is_token_in_rank=goes,
        )
        back, _, _ = buffer.combine(rows, handle)
        buffer.destroy()
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
    checks.equal("slots", (slots.device, count.device), (case.device, case.device))
    checks.equal("rows", rows, case.received(case.x, rank))
    checks.near("back", back, case.x[rank].float() * goes.sum(1, keepdim=True), 2**-7)
    return checks.wrong


def changed_layout(group: Any) -> list[str]:
    """Biases, and rows of another kind, along a routing whose layout has changed in place since."""
    case = make_case(group, "cpu", SMALL, [3, 2], seed=7)
    buffer = deep_ep.Buffer(group, explicitly_destroy=True)
    checks, rank = Checks(), case.rank
    x, counted = case.x[rank], check_layout(checks, buffer, case)
    rows, *_, handle, _event = buffer.dispatch(x, **counted)
    added = 1 + counted["is_token_in_rank"].sum(1, keepdim=True)
    counted["is_token_in_rank"].logical_not_()
    back, _, _ = buffer.combine(rows, handle, bias=x)
    checks.equal("combined with a bias", back, (x.float() * added).bfloat16())
    again, *_ = buffer.dispatch(to_fp8(x), handle=handle)
    values = [to_fp8(each)[0] for each in case.x]
    checks.equal("cached, of another kind", as_tuple(again)[0], case.received(values, rank))
    buffer.destroy()
    return checks.wrong


def strayed(group: Any) -> str:
    """What `destroy` says of an expert that is none, behind calls that ask no other rank."""
    case, most = make_case(group, "cpu", SMALL, [3, 2], seed=5), 3
    x, idx, weights = (each[case.rank] for each in (case.x, case.idx, case.weights))
    if case.rank == 0:
        idx[:] = -1
        idx[1, 0] = SMALL.experts
    buffer = deep_ep.Buffer(group, low_latency_mode=True, explicitly_destroy=True)
    rows, _, handle, _, _ = buffer.low_latency_dispatch(x, idx, most, SMALL.experts, use_fp8=False)
    back, _, _ = buffer.low_latency_combine(rows, idx, weights, handle)
    buffer.low_latency_dispatch(x, idx, most, SMALL.experts, use_fp8=False)  # by other memory
    assert case.rank == 1 or not back.any()
    try:
        buffer.destroy()
    except FuscoRuntimeError as error:
        return str(error)
    return "nothing"


def misweighed(group: Any) -> tuple[str, str, bool]:
    """What a low-latency combine says where rank 0 gives it weights of another type, what
    `destroy` says then, and whether all sums of this rank are NaN that need rows of rank 0."""
    case, most = make_case(group, "cpu", SMALL, [3, 2], seed=6), 3
    x, idx, weights = (each[case.rank] for each in (case.x, case.idx, case.weights))
    buffer = deep_ep.Buffer(group, low_latency_mode=True, explicitly_destroy=True)
    rows, _, handle, _, _ = buffer.low_latency_dispatch(x, idx, most, SMALL.experts, use_fp8=False)
    given, said, back = weights.bfloat16() if case.rank == 0 else weights, "nothing", x
    try:
        back, _, _ = buffer.low_latency_combine(rows, idx, given, handle)
    except FuscoRuntimeError as error:
        said = str(error)
    needs = ((idx >= 0) & (idx // case.local == 0)).any(1)
    try:
        buffer.destroy()
    except FuscoRuntimeError as error:
        return said, str(error), bool(back[needs].isnan().all())
    return said, "nothing", bool(back[needs].isnan().all())


def installed(group: Any) -> bool:
    """Whether `deep_ep` is this module from then on; in this process, for good."""
    deep_ep.install()
    deep_ep.install()
    return importlib.import_module("deep_ep").Buffer is deep_ep.Buffer


def refusals(group: Any) -> dict[str, str]:
    """What is refused, by what was asked for; the same on all ranks, and nothing has moved."""
    case, experts = make_case(group, "cpu", SMALL, [4] * 4, seed=3), SMALL.experts
    x, idx, weights = (each[case.rank] for each in (case.x, case.idx, case.weights))
    buffer = deep_ep.Buffer(group)
    slow = deep_ep.Buffer(group, low_latency_mode=True, explicitly_destroy=True)
    elastic = deep_ep.ElasticBuffer(group)
    per_rank, _, per_expert, goes, _ = buffer.get_dispatch_layout(idx, experts)
    counted = {
        "num_tokens_per_rank": per_rank,
        "num_tokens_per_expert": per_expert,
        "is_token_in_rank": goes,
    }
    topk = {"topk_idx": idx, "topk_weights": weights}
    ll = (x, idx, 4, experts)
    zeros = torch.zeros(1, dtype=torch.int64)
    values, scales = to_fp8(x)
    slots, _, routed, _, _ = slow.low_latency_dispatch(*ll, use_fp8=False)
    calls = {
        "comm": lambda: deep_ep.Buffer(group, comm=object()),
        "enable_shrink": lambda: deep_ep.Buffer(group, enable_shrink=True),
        "group=None": lambda: deep_ep.Buffer(None),
        "num_cpu_bytes": lambda: deep_ep.ElasticBuffer(group, num_cpu_bytes=1),
        "allow_multiple_reduction": lambda: deep_ep.ElasticBuffer(
            group, allow_multiple_reduction=False
        ),
        "engram_fetch": lambda: elastic.engram_fetch(idx),
        "do_zero_padding": lambda: elastic.dispatch(x, idx, num_experts=8, do_zero_padding=True),
        "num_max_tokens_per_rank": lambda: elastic.dispatch(x, idx, num_experts=8),
        "previous_event_before_epilogue": lambda: elastic.combine(
            x, None, previous_event_before_epilogue=elastic.capture()
        ),
        "get_local_buffer_tensor": lambda: buffer.get_local_buffer_tensor(torch.int8),
        "mask": lambda: slow.low_latency_update_mask_buffer(0, True),
        "low_latency_mode": lambda: buffer.low_latency_dispatch(*ll),
        "round_scale": lambda: slow.low_latency_dispatch(*ll, use_fp8=False, round_scale=True),
        "use_ue8m0": lambda: slow.low_latency_dispatch(*ll, use_ue8m0=True),
        "dispatch_wait_recv_cost_stats": lambda: slow.low_latency_dispatch(
            *ll, dispatch_wait_recv_cost_stats=zeros
        ),
        "num_max_dispatch_tokens_per_rank": lambda: slow.low_latency_dispatch(x, idx, 3, experts),
        "use_logfmt": lambda: slow.low_latency_combine(x, *topk.values(), None, use_logfmt=True),
        "torch.bfloat16 of the shape [4, 3]": lambda: slow.low_latency_combine(
            slots, idx, weights.bfloat16(), routed
        ),
        "float32 of the shape [3, 3]": lambda: slow.low_latency_combine(
            slots, idx[1:], weights[1:], routed
        ),
        "num_experts": lambda: buffer.get_dispatch_layout(idx, experts + 1),
        "together": lambda: buffer.dispatch(x, **counted, topk_idx=idx),
        "is_token_in_rank": lambda: buffer.dispatch(x, **topk),
        "num_worst_tokens": lambda: buffer.dispatch(x, **counted, **topk, num_worst_tokens=8),
        "topk_idx": lambda: buffer.dispatch(x, **counted, num_worst_tokens=64),
        "allocate_on_comm_stream": lambda: buffer.dispatch(
            x, **counted, allocate_on_comm_stream=True
        ),
        "torch.float32": lambda: buffer.dispatch(x.float(), **counted),
        "torch.float8_e4m3fn": lambda: buffer.dispatch((x, scales), **counted),
        "not torch.bfloat16": lambda: buffer.dispatch(
            x, **counted, topk_idx=idx, topk_weights=weights.bfloat16()
        ),
        "scales": lambda: buffer.dispatch((values, scales[1:]), **counted),
    }
    said = {name: raised(call) for name, call in calls.items()}
    slow.destroy()
    return said
