"""Short rows of segments with one destination each, many at once.

Where ``dispatch`` and ``combine`` move one row after the other, a program holds a tile of them: as
wide as rows, and as high as registers allow.

``load_sources(source, cells, has)``, ``store_rows(bases, at, slots, has, tiles)``,
``load_rows(rows, slots, has)`` and ``store_sent(to, has, tiles)`` are the shuffle's own: vectors
say where rows lie, and ``has`` which there are. ``load_back(rows, slots, here, sent, has, lost)``
loads rows from slots of this rank where they are ``here``, or from where peers have sent them, and
makes ``lost`` ones what cannot be made; ``store_results(result, places, has, tiles)`` stores them
for segments of this rank, at places that are numbers of segments, or of cells.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, vectors, sync, points = load("words"), load("vectors"), load("sync"), load("points")
of_rows, ranks = load("sums"), load("ranks")


@triton.jit
def own_codes(call, first, limit, tile_rows: tl.constexpr):
    """The segments of this rank from ``first`` on, which of them are below ``limit``, and their
    slot codes; -1 for others."""
    sources = first + tl.arange(0, tile_rows).to(tl.int64)
    inside = sources < limit
    codes = tl.load(sync.array(call, words.CODES, tl.int32) + sources, mask=inside, other=-1)
    return sources, inside, codes


@triton.jit
def move(
    call, first, limit, source_fields, rows_at, load_sources: tl.constexpr,
    store_rows: tl.constexpr, away: tl.constexpr, tile_rows: tl.constexpr, cells: tl.constexpr,
):  # fmt: skip
    """Rows of this rank from ``first`` on into their slots: those of other ranks, which are told
    the codes of all, if ``away``, else those here."""
    sources, inside, codes = own_codes(call, first, limit, tile_rows)
    here = (codes >> words.SLOT_BITS) == sync.word(call, words.RANK)
    if away:
        tell(call, sources, inside, codes)
        goes = (codes >= 0) & (here == 0)
    else:
        goes = (codes >= 0) & here
    copy(call, sources, codes, goes, source_fields, rows_at, load_sources, store_rows, cells)


@triton.jit
def tell(call, sources, inside, codes):
    """Tell every peer the slot codes of segments of this rank."""
    rank = sync.word(call, words.RANK)
    num_ranks = sync.word(call, words.NUM_RANKS)
    for step in range(1, num_ranks):
        to = points.codes_at(call, (rank + step) % num_ranks, rank)
        tl.store(to + sources, codes, mask=inside)


@triton.jit
def copy(
    call, sources, codes, goes, source_fields, rows_at, load_sources: tl.constexpr,
    store_rows: tl.constexpr, cells: tl.constexpr,
):  # fmt: skip
    """Rows of segments of this rank into the slots of their codes: of so many ``cells`` each, or 0
    if places of segments are stored."""
    if cells == 0:
        offsets = sync.array(call, words.SRC_OFFSETS, tl.int64) + sources
        places = tl.load(offsets, mask=goes, other=0)
    else:
        places = sources * cells
    tiles = load_sources(source_fields, places, goes)
    bases = tl.load(call + (codes >> words.SLOT_BITS) + words.WINDOWS, mask=goes, other=0)
    store_rows(bases, rows_at, (codes & words.SLOT_MASK).to(tl.int64), goes, tiles)


@triton.jit
def send_back(
    call, source_rank, first, limit, rows, load_rows: tl.constexpr, store_sent: tl.constexpr, to,
    partial_bytes: tl.constexpr, tile_rows: tl.constexpr,
):  # fmt: skip
    """Rows of another rank's segments, as many as are here, to where it keeps the first of them."""
    row = tl.arange(0, tile_rows).to(tl.int64)
    told = points.codes_at(call, sync.word(call, words.RANK), source_rank) + first
    codes = tl.load(told + row, mask=first + row < limit, other=-1)
    slots = points.slots_here(call, codes)
    tiles = load_rows(rows, slots.to(tl.int64), slots >= 0)
    store_sent(to + row * partial_bytes, slots >= 0, tiles)


@triton.jit
def take_back(
    call, first, limit, absent, rows, result, sent, load_back: tl.constexpr,
    store_results: tl.constexpr, partial_bytes: tl.constexpr, places: tl.constexpr,
    tile_rows: tl.constexpr,
):  # fmt: skip
    """The results of this rank's segments from ``first`` on: rows of its own slots, and what peers
    have put into ``sent``, room for each of them and segment; NaN where ``absent`` ones have not.
    The set of those. As in ``combine``, one that it ``places`` and has no row is left as it is."""
    rank = sync.word(call, words.RANK)
    sources, inside, codes = own_codes(call, first, limit, tile_rows)
    peers = codes >> words.SLOT_BITS
    has = codes >= 0
    here = has & (peers == rank)
    lost = has & ((peers != rank) & (ranks.have(absent, peers) == 1))
    among = of_rows.place_among_others(peers.to(tl.int64), rank)
    sent += (among * sync.word(call, words.MAX_SOURCES) + sources) * partial_bytes
    tiles = load_back(rows, (codes & words.SLOT_MASK).to(tl.int64), here, sent, has, lost)
    if places:
        cells = sync.array(call, words.SRC_OFFSETS, tl.int64) + sources
        store_results(result, tl.load(cells, mask=has, other=0), has, tiles)
    else:
        store_results(result, sources, inside, tiles)
    lacking = ranks.none()
    if vectors.largest(lost.to(tl.int32), 0) == 1:
        for peer in range(sync.word(call, words.NUM_RANKS)):
            lacks = vectors.largest((lost & (peers == peer)).to(tl.int32), 0)
            lacking |= ranks.one(peer, lacks)
    return lacking
