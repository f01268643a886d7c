"""What a case of `layouts.py` is: data of one rank, and torch's way there and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Case:
    """One rank's part. ``there`` and ``back`` are torch's, which give rows as they must lie, and
    the source again; ``back`` is None where rows do not come back.

    ``returned`` is what comes back of the rows as they arrived, where that is not the source.
    Rows are compared from byte ``begin`` on, and what lies before or behind them is nobody's. The
    bound is a local copy of all rows where ``stays``, as next to nothing leaves a rank.
    """

    source: Tensor
    inputs: Mapping[str, object]
    max_sources: int
    capacity: int
    num_remote: int  # bytes that leave this rank
    there: Callable[[Tensor], Tensor]
    back: Callable[[Tensor], Tensor] | None
    returned: Tensor | None = None
    begin: int = 0
    stays: bool = False


def exchanged(tensor: Tensor, ranks: int) -> Tensor:
    """What the ranks have for this one of tensors [ranks, …], in equal parts."""
    if ranks == 1:
        return tensor
    result = torch.empty_like(tensor)
    dist.all_to_all_single(result, tensor)
    return result


def moved(rows: Tensor, outgoing: Sequence[int], incoming: Sequence[int]) -> Tensor:
    """So many rows to each rank, in its order, and so many from each, by torch."""
    if len(outgoing) == 1:
        return rows
    came = rows.new_empty(sum(incoming), *rows.shape[1:])
    dist.all_to_all_single(came, rows, list(incoming), list(outgoing))
    return came


def random_bytes(*shape: int, device: torch.device) -> Tensor:
    return torch.randint(
        -(2**31), 2**31, (*shape[:-1], shape[-1] // 4), dtype=torch.int32, device=device
    )


def bucketed(
    x: Tensor,
    bucket: Callable[[], Tensor],
    inputs: Mapping[str, object],
    max_sources: int,
    capacity: int,
    ranks: int,
) -> Case:
    """Rows ``x`` to buckets, each on rank ``bucket % ranks``; torch has to ask how many go where.
    What ``bucket`` returns, u8 [rows], is computed in every call."""
    kept = {}

    def there(x: Tensor) -> Tensor:
        key = bucket()
        owner = key % ranks
        order = owner.argsort(stable=True)
        counts = torch.bincount(owner, minlength=ranks)
        outgoing, incoming = torch.stack([counts, exchanged(counts, ranks)]).tolist()
        came = moved(x[order], outgoing, incoming)
        place = moved(key[order], outgoing, incoming).argsort(stable=True)
        kept.update(order=order, place=place, outgoing=outgoing, incoming=incoming)
        return came[place]

    def back(y: Tensor) -> Tensor:
        came = torch.empty_like(y).index_copy_(0, kept["place"], y)
        came = moved(came, kept["incoming"], kept["outgoing"])
        return torch.empty_like(came).index_copy_(0, kept["order"], came)

    remote = int((bucket() % ranks != dist.get_rank()).sum()) * x[0].nbytes
    return Case(x, inputs, max_sources, capacity, remote, there, back)
