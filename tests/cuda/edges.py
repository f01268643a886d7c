"""The edges of the node-local engine: bad keys, full slots, other ways back, calls that fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Literal

import torch
import torch.distributed as dist

from benchmarks.moe_cases import (
    Model,
    check_combine,
    check_dispatch,
    expected_rows,
    expert_outputs,
    expert_scales,
    gather_ragged,
    node_program,
    owners,
    program,
    routing,
    shuffle,
)
from fuscoc.codegen.cuda_types import CudaCast, CudaField
from fuscoc_runtime.engine.node.nvlink import CudaNode
from fuscoc_runtime.engine.node.program import MAX_STAGED_PLANS, PLAN_POINTS, NodeProgram
from fuscoc_runtime.engine.node.rings import Launched
from fuscoc_runtime.engine.node.state import Limits, Trouble, parse_state
from fuscoc_runtime.manifest.declared import CastSpec, FieldSpec
from fuscoc_runtime.reference import cast_fields
from tests.cuda.checks import make_source, settle, troubles

TOKENS = 520
BLOCK = 128
COPIED = (
    Model(hidden=1001, experts=13, topk=1, dtype="u8", placement="cyclic", align=1),
    Model(hidden=640, experts=60, topk=1, dtype="i64", placement="expert_to_rank"),
    Model(hidden=12, experts=13, topk=1, dtype="i32", placement="cyclic", align=1),
    Model(hidden=4, experts=64, topk=1, dtype="f32", align=1),
    Model(hidden=100, experts=64, topk=1, dtype="u8", extra=(("y", "i64", 3), ("z", "i32", 1))),
    Model(hidden=52, experts=20, topk=1, dtype="i32", placement="expert_to_rank", align=1),
)
SORTED = (
    COPIED[3],
    Model(hidden=1, experts=13, topk=1, dtype="f32", placement="cyclic", align=1),
    Model(hidden=25, experts=60, topk=1, dtype="f32", placement="expert_to_rank", align=8),
    Model(hidden=12, experts=8, topk=1, dtype="u8", extra=(("y", "i64", 3), ("z", "u8", 6))),
    Model(hidden=4, experts=30, topk=1, dtype="i32", extra=(("y", "i64", 4),), align=1),
    Model(hidden=128, experts=9, topk=1, dtype="u8", extra=(("y", "i64", 6),), align=1),
    Model(hidden=28, experts=60, topk=1, dtype="i32", align=1),
)
"""Rows that a CTA plans and moves, most of them sorted by key."""
GUARDED = (
    Model(hidden=512, experts=8, topk=2),
    Model(hidden=512, experts=8, topk=1),
    Model(hidden=4, experts=8, topk=1, dtype="f32"),
)
"""Rows that warps move, that lanes move, and that are sorted."""
COPIED_BACK = Model(hidden=4, experts=8, topk=1, dtype="f32")
UNSTAGED = MAX_STAGED_PLANS * PLAN_POINTS + 1
MANY = 70_000
"""Rows of a rank of which a warp takes more than one a lane, if they are short."""
QUANTISED = Model(hidden=1280, experts=24, topk=3, align=8)
HALF = Model(hidden=512, experts=16, topk=3, dtype="f16")
LARGEST = Model(hidden=1000, experts=60, topk=6, placement="expert_to_rank", align=16)
TABLES = (LARGEST, replace(LARGEST, compact=True), SORTED[2], COPIED[5])
"""Keys that a table places, of rows that warps move, and of those that are sorted."""


def taking_back(model: Model, way: Literal["max", "copy"]) -> NodeProgram:
    """The model's program with an unweighted combine of another kind."""
    return node_program(model, replace(shuffle(model), combine=way, weighted=False))


def quantising(model: Model) -> NodeProgram:
    """The model's program with rows that arrive as fp8, a scale for every `BLOCK` elements."""
    wide, scales = model.hidden, model.hidden // BLOCK
    return node_program(
        model,
        replace(
            shuffle(model),
            fields=(
                CudaField("x", "f8e4m3", wide, wide),
                CudaField("scales", "f32", scales, scales),
            ),
            source_fields=shuffle(model).fields,
            casts=(CudaCast("x", "scales", BLOCK),),
        ),
    )


