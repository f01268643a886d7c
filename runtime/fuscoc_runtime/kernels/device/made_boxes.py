"""Boxes of a piece, as `cells` has it: those that this rank's dispatch copies, those that bring its
results to their places, and what it tells every rank of its cell.

Results come back by way of this rank's staging memory, where each box has a part: the bytes of a
cell in the order of the source, each range as far from a multiple of 16 as in the result. So a peer
puts lines together from its rows, what is left is to copy them, and both cut ranges into the same
lines: an item that is sent is an item that is received. Every item has a flag there. Where results
may be lent, peers are told the same of their places in these, too: items are the same.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, sync = load("words"), load("sync")
boxes, of_piece = load("boxes"), load("cells")

HALF = tl.constexpr(7)  # of what is taken: the half that boxes forth of the call are in
# Words of what is said of such boxes, i64: the half that those of the latest dispatch are in, and
# behind it of either half
NUM_FORTH = tl.constexpr(0)  # how many there are,
NUM_ITEMS = tl.constexpr(1)  # items of all,
BEFORE = tl.constexpr(2)  # [MAX_BOXES * fields + 1] and items before each
# Words of marks, i64: the slots of a cell, ranges of some, loops apart.
FIRST = tl.constexpr(0)
RANGE = tl.constexpr(1)
NUM_RANGES = tl.constexpr(2)
LOOPS = tl.constexpr(3)  # (count, step) of each


@triton.jit
def make(
    call, kind, index, found, cells, rows: tl.constexpr, item_lines: tl.constexpr,
    comes_back: tl.constexpr, apart: tl.constexpr,
):  # fmt: skip
    """One kind of what there is for a piece."""
    if kind == 0:
        tell_slots(call, index, found, cells, rows[0][1])
        if apart:
            keep_cells(call, index, found, cells)
    for field in tl.static_range(len(rows)):
        if kind == 1 + field:
            at = index * len(rows) + field
            make_forth(call, at, found, cells, rows[field], item_lines, len(rows))
    if comes_back:
        if kind == 1 + len(rows):
            make_back(call, index, found, cells, rows[0], item_lines)


@triton.jit
def running_half(call):
    """The half that boxes of the running call are in which dispatch copies; see `kept`."""
    return tl.load(sync.array(call, words.TAKEN, tl.int64) + HALF)


@triton.jit
def forth(call, half, num_fields: tl.constexpr):
    """What is said of these boxes, and the number of the first one."""
    first = half * sync.word(call, words.MAX_BOXES) * num_fields
    return sync.array(call, words.FORTH, tl.int64) + 1 + first + half * (BEFORE + 1), first


@triton.jit
def make_forth(
    call, index, found, cells, row: tl.constexpr, item_lines: tl.constexpr,
    num_fields: tl.constexpr,
):  # fmt: skip
    """A box that dispatch copies."""
    first, num, points, _ = cells
    counts, start, end = of_piece.loops_of(found, row)
    counts, end, start = boxes.sort_loops(counts, end, start)
    run_bytes = num * 0 + row[3]
    outer, nbytes = boxes.outer_loops(counts, end, run_bytes)
    shape, num_lines, fits = boxes.shape_of(counts, start, end, outer, nbytes, run_bytes, row[0])
    of_piece.drop(call, words.OVERFLOWED, tl.where(fits, 0, num * points))
    items = tl.where((num > 0) & fits, (num_lines + item_lines - 1) // item_lines, 0)
    cell_from, cell_to = of_piece.cell_steps(found, row)
    place = found[0] * row[2] + first * cell_from
    to = found[2] * row[1] + first * cell_to
    # Programs without an item look at a box, too: its rank exists.
    rank = tl.where(num > 0, found[1] + first * found[3], 0)
    size: tl.constexpr = boxes.SHAPE + len(shape)
    said, first_box = forth(call, running_half(call), num_fields)
    box = sync.array(call, words.BOXES_FORTH, tl.int64) + (first_box + index) * size
    boxes.store(box, (place, to, cell_from, cell_to, num, rank, found[3], items, 0) + shape, 0)
    tl.store(said + BEFORE + index, items * num)


@triton.jit
def tell_slots(call, index, found, cells, row_bytes: tl.constexpr):
    """Tell every rank the slots of its cell, and count the points that go to each."""
    of_piece.drop(call, words.BAD_KEYS, cells[3])
    moved = sync.array(call, words.MOVED, tl.int64)
    tl.atomic_add(moved, cells[1] * cells[2] * row_bytes, sem="relaxed", scope="gpu")
    last: tl.constexpr = len(found[4]) - 1
    slot_step = tl.where(found[3] != 0, found[6][last], 0)
    counts, steps, _ = boxes.sort_loops(of_piece.segment_counts(found), found[6], found[6])
    zero = cells[1] * 0
    outer, in_range = boxes.outer_loops(counts, steps, zero + 1)
    num_ranges, loops = zero + 1, ()
    for i in tl.static_range(last + 1):
        count = tl.where(outer[i], counts[i], 1)
        num_ranges *= count
        loops = loops + (count, steps[i])
    for peer in range(sync.word(call, words.NUM_RANKS)):
        if of_piece.refuses(call, peer) == 0:
            number, there = of_piece.cell_for(found, cells, peer)
            begin = found[2] + (cells[0] + number) * slot_step
            marks = told(call, peer, words.MARKS_AT, index, LOOPS + 2 * (last + 1))
            boxes.store(marks, (begin, in_range, tl.where(there, num_ranges, 0)) + loops, 0)
            if there:
                tl.atomic_add(moved + 2 + peer, cells[2], sem="relaxed", scope="gpu")


@triton.jit
def keep_cells(call, index, found, cells):
    """Keep the source cells that segments of a piece begin with, as slots are told: of all of it,
    since the rank of a piece that inputs place does not move."""
    counts, steps, _ = boxes.sort_loops(of_piece.segment_counts(found), found[5], found[5])
    zero = cells[1] * 0
    outer, in_range = boxes.outer_loops(counts, steps, zero + 1)
    num_ranges, loops = tl.minimum(cells[1], 1), ()
    for i in tl.static_range(len(counts)):
        count = tl.where(outer[i], counts[i], 1)
        num_ranges *= count
        loops = loops + (count, steps[i])
    marks = sync.array(call, words.CELL_MARKS, tl.int64) + index * (LOOPS + len(loops))
    boxes.store(marks, (found[0], in_range, num_ranges) + loops, 0)


@triton.jit
def pack(counts, start, outer, run_bytes, unit: tl.constexpr):
    """Steps of sorted loops in memory that holds ranges as far from a multiple of 16 as ``start``
    steps have them, and the bytes of all."""
    packed, nbytes = (), run_bytes
    for j in tl.static_range(len(counts) - 1, -1, -1):
        if unit < boxes.LINE:
            apart = boxes.floor_mod(start[j] - nbytes, boxes.LINE)
            nbytes += tl.where(outer[j] & (counts[j] > 1), apart, 0)
        packed = (nbytes,) + packed
        nbytes = nbytes * counts[j]
    return packed, nbytes


@triton.jit
def make_back(call, index, found, cells, row: tl.constexpr, item_lines: tl.constexpr):
    """A box that brings results of the first field home, and those that its ranks copy."""
    first, num, points, _ = cells
    unit: tl.constexpr = row[0]
    counts, start, end = of_piece.loops_of(found, row)
    counts, start, end = boxes.sort_loops(counts, start, end)
    run_bytes = num * 0 + row[3]
    outer, nbytes = boxes.outer_loops(counts, start, run_bytes)
    packed, pitch = pack(counts, start, outer, run_bytes, unit)
    cell_from, cell_to = of_piece.cell_steps(found, row)
    pitch += boxes.floor_mod(cell_from - pitch, boxes.LINE)
    home, num_lines, fits = boxes.shape_of(counts, packed, start, outer, nbytes, run_bytes, unit)
    sends, _, _ = boxes.shape_of(counts, end, packed, outer, nbytes, run_bytes, unit)
    keeps, _, _ = boxes.shape_of(counts, end, start, outer, nbytes, run_bytes, unit)
    items = (num_lines + item_lines - 1) // item_lines
    there = (num > 0) & fits
    room = tl.where(there, (pitch * num + boxes.LINE + 127) // 128 * 128, 0)
    num_flags = tl.where(there, items * num, 0)
    taken = sync.array(call, words.TAKEN, tl.int64)
    held = tl.atomic_add(taken, room, sem="relaxed", scope="gpu")
    flag = tl.atomic_add(taken + 1, num_flags, sem="relaxed", scope="gpu")
    fits = fits & (held + room <= sync.word(call, words.STAGING_BYTES))
    fits = fits & (flag + num_flags <= sync.word(call, words.MAX_FLAGS))
    of_piece.drop(call, words.OVERFLOWED, tl.where(fits, 0, num * points))
    items = tl.where((num > 0) & fits, items, 0)
    place = found[0] * row[2] + first * cell_from
    rank = found[1] + first * found[3]
    held += boxes.floor_mod(place, boxes.LINE)
    size: tl.constexpr = boxes.SHAPE + len(home)
    at = sync.array(call, words.BOXES_BACK, tl.int64) + index * size
    ends = (held, place, pitch, cell_from, num, rank, found[3], items, flag)
    boxes.store(at, ends + home, 0)
    tl.store(sync.array(call, words.BACK_BEFORE, tl.int64) + index, items * num)
    me = sync.word(call, words.RANK)
    for peer in range(sync.word(call, words.NUM_RANKS)):
        if of_piece.refuses(call, peer) == 0:
            number, goes = of_piece.cell_for(found, cells, peer)
            mine = tl.where(goes, items, 0)
            box = told(call, peer, words.BOXES_AT, index, size)
            to = held + number * pitch
            if peer == me:  # straight to the result
                to = place + number * cell_from
                boxes.store(box, keeps, boxes.SHAPE)
            else:
                boxes.store(box, sends, boxes.SHAPE)
            rows = found[2] * row[1] + (first + number) * cell_to
            boxes.store(box, (rows, to, 0, 0, 1, 0, 0, mine, flag + number * items), 0)
            if sync.word(call, words.BOXES_LENT_AT) != 0:
                box = told(call, peer, words.BOXES_LENT_AT, index, size)
                to = place + number * cell_from
                boxes.store(box, (rows, to, 0, 0, 1, 0, 0, mine, 0) + keeps, 0)
            tl.store(items_for(call, peer) + index, mine)


@triton.jit
def told(call, peer, name: tl.constexpr, index, size: tl.constexpr):
    """Where a window has what this rank tells of boxes, in so many words each."""
    first = sync.word(call, words.RANK) * sync.word(call, words.MAX_BOXES)
    return sync.section(call, peer, name, tl.int64) + (first + index) * size


@triton.jit
def items_for(call, peer):
    """Items of the boxes that this rank has told a peer."""
    at = peer * sync.word(call, words.MAX_BOXES)
    return sync.array(call, words.SENT_ITEMS, tl.int64) + at
