"""Numbers that belong to points, brought to the slots of their segments and back. The code of a
point is its rank and slot, negative without a segment; see engine/node/state.py."""

import triton
import triton.language as tl


@triton.jit
def to_slots(
    points,
    own_codes,
    own_weights,
    num_sources_of,
    of_slot,
    held,
    num_points,
    max_points,
    rank,
    fanout: tl.constexpr,
    slot_bits: tl.constexpr,
    tile: tl.constexpr,
):
    """``of_slot[slot] = weight`` and ``held[slot] = slot`` for every point of every rank whose
    segment lies on ``rank``.

    ``points`` int64 [num_ranks, max_points] hold code and weight bits, as peers wrote them; this
    rank does not tell itself: its codes and weights are ``own``.
    """
    point = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    source_rank = point // max_points
    place = point % max_points
    sent = tl.load(num_sources_of + source_rank, mask=point < num_points, other=0) * fanout
    inside = (point < num_points) & (place < sent)
    own = inside & (source_rank == rank)
    word = tl.load(points + point, mask=inside & (source_rank != rank), other=-1)
    told = (word >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    code = tl.where(own, tl.load(own_codes + place, mask=own, other=-1), word.to(tl.int32))
    weight = tl.where(own, tl.load(own_weights + place, mask=own, other=0), told)
    here = inside & (code >= 0) & ((code >> slot_bits) == rank)
    slot = code & ((1 << slot_bits) - 1)
    tl.store(of_slot + slot, weight, mask=here)
    tl.store(held + slot, slot.to(tl.int64), mask=here)


@triton.jit
def to_points(
    of_slot, codes, result, num_points, capacity, slot_bits: tl.constexpr, tile: tl.constexpr
):
    """``result[p] = of_slot[rank, slot]`` of every point, 0 without a segment; ``of_slot`` are the
    values of all ranks [num_ranks, capacity]."""
    point = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    inside = point < num_points
    code = tl.load(codes + point, mask=inside, other=-1)
    slot = (code & ((1 << slot_bits) - 1)).to(tl.int64)
    at = (code >> slot_bits).to(tl.int64) * capacity + slot
    tl.store(result + point, tl.load(of_slot + at, mask=code >= 0, other=0), mask=inside)
