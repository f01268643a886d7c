"""What a relation says of a piece: the cells that exist, a rank each, and the loops of one.

``found`` is that: (first cell, rank, slot, step of the rank, counts, steps in cells, steps in
slots, strides of runs), in i64 from `as_numbers` on. The last one of its loops is the one that
moves the rank, if that moves. ``cells`` are what `cells_of` gives, a ``row`` is as in `pieces`.

A piece is dropped whole where a rank or a slot of it does not exist, and its points are counted.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, sync, plan, ranks = load("words"), load("sync"), load("plan"), load("ranks")

COLUMNS = tl.constexpr(1)  # what ranks tell: their slots
MANY = tl.constexpr(1 << 30)  # points that are counted at once, at most


@triton.jit
def drop(call, trouble, points):
    """Count points that have no place."""
    if points > 0:
        sync.note_dropped(call, trouble, tl.minimum(points, MANY).to(tl.int32))


@triton.jit
def refuses(call, peer):
    """Whether a peer has refused the running dispatch."""
    return ranks.refuses(call, peer) == 1


@triton.jit
def as_numbers(found, zero):
    """What a relation says of a piece, in i64."""
    src, rank, slot, rank_step, counts, src_steps, slot_steps, strides = found
    counted, src_moves, slot_moves, apart = (), (), (), ()
    for i in tl.static_range(len(counts)):
        counted = counted + (zero + counts[i],)
        src_moves = src_moves + (zero + src_steps[i],)
        slot_moves = slot_moves + (zero + slot_steps[i],)
    for i in tl.static_range(len(strides)):
        apart = apart + (zero + strides[i],)
    ends = (zero + src, zero + rank, zero + slot, zero + rank_step)
    return ends + (counted, src_moves, slot_moves, apart)


@triton.jit
def chosen(first, one, other):
    """One of two pieces, as they are of `as_numbers`."""
    ends, lists = (), ()
    for i in tl.static_range(4):
        ends = ends + (tl.where(first, one[i], other[i]),)
    for i in tl.static_range(4, 8):
        made = ()
        for j in tl.static_range(len(one[i])):
            made = made + (tl.where(first, one[i][j], other[i][j]),)
        lists = lists + (made,)
    return ends + lists


@triton.jit
def cells_of(call, exists, found):
    """The cells of a piece whose ranks exist: the first one, how many, and the points of each; then
    points that have no place. Nothing of the piece is left where there is no slot."""
    _, rank, slot, rank_step, counts, _, slot_steps, _ = found
    num_loops: tl.constexpr = len(counts)
    counts_of = plan.counts_of_ranks(call, COLUMNS)
    points = exists.to(tl.int64)
    lowest, highest = slot, slot
    for i in tl.static_range(num_loops):
        points *= tl.maximum(counts[i], 0)
        reach = slot_steps[i] * (counts[i] - 1)
        lowest += tl.minimum(reach, 0)
        highest += tl.maximum(reach, 0)
    # Of one cell the rank stays; otherwise the last loop goes from cell to cell.
    moves = rank_step != 0
    last, slot_step = counts[num_loops - 1], slot_steps[num_loops - 1]
    num = tl.where(points > 0, tl.where(moves, last, 1), 0)
    points = tl.where(moves & (points > 0), points // tl.maximum(last, 1), points)
    reach = slot_step * (last - 1)
    lowest -= tl.where(moves, tl.minimum(reach, 0), 0)
    highest -= tl.where(moves, tl.maximum(reach, 0), 0)
    begin, end = num, num * 0
    fits = exists
    divisor = tl.where(moves, rank_step, 1)
    for to in range(sync.word(call, words.NUM_RANKS)):
        number = (to - rank) // divisor
        goes = (number * divisor + rank == to) & (number >= 0) & (number < num)
        begin = tl.where(goes, tl.minimum(begin, number), begin)
        end = tl.where(goes, tl.maximum(end, number + 1), end)
        away = number * tl.where(moves, slot_step, 0)
        inside = (lowest + away >= 0) & (highest + away < tl.load(counts_of + to * (COLUMNS + 1)))
        inside = inside | refuses(call, to)  # which has told no length
        fits = fits & ((goes == 0) | inside)
    found_num = tl.where(fits, tl.maximum(end - begin, 0), 0)
    number = (-1 - rank) // divisor
    nowhere = (number * divisor + rank == -1) & (number >= 0) & (number < num)
    return begin, found_num, points, (num - found_num - nowhere.to(tl.int64)) * points


@triton.jit
def cell_for(found, cells, rank):
    """The number of the cell for a rank, among those that there are, and whether it exists."""
    divisor = tl.where(found[3] != 0, found[3], 1)
    number = (rank - found[1]) // divisor - cells[0]
    goes = (number + cells[0]) * divisor + found[1] == rank
    return number, goes & (number >= 0) & (number < cells[1])


@triton.jit
def segment_counts(found):
    """Counts of the loops over a cell's segments, at least 1: there are no points otherwise."""
    counts, made = found[4], ()
    for i in tl.static_range(len(counts)):
        count = tl.maximum(counts[i], 1)
        if i == len(counts) - 1:
            count = tl.where(found[3] != 0, 1, count)
        made = made + (count,)
    return made


@triton.jit
def loops_of(found, row: tl.constexpr):
    """The loops of a cell's field over its segments and then over the runs of one: counts, and
    steps in the source and in the target, in bytes."""
    _, _, _, rank_step, counts, src_steps, slot_steps, strides = found
    made, start, end = (), (), ()
    for i in tl.static_range(len(counts)):
        start = start + (src_steps[i] * row[2],)
        end = end + (slot_steps[i] * row[1],)
    zero = rank_step * 0
    for i in tl.static_range(len(row[4])):
        made = made + (zero + row[4][i],)
        if row[5][i] < 0:
            start = start + (strides[-1 - row[5][i]] * row[2],)
        else:
            start = start + (zero + row[5][i] * row[2],)
        end = end + (zero + row[6][i],)
    return segment_counts(found) + made, start, end


@triton.jit
def cell_steps(found, row: tl.constexpr):
    """Bytes from cell to cell, in the source and in the target; 0 of one cell."""
    _, _, _, rank_step, counts, src_steps, slot_steps, _ = found
    last: tl.constexpr = len(counts) - 1
    start = tl.where(rank_step != 0, src_steps[last] * row[2], 0)
    return start, tl.where(rank_step != 0, slot_steps[last] * row[1], 0)
