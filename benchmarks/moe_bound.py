"""The time that no implementation can beat: bytes over the rates of an H200's NVLink and HBM."""

from __future__ import annotations

from dataclasses import dataclass

import torch

NVLINK_BYTES_PER_US = 355e3
HBM_BYTES_PER_US = 4.0e6


@dataclass(frozen=True)
class Bound:
    """Microseconds that no implementation can beat."""

    dispatch: float
    combine: float

    @property
    def total(self) -> float:
        return self.dispatch + self.combine


def bound(
    all_idx: list[torch.Tensor],
    owner: torch.Tensor,
    row_bytes: int,
    rank: int,
    source_bytes: int | None = None,
    compact: bool = False,
) -> Bound:
    """From the routing: each token once to each distinct remote rank over NVLink; over HBM, the
    rows that must be read and written. Max of NVLink and HBM time, for this rank.

    Rows of the source have ``source_bytes``, if these are not ``row_bytes``. A compact target has a
    token once."""
    num_ranks, owner = len(all_idx), owner.cpu()
    all_idx = [idx.cpu() for idx in all_idx]
    pairs = torch.zeros(num_ranks, num_ranks)  # (token, rank) pairs, from source to destination
    multiple = torch.zeros(
        num_ranks
    )  # remote pairs that fill two slots or more, at the destination
    rows = torch.zeros(num_ranks)
    for source, idx in enumerate(all_idx):
        live = idx >= 0
        destination = torch.where(live, owner[idx.clamp(min=0)], -1)
        for r in range(num_ranks):
            copies = (destination == r).sum(dim=1)
            pairs[source, r] = (copies > 0).sum()
            rows[r] += copies.sum()
            if source != r:
                multiple[r] += (copies > 1).sum()
    off = pairs.clone().fill_diagonal_(0)
    out, into = float(off[rank].sum()), float(off[:, rank].sum())
    nvlink = max(out, into) * row_bytes / NVLINK_BYTES_PER_US
    tokens = all_idx[rank].shape[0]
    slots = float(rows[rank])
    read = tokens * (source_bytes or row_bytes)
    written = float(pairs[:, rank].sum()) if compact else slots + float(multiple[rank])
    dispatch = (read + written * row_bytes) / HBM_BYTES_PER_US
    # partials are written by the peers into this rank's memory, then read
    combine = (slots + 2 * out + tokens) * row_bytes / HBM_BYTES_PER_US
    return Bound(max(nvlink, dispatch), max(nvlink, combine))
