"""Small shuffles for planner and reference tests, as spec texts, and data for them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

from fuscoc.testing import load_spec
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan import PlanContext, Points, key_to_rank
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.scalar import Scope, evaluate
from fuscoc_runtime.topology import Topology

ALL_DEDUP = ("node", "rank")
CPU = torch.device("cpu")

Balance = Literal["static", "greedy", "lpt", "split", "rebalance", "auto"]


@cache
def compiled(text: str) -> ShuffleSpec:
    """The shuffle of a spec text, compiled once."""
    return load_spec(text).shuffle


def balanced(spec: ShuffleSpec, balance: Balance) -> ShuffleSpec:
    """The same shuffle with another balance policy."""
    return with_rules(spec, forwarder=balance)


def with_rules(spec: ShuffleSpec, **changes: Any) -> ShuffleSpec:
    """The same shuffle with other rules of the network hop."""
    return replace(spec, program=spec.program.with_rules(**changes))


def declaring(spec: ShuffleSpec, **changes: Any) -> ShuffleSpec:
    """The same shuffle, but for what it declares."""
    return replace(spec, declared=replace(spec.declared, **changes))


def options(dedup: Sequence[str]) -> str:
    """How a dispatch says it; slices are small."""
    return f"dedup({', '.join(dedup) or 'none'}) slice 4096 B"


def routed(
    *,
    topk: int = 2,
    num_keys: int = 8,
    align: int = 1,
    capacity: int | None = None,
    placement: str = "block",
    dedup: Sequence[str] = ALL_DEDUP,
    hidden: int = 3,
    compact: bool = False,
) -> ShuffleSpec:
    """Rows of [tokens, hidden] to the keys in ``idx`` [tokens, topk], weighted sum back.

    A ``table`` is the input ``owner``.
    """
    return compiled(f"""
    shuffle routed {{
      index t : tokens   index k : {topk}   index e : {num_keys}
      segment row {{ x : f32[{hidden}] }}
      layout rows[t] of row
      layout by_key[e, s] of row packed(s) {"compact" if compact else ""} align {align}
        capacity {"exact" if capacity is None else f"max {capacity}"}
      place e on rank by {"table owner" if placement == "table" else placement}
      route r(t, k) -> e = input idx : int64
      weight w(t, k) : f32 = input weights
      dispatch rows[t] -> by_key[r(t, k), *] {options(dedup)}
      combine reverse reduce sum(w)
    }}""")


def patches(*, p: int = 2, channels: int = 3, dedup: Sequence[str] = ALL_DEDUP) -> ShuffleSpec:
    """p x p patches of ragged pictures to slots and ranks that ``packing`` [images, 2] says."""
    return compiled(f"""
    shuffle patches {{
      const p = {p}
      index n : images   index i : height(n) / p   index j : width(n) / p   index s : length
      segment patch {{ pixels : u8[p, p, {channels}] }}
      layout pictures[n, y, x] of u8[{channels}] dense(height(n), width(n))
      view cut[n, i, j] = pictures[n, i*p .. i*p+p, j*p .. j*p+p]
      layout sequence[s] of patch dense(length)
      route where(n) -> (rank, slot) = input packing : int64[2]
      dispatch cut[n, i, j] -> sequence[where(n).slot + i * width(n) / p + j] on where(n).rank
        {options(dedup)}
      combine reverse
    }}""")


def tiles(*, copies: int = 2, width: int = 4, dedup: Sequence[str] = ALL_DEDUP) -> ShuffleSpec:
    """2 x 2 tiles of a grid [2 * tile_rows, width], ``copies`` of each, plain sum back.

    Two fields with different cells; ``where`` [tile_rows, tiles in a row, copies, 2] holds rank
    and slot.
    """
    return compiled(f"""
    shuffle tiles {{
      index i : tile_rows   index j : {width // 2}   index k : {copies}   index s : length
      segment cell {{ a : f32[3], b : f16 }}
      segment tile {{ a : f32[2, 2, 3], b : f16[2, 2] }}
      layout grid[y, x] of cell dense(2 * tile_rows, {width})
      view cut[i, j] = grid[2*i .. 2*i+2, 2*j .. 2*j+2]
      layout tiles[s] of tile dense(length)
      route to(i, j, k) -> (rank, slot) = input where : int64[2]
      dispatch cut[i, j] -> tiles[to(i, j, k).slot] on to(i, j, k).rank {options(dedup)}
      combine reverse reduce sum
    }}""")


def routed_data(
    idx: Tensor, rank: int, hidden: int = 3, more: Mapping[str, Tensor] | None = None
) -> RankData:
    """Data for ``routed``; every element of every rank is different."""
    tokens = len(idx)
    x = torch.arange(tokens * hidden, dtype=torch.float32).view(tokens, hidden) + 10_000 * rank
    weights = torch.rand(idx.shape, generator=torch.Generator().manual_seed(rank))
    inputs = {"idx": idx, "weights": weights, **(more or {})}
    return RankData({"x": x}, inputs, {"tokens": tokens})


def relation(spec: ShuffleSpec, topology: Topology, rank: int, data: RankData) -> Points:
    """What the relation kernel computes, one point at a time."""
    scope = Scope(data.extents, data.inputs)
    outer, *inner = spec.declared.domain
    points = []
    for value in range(evaluate(outer.extent, scope)):
        here = scope.at({outer.name: value})
        extents = [range(evaluate(dim.extent, here)) for dim in inner]
        names = [dim.name for dim in inner]
        points += [
            {outer.name: value, **dict(zip(names, values, strict=True))}
            for values in itertools.product(*extents)
        ]
    num_strides = len(spec.program.relation.addresses) - 1
    columns: dict[str, list[int]] = {"source": [], "src_offset": [], "rank": []}
    columns |= {f"src_stride{i}": [] for i in range(num_strides)}
    columns["key" if spec.declared.target.kind == "packed" else "slot"] = []
    owner = None
    if spec.program.target.kind == "packed":
        owner = key_to_rank(spec.program.target, topology, rank, data.inputs, CPU)
    for number, at in enumerate(points):
        here = scope.at(at)
        columns["source"].append(number // spec.program.fanout)
        offset, stride = _address(spec, scope, here)
        columns["src_offset"].append(offset)
        if num_strides:
            columns["src_stride0"].append(stride)
        if spec.declared.target.kind == "packed" and owner is not None:
            key = evaluate(spec.declared.target.key, here)
            in_range = -1 <= key < spec.declared.target.num_keys
            columns["rank"].append(-2 if not in_range else -1 if key < 0 else int(owner[key]))
            columns["key"].append(key)
        elif spec.declared.target.kind == "dense":
            to = evaluate(spec.declared.target.rank, here)
            columns["rank"].append(to if -1 <= to < topology.num_ranks else -2)
            columns["slot"].append(evaluate(spec.declared.target.slot, here))
    length = (
        evaluate(spec.declared.target.length, scope)
        if spec.declared.target.kind == "dense"
        else None
    )
    tensors = {name: torch.tensor(values, dtype=torch.int64) for name, values in columns.items()}
    return Points(tensors, owner, length, data.inputs, data.extents)


def _address(spec: ShuffleSpec, scope: Scope, here: Scope) -> tuple[int, int]:
    """First cell of the segment, and the distance of its rows: row-major arithmetic by hand."""
    starts = [evaluate(subscript.start, here) for subscript in spec.declared.source.subscripts]
    dims = [evaluate(dim, here) for dim in spec.declared.source.dims]
    if spec.program.relation.extents_kernel is None:
        offset = 0
        for start, dim in zip(starts, dims, strict=True):
            offset = offset * dim + start
        return offset, dims[-1]
    before = 0
    for entry in range(starts[0]):
        at = scope.at({spec.declared.domain[0].name: entry})
        before += math.prod(evaluate(dim, at) for dim in spec.declared.source.dims[1:])
    return before + starts[1] * dims[2] + starts[2], dims[2]


def contexts(spec: ShuffleSpec, topology: Topology) -> list[PlanContext]:
    """Of plans in tensors."""
    return [PlanContext(spec, topology, rank, CPU) for rank in range(topology.num_ranks)]
