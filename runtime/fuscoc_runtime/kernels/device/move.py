"""Dispatch where slots follow from pieces: programs copy the boxes that `made_boxes` makes,
straight to their slots. A program takes the next item of all, with the cells of a box in turn, so
that no two ranks store to the same one for long, and own rows go with the others. Of many boxes,
whose ranks inputs say, items are taken from several places of the list in turn, since boxes of a
rank may follow each other.

Some programs first mark the slots that all ranks fill here: where two points have one, it is filled
twice, by either, and counted. The others help when they have copied, if all ranks have told their
slots by then: those that wait are so few that a rank which shares the GPU has room to tell. Where
all ranks keep their boxes nothing has changed since that was done. Each tells the peers when what
it has stored has come; the last one to leave waits until all of theirs have.

The kernel may run beside the planner: its programs wait for the boxes. Where these may be kept,
each hears by itself whether they are; in a call of few items it has read by then what it copies
first.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, vectors, sync = load("words"), load("vectors"), load("sync")
boxes, lines = load("boxes"), load("lines")
of_piece, made_boxes, kept = load("cells"), load("made_boxes"), load("kept")

MARKERS = tl.constexpr(16)  # one program in so many waits for slots, and marks them, then copies
PLACES_OF_LIST = tl.constexpr(16)  # that items of many boxes are taken from
FEW_TURNS = tl.constexpr(2)  # of a program, on average: then the first item is read ahead
MARKS = tl.constexpr(256)  # words of slots that are marked at once
LOOKS = tl.constexpr(64)  # at all arrivals, before each is a wait that the host may be shown
ARRIVED = tl.constexpr(1 << 16)  # of a rank in a dispatch; a program tells a part of it


@triton.jit
def dispatch(
    call, ticket, begun, source_fields, source_bytes, rows_at, rows: tl.constexpr,
    steps: tl.constexpr, num_loops: tl.constexpr, lines_at_once: tl.constexpr,
    item_lines: tl.constexpr, apart: tl.constexpr, fixed: tl.constexpr, holds: tl.constexpr,
):  # fmt: skip
    """``rows`` and ``fixed`` as in `pieces`; boxes have ``steps`` loops, marks ``num_loops``. A
    program copies so many of the ``lines_at_once`` of a field. Where segments must lie ``apart``,
    ``begun`` is the address of i32, a bit a source cell, 0 all. If boxes may be kept, and a program
    ``holds`` an item, of words of the one field, that field of the source has ``source_bytes``."""
    state = sync.array(call, words.STATE, tl.int32)
    epoch = tl.load(state + words.PLAN_EPOCH) + 1
    half = tl.load(sync.array(call, words.FORTH, tl.int64))
    num_items, takes, places, part = items_of(call, half, len(rows), fixed)
    is_kept = num_items != num_items
    turn = sync.first_item(state, words.NEXT_ITEM, takes)
    ahead = turn * 0  # turns that programs have had already, behind which the counter goes on
    if fixed:
        reads_ahead = holds
        if holds:  # otherwise nothing is compiled of what reads ahead
            reads_ahead = num_items <= FEW_TURNS * tl.num_programs(0)
        if reads_ahead:
            own = item_of(tl.program_id(0).to(tl.int64), places, part)
            is_kept = copy_ahead(
                call, epoch, half, own, num_items, source_fields[0], source_bytes, rows_at[0],
                steps, item_lines,
            )  # fmt: skip
            ahead = tl.where(is_kept, tl.num_programs(0), 0).to(tl.int64)
        else:
            is_kept = kept.all_say_so(call, epoch, kept.hear(call))
    if is_kept == 0:
        sync.await_published(call, words.PLANNED, epoch)
        half = made_boxes.running_half(call)
        had = takes
        num_items, takes, places, part = items_of(call, half, len(rows), fixed)
        num_items = tl.where(sync.aborted(call) != 0, 0, num_items)
        if takes != had:
            turn = sync.first_item(state, words.NEXT_ITEM, takes)
    turn += ahead
    num_turns = places * part
    for time in range(tl.where(is_kept, 1, 2)):  # that a program looks for items, and for slots
        if is_kept == 0:
            marks = tl.program_id(0) % MARKERS == 0
            if time == 1:
                marks = have_told(call, epoch)
            if marks:
                mark_all(call, epoch, num_loops)
        if apart:
            if time == 1:  # it has copied, and nobody waits for this
                mark_cells(call, begun, num_loops, rows[0][1])
        while turn < num_turns:  # none is left the second time
            following = sync.next_item(state, words.NEXT_ITEM, num_turns, takes) + ahead
            item = item_of(turn, places, part)
            if item < num_items:
                copy(
                    call, half, item, source_fields, rows_at, rows, steps, lines_at_once, item_lines
                )
            turn = following
    # All that is needed to leave is read while what was stored is on its way.
    routing = sync.array(call, words.ROUTING, tl.int32)
    forth = sync.array(call, words.FORTH, tl.int64)
    use = tl.load(routing + words.USES) + 1
    there, others, here = arrivals(call)
    if leave(call, state, there, others, is_kept):
        sync.follow()  # until the planner, too, has written all down
        tl.store(forth, half)
        sync.number_next(state, routing, epoch, ticket, use)
        untold = sync.has_untold(state)  # which is loaded while it looks
        lacks = lack_arrivals(call, here, epoch)
        if untold:  # which all threads have read before one of them looked
            sync.bring_troubles(call)
        if lacks:
            await_arrived(call, here, epoch)  # last, so that nothing is left to do behind it


@triton.jit
def items_of(call, half, num_fields: tl.constexpr, fixed: tl.constexpr):
    """How many items there are; whether programs take them from the counter, or, as there are no
    more items than programs, each has that of its number; from how many places of the list, and how
    many there are of a place."""
    said, _ = made_boxes.forth(call, half, num_fields)
    num_items = tl.load(said + made_boxes.NUM_ITEMS)
    takes = num_items == num_items
    if fixed:
        takes = num_items > tl.num_programs(0)
    places = tl.where(takes & (tl.load(said + made_boxes.NUM_FORTH) > 1), PLACES_OF_LIST, 1)
    return num_items, takes, places, (num_items + places - 1) // places


@triton.jit
def item_of(turn, places, part):
    """The item that is taken in its turn; there may be none."""
    return turn % places * part + turn // places


@triton.jit
def copy_ahead(
    call, epoch, half, item, num_items, source, source_bytes, rows_at, steps: tl.constexpr,
    item_lines: tl.constexpr,
):  # fmt: skip
    """Copy an item, if there are so many, and all ranks keep their boxes; whether they do. It
    reads before it knows: of a source that is smaller now than boxes say, as much as there is."""
    box, _, _, start, end, inside = ends_of(call, half, item, 1, steps)
    first = (inside * item_lines).to(tl.int32)
    last = tl.minimum(first + item_lines, tl.load(box + boxes.NUM_LINES).to(tl.int32))
    last = tl.where(item < num_items, last, first)
    at, to, live, _ = lines.words_of(
        box, source + start, rows_at + end, first, last, 0, steps, item_lines
    )
    there = (at >= source) & (at + boxes.LINE <= source + source_bytes)
    told = kept.hear(call)  # whose answer need not wait until all else is there
    found = lines.load_words(at, live & there)
    is_kept = kept.all_say_so(call, epoch, told)
    lines.store_words(to, found, live & is_kept)
    return is_kept


@triton.jit
def copy(
    call, half, item, source_fields, rows_at, rows: tl.constexpr, steps: tl.constexpr,
    lines_at_once: tl.constexpr, item_lines: tl.constexpr,
):  # fmt: skip
    """An item of all boxes, which are of all fields in turn."""
    box, which, rank, start, end, inside = ends_of(call, half, item, len(rows), steps)
    if of_piece.refuses(call, rank) == 0:
        for field in tl.static_range(len(rows)):
            if which == field:
                lines.copy_item(
                    box, source_fields[field] + start, rows_at[field] + end, inside, inside * 0,
                    0, 0, steps, rows[field][0], rows[field][3] < boxes.LINE,
                    lines_at_once[field], item_lines, False,
                )  # fmt: skip


@triton.jit
def ends_of(call, half, item, num_fields: tl.constexpr, steps: tl.constexpr):
    """What an item copies: its box, the field, the rank that has the other end, both ends, and its
    number in its cell. There are fewer items than `boxes.MOST`, so 32 bits are enough."""
    said, first = made_boxes.forth(call, half, num_fields)
    num_boxes = tl.load(said + made_boxes.NUM_FORTH)
    index, item = lines.find(said + made_boxes.BEFORE, num_boxes, item)
    size: tl.constexpr = boxes.STEPS + boxes.STEP_WORDS * steps
    box = sync.array(call, words.BOXES_FORTH, tl.int64) + (first + index) * size
    num_cells = tl.maximum(tl.load(box + boxes.NUM_CELLS), 1).to(tl.uint32)
    item = item.to(tl.uint32)
    # Cells in turn, that of the next rank first: ranks begin with different ones.
    me = sync.word(call, words.RANK).to(tl.uint32)
    cell = ((item % num_cells + me + 1) % num_cells).to(tl.int64)
    rank = tl.load(box + boxes.RANK) + cell * tl.load(box + boxes.RANK_STEP)
    start = tl.load(box + boxes.FROM) + cell * tl.load(box + boxes.CELL_FROM)
    end = tl.load(box + boxes.TO) + cell * tl.load(box + boxes.CELL_TO)
    end += sync.window(call, rank)
    return box, index % num_fields, rank, start, end, (item // num_cells).to(tl.int64)


@triton.jit
def leave(call, state, there, others, is_kept):
    """As `sync.leave`, when all peers have been told that what this program has stored has come,
    unless nobody waits for it."""
    tl.debug_barrier()  # the stores of every thread come first
    goes = is_kept
    if is_kept == 0:
        goes = sync.aborted(call) == 0
    if goes:
        arrive(there, others, tl.where(tl.program_id(0) == 0, ARRIVED - tl.num_programs(0) + 1, 1))
    # The fence of `arrive` is behind all that was read and stored, and GPUs let no atomic of its
    # warp pass it, which is the first one: this one need not wait until what was added is there.
    return sync.is_last(state, tl.atomic_add(state + words.EXITS, 1, sem="relaxed"))


@triton.jit
def arrivals(call):
    """Addresses of what counts arrivals: of this rank's at all ranks, and which of these are
    others, and of all ranks' here, for `sync.look`."""
    peer = tl.arange(0, words.MAX_RANKS)
    rank = sync.word(call, words.RANK)
    stride = sync.word(call, words.MAX_SOURCES)
    there = sync.section(call, peer, words.DISPATCH_FLAGS_AT, tl.int32) + rank * stride
    here = sync.section(call, rank, words.DISPATCH_FLAGS_AT, tl.int32)
    return there, is_other(call, peer), here + tl.arange(0, sync.lanes()) * stride


