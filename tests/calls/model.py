"""What calls of ``tests.engine.specs.routed`` have to do, in plain loops, whoever refuses them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

KEYS, TOPK, HIDDEN, ALIGN = 12, 3, 24, 4


@dataclass(frozen=True)
class Batch:
    """One rank's arguments; ``refused``: it passes something else instead."""

    x: Tensor
    idx: Tensor
    weights: Tensor
    refused: bool = False


@dataclass
class Dispatched:
    """What a dispatch of all ranks leaves.

    Attributes:
        refusing: the ranks that are not in it.
        slots: by rank, the (source rank, token) whose row is in each slot.
        live: by rank, the rank that each of its points went to, -1 if it was dropped.
        bad, over: points dropped for want of a key or of a slot, by source rank.
    """

    batches: Sequence[Batch]
    refusing: set[int]
    slots: list[dict[int, tuple[int, int]]]
    live: list[Tensor]
    bad: list[int]
    over: list[int]
    counts: list[list[int]] = field(default_factory=list)

    def row(self, rank: int, slot: int) -> Tensor:
        source, token = self.slots[rank][slot]
        return self.batches[source].x[token]


def dispatch(batches: Sequence[Batch], capacity: int) -> Dispatched:
    """Slots are by key, then by source rank, then by point; those beyond the capacity are lost."""
    ranks = range(len(batches))
    refusing = {rank for rank in ranks if batches[rank].refused}
    joined = [rank for rank in ranks if rank not in refusing]
    done = Dispatched(
        batches,
        refusing,
        slots=[{} for _ in ranks],
        live=[torch.full_like(each.idx, -1) for each in batches],
        bad=[0 for _ in ranks],
        over=[0 for _ in ranks],
    )
    points: dict[int, list[tuple[int, int, int]]] = {key: [] for key in range(KEYS)}
    for rank in joined:
        for token, choices in enumerate(batches[rank].idx.tolist()):
            for k, key in enumerate(choices):
                if key in points:
                    points[key].append((rank, token, k))
                elif key != -1:
                    done.bad[rank] += 1
    here = KEYS // len(batches)
    for rank in ranks:
        start = 0
        done.counts.append([])
        for key in range(rank * here, (rank + 1) * here):
            for place, (source, token, k) in enumerate(points[key]):
                if start + place < capacity:
                    done.slots[rank][start + place] = source, token
                    done.live[source][token, k] = rank
                else:
                    done.over[source] += 1
            done.counts[rank].append(max(0, min(capacity - start, len(points[key]))))
            start += -(-len(points[key]) // ALIGN) * ALIGN
    return done


def combine(done: Dispatched, rank: int, scales: Sequence[float], absent: set[int]) -> Tensor:
    """The sums of a rank, whose rows rank d has multiplied by ``scales[d]``; NaN where one that is
    ``absent`` has some of them."""
    batch, live = done.batches[rank], done.live[rank]
    scale = torch.tensor([*scales, 0.0])[live]  # the last is that of dropped points
    sums = batch.x * (batch.weights * scale).sum(1, keepdim=True)
    lost = (live.unsqueeze(-1) == torch.tensor(sorted(absent), dtype=torch.int64)).any(-1).any(-1)
    sums[lost] = float("nan")
    return sums