def guards(device: torch.device) -> bool:
    """Bad keys and an overflow are counted and nothing is written past the capacity."""
    for model, most in product(GUARDED, (128, UNSTAGED)):
        num_tokens = 128 // model.topk
        engine = CudaNode(program(model), Limits(most, 256), dist.group.WORLD, device)
        generator = torch.Generator(device).manual_seed(5)
        source = make_source(model, num_tokens, generator)
        weights = torch.rand(num_tokens, model.topk, device=device)
        topk_idx = torch.zeros(num_tokens, model.topk, dtype=torch.int64, device=device)
        topk_idx[0, 0], topk_idx[1, 0] = 8, -2
        engine.dispatch(source, [topk_idx], [num_tokens], num_tokens, weights)
        torch.cuda.synchronize()
        found = parse_state(engine.state.tolist())
        wrong = [] if found.bad_keys == 2 else [f"keys: {found}"]
        # Every rank sends all its rows to rank 0: the third rank's no longer fit.
        if dist.get_rank() >= 2 and not found.overflowed:
            wrong.append(f"overflow: {found}")
        if settle(wrong, f"guards of {most} {model}"):
            return True
    return False


def copies(device: torch.device, most: Sequence[int] = (TOKENS, UNSTAGED, MANY)) -> bool:
    """Rows of any type come back bit by bit, many and few; those that went nowhere are zeros."""
    return any(
        settle(copy_problems(model, each, device), f"copies {model} of {each}")
        for model, each in product((*COPIED, *SORTED[1:]), most)
    )


