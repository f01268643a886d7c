"""The planner's kernels of a receiver: the lists of ``plan/receive.py``, from what sources sent."""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

vectors, sources = load("vectors"), load("plan_sources")

ROUND_SHIFT = tl.constexpr(44)  # as in plan/send.py
ROUND_MASK = tl.constexpr((1 << 44) - 1)
CHUNK = tl.constexpr(512)  # slices that a program looks at together


@triton.jit(do_not_specialize=range(5))
def forward(
    described: tl.int64, lists: tl.int64, num_pairs: tl.int64, num_rows: tl.int64,
    ranks_per_node: tl.int64, block: tl.constexpr,
):  # fmt: skip
    """``forward``: columns of ``num_pairs``, and ``reduce_node``: columns of ``num_rows``. Pairs
    come in the order of their landing rows, and every row has some."""
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = i < num_pairs
    at = sources.words(described) + 2 * i
    word = tl.load(at + 1, mask=inside, other=0)
    row = word // ranks_per_node
    to = sources.words(lists)
    tl.store(to + i, row, mask=inside)
    tl.store(to + num_pairs + i, word % ranks_per_node, mask=inside)
    tl.store(to + 2 * num_pairs + i, tl.load(at, mask=inside, other=0), mask=inside)
    lower = tl.load(at - 1, mask=inside & (i > 0), other=-ranks_per_node) // ranks_per_node
    upper = tl.load(at + 3, mask=i + 1 < num_pairs, other=-ranks_per_node) // ranks_per_node
    to += 3 * num_pairs
    tl.store(to + row, i, mask=inside & ((i == 0) | (lower != row)))
    tl.store(to + num_rows + row, i + 1, mask=inside & ((i + 1 == num_pairs) | (upper != row)))
    tl.store(to + 2 * num_rows + i, i, mask=i < num_rows)


@triton.jit
def entry(term_begin, row, num_rows, num_pairs, mask):
    """The first entry of ``forward`` for a landing row, or for the first one behind all."""
    found = tl.load(term_begin + row, mask=mask & (row < num_rows), other=0)
    return tl.where(row < num_rows, found, num_pairs)


