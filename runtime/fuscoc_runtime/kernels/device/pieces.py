"""Planning where slots follow from pieces: it makes boxes of them, those that this rank's dispatch
copies, those that bring its results to their places, and in the window of every rank that slots are
on those which that one's combine copies (`made_boxes`).

An entry, an image or a page, is what inputs say of the outer indices; a shuffle without such has
one. A program makes one kind of boxes of a piece at a time; the last program tells how many items
there are before each box. Where boxes are *fixed*, follow from extents and the ranks' slots alone,
those that a ring entry has are `kept` until one of these changes.

``piece(number, entry, cells_before, given)`` is the shuffle's own: what the relation says of a
piece of an entry, as in `cells`. ``sizes(entry, given)`` are (points, cells, whether that can be)
of entries of a ragged source. ``rows`` are sizes of its fields: (unit, bytes of a row, of a cell,
of a run, counts of loops over runs, their strides in cells, or -1 - i for the i-th that the
relation says, and in the row in bytes).
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, vectors, sync, plan = load("words"), load("vectors"), load("sync"), load("plan")
of_piece, made_boxes, kept = load("cells"), load("made_boxes"), load("kept")
reports = load("reports")

AT_ONCE = tl.constexpr(256)  # entries, boxes or words of slots that a program looks at at once
STALE = tl.constexpr(4)  # of what is taken: whether boxes are to be made,
CHAINS = tl.constexpr(5)  # those of `chains` so far,
KEPT = tl.constexpr(6)  # and whether those of all ranks are kept
MEETS, PLACES = tl.constexpr(1), tl.constexpr(2)  # what a launch does, if not both
LEADS = tl.constexpr(3)  # both, and what copies comes before it has met the other ranks
MOST_POINTS = tl.constexpr(2.0**62)  # of an entry
MOST_SIZES = tl.constexpr(4e18)  # points and cells beyond which they are not added up


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
def meet(
    call, part, num_sources, num_slots, num_cells, num_entries, given, sizes: tl.constexpr,
    fanout: tl.constexpr, ragged: tl.constexpr, fixed: tl.constexpr,
):  # fmt: skip
    """Tell the slots of all ranks and hear theirs, and see how many entries there are, unless all
    ranks keep their boxes: the first program does so, the others wait for it. Where these are many,
    ``part`` says that this is a launch of one program for that, or the one behind it. A ragged
    source has ``num_cells``, unless that is -1. What copies comes when no peer is waited for any
    more, or at once."""
    sync.follow()
    if part == LEADS:
        sync.lead()
    state = sync.array(call, words.STATE, tl.int32)
    epoch = tl.load(state + words.PLAN_EPOCH) + 1
    if (tl.program_id(0) == 0) & (part != PLACES):
        num_points = tl.minimum(num_sources, sync.word(call, words.MAX_SOURCES)) * fanout
        is_kept = num_slots != num_slots
        if fixed:
            is_kept = kept.is_kept(call, epoch, num_slots, num_points, given)
        else:
            kept.tell(call, epoch, 0)  # who waits for this rank in a combine hears that it goes on
        taken = sync.array(call, words.TAKEN, tl.int64)
        tl.store(taken + KEPT, is_kept.to(tl.int64))
        if is_kept:
            tl.store(taken + STALE, 0)
            sync.publish(call, words.PLANNED, epoch)
            kept.renew(call, epoch)
        else:
            slots = tl.full((1,), 0, tl.int32) + num_slots.to(tl.int32)
            sources = reports.told_sources(call, 0, num_sources)
            plan.store_counts(call, 0, sources, tl.arange(0, 1), slots, of_piece.COLUMNS, True)
            plan.flag_counts(call, 0, 1)
            plan.await_counts(call, 0, 1)
            write_down(
                call, num_sources, num_slots, num_cells, num_entries, given, sizes, fanout, ragged,
                fixed,
            )  # fmt: skip
        sync.publish(call, words.MET, epoch)
    elif part != PLACES:
        sync.await_published(call, words.MET, epoch)
    sync.lead()


@triton.jit
def write_down(
    call, num_sources, num_slots, num_cells, num_entries, given, sizes: tl.constexpr,
    fanout: tl.constexpr, ragged: tl.constexpr, fixed: tl.constexpr,
):  # fmt: skip
    """What ranks have told, and what boxes there are to make."""
    most = sync.word(call, words.MAX_ENTRIES)
    num_entries = most * 0 + num_entries
    if num_entries > most:  # beyond what there is memory for
        sync.note(call, words.EXCESS, tl.minimum(num_entries - most, of_piece.MANY).to(tl.int32))
        num_entries = most * 0
    room = sync.word(call, words.MAX_SOURCES) * fanout
    num_points = num_sources * fanout
    if ragged:
        num_entries, num_points = measure(call, num_entries, num_cells, given, sizes)
    failed = sync.aborted(call) != 0
    plan.store_sources(call, plan.counts_of_ranks(call, of_piece.COLUMNS), of_piece.COLUMNS, failed)
    taken = sync.array(call, words.TAKEN, tl.int64)
    tl.store(taken, 0)
    tl.store(taken + 1, 0)
    tl.store(taken + CHAINS, 0)
    tl.store(taken + 2, tl.where(failed, 0, num_entries))
    tl.store(taken + 3, num_points)
    moved = sync.array(call, words.MOVED, tl.int64)
    tl.store(moved + 1, tl.minimum(num_points, room))
    stale = num_slots == num_slots
    if fixed:
        stale = kept.is_stale(call, given) | failed
        half = tl.load(sync.array(call, words.FORTH, tl.int64))
        tl.store(taken + made_boxes.HALF, tl.where(stale, 1 - half, half))
    tl.store(taken + STALE, stale.to(tl.int64))
    if stale:
        peers = tl.arange(0, words.MAX_RANKS)
        tl.store(moved + 2 + peers, tl.full((words.MAX_RANKS,), 0, tl.int64))
        tl.store(moved, 0)
    filled = sync.array(call, words.FILLED, tl.int32)
    for start in range(0, (num_slots + 31) // 32, AT_ONCE):
        at = start + tl.arange(0, AT_ONCE)
        tl.store(filled + at, tl.full((AT_ONCE,), 0, tl.int32), mask=at * 32 < num_slots)


@triton.jit
def place(
    call, part, given, piece: tl.constexpr, num_pieces: tl.constexpr, rows: tl.constexpr,
    item_lines: tl.constexpr, fanout: tl.constexpr, ragged: tl.constexpr, fixed: tl.constexpr,
    comes_back: tl.constexpr, apart: tl.constexpr,
):  # fmt: skip
    """The boxes of all entries, unless those that are there are right, behind `meet`."""
    num_entries = tl.load(sync.array(call, words.TAKEN, tl.int64) + 2)
    stale = tl.load(sync.array(call, words.TAKEN, tl.int64) + STALE)
    kinds: tl.constexpr = 1 + len(rows) + comes_back
    num_jobs = tl.where((stale != 0) & (part != MEETS), num_entries * (num_pieces * kinds), 0)
    cells_before = sync.array(call, words.CELLS_BEFORE, tl.int64)
    for job in range(tl.program_id(0), num_jobs, tl.num_programs(0)):
        entry = job // (num_pieces * kinds)
        exists = entry >= 0
        if ragged:
            exists = has_room(call, entry, num_entries, job % (num_pieces * kinds) == 0, fanout)
        which = job // kinds % num_pieces
        found = of_piece.as_numbers(piece(0, entry, cells_before, given), entry * 0)
        for number in tl.static_range(1, num_pieces):
            other = of_piece.as_numbers(piece(number, entry, cells_before, given), entry * 0)
            found = of_piece.chosen(which == number, other, found)
        cells = of_piece.cells_of(call, exists, found)
        index = entry * num_pieces + which
        made_boxes.make(call, job % kinds, index, found, cells, rows, item_lines, comes_back, apart)
    made = sync.array(call, words.TAKEN, tl.int64) + 2
    finish(call, part, made, made, num_pieces, stale, len(rows), fixed, comes_back)


@triton.jit
def finish(
    call, part, made, kept_of, each, stale, num_fields: tl.constexpr, fixed: tl.constexpr,
    comes_back: tl.constexpr,
):  # fmt: skip
    """The last program to come here counts the items of all boxes and tells how many there are:
    ``each`` times the number at ``made``, or at ``kept_of`` if those that are there are right. So
    it is unless all ranks keep theirs."""
    is_kept = tl.load(sync.array(call, words.TAKEN, tl.int64) + KEPT) != 0
    if (is_kept == 0) & (part != MEETS):
        tl.debug_barrier()  # the stores of every thread come first
        exits = sync.array(call, words.STATE, tl.int32) + words.EXITS
        if tl.atomic_add(exits, 1, sem="acq_rel", scope="sys") == tl.num_programs(0) - 1:
            tl.store(exits, 0)
            if stale != 0:
                num_boxes = tl.atomic_add(made, 0) * each  # which programs have counted up
                add_up_all(call, num_boxes, num_fields, comes_back)
                if fixed:
                    kept.keep(call)
            else:
                num_boxes = tl.load(kept_of) * each
            tell_boxes(call, num_boxes)
            epoch = tl.load(sync.array(call, words.STATE, tl.int32) + words.PLAN_EPOCH) + 1
            sync.publish(call, words.PLANNED, epoch)


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
    of_piece.drop(call, words.EXCESS, tl.where(counts & (end > room), end - begin, 0))
    return end <= room


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
    return total


@triton.jit
def add_up_all(call, num_boxes, num_fields: tl.constexpr, comes_back: tl.constexpr):
    """Add up the items of new boxes, also at the ranks that have been told them."""
    said, _ = made_boxes.forth(call, made_boxes.running_half(call), num_fields)
    before = said + made_boxes.BEFORE
    tl.store(said + made_boxes.NUM_ITEMS, add_up(before, before, num_boxes * num_fields))
    tl.store(said + made_boxes.NUM_FORTH, num_boxes * num_fields)
    tl.store(sync.array(call, words.NUM_BOXES, tl.int64), num_boxes)
    if comes_back:
        arriving = sync.array(call, words.BACK_BEFORE, tl.int64)
        add_up(arriving, arriving, num_boxes)
        me = sync.word(call, words.RANK)
        for peer in range(sync.word(call, words.NUM_RANKS)):
            if (of_piece.refuses(call, peer) == 0) & (sync.aborted(call) == 0):
                before = made_boxes.told(call, peer, words.BEFORE_AT, 0, 1) + me
                add_up(made_boxes.items_for(call, peer), before, num_boxes)


@triton.jit
def tell_boxes(call, num_boxes):
    """Tell every rank how many boxes it has been told; by the last program."""
    epoch = tl.load(sync.array(call, words.STATE, tl.int32) + words.PLAN_EPOCH) + 1
    me = sync.word(call, words.RANK)
    tagged = (epoch.to(tl.int64) << 32) | num_boxes
    # What is sent when nobody waits any more could be taken for an earlier call's.
    if sync.aborted(call) == 0:
        for peer in range(sync.word(call, words.NUM_RANKS)):
            if of_piece.refuses(call, peer) == 0:
                tl.store(sync.section(call, peer, words.TOLD_AT, tl.int64) + me, tagged)
        sync.signal(call, words.TOLD_FLAGS_AT, me, epoch)
