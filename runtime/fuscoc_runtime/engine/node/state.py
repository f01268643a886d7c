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

# Positions in call.cuh's State, of which the words from BAD_KEYS on are copied to its Page,
STATE_WORDS = 41
ABORT, BAD_KEYS = 12, 17
NUM_TROUBLES = 4 + MAX_RANKS
PAGE_WORDS = 2 + NUM_TROUBLES  # behind the wait that is shown there, a word of 64 bits

# and in its Routing.
ROUTING_WORDS = 16
TICKET, USES, DROPPED = 9, 13, 14


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

    @property
    def num_places(self) -> int:
        """Memories of handles: of ``num_handles`` eager dispatches, and of as many captured."""
        return 2 * self.num_handles


@dataclass(frozen=True)
class Place:
    """The memory of a handle, and the dispatch that uses it.

    Attributes:
        index: of the memory, the same on all ranks.
        ticket: the dispatch, told apart from all others of this rank: the device keeps the ticket
            of the latest dispatch in this memory, so it notices replays, too.
        number: of the dispatch, among those that were captured, or that were not.
    """

    index: int
    ticket: int
    number: int
    captured: bool


class Places:
    """Deals out the memories of handles in turn.

    Captured dispatches have some of their own: a replay comes unseen, and must not take what an
    eager dispatch has left for its combine.
    """

    def __init__(self, num_handles: int) -> None:
        self._num_handles = num_handles
        self._numbers = {False: 0, True: 0}
        self._tickets = 0

    def next(self, captured: bool) -> Place:
        number = self._numbers[captured]
        self._numbers[captured] += 1
        self._tickets = self._tickets % 0xFFFFFFFF + 1
        index = number % self._num_handles + self._num_handles * captured
        return Place(index, self._tickets, number, captured)

    def is_live(self, place: Place) -> bool:
        """Whether the memory is still that of the dispatch, as far as the host knows."""
        return self._numbers[place.captured] - place.number <= self._num_handles


@dataclass(frozen=True, eq=False)
class Handle:
    """What combine needs of its dispatch.

    ``key_counts[i]`` rows of this rank's i-th key start at slot ``key_starts[i]``; both are int32
    [num_keys], ``codes`` int32 [max_sources, fanout]. ``routing`` are the int32 words of call.cuh's
    Routing, which begin with the source segments of every rank. Of a compact target ``row_index``,
    int64 [capacity], has the row of every slot, -1 for padding.
    """

    place: Place
    num_sources: int
    codes: Tensor
    key_counts: Tensor
    key_starts: Tensor
    routing: Tensor
    weights: Tensor | None
    row_index: Tensor | None = None

    @property
    def dropped(self) -> Tensor:
        """int64 [], points of the latest dispatch in this memory that were not moved; -1 if that
        is another dispatch by now. On the device: nothing waits."""
        words = self.routing.long()
        count = torch.where(words[USES] % 2 == 1, words[DROPPED + 1], words[DROPPED])
        return torch.where(words[TICKET] & 0xFFFFFFFF == self.place.ticket, count, -1)


class NodeKernels(Protocol):
    """What moves the rows: `NodeShuffle` or `TritonNode`, whose methods say more.

    Attributes:
        state: int32 [STATE_WORDS], on the device; what `parse_state` reads.
        page: int32 [PAGE_WORDS], in memory of the host that kernels write to.
    """

    limits: Limits
    rows: tuple[Tensor, ...]
    state: Tensor
    page: Tensor

    def dispatch(
        self,
        source: Sequence[Tensor],
        inputs: Sequence[Tensor],
        extents: Sequence[int],
        num_sources: int,
        weights: Tensor | None = None,
    ) -> Handle: ...

    def combine(
        self, rows: Tensor, handle: Handle, result: Tensor, rows_ticket: int = 0
    ) -> Tensor: ...

    def refuse_dispatch(self) -> Place: ...

    def refuse_combine(self, handle: Handle) -> None: ...

    @property
    def window_bytes(self) -> int: ...

    @property
    def private_bytes(self) -> int: ...

    def points(self, handle: Handle) -> Tensor: ...

    def is_live(self, handle: Handle) -> bool: ...


@dataclass(frozen=True)
class Trouble:
    """What has gone wrong on one rank since the start.

    Attributes:
        bad_keys, overflowed: points without a key, or a slot.
        outdated, overwritten: combines whose handle's memory, or whose rows, a later dispatch had
            taken.
        refusals: calls that this rank had joined and others refused, by rank.
    """

    bad_keys: int = 0
    overflowed: int = 0
    outdated: int = 0
    overwritten: int = 0
    refusals: tuple[int, ...] = (0,) * MAX_RANKS


def parse_state(words: Sequence[int]) -> Trouble:
    """Read a copy of ``NodeKernels.state``."""
    return _trouble(words[BAD_KEYS:])


def parse_page(words: Sequence[int]) -> Trouble:
    """Read a copy of ``NodeKernels.page``: what calls did before the latest one."""
    return _trouble(words[2:])


def parse_wait(word: int) -> tuple[int, str]:
    """The peer and the stage of a wait, as kernels show it on the page."""
    code = word >> 32
    stage, peer, item = code >> 24 & 0x7F, code >> 20 & 0xF, code & 0xFFFFF
    return peer, f"{STAGES[stage]} {item}"


def _trouble(counts: Sequence[int]) -> Trouble:
    bad_keys, overflowed, outdated, overwritten, *refusals = counts[:NUM_TROUBLES]
    return Trouble(bad_keys, overflowed, outdated, overwritten, tuple(refusals))


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