@triton.jit
def is_other(call, peer):
    """Which numbers are those of other ranks."""
    return (peer < sync.word(call, words.NUM_RANKS)) & (peer != sync.word(call, words.RANK))


@triton.jit
def arrive(there, others, part):
    """Add to what has arrived from this rank at every peer, behind all that was stored there. In a
    dispatch all parts are ``ARRIVED``, however many programs a rank has."""
    parts = tl.full((words.MAX_RANKS,), 0, tl.int32) + part
    tl.atomic_add(there, parts, mask=others, sem="release", scope="sys")


@triton.jit
def lack_arrivals(call, here, epoch):
    """Whether anything of any peer has not arrived. What has is for kernels behind this one, so
    nothing is acquired."""
    there = is_other(call, tl.arange(0, sync.lanes()))
    lacks = there & (epoch * ARRIVED - sync.look(here, there) > 0)
    return vectors.largest(lacks.to(tl.int32), 0) == 1


@triton.jit
def await_arrived(call, here, epoch):
    """Wait until everything of all peers has arrived."""
    rank = sync.word(call, words.RANK)
    num_ranks = sync.word(call, words.NUM_RANKS)
    stride = sync.word(call, words.MAX_SOURCES)
    flags = sync.section(call, rank, words.DISPATCH_FLAGS_AT, tl.int32)
    lacks = num_ranks > 1
    looks = 0
    while lacks & (looks < LOOKS):
        lacks = lack_arrivals(call, here, epoch)
        looks += 1
        sync.pause()
    for step in range(1, tl.where(lacks, num_ranks, 1)):
        peer = (rank + step) % num_ranks
        if of_piece.refuses(call, peer) == 0:
            stage: tl.constexpr = words.DISPATCH_GROUP_ROWS
            sync.wait(call, flags + peer * stride, epoch * ARRIVED, stage, peer, rank * 0)


