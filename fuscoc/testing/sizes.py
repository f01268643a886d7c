"""Drawing how much every rank has: extents, sizes of ragged entries, and inputs of those shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from fuscoc.testing.arrays import Ints
from fuscoc.testing.points import evaluate
from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.engine.divisions import size_scalars
from fuscoc_runtime.manifest.declared import InputSpec
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.scalar import (
    DIVISIONS,
    BinaryOp,
    Extent,
    Load,
    Scalar,
    builtin_extents,
    subexpressions,
)
from fuscoc_runtime.topology import Topology


def digits(draw: st.DrawFn, count: int, bound: int) -> Ints:
    """int64 [count], each in 0 .. bound - 1; shrinks to zeros.

    One draw whatever the count, so that tensors for dozens of ranks are cheap to generate.
    """
    if count == 0 or bound <= 1:
        return np.zeros(count, np.int64)
    width = 1 if bound <= 128 else 2
    drawn = draw(st.binary(min_size=count * width, max_size=count * width))
    return np.frombuffer(drawn, f">u{width}").astype(np.int64) % bound


MAX_ROWS = 5
MAX_POINTS = 1200
MAX_MULTIPLE = 3


def draw_sizes(draw: st.DrawFn, shuffle: ShuffleSpec, topology: Topology) -> list[RankData]:
    """Every rank's extents and inputs, uneven and often empty; routes are all 0 as yet.

    All sizes are multiples of what they are divided by, positive where they are divisors, and alike
    where slots are computed from them. Routings of many ranks have fewer rows.
    """
    num_ranks = topology.num_ranks
    inner = [index.extent for index in shuffle.declared.domain[1:]]
    known: dict[Scalar, int] = {Extent("ranks"): num_ranks}
    per_row = math.prod(
        extent if isinstance(extent, int) else known.get(extent, MAX_MULTIPLE) for extent in inner
    )
    most = min(MAX_ROWS, max(1, MAX_POINTS // (num_ranks * per_row)))
    outer = {
        part
        for part in subexpressions(shuffle.declared.domain[0].extent)
        if isinstance(part, Extent)
    }
    extents: list[dict[str, int]] = [builtin_extents(rank, num_ranks) for rank in range(num_ranks)]
    divisors = {part for each in divisions(shuffle) for part in subexpressions(each.rhs)}
    for name in shuffle.declared.extents:
        is_outer = Extent(name) in outer
        least = 0 if is_outer and Extent(name) not in divisors else 1
        drawn = digits(draw, num_ranks, most + 1 if is_outer else MAX_MULTIPLE)
        if shuffle.declared.computes_slots or name in shuffle.declared.target.agreed:
            drawn[:] = drawn[0]
        step = _divisor(shuffle, num_ranks, lambda part, name=name: part == Extent(name))  # type: ignore[misc]
        for values, digit in zip(extents, drawn.tolist(), strict=True):
            values[name] = (digit + least) * step
    tables = {
        each.name: digits(draw, int(each.shape[0]), num_ranks)
        for each in shuffle.inputs
        if each.role == "placement" and isinstance(each.shape[0], int)
    }
    return [
        RankData(
            {},
            {i.name: _input(draw, shuffle, i, num_ranks, rank, e, tables) for i in shuffle.inputs},
            e,
        )
        for rank, e in enumerate(extents)
    ]


def divisions(shuffle: ShuffleSpec) -> list[BinaryOp]:
    """Every division and remainder that a run makes, whose divisors have to be positive."""
    starts = [subscript.start for subscript in shuffle.declared.source.subscripts]
    target = shuffle.declared.target
    places = [target.key] if target.kind == "packed" else [target.slot, target.rank]
    parts = [p for each in (*size_scalars(shuffle), *starts, *places) for p in subexpressions(each)]
    return [part for part in parts if isinstance(part, BinaryOp) and part.op in DIVISIONS]


def _input(
    draw: st.DrawFn,
    shuffle: ShuffleSpec,
    spec: InputSpec,
    num_ranks: int,
    rank: int,
    extents: Mapping[str, int],
    tables: Mapping[str, np.ndarray[tuple[int], np.dtype[np.int64]]],
) -> Tensor:
    data = RankData({}, {}, extents)
    shape = tuple(int(evaluate(size, data, {})) for size in spec.shape)
    count, dtype = math.prod(shape), TORCH_DTYPES[spec.dtype]
    match spec.role:
        case "route":
            return torch.zeros(shape, dtype=dtype)
        case "weight":
            numbers = (torch.arange(count) * 37 + rank * 11) % 97 + 1
            return (numbers / 64).to(dtype).view(shape)
        case "cast":  # of each rank its own, and never 0, by which it may divide
            numbers = (torch.arange(count) * 29 + rank * 13) % 89 + 1
            return (numbers / 64).to(dtype).view(shape)
        case "placement":
            return torch.from_numpy(tables[spec.name]).to(dtype)
        case "extent":
            reads = _divisor(
                shuffle, num_ranks, lambda part: isinstance(part, Load) and part.input == spec.name
            )
            drawn = digits(draw, count, MAX_MULTIPLE + 1) * reads
            return torch.from_numpy(drawn).to(dtype).view(shape)


def _divisor(shuffle: ShuffleSpec, num_ranks: int, matches: Callable[[Scalar], bool]) -> int:
    """The least size that leaves every division of an extent exact."""
    divisors = [1]
    for size in size_scalars(shuffle):
        for part in subexpressions(size):
            if isinstance(part, BinaryOp) and part.op == "/":
                divisor = num_ranks if part.rhs == Extent("ranks") else part.rhs
                if isinstance(divisor, int) and any(map(matches, subexpressions(part.lhs))):
                    divisors.append(divisor)
    return math.lcm(*divisors)
