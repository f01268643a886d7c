"""How many ranks of a node kernels have room for, and what follows from it.

Arrays with a place for every rank have as many places, and so have vectors. Rank and slot share a
word: more ranks leave fewer slots. The points of a segment that goes to all ranks of all nodes are
a vector, too.
"""

from __future__ import annotations

LEAST, MOST = 8, 128
"""Ranks that kernels have room for, powers of two. CUDA's have room for the fewest."""

MOST_DESTINATIONS = 1024
"""Points of a segment, a vector of one program."""

CODE_BITS = 31
"""Of a slot code, whose sign says that there is none; and of the number of a row that travels in a
flow, beside the rank that has it."""

MOST_SLOT_BITS = 27
MOST_TURNS = 64
"""In which sums come back to a rank that sends them on to other nodes."""
ROUTING_WORDS = 16
"""Of Routing in kernels/include/call.cuh, with the source segments of the fewest ranks."""


def room_for(num_ranks: int, least: int = LEAST) -> int:
    """For a node of so many ranks.

    Raises:
        ValueError: no kernels have room for them.
    """
    if num_ranks > MOST:
        raise ValueError(f"{num_ranks} ranks in a node, more than {MOST}")
    return max(least, 1 << (num_ranks - 1).bit_length())


def lanes_for(destinations: int) -> int:
    """Of a vector of so many points of a segment, a power of two."""
    return 1 << (destinations - 1).bit_length()


def segments_of(points: int, lanes: int) -> int:
    """Segments of so many ``lanes`` each in a tile of so many ``points``, or of one segment."""
    return max(1, points // lanes)


def num_rank_words(room: int) -> int:
    """Words of 32 bits in which each rank has a bit."""
    return -(-room // 32)


def num_slot_bits(room: int) -> int:
    """Bits of a slot code that are the slot's."""
    return min(MOST_SLOT_BITS, num_row_bits(room))


def num_row_bits(room: int) -> int:
    """Bits of such a number that are the row's."""
    return CODE_BITS - (room - 1).bit_length()


def is_wide(room: int) -> bool:
    """Whether arrays of ranks have more places than CUDA kernels, and texts of Triton's, know."""
    return room > LEAST


def first_source(room: int) -> int:
    """Where a handle's words have the source segments of every rank; with them the refusing ranks
    lie behind what call.cuh knows, unless they are few."""
    return ROUTING_WORDS if is_wide(room) else 0


def num_routing_words(room: int) -> int:
    """Of a handle."""
    return ROUTING_WORDS + is_wide(room) * (room + num_rank_words(room))
