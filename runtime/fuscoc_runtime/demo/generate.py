"""Data for any shuffle, made up from its manifest: what every rank passes to dispatch.

Awkward on purpose: the last of several ranks has nothing to send, some points are dropped, and all
of some outermost indices, one key gets nothing, pictures differ in size, and destinations have
unused slots.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fuscoc_runtime.demo.memory import with_memory
from fuscoc_runtime.demo.packing import NoDataError, fill_places, pack_routes
from fuscoc_runtime.demo.trying import try_routes
from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.engine.divisions import check_divisions, size_scalars
from fuscoc_runtime.manifest.declared import FieldSpec, InputSpec, PackedTarget
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.reference import RankData, on_their_ranks
from fuscoc_runtime.scalar import (
    BinaryOp,
    Extent,
    Index,
    Load,
    Scalar,
    Scope,
    builtin_extents,
    evaluate,
    subexpressions,
)
from fuscoc_runtime.topology import Topology

DROP = 1 / 8
INNER_EXTENT = 4
MAX_MULTIPLE = 4


def generate(shuffle: ShuffleSpec, topology: Topology, tokens: int, seed: int) -> list[RankData]:
    """Arguments of every rank, on the CPU; the same for the same ``seed``.

    ``tokens`` is the extent of the outermost index on every rank; on the last of several it is 0,
    unless the spec computes where segments go.

    Raises:
        NoDataError: slots do not fit a dense target.
        FuscoRuntimeError: extents or computed ranks that do not fit the topology.
    """
    sizes = [tokens] * topology.num_ranks
    if topology.num_ranks > 1 and not shuffle.declared.computes_slots:
        sizes[-1] = 0
    ranks = generate_inputs(shuffle, topology, sizes, seed)
    ranks = [
        RankData(_source(shuffle, here, seed + rank), data.inputs, data.extents)
        for rank, (data, here) in enumerate(zip(ranks, on_their_ranks(ranks), strict=True))
    ]
    return with_memory(shuffle, ranks, seed)


def generate_inputs(
    shuffle: ShuffleSpec, topology: Topology, tokens: Sequence[int], seed: int
) -> list[RankData]:
    """Extents and inputs of every rank, without its source; ``tokens[rank]`` as in ``generate``.

    Raises:
        NoDataError, FuscoRuntimeError: as ``generate`` does.
    """
    ranks, randoms = list[RankData](), list[torch.Generator]()
    for rank, size in enumerate(tokens):
        random = torch.Generator().manual_seed(seed * 1_000_003 + rank)
        extents = _extents(shuffle, size, topology) | builtin_extents(rank, topology.num_ranks)
        check_divisions(shuffle, rank, extents)
        shared = torch.Generator().manual_seed(seed)
        inputs = {
            spec.name: _input(shuffle, spec, extents, topology, random, shared)
            for spec in shuffle.inputs
        }
        ranks.append(RankData({}, inputs, extents))
        randoms.append(random)
    ranks = _routes(shuffle, ranks, randoms, seed)
    return [
        replace(data, extents={name: data.extents[name] for name in shuffle.declared.extents})
        for data in ranks
    ]


def _routes(
    shuffle: ShuffleSpec,
    ranks: list[RankData],
    randoms: Sequence[torch.Generator],
    seed: int,
) -> list[RankData]:
    """Keys that are inputs as they were drawn; free slots one behind the other, where an input is
    added to a slot; whatever has a key or a slot elsewhere."""
    random, undecided = torch.Generator().manual_seed(seed), deepcopy(ranks)
    target = shuffle.declared.target
    try:
        for data, own in zip(ranks, randoms, strict=True):
            fill_places(shuffle, data, DROP, own)
        if target.kind == "dense":
            return pack_routes(shuffle, target, ranks, DROP, random)
        if isinstance(target.placed, Load):
            return ranks
    except NoDataError:
        pass
    return try_routes(shuffle, undecided, DROP, random)


def _extents(shuffle: ShuffleSpec, tokens: int, topology: Topology) -> dict[str, int]:
    """The outermost index gets ``tokens``, further ones a few, and more where segments of different
    ones must lie apart; all multiples of their divisors."""
    outer = _names(shuffle.declared.domain[0].extent)
    apart = shuffle.declared.places if shuffle.program.relation.apart else ()
    limits = {name for place in apart for name in _names(place.limit)}
    extents = {}
    for name in shuffle.declared.extents:
        step = _divisor(shuffle, topology, partial(operator.eq, Extent(name)))
        wanted = tokens if name in outer else INNER_EXTENT + tokens * (name in limits)
        extents[name] = -(-wanted // step) * step
    return extents


def _names(scalar: Scalar) -> set[str]:
    return {part.name for part in subexpressions(scalar) if isinstance(part, Extent)}


def _divisor(shuffle: ShuffleSpec, topology: Topology, matches: Callable[[Scalar], bool]) -> int:
    """The least size that divisions by a constant or by the number of ranks leave whole."""
    scope = Scope({"ranks": topology.num_ranks})
    divisors = [
        evaluate(part.rhs, scope)
        for size in size_scalars(shuffle)
        for part in subexpressions(size)
        if isinstance(part, BinaryOp)
        and part.op == "/"
        and _names(part.rhs) <= scope.extents.keys()
        and any(matches(inner) for inner in subexpressions(part.lhs))
    ]
    return math.lcm(*divisors)


def _input(
    shuffle: ShuffleSpec,
    spec: InputSpec,
    extents: Mapping[str, int],
    topology: Topology,
    random: torch.Generator,
    shared: torch.Generator,
) -> Tensor:
    """One input of one rank; ``shared`` makes what has to be equal on all ranks."""
    shape = [evaluate(size, Scope(extents)) for size in spec.shape]
    dtype = TORCH_DTYPES[spec.dtype]
    match spec.role:
        case "weight":
            return torch.rand(shape, generator=random).to(dtype)
        case "cast":  # of each rank its own, and never 0, by which it may divide
            return torch.rand(shape, generator=random).to(dtype) + 0.25
        case "placement":
            return torch.randint(topology.num_ranks, shape, generator=shared).to(dtype)
        case "extent":
            step = _divisor(
                shuffle, topology, lambda part: isinstance(part, Load) and part.input == spec.name
            )
            return step * torch.randint(1, MAX_MULTIPLE + 1, shape, generator=random).to(dtype)
        case "route":
            target = shuffle.declared.target
            key = target.placed if target.kind == "packed" else None
            if target.kind == "packed" and isinstance(key, Load) and key.input == spec.name:
                fan_out = [Index(each.name) for each in shuffle.declared.fan_out]
                dims = [d for d, at in enumerate(key.at) if {*subexpressions(at)} & {*fan_out}]
                return _keys(target, shape, dims, random).to(dtype)
            return torch.zeros(shape, dtype=dtype)  # to be filled in


def _keys(
    target: PackedTarget, shape: list[int], fan_out: Sequence[int], random: torch.Generator
) -> Tensor:
    """Random keys: some dropped, alone or with all of their outermost index, and the middle one,
    if there are several, never named. ``fan_out`` are the dimensions of one segment's.
    """
    num_keys = target.num_keys // target.group
    keys = torch.randint(max(1, num_keys - 1), shape, generator=random)
    keys += (keys >= num_keys // 2) & (num_keys > 1)
    dropped = torch.rand(shape, generator=random) < DROP
    # An input that a route reads is indexed by the outermost index first.
    all_dropped = torch.rand(shape[:1], generator=random) < DROP
    dropped |= all_dropped.view(-1, *[1] * (len(shape) - 1))
    if target.distinct:
        dropped |= _repeats(keys, num_keys, fan_out)
    return torch.where(dropped, -1, keys)


def _repeats(keys: Tensor, num_keys: int, fan_out: Sequence[int]) -> Tensor:
    """Which keys are those of an earlier place of their segment."""
    sizes = [1 if dim in fan_out else size for dim, size in enumerate(keys.shape)]
    segment = torch.arange(math.prod(sizes)).view(sizes)
    _, first = np.unique(segment * num_keys + keys, return_index=True)
    again = torch.ones(keys.numel(), dtype=torch.bool)
    again[first] = False
    return again.view(keys.shape)


def _source(shuffle: ShuffleSpec, data: RankData, seed: int) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)
    shape = source_shape(shuffle, Scope(data.extents, data.inputs))
    return {
        field.name: _values(field, (*shape, *field.shape), random)
        for field in shuffle.declared.source.fields
    }


def source_shape(shuffle: ShuffleSpec, scope: Scope) -> tuple[int, ...]:
    """The source's cells: its dims, or their sum over the outer entries if those differ."""
    outer, *inner = shuffle.declared.source.dims
    if not any(isinstance(part, Load) for dim in inner for part in subexpressions(dim)):
        return tuple(evaluate(dim, scope) for dim in shuffle.declared.source.dims)
    index = shuffle.declared.domain[0].name
    entries = (scope.at({index: entry}) for entry in range(evaluate(outer, scope)))
    return (sum(math.prod(evaluate(dim, entry) for dim in inner) for entry in entries),)


def _values(field: FieldSpec, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    dtype = TORCH_DTYPES[field.dtype]
    if dtype.is_floating_point:
        return torch.randn(shape, generator=random).to(dtype)
    if dtype == torch.bool:
        return torch.rand(shape, generator=random) < 0.5
    size = torch.Size(shape).numel() * dtype.itemsize
    return torch.randint(256, (size,), generator=random, dtype=torch.uint8).view(dtype).view(shape)