@triton.jit
def mark_all(call, epoch, num_loops: tl.constexpr):
    """Mark the slots that all ranks have told this one, once they have: a box of each in turn."""
    state = sync.array(call, words.STATE, tl.int32)
    rank = sync.word(call, words.RANK)
    num_ranks = sync.word(call, words.NUM_RANKS)
    size: tl.constexpr = made_boxes.LOOPS + 2 * num_loops
    told = sync.section(call, rank, words.TOLD_AT, tl.int64)
    flags = sync.section(call, rank, words.TOLD_FLAGS_AT, tl.int32)
    most = num_ranks * 0
    for step in range(num_ranks):
        peer = (rank + step) % num_ranks
        if (of_piece.refuses(call, peer) == 0) & (peer != rank):
            stage: tl.constexpr = words.STAGED_SLOTS
            sync.wait(call, flags + peer, epoch, stage, peer, rank * 0)
        most = tl.maximum(most, num_told(call, told + peer, peer, epoch))
    number = sync.take(state, words.NEXT_GROUP)
    while number < most * num_ranks:
        peer = number % num_ranks
        if number // num_ranks < num_told(call, told + peer, peer, epoch):
            index = peer * sync.word(call, words.MAX_BOXES) + number // num_ranks
            marks = sync.section(call, rank, words.MARKS_AT, tl.int64) + index * size
            filled = sync.array(call, words.FILLED, tl.int32)
            mark(call, marks, filled, words.CLASHED, num_loops)
        number = sync.take(state, words.NEXT_GROUP)


