"""Rows that are taken from others by index: those that hold no segment are never read."""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

vectors = load("vectors")


@triton.jit
def take(
    rows,
    index,
    result,
    num_rows,
    end,
    width,
    tile_rows: tl.constexpr,
    tile_words: tl.constexpr,
):
    """``result[i] = rows[index[i]] if index[i] >= 0 else 0`` for ``i < min(num_rows, *end)``, the
    latter unless it is None; rows of ``width`` words."""
    num_rows = shortened(num_rows, end)
    num_tiles = (num_rows + tile_rows - 1) // tile_rows
    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        row = tile * tile_rows + tl.arange(0, tile_rows).to(tl.int64)
        inside = row < num_rows
        source = tl.load(index + row, mask=inside, other=-1)
        for first in range(0, width, tile_words):
            column = first + tl.arange(0, tile_words)
            wide = (column < width)[None, :]
            taken = rows + source[:, None] * width + column[None, :]
            words = tl.load(taken, mask=(source >= 0)[:, None] & wide, other=0)
            to = result + row[:, None] * width + column[None, :]
            tl.store(to, words, mask=inside[:, None] & wide)


@triton.jit
def put(
    rows,
    index,
    memory,
    num_rows,
    width,
    tile_rows: tl.constexpr,
    tile_words: tl.constexpr,
):
    """``memory[index[i]] = rows[i]`` where ``index[i] >= 0``; rows of ``width`` words."""
    num_tiles = (num_rows + tile_rows - 1) // tile_rows
    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        row = tile * tile_rows + tl.arange(0, tile_rows).to(tl.int64)
        target = tl.load(index + row, mask=row < num_rows, other=-1).to(tl.int64)
        goes = (target >= 0)[:, None]
        for first in range(0, width, tile_words):
            column = first + tl.arange(0, tile_words)
            here = goes & (column < width)[None, :]
            words = tl.load(rows + row[:, None] * width + column[None, :], mask=here)
            tl.store(memory + target[:, None] * width + column[None, :], words, mask=here)


@triton.jit
def claim(places, table, homes, num_parts, num_homes, block: tl.constexpr):
    """Every part i with a place, which is 0 or more, finds the home of that place in a hash table,
    ``homes[i]``: ``table`` int64 [2, num_homes], a power of two and of 0, gets the places plus 1,
    and of those who claim one the first, as ``num_parts - i``."""
    part = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = part < num_parts
    place = tl.load(places + part, mask=inside, other=-1)
    # Fibonacci hashing (Knuth, TAOCP 3, 6.4); other bits say how far the next home is: odd, so that
    # all are looked at.
    mixed = place * -7046029254386353131
    home = (mixed >> 36) & (num_homes - 1)
    step = (mixed >> 20) | 1
    looks = place >= 0
    while vectors.total(looks.to(tl.int32), 0) > 0:
        # One that does not look changes nothing: nowhere is -1.
        expected, wanted = tl.where(looks, 0, -1), tl.where(looks, place + 1, -1)
        found = tl.atomic_cas(table + home, expected.to(tl.int64), wanted, sem="relaxed")
        looks = looks & (found != 0) & (found != place + 1)
        home = tl.where(looks, (home + step) & (num_homes - 1), home)
    claims = table + num_homes + home
    tl.atomic_max(claims, num_parts - part, mask=place >= 0, sem="relaxed")
    tl.store(homes + part, home, mask=inside)


@triton.jit
def concede(
    places,
    table,
    homes,
    lost,
    num_slots,
    parts,
    num_homes,
    out_of_range: tl.constexpr,
    taken: tl.constexpr,
    tile_slots: tl.constexpr,
    tile_parts: tl.constexpr,
):
    """``places`` int64 [num_slots, parts] that an earlier part has claimed become ``taken``;
    ``lost`` counts the slots with a part that is ``out_of_range``, and those with one that is
    taken."""
    slot = tl.program_id(0).to(tl.int64) * tile_slots + tl.arange(0, tile_slots)
    inside = slot < num_slots
    is_outside, is_late = slot < 0, slot < 0
    for first in range(0, parts, tile_parts):
        part = first + tl.arange(0, tile_parts)
        at, here = slot[:, None] * parts + part[None, :], inside[:, None] & (part < parts)[None, :]
        place = tl.load(places + at, mask=here, other=-1)
        claims = here & (place >= 0)
        owner = table + num_homes + tl.load(homes + at, mask=claims, other=0)
        own = (num_slots - slot)[:, None] * parts - part[None, :]
        late = claims & (tl.load(owner, mask=claims, other=0) != own)
        tl.store(places + at, tl.full((tile_slots, tile_parts), taken, tl.int64), mask=late)
        is_outside |= vectors.total((place == out_of_range).to(tl.int64), 1) != 0
        is_late |= vectors.total(late.to(tl.int64), 1) != 0
    outside, late_ones = (
        vectors.total(is_outside.to(tl.int64), 0),
        vectors.total(is_late.to(tl.int64), 0),
    )
    tl.atomic_add(lost, outside, mask=outside > 0)
    tl.atomic_add(lost + 1, late_ones, mask=late_ones > 0)


