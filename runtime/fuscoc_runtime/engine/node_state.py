"""What the engines of one node keep in memory: sizes, routings, errors. For CUDA and for Triton.

Words and stages are those of kernels/include/call.cuh and kernels/device/words.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

MAX_RANKS = 8
SLOT_BITS = 27
ALIGNMENT = 1024
STAGES = (
    "counts of this rank",
    "counts",
    "rows of group",
    "partial rows of group",
    "entering combine",
    "slots of segments planned together, part",
)
REFUSED = len(STAGES)  # a peer has raised an error instead of joining the call

STATE_WORDS = 16
GAVE_UP, BAD_KEYS, OVERFLOWED, REFUSALS = 12, 13, 14, 15  # positions in call.cuh's State


@dataclass(frozen=True)
class Limits:
    """Fixed sizes of the windows, equal on every rank.

    ``max_sources`` bounds the source segments of any rank, ``capacity`` the slots of a rank.
    """

    max_sources: int
    capacity: int
    num_handles: int = 2


@dataclass(frozen=True, eq=False)
class Handle:
    """What combine needs of its dispatch. ``key_counts[i]`` rows of this rank's i-th key start at
    slot ``key_starts[i]``; both int32 [num_keys], ``codes`` int32 [max_sources, fanout]."""

    number: int
    num_sources: int
    codes: torch.Tensor
    key_counts: torch.Tensor
    key_starts: torch.Tensor
    num_sources_of: torch.Tensor
    weights: torch.Tensor | None


@dataclass(frozen=True)
class Trouble:
    """What went wrong on one rank since the start: the peer and stage of the wait that ran out, the
    peer that refused a call, and how many points had no key or no slot."""

    late: tuple[int, str] | None
    refusing: int | None
    bad_keys: int
    overflowed: int


def parse_state(words: Sequence[int]) -> Trouble:
    """Read a copy of `NodeShuffle.state`."""
    late = refusing = None
    if gave_up := words[GAVE_UP] & 0xFFFFFFFF:
        stage, peer, item = gave_up >> 24 & 0x7F, gave_up >> 20 & 0xF, gave_up & 0xFFFFF
        if stage == REFUSED:
            refusing = peer
        else:
            late = (peer, f"{STAGES[stage]} {item}")
    return Trouble(late, refusing, words[BAD_KEYS], words[OVERFLOWED])


def view_points(window: torch.Tensor, at: int, shape: tuple[int, ...]) -> torch.Tensor:
    """The points that begin at a byte of a window, as int64 of that shape."""
    nbytes = torch.Size(shape).numel() * 8
    return window[at : at + nbytes].view(torch.int64).view(shape)


def lay_out(sizes: Mapping[str, Sequence[int]]) -> tuple[dict[str, list[int]], int]:
    """Offsets of parts of so many bytes, one behind the other, and the bytes of all."""
    sections: dict[str, list[int]] = {}
    end = 0
    for name, parts in sizes.items():
        sections[name] = []
        for nbytes in parts:
            sections[name].append(end)
            end += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return sections, end
