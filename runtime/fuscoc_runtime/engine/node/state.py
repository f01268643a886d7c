"""The kernels of one node, in CUDA or in Triton, and what they keep: sizes, routings, errors.

Words and stages are those of kernels/include/call.cuh and kernels/device/words.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

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

STATE_WORDS = 20
GAVE_UP, BAD_KEYS, OVERFLOWED, REFUSALS = 12, 13, 14, 15  # positions in call.cuh's State


@dataclass(frozen=True)
class Limits:
    """Fixed sizes of the windows, equal on every rank.

    ``max_sources`` bounds the source segments of any rank, ``capacity`` the slots of a rank.
    """

    max_sources: int
    capacity: int
    num_handles: int = 2

    def row_capacity(self, num_ranks: int, is_compact: bool) -> int:
        """Rows of a rank: one for a slot, or in a compact target for every segment of all ranks."""
        return min(self.capacity, num_ranks * self.max_sources) if is_compact else self.capacity


@dataclass(frozen=True, eq=False)
class Handle:
    """What combine needs of its dispatch. ``key_counts[i]`` rows of this rank's i-th key start at
    slot ``key_starts[i]``; both int32 [num_keys], ``codes`` int32 [max_sources, fanout]. Of a
    compact target ``row_index``, int64 [capacity], has the row of every slot, -1 for padding."""

    number: int
    num_sources: int
    codes: Tensor
    key_counts: Tensor
    key_starts: Tensor
    num_sources_of: Tensor
    weights: Tensor | None
    row_index: Tensor | None = None


class NodeKernels(Protocol):
    """What moves the rows: `NodeShuffle` or `TritonNode`, whose methods say more."""

    limits: Limits
    rows: tuple[Tensor, ...]

    @property
    def state(self) -> Tensor: ...

    def dispatch(
        self,
        source: Sequence[Tensor],
        inputs: Sequence[Tensor],
        extents: Sequence[int],
        num_sources: int,
        weights: Tensor | None = None,
    ) -> Handle: ...

    def combine(self, rows: Tensor, handle: Handle, result: Tensor) -> Tensor: ...

    @property
    def window_bytes(self) -> int: ...

    @property
    def private_bytes(self) -> int: ...

    def points(self, handle: Handle) -> Tensor: ...

    def refuse(self) -> None: ...

    def is_live(self, handle: Handle) -> bool: ...


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


def view_points(window: Tensor, at: int, shape: tuple[int, ...]) -> Tensor:
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
