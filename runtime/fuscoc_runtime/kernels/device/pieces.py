"""Planning where slots follow from pieces: it makes boxes of them, those that this rank's dispatch
copies, those that bring its results to their places, and in the window of every rank that slots are
on those which that one's combine copies.

An entry, an image or a page, is what inputs say of the outer indices; a shuffle without such has
one. A program makes one kind of boxes of a piece at a time; the last program tells how many items
there are before each box.

A piece is dropped whole where a rank or a slot of it does not exist, and its points are counted.

Results come back by way of this rank's staging memory, where each box has a part: the bytes of a
cell in the order of the source, each range as far from a multiple of 16 as in the result. So a peer
puts lines together from its rows, what is left is to copy them, and both cut ranges into the same
lines: an item that is sent is an item that is received. Every item has a flag there.

``piece(number, entry, cells_before, given)`` is the shuffle's own: what the relation says of a
piece of an entry, as (first cell, rank, slot, step of the rank, counts, steps in cells, steps in
slots, strides of runs). The last one of its loops is the one that moves the rank, if that moves.
``sizes(entry, given)`` are (points, cells, whether that can be) of entries of a ragged source.
``rows`` are sizes of its fields: (unit, bytes of a row, of a cell, of a run, counts of loops over
runs, their strides in cells, or -1 - i for the i-th that the relation says, and in the row in
bytes).
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, vectors, sync, plan = load("words"), load("vectors"), load("sync"), load("plan")
boxes = load("boxes")

COLUMNS = tl.constexpr(1)  # what ranks tell: their slots
AT_ONCE = tl.constexpr(256)  # entries, boxes or words of slots that a program looks at at once
MANY = tl.constexpr(1 << 30)  # points that are counted at once, at most
MOST_POINTS = tl.constexpr(2.0**62)  # of an entry
MOST_SIZES = tl.constexpr(4e18)  # points and cells beyond which they are not added up

# Words of marks, i64: the slots of a cell, ranges of some, loops apart.
FIRST = tl.constexpr(0)
RANGE = tl.constexpr(1)
NUM_RANGES = tl.constexpr(2)
LOOPS = tl.constexpr(3)  # (count, step) of each


@triton.jit
def floor_div(value, by):
    """The quotient that is rounded down."""
    quotient = value // by
    return tl.where(value - quotient * by < 0, quotient - 1, quotient)


@triton.jit
def as_float(value):
    """A number as f64, of which products do not wrap."""
    return value.to(tl.float64)


@triton.jit
def measure(call, num_entries, num_cells, given, sizes: tl.constexpr):
    """Points and cells before every entry; the entries, none if sizes cannot be, and all points."""
    points = tl.full((), 0, tl.int64)
    cells = tl.full((), 0, tl.int64)
    most = tl.full((), 0, tl.float64)
    bad = tl.full((), 0, tl.int32)
    for first in range(0, num_entries, AT_ONCE):
        entry = first + tl.arange(0, AT_ONCE).to(tl.int64)
        exists = entry < num_entries
        num_points, num, fits = sizes(tl.minimum(entry, num_entries - 1), given)
        bad += vectors.total((exists & (fits == 0)).to(tl.int32), 0)
        num_points = tl.where(exists & fits, num_points, 0)
        num = tl.where(exists & fits, num, 0)
        most += vectors.total(num_points.to(tl.float64) + num.to(tl.float64), 0)
        at = sync.array(call, words.POINTS_BEFORE, tl.int64) + entry
        tl.store(at, points + vectors.running(num_points, 0) - num_points, mask=exists)
        at = sync.array(call, words.CELLS_BEFORE, tl.int64) + entry
        tl.store(at, cells + vectors.running(num, 0) - num, mask=exists)
        points += vectors.total(num_points, 0)
        cells += vectors.total(num, 0)
    bad = (bad > 0) | (most > MOST_SIZES) | ((num_cells >= 0) & (cells != num_cells))
    if bad:
        sync.note(call, words.BAD_SIZES, 1)
    return tl.where(bad, 0, num_entries), points


@triton.jit
def drop(call, trouble, points):
    """Count points that have no place."""
    if points > 0:
        sync.note_dropped(call, trouble, tl.minimum(points, MANY).to(tl.int32))


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
def cell_steps(found, row: tl.constexpr):
    """Bytes from cell to cell, in the source and in the target; 0 of one cell."""
    _, _, _, rank_step, counts, src_steps, slot_steps, _ = found
    last: tl.constexpr = len(counts) - 1
    start = tl.where(rank_step != 0, src_steps[last] * row[2], 0)
    return start, tl.where(rank_step != 0, slot_steps[last] * row[1], 0)


@triton.jit
def make_forth(call, index, found, cells, row: tl.constexpr, item_lines: tl.constexpr):
    """A box that dispatch copies."""
    first, num, points, _ = cells
    counts, start, end = loops_of(found, row)
    counts, end, start = boxes.sort_loops(counts, end, start)
    run_bytes = num * 0 + row[3]
    outer, nbytes = boxes.outer_loops(counts, end, run_bytes)
    shape, num_lines, fits = boxes.shape_of(counts, start, end, outer, nbytes, run_bytes, row[0])
    drop(call, words.OVERFLOWED, tl.where(fits, 0, num * points))
    items = tl.where((num > 0) & fits, (num_lines + item_lines - 1) // item_lines, 0)
    cell_from, cell_to = cell_steps(found, row)
    place = found[0] * row[2] + first * cell_from
    to = found[2] * row[1] + first * cell_to
    rank = found[1] + first * found[3]
    size: tl.constexpr = boxes.SHAPE + len(shape)
    box = sync.array(call, words.BOXES_FORTH, tl.int64) + index * size
    boxes.store(box, (place, to, cell_from, cell_to, num, rank, found[3], items, 0) + shape, 0)
    tl.store(sync.array(call, words.FORTH_BEFORE, tl.int64) + index, items * num)


@triton.jit
def cell_for(found, cells, rank):
    """The number of the cell for a rank, among those that there are, and whether it exists."""
    divisor = tl.where(found[3] != 0, found[3], 1)
    number = (rank - found[1]) // divisor - cells[0]
    goes = (number + cells[0]) * divisor + found[1] == rank
    return number, goes & (number >= 0) & (number < cells[1])


@triton.jit
def refuses(call, peer):
    """Whether a peer has refused the running dispatch."""
    refusing = tl.load(sync.array(call, words.ROUTING, tl.int32) + words.REFUSING)
    return (refusing >> peer) & 1 == 1


@triton.jit
def told(call, peer, name: tl.constexpr, index, size: tl.constexpr):
    """Where a window has what this rank tells of boxes, in so many words each."""
    first = sync.word(call, words.RANK) * sync.word(call, words.MAX_BOXES)
    return sync.section(call, peer, name, tl.int64) + (first + index) * size


@triton.jit
def tell_slots(call, index, found, cells, row_bytes: tl.constexpr):
    """Tell every rank the slots of its cell, and count the points that go to each."""
    drop(call, words.BAD_KEYS, cells[3])
    moved = sync.array(call, words.MOVED, tl.int64)
    tl.atomic_add(moved, cells[1] * cells[2] * row_bytes, sem="relaxed", scope="gpu")
    last: tl.constexpr = len(found[4]) - 1
    slot_step = tl.where(found[3] != 0, found[6][last], 0)
    counts, steps, _ = boxes.sort_loops(segment_counts(found), found[6], found[6])
    zero = cells[1] * 0
    outer, in_range = boxes.outer_loops(counts, steps, zero + 1)
    num_ranges, loops = zero + 1, ()
    for i in tl.static_range(last + 1):
        count = tl.where(outer[i], counts[i], 1)
        num_ranges *= count
        loops = loops + (count, steps[i])
    for peer in range(sync.word(call, words.NUM_RANKS)):
        if refuses(call, peer) == 0:
            number, there = cell_for(found, cells, peer)
            begin = found[2] + (cells[0] + number) * slot_step
            marks = told(call, peer, words.MARKS_AT, index, LOOPS + 2 * (last + 1))
            boxes.store(marks, (begin, in_range, tl.where(there, num_ranges, 0)) + loops, 0)
            if there:
                tl.atomic_add(moved + 2 + peer, cells[2], sem="relaxed", scope="gpu")


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
    counts, start, end = loops_of(found, row)
    counts, start, end = boxes.sort_loops(counts, start, end)
    run_bytes = num * 0 + row[3]
    outer, nbytes = boxes.outer_loops(counts, start, run_bytes)
    packed, pitch = pack(counts, start, outer, run_bytes, unit)
    cell_from, cell_to = cell_steps(found, row)
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
    drop(call, words.OVERFLOWED, tl.where(fits, 0, num * points))
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
        if refuses(call, peer) == 0:
            number, goes = cell_for(found, cells, peer)
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
            tl.store(items_for(call, peer) + index, mine)


@triton.jit
def items_for(call, peer):
    """Items of the boxes that this rank has told a peer."""
    at = peer * sync.word(call, words.MAX_BOXES)
    return sync.array(call, words.SENT_ITEMS, tl.int64) + at


@triton.jit
def add_up(counts, before, num):
    """Write what comes before each of some numbers, and what all are together."""
    total = tl.full((), 0, tl.int64)
    for first in range(0, num, AT_ONCE):
        at = first + tl.arange(0, AT_ONCE).to(tl.int64)
        count = tl.load(counts + at, mask=at < num, other=0)
        tl.store(before + at, total + vectors.running(count, 0) - count, mask=at < num)
        total += vectors.total(count, 0)
    tl.store(before + num, total)


@triton.jit
def tell_boxes(call, num_boxes, num_fields: tl.constexpr, comes_back: tl.constexpr):
    """Add up items, and tell every rank how many boxes it has been told; by the last program."""
    forth = sync.array(call, words.FORTH_BEFORE, tl.int64)
    add_up(forth, forth, num_boxes * num_fields)
    if comes_back:
        arriving = sync.array(call, words.BACK_BEFORE, tl.int64)
        add_up(arriving, arriving, num_boxes)
    tl.store(sync.array(call, words.NUM_BOXES, tl.int64), num_boxes)
    epoch = tl.load(sync.array(call, words.STATE, tl.int32) + words.PLAN_EPOCH) + 1
    me = sync.word(call, words.RANK)
    tagged = (epoch.to(tl.int64) << 32) | num_boxes
    # What is sent when nobody waits any more could be taken for an earlier call's.
    if sync.aborted(call) == 0:
        for peer in range(sync.word(call, words.NUM_RANKS)):
            if refuses(call, peer) == 0:
                if comes_back:
                    before = told(call, peer, words.BEFORE_AT, 0, 1) + me
                    add_up(items_for(call, peer), before, num_boxes)
                tl.store(sync.section(call, peer, words.TOLD_AT, tl.int64) + me, tagged)
        sync.signal(call, words.TOLD_FLAGS_AT, me, epoch)


@triton.jit
def meet(
    call, num_sources, num_slots, num_cells, num_entries, given, sizes: tl.constexpr,
    fanout: tl.constexpr, ragged: tl.constexpr,
):  # fmt: skip
    """Tell the slots of all ranks and hear theirs, and see how many entries there are; by one
    program. A ragged source has ``num_cells``, unless that is -1."""
    most = sync.word(call, words.MAX_ENTRIES)
    num_entries = most * 0 + num_entries
    if num_entries > most:  # beyond what there is memory for
        sync.note(call, words.EXCESS, tl.minimum(num_entries - most, MANY).to(tl.int32))
        num_entries = most * 0
    room = sync.word(call, words.MAX_SOURCES) * fanout
    num_points = num_sources * fanout
    if ragged:
        num_entries, num_points = measure(call, num_entries, num_cells, given, sizes)
    slots = tl.full((1,), 0, tl.int32) + num_slots.to(tl.int32)
    plan.tell_counts(call, num_sources, tl.arange(0, 1), slots, COLUMNS)
    failed = sync.aborted(call) != 0
    plan.store_sources(call, plan.counts_of_ranks(call, COLUMNS), COLUMNS, failed)
    taken = sync.array(call, words.TAKEN, tl.int64)
    tl.store(taken, 0)
    tl.store(taken + 1, 0)
    tl.store(taken + 2, tl.where(failed, 0, num_entries))
    tl.store(taken + 3, num_points)
    moved = sync.array(call, words.MOVED, tl.int64)
    peers = tl.arange(0, words.MAX_RANKS)
    tl.store(moved + 2 + peers, tl.full((words.MAX_RANKS,), 0, tl.int64))
    tl.store(moved, 0)
    tl.store(moved + 1, tl.minimum(num_points, room))
    filled = sync.array(call, words.FILLED, tl.int32)
    for start in range(0, (num_slots + 31) // 32, AT_ONCE):
        at = start + tl.arange(0, AT_ONCE)
        tl.store(filled + at, tl.full((AT_ONCE,), 0, tl.int32), mask=at * 32 < num_slots)


@triton.jit
def place(
    call, given, piece: tl.constexpr, num_pieces: tl.constexpr, rows: tl.constexpr,
    item_lines: tl.constexpr, fanout: tl.constexpr, ragged: tl.constexpr,
    comes_back: tl.constexpr,
):  # fmt: skip
    """The boxes of all entries."""
    num_entries = tl.load(sync.array(call, words.TAKEN, tl.int64) + 2)
    kinds: tl.constexpr = 1 + len(rows) + comes_back
    num_jobs = num_entries * (num_pieces * kinds)
    cells_before = sync.array(call, words.CELLS_BEFORE, tl.int64)
    for job in range(tl.program_id(0), num_jobs, tl.num_programs(0)):
        entry = job // (num_pieces * kinds)
        exists = entry >= 0
        if ragged:
            exists = has_room(call, entry, num_entries, job % (num_pieces * kinds) == 0, fanout)
        which = job // kinds % num_pieces
        found = as_numbers(piece(0, entry, cells_before, given), entry * 0)
        for number in tl.static_range(1, num_pieces):
            other = as_numbers(piece(number, entry, cells_before, given), entry * 0)
            found = chosen(which == number, other, found)
        cells = cells_of(call, exists, found)
        index = entry * num_pieces + which
        make(call, job % kinds, index, found, cells, rows, item_lines, comes_back)
    tl.debug_barrier()  # the stores of every thread come first
    exits = sync.array(call, words.STATE, tl.int32) + words.EXITS
    if tl.atomic_add(exits, 1, sem="acq_rel", scope="sys") == tl.num_programs(0) - 1:
        tl.store(exits, 0)
        tell_boxes(call, num_entries * num_pieces, len(rows), comes_back)


@triton.jit
def make(
    call, kind, index, found, cells, rows: tl.constexpr, item_lines: tl.constexpr,
    comes_back: tl.constexpr,
):  # fmt: skip
    """One kind of what there is for a piece."""
    if kind == 0:
        tell_slots(call, index, found, cells, rows[0][1])
    for field in tl.static_range(len(rows)):
        if kind == 1 + field:
            at = index * len(rows) + field
            make_forth(call, at, found, cells, rows[field], item_lines)
    # Two of them: only the first one is known when this is compiled.
    if comes_back:  # noqa: SIM102
        if kind == 1 + len(rows):
            make_back(call, index, found, cells, rows[0], item_lines)


@triton.jit
def has_room(call, entry, num_entries, counts, fanout: tl.constexpr):
    """Whether the points of an entry are among those that there is room for; one that ``counts``
    tells of the others."""
    room = sync.word(call, words.MAX_SOURCES) * fanout
    before = sync.array(call, words.POINTS_BEFORE, tl.int64) + entry
    num_points = tl.load(sync.array(call, words.TAKEN, tl.int64) + 3)
    begin = tl.load(before)
    end = tl.load(before + 1, mask=entry + 1 < num_entries, other=0)
    end = tl.where(entry + 1 < num_entries, end, num_points)
    drop(call, words.EXCESS, tl.where(counts & (end > room), end - begin, 0))
    return end <= room