def copy_problems(model: Model, most: int, device: torch.device) -> list[str]:
    """What is wrong with calls of an engine for ``most`` tokens, of ranks that have none, too."""
    num_ranks, rank = dist.get_world_size(), dist.get_rank()
    generator = torch.Generator(device).manual_seed(7 + rank)
    limits = Limits(most, num_ranks * most + model.experts * model.align)
    engine = CudaNode(taking_back(model, "copy"), limits, dist.group.WORLD, device)
    wrong = []
    for tokens in (most, (most // 3 + rank) * (rank != 1), 0):
        topk_idx = routing("messy", tokens, model, num_ranks, generator)
        source = [each.view(torch.uint8) for each in make_source(model, tokens, generator)]
        inputs = [topk_idx, owners(model, num_ranks, device)]
        handle = engine.dispatch(source, inputs, [tokens], tokens)
        results = [torch.full_like(each, 7) for each in source]
        engine.combine(engine.rows, handle, results)
        torch.cuda.synchronize()
        wrong += troubles(engine)
        for (field, *_), result, each in zip(model.fields, results, source, strict=True):
            if not torch.equal(result, each * (topk_idx >= 0)):
                wrong.append(f"'{field}' of {tokens} tokens did not come back")
    return wrong


def full(device: torch.device) -> bool:
    """Sorted rows beyond the capacity are dropped and counted; the others come, and come back."""
    return any(settle(full_problems(model, device), f"full {model}") for model in SORTED)


def full_problems(model: Model, device: torch.device, tokens: int = 3000) -> list[str]:
    """What is wrong with a call for which the ranks have half of the slots."""
    num_ranks, rank = dist.get_world_size(), dist.get_rank()
    generator = torch.Generator(device).manual_seed(11 + rank)
    limits, owner = Limits(tokens, tokens // 2), owners(model, num_ranks, device)
    engine = CudaNode(taking_back(model, "copy"), limits, dist.group.WORLD, device)
    topk_idx = routing("messy", tokens, model, num_ranks, generator)
    source = [each.view(torch.uint8) for each in make_source(model, tokens, generator)]
    everyone = gather_ragged(topk_idx, None)
    sources = [gather_ragged(each, None) for each in source]
    fits, wrong = torch.zeros(tokens, 1, dtype=torch.bool, device=device), list[str]()
    handle = engine.dispatch(source, [topk_idx, owner], [tokens], tokens)
    torch.cuda.synchronize()
    for r in range(num_ranks):
        expected = expected_rows(everyone, owner, model.align, r)
        there = expected.slots < limits.capacity
        fits[expected.tokens[there & (expected.ranks == rank)]] = True
        for rows, theirs in zip(engine.rows, sources, strict=True) if r == rank else ():
            came = rows.view(torch.uint8)[expected.slots[there]]
            base = torch.tensor([0, *map(len, theirs)], device=device).cumsum(0)
            origins = base[expected.ranks] + expected.tokens
            if not torch.equal(came, torch.cat(theirs)[origins[there]]):
                wrong.append("rows within the capacity did not come")
    overflowed = parse_state(engine.state.tolist()).overflowed
    if overflowed != int(((topk_idx >= 0) & ~fits).sum()):
        wrong.append(f"{overflowed} rows are said not to fit")
    results = [torch.full_like(each, 7) for each in source]
    engine.combine(engine.rows, handle, results)
    torch.cuda.synchronize()
    if not all(
        torch.equal(*each) for each in zip(results, [x * fits for x in source], strict=True)
    ):
        wrong.append("rows did not come back")
    return wrong


def maxima(device: torch.device) -> bool:
    """The largest of the terms, exactly, and NaN if one is; zero where nothing comes back."""
    num_ranks, rank, n = dist.get_world_size(), dist.get_rank(), 200
    generator = torch.Generator(device).manual_seed(8 + rank)
    owner = owners(LARGEST, num_ranks, device)
    limits = Limits(n, num_ranks * n * LARGEST.topk + LARGEST.experts * LARGEST.align)
    group = dist.group.WORLD
    engine = CudaNode(taking_back(LARGEST, "max"), limits, group, device)
    topk_idx = routing("messy", n, LARGEST, num_ranks, generator)
    [x] = make_source(LARGEST, n, generator)
    x[0, 0] = float("nan")
    handle = engine.dispatch([x], [topk_idx, owner], [n], n)
    expected = expected_rows(gather_ragged(topk_idx, None), owner, LARGEST.align, rank)
    outputs = expert_outputs(engine.rows[0], expected, LARGEST.experts)
    [result] = engine.combine([outputs], handle, [torch.empty_like(x)])
    torch.cuda.synchronize()
    scale = expert_scales(LARGEST.experts, device)[topk_idx.clamp(min=0)]
    terms = (x.float().unsqueeze(1) * scale.unsqueeze(2)).to(x.dtype)
    live = (topk_idx >= 0).unsqueeze(2)
    largest = torch.where(live, terms, float("-inf")).amax(1)
    want = torch.where(live.any(1), largest, torch.zeros_like(x))
    same = torch.isclose(result, want, rtol=0, atol=0, equal_nan=True)
    return settle(troubles(engine) + ([] if same.all() else ["a maximum differs"]), "maxima")


def casts(device: torch.device) -> bool:
    """Rows of fp8 and their scales bit by bit, and sums of the rows that were not cast."""
    for model in (QUANTISED, replace(QUANTISED, compact=True)):
        for most in (TOKENS, MAX_STAGED_PLANS * PLAN_POINTS):
            if settle(cast_problems(model, most, device), f"casts {model} of {most}"):
                return True
    return False


def cast_problems(model: Model, most: int, device: torch.device) -> list[str]:
    """What is wrong with two calls of an engine for ``most`` tokens."""
    num_ranks, rank = dist.get_world_size(), dist.get_rank()
    generator = torch.Generator(device).manual_seed(9 + rank)
    owner = owners(model, num_ranks, device)
    limits = Limits(most, num_ranks * TOKENS * model.topk + model.experts * model.align)
    engine = CudaNode(quantising(model), limits, dist.group.WORLD, device)
    fields = (
        FieldSpec("x", "f8e4m3", (model.hidden,)),
        FieldSpec("scales", "f32", (model.hidden // BLOCK,)),
    )
    wrong = []
    for tokens in (TOKENS, 3 + rank):
        topk_idx = routing("messy", tokens, model, num_ranks, generator)
        [x] = make_source(model, tokens, generator)
        weights = torch.rand(tokens, model.topk, device=device, generator=generator)
        handle = engine.dispatch([x], [topk_idx], [tokens], tokens, weights)
        torch.cuda.synchronize()
        wrong += troubles(engine)
        expected = expected_rows(gather_ragged(topk_idx, None), owner, model.align, rank)
        cast = cast_fields((CastSpec("x", "scales", BLOCK),), {"x": x}, fields)
        quantised = [cast[field.name].view(tokens, -1) for field in fields]
        wrong += check_dispatch(engine, handle, quantised, expected, None)
        rows = x.new_empty(limits.capacity, model.hidden)
        for r, theirs in enumerate(gather_ragged(x, None)):
            mine = expected.ranks == r
            rows[expected.slots[mine]] = theirs[expected.tokens[mine]]
        outputs = expert_outputs(rows, expected, model.experts)
        [result] = engine.combine([outputs], handle, [torch.empty_like(x)])
        torch.cuda.synchronize()
        wrong += troubles(engine)
        wrong += check_combine(result, x, topk_idx, weights, model.experts)
    return wrong


def wide_partials(device: torch.device) -> bool:
    """A sum of f16 may be in range where a rank's part of it is not."""
    num_ranks, rank, n = dist.get_world_size(), dist.get_rank(), 40
    model = HALF
    limits = Limits(n, num_ranks * n * 3 + model.experts * model.align)
    engine = CudaNode(program(model), limits, dist.group.WORLD, device)
    x = torch.full((n, model.hidden), 4e4, device=device).half()
    last = (rank + 1) % num_ranks * (model.experts // num_ranks)  # twice to the next rank
    topk_idx = torch.tensor(
        [[last, last + 1, rank * (model.experts // num_ranks)]] * n, device=device
    )
    weights = torch.tensor([[1.0, 1.0, -1.0]] * n, device=device)
    handle = engine.dispatch([x], [topk_idx], [n], n, weights)
    [result] = engine.combine(engine.rows[:1], handle, [torch.zeros_like(x)])
    torch.cuda.synchronize()
    wrong = troubles(engine) + ([] if torch.equal(result, x) else ["a partial sum overflowed"])
    return settle(wrong, "wide partials")


def lost(engine: CudaNode, handle: Launched, wanted: torch.Tensor) -> list[str]:
    """Which sums of a combine are NaN, if they are not those that have to be."""
    sums = torch.zeros(len(wanted), engine.rows[0].shape[1], device=wanted.device)
    [result] = engine.combine(engine.rows[:1], handle, [sums.to(engine.rows[0].dtype)])
    torch.cuda.synchronize()
    found = result.isnan().any(1)
    same = torch.equal(found, wanted)
    return [] if same else [f"{int(found.sum())} sums are NaN, not {int(wanted.sum())}"]


def refusals(device: torch.device) -> bool:
    """A rank that refuses calls is one without rows, in either kernel; the next calls are whole."""
    num_ranks, rank = dist.get_world_size(), dist.get_rank()
    last = num_ranks - 1
    if num_ranks == 1:
        return False
    num_tokens, here = 64, 8 // num_ranks
    programs = [(model, program(model)) for model in GUARDED]
    programs.append((COPIED_BACK, taking_back(COPIED_BACK, "copy")))
    for (model, printed), most in product(programs, (num_tokens, UNSTAGED)):
        engine = CudaNode(printed, Limits(most, 4096), dist.group.WORLD, device)
        generator = torch.Generator(device).manual_seed(6)
        x = make_source(model, num_tokens, generator)
        weights = torch.rand(num_tokens, model.topk, device=device)
        topk_idx = torch.randint(8, (num_tokens, model.topk), device=device, generator=generator)
        needs_last = (topk_idx >= last * here).any(1)
        given = (x, [topk_idx], [num_tokens], num_tokens, weights)
        wrong: list[str] = []
        engine.refuse_dispatch()  # all do
        if rank == last:
            engine.refuse_dispatch()
        else:
            wrong += lost(engine, engine.dispatch(*given), needs_last)
        handle = engine.dispatch(*given)
        wrong += lost(engine, handle, torch.zeros_like(needs_last))
        if rank == last:
            engine.refuse_combine(handle)
        else:
            wrong += lost(engine, handle, needs_last)
        wrong += lost(engine, handle, torch.zeros_like(needs_last))
        torch.cuda.synchronize()
        found = parse_state(engine.state.tolist()).refusals
        if found[last] != 2 * (rank != last) or sum(found) != found[last]:
            wrong.append(f"refusals: {found}")
        if settle(wrong, f"refusals of {most} {model}"):
            return True
    return False


def tables(device: torch.device) -> bool:
    """Ranks that give different tables find it out, all of them, and nothing is moved."""
    return any(
        settle(table_problems(model, most, device), f"tables of {most} {model}")
        for model, most in product(TABLES, (TOKENS, UNSTAGED))
    )


def table_problems(model: Model, most: int, device: torch.device, tokens: int = 200) -> list[str]:
    """What is wrong with calls of an engine for ``most`` tokens: the last rank gives another table
    of half of them, refuses one, and all ranks give an entry that is none."""
    num_ranks, rank = dist.get_world_size(), dist.get_rank()
    last, generator = num_ranks - 1, torch.Generator(device).manual_seed(12 + rank)
    limits = Limits(most, num_ranks * tokens * model.topk + model.experts * model.align)
    printed = taking_back(model, "copy" if model.topk == 1 else "max")
    engine = CudaNode(printed, limits, dist.group.WORLD, device)
    owner, wrong = owners(model, num_ranks, device), list[str]()
    another, first = owner.clone(), int((owner != owner[0]).nonzero()[0])
    another[[0, first]] = owner[[first, 0]]
    for number, differ in enumerate((True, False, True, False)):
        num_tokens = tokens // (number + 1) + rank
        topk_idx = routing("messy", num_tokens, model, num_ranks, generator)
        source = make_source(model, num_tokens, generator)
        for rows in engine.rows:
            rows.view(torch.uint8).fill_(0xFF)
        torch.cuda.synchronize()
        dist.barrier()
        given = another if differ and rank == last else owner
        handle = engine.dispatch(source, [topk_idx, given], [num_tokens], num_tokens)
        torch.cuda.synchronize()
        live = topk_idx >= 0
        if int(handle.dropped) != int(live.sum()) * differ:
            wrong.append(f"{int(handle.dropped)} points of call {number} were dropped")
        if differ:
            live = torch.zeros_like(live)
            wrong += ["rows have come"] * bool(handle.key_counts.any())
            for rows in engine.rows:
                wrong += ["rows were moved"] * bool((rows.view(torch.uint8) != 0xFF).any())
        else:
            everyone = gather_ragged(topk_idx, None)
            expected = expected_rows(everyone, owner, model.align, rank)
            wrong += check_dispatch(engine, handle, source, expected, None)
        worked = [each.clone() for each in engine.rows]
        if handle.row_index is not None:
            worked = [each[handle.row_index.clamp(min=0)] for each in worked]
        results = engine.combine(worked, handle, [torch.full_like(each, 7) for each in source])
        torch.cuda.synchronize()
        for result, each in zip(results, source, strict=True):
            if not torch.equal(result, each * live.any(1, keepdim=True)):
                wrong.append(f"what comes back of call {number} differs")
    if rank == last:
        engine.refuse_dispatch()
    else:
        engine.dispatch(source, [topk_idx, owner], [num_tokens], num_tokens)
    far = owner.clone()
    far[1] += 2**32
    topk_idx[topk_idx == 0] = 1
    handle = engine.dispatch(source, [topk_idx, far], [num_tokens], num_tokens)
    torch.cuda.synchronize()
    away = int((topk_idx == 1).sum())
    found = parse_state(engine.state.tolist())
    refusals = [0] * len(found.refusals)
    refusals[last] = int(rank != last)
    if found != Trouble(misplaced=2, bad_keys=away, refusals=tuple(refusals)):
        wrong.append(f"{found} beside {away} rows of no rank")
    return wrong


EDGES = (guards, copies, full, maxima, casts, wide_partials, refusals, tables)
