"""The kernels of one node, in CUDA or in Triton, and what they keep: sizes, routings, errors.

Words and stages are those of kernels/include/call.cuh and kernels/device/words.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from fuscoc_runtime.comm.rails import Rails
from fuscoc_runtime.engine.node.rings import HandleRings, Launched, RingEntry, ring_size
from fuscoc_runtime.room import LEAST

if TYPE_CHECKING:
    from fuscoc_runtime.engine.node.ragged import EntrySizes, RaggedSizes

ALIGNMENT = 1024
STAGES = (
    "counts of this rank",
    "counts",
    "rows of group",
    "partial rows of group",
    "entering combine",
    "slots of segments planned together, part",
)

# Positions in call.cuh's State; the last words are of every rank, of the fewest that kernels have
# room for here,
STATE_WORDS = 49
PLAN_EPOCH, MEETINGS = 0, 6
TROUBLES, BAD_KEYS, EXCESS, BAD_SIZES = 14, 17, 20, 21
NUM_KINDS = 9

# and in its Page, behind the wait that is shown there, a word of 64 bits.
PAGE_WORDS = 3 + NUM_KINDS + LEAST
PAGE_TROUBLES, PAGE_ABORT = 2, -1


@dataclass(frozen=True)
class Limits:
    """Fixed sizes of the windows, equal on every rank.

    ``max_sources`` bounds the source segments of any rank, ``capacity`` the slots of a rank, those
    of a dense target too.
    """

    max_sources: int
    capacity: int
    num_handles: int = 2

    def row_capacity(self, num_ranks: int, is_compact: bool) -> int:
        """Rows of a rank: one for a slot, or in a compact target for every segment of all ranks."""
        return min(self.capacity, num_ranks * self.max_sources) if is_compact else self.capacity

    @property
    def num_entries(self) -> int:
        """Memories of handles: of eager dispatches, and as many of captured ones."""
        return 2 * ring_size(self.num_handles)


class NodeKernels(Protocol):
    """What moves the rows: `CudaNode` or `TritonNode`, whose methods say more.

    Attributes:
        state: int32 [STATE_WORDS], on the device; what `parse_state` reads.
        page: int32 [PAGE_WORDS], in memory of the host that kernels address.
        zeroes_results: whether combine needs results that are 0, since segments may not fill them.
        max_entries: outer indices of a ragged source that kernels evaluate by themselves; None if
            they are evaluated before.
        rails: what goes over the network; None inside one node.
        rings: the turns of handles' memory.
        is_out_of_step: between nodes, whether peers may make calls that this rank cannot match, so
            that none can follow.
    """

    max_entries: int | None
    is_out_of_step: bool

    limits: Limits
    rows: tuple[Tensor, ...]
    state: Tensor
    page: Tensor
    rings: HandleRings

    @property
    def rails(self) -> Rails | None: ...

    def dispatch(
        self,
        source: Sequence[Tensor],
        inputs: Sequence[Tensor],
        extents: Sequence[int],
        num_sources: int,
        weights: Tensor | None = None,
        num_slots: int = 0,
        ragged: RaggedSizes | EntrySizes | None = None,
    ) -> Launched: ...

    def combine(
        self,
        rows: Sequence[Tensor],
        handle: Launched,
        results: Sequence[Tensor],
        rows_ticket: int = 0,
    ) -> Sequence[Tensor]: ...

    def refuse_dispatch(self) -> RingEntry: ...

    def refuse_combine(self, handle: Launched) -> None: ...

    @property
    def zeroes_results(self) -> bool: ...

    @property
    def window_bytes(self) -> int: ...

    @property
    def private_bytes(self) -> int: ...

    def points(self, handle: Launched) -> Tensor: ...


@dataclass(frozen=True)
class Trouble:
    """What has gone wrong on one rank since the start.

    Attributes:
        bad_keys, overflowed: points without a key, or a slot.
        clashed: points for a slot that another one had.
        excess: ragged source segments beyond `Limits.max_sources`.
        bad_sizes: dispatches whose ragged sizes were none.
        outdated, overwritten: combines whose handle's memory, or whose rows, a later dispatch had
            taken.
        shared: segments that begin with the source cell of another one, and come back there.
        misplaced: dispatches that ranks gave different tables to, by which keys are placed.
        refusals: calls that this rank had joined and others refused, by rank of all nodes.
    """

    bad_keys: int = 0
    overflowed: int = 0
    clashed: int = 0
    excess: int = 0
    bad_sizes: int = 0
    outdated: int = 0
    overwritten: int = 0
    shared: int = 0
    misplaced: int = 0
    refusals: tuple[int, ...] = (0,) * LEAST


KINDS = tuple(each.name for each in fields(Trouble) if each.name != "refusals")
"""Counts of ``Trouble`` that are not of a peer, in the order of the device's words."""


def new_state(num_ranks: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Zeros for the state and the page of so many ranks."""
    more = max(0, num_ranks - LEAST)
    state = torch.zeros(STATE_WORDS + 2 * more, dtype=torch.int32, device=device)
    on_gpu = device.type == "cuda"
    return state, torch.zeros(PAGE_WORDS + more, dtype=torch.int32, pin_memory=on_gpu)


def parse_state(words: Sequence[int], num_ranks: int = LEAST) -> Trouble:
    """Read a copy of ``NodeKernels.state``, which knows so many ranks."""
    return _trouble(words[BAD_KEYS : BAD_KEYS + NUM_KINDS + num_ranks])


def parse_page(words: Sequence[int]) -> Trouble:
    """Read a copy of ``NodeKernels.page``: what calls did before the latest one."""
    return _trouble(words[PAGE_TROUBLES:PAGE_ABORT])


def parse_wait(word: int) -> tuple[int, str]:
    """The peer and the stage of a wait, as kernels show it on the page."""
    code = word >> 32
    stage, peer, item = code >> 28 & 0x7, code >> 20 & 0xFF, code & 0xFFFFF
    return peer, f"{STAGES[stage]} {item}"


def _trouble(counts: Sequence[int]) -> Trouble:
    named = dict(zip(KINDS, counts, strict=False))
    return Trouble(**named, refusals=tuple(counts[len(KINDS) :]))


def storage_of(tensor: Tensor) -> range:
    """Addresses of the memory that it is a part of."""
    whole = tensor.untyped_storage()
    return range(whole.data_ptr(), whole.data_ptr() + whole.nbytes())


def view_points(window: Tensor, at: int, shape: tuple[int, ...]) -> Tensor:
    """The points that begin at a byte of a window, as int64 of that shape."""
    nbytes = torch.Size(shape).numel() * 8
    return window[at : at + nbytes].view(torch.int64).view(shape)


def bits_of_cells(
    source: Tensor, cell_elems: int, make: Callable[..., Tensor] = torch.zeros
) -> Tensor:
    """int32 with a bit for each cell of a source's field, as ``make`` leaves it."""
    num_words = source.numel() // cell_elems // 32 + 1
    return make(num_words, dtype=torch.int32, device=source.device)


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