@triton.jit
def settle(
    places,
    filled,
    latest,
    lost,
    targets,
    num_slots,
    parts,
    out_of_range: tl.constexpr,
    tile_slots: tl.constexpr,
    tile_parts: tl.constexpr,
):
    """``targets[i] = places[i]`` of the parts of slots that are filled, -1 of others; ``lost``,
    unless it is None, counts the slots of which a part is ``out_of_range``.

    ``filled`` has bits of slots, 32 a word; or the number that the slot was filled at, which is
    the ``latest`` one unless that is None.
    """
    slot = tl.program_id(0).to(tl.int64) * tile_slots + tl.arange(0, tile_slots)
    inside = slot < num_slots
    if latest is None:
        there = (
            tl.load(filled + slot // 32, mask=inside, other=0) >> (slot % 32).to(tl.int32)
        ) & 1 != 0
    else:
        there = tl.load(filled + slot, mask=inside, other=0) == tl.load(latest)
    wrong = slot < 0
    for first in range(0, parts, tile_parts):
        part = first + tl.arange(0, tile_parts)
        at, here = slot[:, None] * parts + part[None, :], inside[:, None] & (part < parts)[None, :]
        place = tl.load(places + at, mask=here, other=-1)
        wrong |= vectors.total((place == out_of_range).to(tl.int64), 1) != 0
        kept = tl.where(there[:, None], place, -1).to(targets.dtype.element_ty)
        tl.store(targets + at, kept, mask=here)
    if lost is not None:
        count = vectors.total(wrong.to(tl.int64), 0)
        tl.atomic_add(lost, count, mask=count > 0)


@triton.jit
def accumulate(
    rows,
    order,
    places,
    memory,
    num_rows,
    width,
    accumulator: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_words: tl.constexpr,
):
    """``memory[places[i]] += rows[order[i]]`` for ascending ``places``, of which those below 0 are
    none: the first of a place adds up all of them, one after the other, and rounds once."""
    for first in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        place = tl.load(places + first).to(tl.int64)
        before = tl.load(places + first - 1, mask=first > 0, other=-1).to(tl.int64)
        if (place >= 0) & (place != before):
            for start in range(0, width, tile_words):
                column = start + tl.arange(0, tile_words)
                wide = column < width
                to = memory + place * width + column
                total = tl.load(to, mask=wide, other=0).to(accumulator)
                at = first
                here = place
                source = tl.load(order + at)
                while here == place:
                    row = tl.load(rows + source * width + column, mask=wide, other=0)
                    at += 1
                    # Which one is next is known before this one is there.
                    here = tl.load(places + at, mask=at < num_rows, other=-1).to(tl.int64)
                    source = tl.load(order + at, mask=at < num_rows, other=0)
                    total += row.to(accumulator)
                tl.store(to, total.to(memory.dtype.element_ty), mask=wide)


@triton.jit
def add(
    rows,
    index,
    first,
    second,
    result,
    num_rows,
    width,
    num_terms: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_words: tl.constexpr,
):
    """``result[i]`` is ``first[i] + second[i]``, of those that are not None, plus ``rows[j]`` for
    every ``j >= 0`` among ``index[i]``, in that order: in f32, and rounded once."""
    num_tiles = (num_rows + tile_rows - 1) // tile_rows
    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        row = tile * tile_rows + tl.arange(0, tile_rows).to(tl.int64)
        inside = row < num_rows
        for start in range(0, width, tile_words):
            column = start + tl.arange(0, tile_words)
            wide = (column < width)[None, :]
            at, here = row[:, None] * width + column[None, :], inside[:, None] & wide
            total = tl.full([tile_rows, tile_words], 0.0, tl.float32)
            if first is not None:
                total += tl.load(first + at, mask=here, other=0).to(tl.float32)
            if second is not None:
                total += tl.load(second + at, mask=here, other=0).to(tl.float32)
            for k in tl.static_range(num_terms):
                source = tl.load(index + row * num_terms + k, mask=inside, other=-1)[:, None]
                there = (source >= 0) & wide
                term = tl.load(rows + source * width + column[None, :], mask=there, other=0)
                total += term.to(tl.float32)
            tl.store(result + at, total.to(result.dtype.element_ty), mask=here)


@triton.jit
def shortened(num_rows, end):
    if end is not None:
        num_rows = tl.minimum(num_rows, tl.load(end).to(tl.int32))
    return num_rows


@triton.jit
def weigh(
    gradient,
    factors,
    index,
    rows,
    row_gradient,
    dots,
    num_rows,
    end,
    width,
    with_dots: tl.constexpr,
    accumulator: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_words: tl.constexpr,
):
    """``row_gradient[i] = factors[i] * g`` and ``dots[i] = <rows[i], g>``, where ``g`` is
    ``gradient[index[i]]``; 0 for a negative index. For the same ``i`` as ``take``."""
    num_rows = shortened(num_rows, end)
    num_tiles = (num_rows + tile_rows - 1) // tile_rows
    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        row = tile * tile_rows + tl.arange(0, tile_rows).to(tl.int64)
        inside = row < num_rows
        source = tl.load(index + row, mask=inside, other=-1)
        held = source >= 0
        factor = tl.load(factors + row, mask=held, other=0).to(accumulator)
        products = tl.full([tile_rows, tile_words], 0.0, accumulator)
        for first in range(0, width, tile_words):
            column = first + tl.arange(0, tile_words)
            at, wide = row[:, None] * width + column[None, :], (column < width)[None, :]
            taken = gradient + source[:, None] * width + column[None, :]
            incoming = tl.load(taken, mask=held[:, None] & wide, other=0).to(accumulator)
            scaled = (incoming * factor[:, None]).to(row_gradient.dtype.element_ty)
            tl.store(row_gradient + at, scaled, mask=inside[:, None] & wide)
            if with_dots:
                value = tl.load(rows + at, mask=held[:, None] & wide, other=0)
                products += incoming * value.to(accumulator)
        if with_dots:
            tl.store(dots + row, vectors.total(products, 1), mask=inside)