@triton.jit
def have_told(call, epoch):
    """Whether all others have told this rank its slots by now."""
    peer = tl.arange(0, sync.lanes())
    there = is_other(call, peer)
    flags = sync.section(call, sync.word(call, words.RANK), words.TOLD_FLAGS_AT, tl.int32)
    lacks = there & (epoch - sync.look(flags + peer, there) > 0)
    return vectors.largest(lacks.to(tl.int32), 0) == 0


@triton.jit
def mark_cells(call, begun, num_loops: tl.constexpr, row_bytes: tl.constexpr):
    """Mark the source cells that this program's share of this rank's segments begins with. Rows of
    those that are marked already are not counted among the bytes that come back."""
    size: tl.constexpr = made_boxes.LOOPS + 2 * num_loops
    num_boxes = tl.load(sync.array(call, words.NUM_BOXES, tl.int64))
    for number in range(tl.program_id(0), num_boxes, tl.num_programs(0)):
        marks = sync.array(call, words.CELL_MARKS, tl.int64) + number * size
        times = mark(call, marks, begun.to(tl.pointer_type(tl.int32)), words.SHARED, num_loops)
        moved = sync.array(call, words.MOVED, tl.int64)
        if times > 0:
            tl.atomic_add(moved, -times * row_bytes, sem="relaxed", scope="gpu")


@triton.jit
def num_told(call, told, peer, epoch):
    """How many boxes a peer has told this rank for the running dispatch."""
    told = tl.load(told)
    came = ((told >> 32).to(tl.int32) == epoch) & (of_piece.refuses(call, peer) == 0)
    return tl.where(came, told & 0xFFFFFFFF, 0)


@triton.jit
def mark(call, marks, filled, trouble: tl.constexpr, num_loops: tl.constexpr):
    """Set the bits of the slots of a cell: a lane has a word of a range. How many of them are set
    already, which is counted, too."""
    again = tl.full((), 0, tl.int64)
    length = tl.load(marks + made_boxes.RANGE)
    num_words = length // 32 + 2  # of a range, wherever it begins
    num = tl.load(marks + made_boxes.NUM_RANGES) * num_words
    for begin in range(0, num, MARKS):
        at = begin + tl.arange(0, MARKS).to(tl.int64)
        number = at // num_words
        slot = tl.load(marks + made_boxes.FIRST) + number * 0
        for i in tl.static_range(num_loops):
            loop = marks + made_boxes.LOOPS + 2 * (num_loops - 1 - i)
            count = tl.load(loop)
            slot += number % count * tl.load(loop + 1)
            number = number // count
        word = slot // 32 + at % num_words
        low = tl.minimum(tl.maximum(slot - word * 32, 0), 32)
        high = tl.minimum(tl.maximum(slot + length - word * 32, 0), 32)
        one = tl.full((MARKS,), 1, tl.int64)
        bits = ((one << high) - (one << low)).to(tl.int32)
        has = (at < num) & (low < high)
        twice = tl.atomic_or(filled + word, bits, mask=has, sem="relaxed", scope="gpu") & bits
        twice = tl.where(has, twice, 0)
        if vectors.largest((twice != 0).to(tl.int32), 0) == 1:
            times = 0 * twice
            for bit in tl.static_range(32):
                times += (twice >> bit) & 1
            sync.note(call, trouble, vectors.total(times, 0))
            kept.spoil(call)
            again += vectors.total(times, 0)
    return again
