"""Sources for a routing: what its ranks send, made up."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fuscoc.planning.files import Routing
from fuscoc.testing.points import evaluate
from fuscoc_runtime.demo.memory import with_memory
from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.manifest.declared import FieldSpec
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.reference import RankData, on_their_ranks


def with_sources(shuffle: ShuffleSpec, routing: Routing) -> list[RankData]:
    """The ranks' data with sources whose cells all differ, as far as the dtypes can tell, and with
    memory for their rows, where these go into such."""
    ranks = [
        RankData(_sources(shuffle, here, rank), data.inputs, data.extents)
        for rank, (data, here) in enumerate(
            zip(routing.ranks, on_their_ranks(routing.ranks), strict=True)
        )
    ]
    return with_memory(shuffle, ranks, seed=len(ranks))


def source_shape(shuffle: ShuffleSpec, data: RankData) -> tuple[int, ...]:
    """The shape of a source's cells: its dims, or all cells in a row if the entries differ."""
    outer, *inner = (_sizes(shuffle, data, dim) for dim in shuffle.declared.source.dims)
    if not any(size.ndim for size in inner):
        return tuple(int(size) for size in (outer, *inner))
    return (int(np.prod([np.broadcast_to(size, int(outer)) for size in inner], axis=0).sum()),)


def _sizes(shuffle: ShuffleSpec, data: RankData, dim: Any) -> Any:
    """A source dimension of a rank: one number, or one for every outer entry."""
    outer = int(evaluate(shuffle.declared.source.dims[0], data, {}))
    return evaluate(dim, data, {shuffle.declared.domain[0].name: np.arange(outer)})


def _sources(shuffle: ShuffleSpec, data: RankData, rank: int) -> dict[str, Tensor]:
    shape = source_shape(shuffle, data)
    return {
        field.name: _distinct(field, (*shape, *field.shape), rank)
        for field in shuffle.declared.source.fields
    }


def _distinct(field: FieldSpec, shape: tuple[int, ...], rank: int) -> Tensor:
    """Numbers that a rank, cell or element out of place changes; no NaN, all small."""
    dtype = TORCH_DTYPES[field.dtype]
    count = torch.arange(math.prod(shape), dtype=torch.int64)
    mixed = (count * 7919 + rank * 104_729 + count // 251) % 16_381
    values = mixed.double() / 16_381 - 0.5 if dtype.is_floating_point else mixed
    return values.to(dtype).view(shape)
