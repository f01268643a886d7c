"""Calls whose segments name a key twice where they must not, on ranks of any topology."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from fuscoc_runtime.errors import FuscoRuntimeError
from fuscoc_runtime.face.shuffle import Shuffle
from fuscoc_runtime.reference import RankData
from tests.node_triton import rank_work

TOKENS = 7


def drawn(seed: int, num_ranks: int, keys: int, topk: int) -> list[Tensor]:
    """Keys of every rank, some -1, most of them more than once in a segment."""
    random = torch.Generator().manual_seed(seed)
    return [
        torch.randint(-1, keys // 2, (TOKENS, topk), generator=random) for _ in range(num_ranks)
    ]


def firsts(idx: Tensor) -> Tensor:
    """The keys, -1 in place of one that the segment has named before, one by one."""
    kept = idx.clone()
    for segment in kept:
        seen = set[int]()
        for place, key in enumerate(segment.tolist()):
            if key in seen:
                segment[place] = -1
            seen.add(key)
    return kept


def repeated(group: Any, artifact: str, topology: str) -> tuple[str, int, int]:
    """Of a fixed capacity: what `check` says, what the handle has dropped, and how many keys were
    named again. Rows and sums are those of the others."""
    shuffle = rank_work.open_shuffle(group, artifact, topology=topology)
    keys = shuffle.spec.declared.target.num_keys
    good = rank_work.batch(shuffle.spec, [TOKENS] * shuffle.topology.num_ranks, 3)
    named = drawn(5, len(good), keys, shuffle.spec.program.fanout)
    good = [_naming(data, firsts(idx)) for data, idx in zip(good, named, strict=True)]
    data = _naming(good[shuffle.rank], named[shuffle.rank])
    dispatch = shuffle.dispatch
    found = []

    def with_repeats(**given: Any) -> Any:
        done = dispatch(**{**given, "idx": data.inputs["idx"]})
        found.append(done[1])
        return done

    with mock.patch.object(shuffle, "dispatch", with_repeats):
        rank_work.run(shuffle, good, combines=1)
    said = rank_work.said_by(shuffle.check)
    again = int((data.inputs["idx"] != good[shuffle.rank].inputs["idx"]).sum())
    return said, int(found[0].dropped), again


def _naming(data: RankData, idx: Tensor) -> RankData:
    return replace(data, inputs={**data.inputs, "idx": idx})


def all_to_one_rank(group: Any, artifact: str, topology: str) -> int:
    """Every segment to all keys of rank 0, of as many segments as there is room for; slots of a
    rank."""
    shuffle = rank_work.open_shuffle(group, artifact, topology=topology)
    target, num_ranks = shuffle.spec.declared.target, shuffle.topology.num_ranks
    assert target.kind == "packed"
    fanout, own = shuffle.spec.program.fanout, target.num_keys // num_ranks
    idx = torch.arange(fanout).expand(rank_work.MAX_SOURCES, -1)
    idx = torch.where(idx < own, idx, -1).contiguous()
    ranks = rank_work.batch(shuffle.spec, [rank_work.MAX_SOURCES] * num_ranks, 1)
    rank_work.run(shuffle, [_naming(data, idx) for data in ranks], combines=1)
    shuffle.check()
    return int(shuffle.engine.node.limits.capacity)


def exact(group: Any, artifact: str, topology: str) -> str:
    """What a call of exact sizes says on rank 0 of a segment with the keys 4, 2 and 4."""
    shuffle = Shuffle(artifact, group=group, topology=topology)
    idx = torch.tensor([[0, 1, -1], [4, 2, 4]])
    x = torch.ones(2, shuffle.spec.program.buffers["source"][0].num_elems)
    try:
        shuffle.dispatch(x, idx=idx, weights=torch.ones(2, 3))
    except FuscoRuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"
