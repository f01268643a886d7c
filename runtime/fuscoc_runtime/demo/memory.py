"""Made-up memory of the caller's, for shuffles whose rows go there, and tables that say where."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.demo.packing import NoDataError, domain_points
from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.engine.divisions import size_scalars
from fuscoc_runtime.manifest.schema import IntoSpec, ShuffleSpec
from fuscoc_runtime.reference import RankData, on_their_ranks
from fuscoc_runtime.scalar import (
    BinaryOp,
    Extent,
    Inside,
    Load,
    Scope,
    evaluate,
    render,
    subexpressions,
)

NOWHERE = 1 / 8
SPARE_PLACES = 3
TRIES = 8


def with_memory(shuffle: ShuffleSpec, ranks: Sequence[RankData], seed: int) -> list[RankData]:
    """The data of every rank, with memory for its rows and tables by which some of them go there:
    each to places of its own, in no order, and some nowhere; those that are added up share some.
    The same for the same ``seed``.

    Raises:
        NoDataError: rows go where an entry says that only some of them read.
    """
    if shuffle.into is None:
        return list(ranks)
    filled = []
    for rank, (data, here) in enumerate(zip(ranks, on_their_ranks(ranks), strict=True)):
        random = torch.Generator().manual_seed(seed * 1_000_003 + rank)
        extents = {**_extents(shuffle, shuffle.into), **here.extents}
        inputs = _tables(shuffle, shuffle.into, Scope(extents, data.inputs), random)
        held = _bits if shuffle.into.kind == "copy" else _numbers
        own = {name: extents[name] for name in shuffle.into.declared.extents}
        shape = [evaluate(dim, Scope(extents)) for dim in shuffle.into.dims]
        memory = {
            field.name: held((*shape, *field.shape), TORCH_DTYPES[field.dtype], random)
            for field in shuffle.into.fields
        }
        known = {**data.extents, **own}
        filled.append(replace(data, inputs=inputs, extents=known, memory=memory))
    return filled


def memory_arguments(shuffle: ShuffleSpec, data: RankData) -> dict[str, Any]:
    """What a call takes for its ``into``, by name; the memory is a copy, which it may change."""
    into = shuffle.into
    if into is None:
        return {}
    memory = {name: tensor.clone() for name, tensor in data.memory.items()}
    given: Any = memory if len(memory) > 1 else next(iter(memory.values()))
    inputs = {item.name: data.inputs[item.name] for item in into.declared.inputs}
    return {into.argument: given, **inputs, **_named(data.extents, into.declared.extents)}


def _named(extents: Mapping[str, int], names: Sequence[str]) -> dict[str, int]:
    return {name: extents[name] for name in names}


def _extents(shuffle: ShuffleSpec, into: IntoSpec) -> dict[str, int]:
    """Those of the memory alone, multiples of what they are divided by."""
    found = {}
    for name in into.declared.extents:
        divisors = [
            part.rhs
            for size in size_scalars(replace(shuffle, declared=into.declared))
            for part in subexpressions(size)
            if isinstance(part, BinaryOp) and part.op == "/" and isinstance(part.rhs, int)
            if Extent(name) in subexpressions(part.lhs)
        ]
        step = math.lcm(*divisors)
        found[name] = -(-SPARE_PLACES // step) * step
    return found


def _tables(
    shuffle: ShuffleSpec, into: IntoSpec, scope: Scope, random: torch.Generator
) -> dict[str, Tensor]:
    """All inputs, with those that say where rows go filled in."""
    known, declared = dict(scope.inputs), into.declared
    mine = [item for item in declared.inputs if item.name not in known]
    for item in mine:
        shape = [evaluate(size, scope) for size in item.shape]
        known[item.name] = torch.full(shape, -1, dtype=TORCH_DTYPES[item.dtype])
    assert declared.target.kind == "dense"
    slot = declared.target.slot
    names = {item.name for item in mine}
    read = [part for part in subexpressions(slot) if isinstance(part, Load)]
    loads = [*dict.fromkeys(load for load in read if load.input in names)]
    _fill(known, into, loads, scope, random)
    return known


def _fill(
    inputs: dict[str, Tensor],
    into: IntoSpec,
    loads: Sequence[Load],
    scope: Scope,
    random: torch.Generator,
) -> None:
    """Give the entries that a row asks for places that nothing else has, if some are found, or any
    places that rows are added to.

    Raises:
        NoDataError: rows share an entry, and not all of them.
    """
    declared = into.declared
    assert declared.target.kind == "dense"
    slot, length = declared.target.slot, evaluate(declared.target.length, scope)
    groups: dict[tuple[tuple[int, ...], ...], list[Scope]] = {}
    for here in domain_points(declared.domain, Scope(scope.extents, inputs)):
        entries = tuple(tuple(evaluate(index, here) for index in load.at) for load in loads)
        groups.setdefault(entries, []).append(here)
    if any(len({entries[n] for entries in groups}) < len(groups) for n in range(len(loads))):
        raise NoDataError(f"rows share what they read: {', '.join(map(render, loads))}")
    limits = {part.value: part.limit for part in subexpressions(slot) if isinstance(part, Inside)}
    taken: set[int] = set()
    for entries, points in groups.items():
        for _ in range(TRIES if float(torch.rand((), generator=random)) >= NOWHERE else 0):
            for load, entry in zip(loads, entries, strict=True):
                limit = max(1, evaluate(limits.get(load, length), points[0]))
                inputs[load.input][entry] = int(torch.randint(limit, (), generator=random))
            found = [evaluate(slot, here) for here in points]
            apart = into.kind == "sum" or taken.isdisjoint(found)
            if apart and all(0 <= place < length for place in found):
                taken.update(found)
                break
            for load, entry in zip(loads, entries, strict=True):
                inputs[load.input][entry] = -1


def _numbers(shape: Sequence[int], dtype: torch.dtype, random: torch.Generator) -> Tensor:
    """Any numbers, for rows to be added to them."""
    return torch.randn(shape, generator=random).to(dtype)


def _bits(shape: Sequence[int], dtype: torch.dtype, random: torch.Generator) -> Tensor:
    """Any bits, which a copy of something else would change."""
    size = torch.Size(shape).numel() * dtype.itemsize
    held = torch.randint(256, (size,), generator=random, dtype=torch.uint8)
    return held.view(dtype).view(*shape)
