"""The planner's kernels of a receiver: the lists of ``plan/receive.py``, from what sources sent."""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

vectors, sources = load("vectors"), load("plan_sources")

NUM_KINDS = tl.constexpr(3)
COLUMNS = tl.constexpr(4)  # a power of two
BINS = tl.constexpr(32)  # of a histogram, at least


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
def kinds(described, i, inside, near_begin, near_end, width: tl.constexpr):
    """(slot, word, kind) of points. Kinds: leads of pairs from this node, other leads, further
    points."""
    at = sources.words(described) + i * width
    slot = tl.load(at, mask=inside, other=0)
    word = tl.load(at + 1, mask=inside, other=0)
    far = ((i < near_begin) | (i >= near_end)).to(tl.int32)
    return slot, word, tl.where(word < 0, 2, far)


@triton.jit(do_not_specialize=range(5))
def count_kinds(
    described: tl.int64, tiles: tl.int64, num_points: tl.int64, near_begin: tl.int64,
    near_end: tl.int64,
    compact: tl.constexpr, width: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Points of every kind in a tile; of a compact target leads alone."""
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = i < num_points
    _, word, kind = kinds(described, i, inside, near_begin, near_end, width)
    if compact:
        inside = inside & (word >= 0)
    to = sources.halves(tiles) + tl.program_id(0).to(tl.int64) * NUM_KINDS
    sources.store_histogram(to, kind, inside, NUM_KINDS, BINS)


@triton.jit(do_not_specialize=range(3))
def scan_kinds(tiles: tl.int64, totals: tl.int64, num_tiles: tl.int64):
    """Prefix sums over the tiles, and the totals."""
    column = tl.arange(0, COLUMNS).to(tl.int64)
    sums = sources.scan_tiles(tiles, num_tiles, NUM_KINDS, column, COLUMNS)
    tl.store(sources.words(totals) + column, sums, mask=column < NUM_KINDS)


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


@triton.jit(do_not_specialize=range(11))
def place_targets(
    described: tl.int64, tiles: tl.int64, totals: tl.int64, lists: tl.int64, row_index: tl.int64,
    num_points: tl.int64, num_pairs: tl.int64, num_near: tl.int64, near_begin: tl.int64,
    near_end: tl.int64, ranks_per_node: tl.int64,
    compact: tl.constexpr, width: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """The lists of ``target_lists``: columns ``term_slot`` and ``term_point`` of ``num_points``,
    two of ``local``, four of ``reduce_direct`` and four of ``reduce_forward``."""
    lane = tl.arange(0, block)
    i = tl.program_id(0).to(tl.int64) * block + lane
    inside = i < num_points
    slot, word, kind = kinds(described, i, inside, near_begin, near_end, width)
    to = sources.words(lists)
    tl.store(to + i, slot, mask=inside)
    tl.store(to + num_points + i, i, mask=inside)

    is_lead = inside & (word >= 0)
    counted = inside
    if compact:
        counted = is_lead
    earlier = (lane[None, :] < lane[:, None]) & counted[None, :]
    each = tl.arange(0, COLUMNS)
    tile = sources.halves(tiles) + tl.program_id(0).to(tl.int64) * NUM_KINDS
    lower = tl.load(tile + each, mask=each < NUM_KINDS, other=0)
    if compact:
        # Pairs come in the order of their rows; a further point has its lead's row.
        row = vectors.total(lower, 0) + vectors.total(earlier.to(tl.int32), 1)
        row += is_lead.to(tl.int32) - 1
        tl.store(sources.words(row_index) + slot, row.to(tl.int64), mask=inside)
    # Through memory, since a vector cannot be indexed by another.
    total = tl.load(sources.words(totals) + each, mask=each < NUM_KINDS, other=0).to(tl.int32)
    tl.store(tile + each, lower + vectors.running(total, 0) - total, mask=each < NUM_KINDS)
    tl.debug_barrier()
    at = tl.load(tile + kind, mask=counted, other=0)
    at += vectors.total((earlier & (kind[None, :] == kind[:, None])).to(tl.int32), 1)

    to += 2 * num_points
    if not compact:
        num_local = num_points - num_pairs
        copied = inside & (word < 0)
        lead = sources.words(described) + (i + word) * width
        from_slot = tl.load(lead, mask=copied, other=0)
        tl.store(to + at - num_pairs, from_slot, mask=copied)
        tl.store(to + num_local + at - num_pairs, slot, mask=copied)
        to += 2 * num_local
    end = end_of_group(described, i, is_lead, num_points, width)
    near = is_lead & (at < num_near)
    store_group(to, num_near, at, word, ranks_per_node, i, end, near)
    to += 4 * num_near
    far = is_lead & (at >= num_near)
    store_group(to, num_pairs - num_near, at - num_near, word, ranks_per_node, i, end, far)
