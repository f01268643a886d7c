"""Handles of dispatches, and the memory that they take in turn."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from fuscoc_runtime.engine.node.ragged import EntrySizes, RaggedSizes

TICKET, EPOCH, USES, DROPPED = 9, 10, 13, 14
"""Positions in a handle's routing; see `Routing` of call.cuh."""


@dataclass(slots=True)  # frozen ones take the host several times as long to make
class RingEntry:
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


def ring_size(num_handles: int) -> int:
    """Memories of a ring. One alone would be used again while peers may still write what a refused
    dispatch has left of it to them."""
    return max(2, num_handles)


class HandleRings:
    """Deals out the memories of handles in turn.

    Captured dispatches have some of their own: a replay comes unseen, and must not take what an
    eager dispatch has left for its combine.
    """

    def __init__(self, num_handles: int) -> None:
        self._num_handles, self._size = num_handles, ring_size(num_handles)
        self._num_eager = self._num_captured = self._tickets = 0

    def next(self, captured: bool) -> RingEntry:
        if captured:
            number = self._num_captured
            self._num_captured += 1
        else:
            number = self._num_eager
            self._num_eager += 1
        self._tickets = self._tickets % 0xFFFFFFFF + 1
        index = number % self._size + self._size * captured
        return RingEntry(index, self._tickets, number, captured)

    def is_live(self, entry: RingEntry) -> bool:
        """Whether the memory is still that of the dispatch, as far as the host knows: that of a
        captured one may also be taken by replays, which the device notices."""
        made = self._num_captured if entry.captured else self._num_eager
        return made - entry.number <= self._num_handles


@dataclass(eq=False, slots=True)  # as a `RingEntry`
class Sent:
    """This rank's own segments where there are several nodes: how many, and int64 [max_sources,
    fanout] the rank that each point goes to, negative for none."""

    num_sources: int
    ranks: Tensor


@dataclass(eq=False, slots=True)  # as a `RingEntry`
class Launched:
    """What combine needs of its dispatch.

    ``key_counts[i]`` rows of this rank's i-th key start at slot ``key_starts[i]``; both are int32
    [num_keys], ``codes`` int32 [max_sources, fanout]. ``routing`` are the int32 words of call.cuh's
    Routing, which begin with the source segments of every rank. Of a compact target ``row_index``,
    int64 [capacity], has the row of every slot, -1 for padding. Of a dense target, whose slots the
    relation gives, ``num_slots`` are those of this rank, and ``claims``, int32 [capacity], has for
    each the epoch of the dispatch that has filled it last. ``ragged`` are the sizes of a ragged
    domain, of which ``num_sources`` then is what there is room for. Where slots follow from pieces
    there are no codes and no claims; ``filled_bits``, int32, has 32 slots a word, and ``moved``,
    int64, bytes of the first field that went somewhere, the points that there are, and how many of
    them went to every rank; ``covered``, int32, says which parts of a result they cover. Of exact
    sizes ``filled_slots``, bool [num_slots], is known already. Of several nodes all this is of the
    segments that the rank has taken on, and ``sent`` of its own.
    With a ``reply`` that is the same of its rows.
    """

    entry: RingEntry
    num_sources: int
    codes: Tensor
    key_counts: Tensor
    key_starts: Tensor
    routing: Tensor
    weights: Tensor | None
    row_index: Tensor | None = None
    claims: Tensor | None = None
    num_slots: int = 0
    ragged: RaggedSizes | EntrySizes | None = None
    filled_bits: Tensor | None = None
    moved: Tensor | None = None
    covered: Tensor | None = None
    filled_slots: Tensor | None = None
    sent: Sent | None = None
    reply: Launched | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """All memory that it names by itself."""
        held = (getattr(self, each.name) for each in fields(self))
        return [each for each in held if isinstance(each, Tensor)]

    @property
    def has_given_slots(self) -> bool:
        """Whether the relation says slots, so that ``filled`` knows which of them have a row."""
        known = self.claims, self.filled_bits, self.filled_slots
        return any(each is not None for each in known)

    @property
    def filled(self) -> Tensor:
        """bool [num_slots], which slots of a dense target the dispatch has filled."""
        if self.filled_slots is not None:
            return self.filled_slots
        if self.filled_bits is not None:
            bits = torch.arange(32, dtype=torch.int32, device=self.filled_bits.device)
            return (self.filled_bits[:, None] >> bits & 1).flatten()[: self.num_slots].bool()
        assert self.claims is not None
        return self.claims[: self.num_slots] == self.routing[EPOCH]

    @property
    def filling(self) -> tuple[Tensor, Tensor | None]:
        """The same as bits, int32, 32 slots a word, and nothing; or as the numbers of the
        dispatches that have filled the slots last, int32, and that of the latest one, [1]."""
        if self.filled_bits is not None:
            return self.filled_bits, None
        assert self.claims is not None
        return self.claims, self.routing[EPOCH : EPOCH + 1]

    @property
    def dropped(self) -> Tensor:
        """int64 [], points of the latest dispatch in this memory that were not moved; -1 if that
        is another dispatch by now. On the device: nothing waits."""
        words = self.routing.long()
        count = torch.where(words[USES] % 2 == 1, words[DROPPED + 1], words[DROPPED])
        return torch.where(words[TICKET] & 0xFFFFFFFF == self.entry.ticket, count, -1)