@triton.jit(do_not_specialize=range(8))
def order_forwards(
    slices: tl.int64, num_slices: tl.int64, term_begin: tl.int64, num_rows: tl.int64,
    num_pairs: tl.int64, num_rounds: tl.int64, entries: tl.int64, order: tl.int64,
    ordered: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Entries of ``forward`` in every round and, if rows do not land in their own order, all of
    them in that of the slices: a program for every round and for every slice.

    ``slices``: first landing row, rows and round of every slice, in the order of the wire.
    """
    me = tl.program_id(0).to(tl.int64)
    begin, begins = sources.words(slices), sources.words(term_begin)
    before = tl.full((), 0, tl.int64)
    in_round = tl.full((), 0, tl.int64)
    for start in range(0, num_slices, CHUNK):
        index = start + tl.arange(0, CHUNK)
        inside = index < num_slices
        first = tl.load(begin + index, mask=inside, other=0)
        behind = first + tl.load(begin + num_slices + index, mask=inside, other=0)
        size = entry(begins, behind, num_rows, num_pairs, inside)
        size = tl.where(inside, size - entry(begins, first, num_rows, num_pairs, inside), 0)
        round_of = tl.load(begin + 2 * num_slices + index, mask=inside, other=-1)
        before += vectors.total(tl.where(index < me, size, 0), 0)
        in_round += vectors.total(tl.where(round_of == me, size, 0), 0)
    tl.store(sources.words(entries) + me, in_round, mask=me < num_rounds)
    if not ordered:
        mine = me < num_slices
        first = tl.load(begin + me, mask=mine, other=0)
        behind = first + tl.load(begin + num_slices + me, mask=mine, other=0)
        first = entry(begins, first, num_rows, num_pairs, mine)
        size = tl.where(mine, entry(begins, behind, num_rows, num_pairs, mine) - first, 0)
        for start in range(0, size, block):
            index = start + tl.arange(0, block)
            to = sources.words(order) + before + index
            tl.store(to, first + index, mask=index < size)


@triton.jit
def kinds(described, i, inside, num_rounds, width: tl.constexpr):
    """(slot, word, lead of the pair, kind) of points. Kinds: leads by the round that brings them,
    those of this node first; then, alike, further points."""
    at = sources.words(described) + i * width
    slot = tl.load(at, mask=inside, other=0)
    word = tl.load(at + 1, mask=inside, other=0)
    lead = i + tl.minimum(word, 0)
    leader = tl.load(sources.words(described) + lead * width + 1, mask=inside, other=0)
    kind = (leader >> ROUND_SHIFT) + tl.where(word < 0, num_rounds + 1, 0)
    return slot, word, lead, kind.to(tl.int32)


@triton.jit(do_not_specialize=range(4))
def count_kinds(
    described: tl.int64, tiles: tl.int64, num_points: tl.int64, num_rounds: tl.int64,
    compact: tl.constexpr, width: tl.constexpr, block: tl.constexpr, bins: tl.constexpr,
):  # fmt: skip
    """Points of every kind in a tile; of a compact target leads alone."""
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = i < num_points
    _, word, _, kind = kinds(described, i, inside, num_rounds, width)
    if compact:
        inside = inside & (word >= 0)
    num_kinds = 2 * num_rounds + 2
    to = sources.halves(tiles) + tl.program_id(0).to(tl.int64) * num_kinds
    sources.store_histogram(to, kind, inside, num_kinds, bins)


@triton.jit(do_not_specialize=range(5))
def scan_kinds(
    tiles: tl.int64, totals: tl.int64, entries: tl.int64, num_tiles: tl.int64,
    num_kinds: tl.int64, block: tl.constexpr,
):  # fmt: skip
    """Prefix sums over the tiles, and the totals; ``entries`` has no place for the first kind."""
    column = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    sums = sources.scan_tiles(tiles, num_tiles, num_kinds, column, block)
    tl.store(sources.words(totals) + column, sums, mask=column < num_kinds)
    inside = (column > 0) & (column < num_kinds)
    tl.store(sources.words(entries) + column - 1, sums, mask=inside)


@triton.jit
def end_of_group(described, i, inside, num_points, width: tl.constexpr):
    """Behind the further points that follow a lead."""
    words = sources.words(described) + 1
    end = i + 1
    more = inside & (end < num_points)
    more = more & (tl.load(words + end * width, mask=more, other=0) < 0)
    while vectors.largest(more.to(tl.int32), 0) > 0:
        end += more.to(tl.int64)
        more = more & (end < num_points)
        more = more & (tl.load(words + end * width, mask=more, other=0) < 0)
    return end


@triton.jit
def store_group(to, size, at, writer, ranks_per_node, i, end, mask):
    """An element of four columns of ``size``: peer, row, first term, behind the last."""
    tl.store(to + at, writer % ranks_per_node, mask=mask)
    tl.store(to + size + at, writer // ranks_per_node, mask=mask)
    tl.store(to + 2 * size + at, i, mask=mask)
    tl.store(to + 3 * size + at, end, mask=mask)


@triton.jit(do_not_specialize=range(10))
def place_targets(
    described: tl.int64, tiles: tl.int64, totals: tl.int64, lists: tl.int64, row_index: tl.int64,
    num_points: tl.int64, num_pairs: tl.int64, num_near: tl.int64, num_rounds: tl.int64,
    ranks_per_node: tl.int64,
    compact: tl.constexpr, width: tl.constexpr, block: tl.constexpr, bins: tl.constexpr,
):  # fmt: skip
    """The lists of ``target_lists``: columns ``term_slot`` and ``term_point`` of ``num_points``,
    two of ``local``, four of ``reduce_direct`` and four of ``reduce_forward``."""
    lane = tl.arange(0, block)
    i = tl.program_id(0).to(tl.int64) * block + lane
    inside = i < num_points
    slot, word, lead, kind = kinds(described, i, inside, num_rounds, width)
    to = sources.words(lists)
    tl.store(to + i, slot, mask=inside)
    tl.store(to + num_points + i, i, mask=inside)

    is_lead = inside & (word >= 0)
    counted = inside
    if compact:
        counted = is_lead
    earlier = (lane[None, :] < lane[:, None]) & counted[None, :]
    each, num_kinds = tl.arange(0, bins), 2 * num_rounds + 2
    tile = sources.halves(tiles) + tl.program_id(0).to(tl.int64) * num_kinds
    lower = tl.load(tile + each, mask=each < num_kinds, other=0)
    if compact:
        # Pairs come in the order of their rows; a further point has its lead's row.
        row = vectors.total(lower, 0) + vectors.total(earlier.to(tl.int32), 1)
        row += is_lead.to(tl.int32) - 1
        tl.store(sources.words(row_index) + slot, row.to(tl.int64), mask=inside)
    # Through memory, since a vector cannot be indexed by another.
    total = tl.load(sources.words(totals) + each, mask=each < num_kinds, other=0).to(tl.int32)
    tl.store(tile + each, lower + vectors.running(total, 0) - total, mask=each < num_kinds)
    tl.debug_barrier()
    at = tl.load(tile + kind, mask=counted, other=0)
    at += vectors.total((earlier & (kind[None, :] == kind[:, None])).to(tl.int32), 1)

    to += 2 * num_points
    if not compact:
        num_local = num_points - num_pairs
        copied = inside & (word < 0)
        from_slot = tl.load(sources.words(described) + lead * width, mask=copied, other=0)
        tl.store(to + at - num_pairs, from_slot, mask=copied)
        tl.store(to + num_local + at - num_pairs, slot, mask=copied)
        to += 2 * num_local
    end = end_of_group(described, i, is_lead, num_points, width)
    writer = word & ROUND_MASK
    near = is_lead & (at < num_near)
    store_group(to, num_near, at, writer, ranks_per_node, i, end, near)
    to += 4 * num_near
    far = is_lead & (at >= num_near)
    store_group(to, num_pairs - num_near, at - num_near, writer, ranks_per_node, i, end, far)
