"""Combine: the transpose of dispatch, with a weighted sum, or another reduction, in f32.

Where rows lie, a program sums the rows of a remote segment and pushes one partial row to the
segment's source; after a group of segments it sets the group's flag there. At the source the
partials are added to the rank's own rows as they are flagged. A program that would have to wait for
a flag reduces meanwhile, and the first programs do so anyway; reducing never waits, so every flag
comes. Terms are added in the order of the points and then of the ranks: results do not depend on
timing.

``zero()``, ``add_row(part, rows, slot, weight, has, sums)``, ``add_partial(part, row, has, sums)``
and ``store_partial(part, row, sums)`` are the shuffle's own: they make one part of all fields of a
row, of those in slots or of one that has been sent, to an address; ``has`` says whether a row has
been added before. ``store_result(part, result, place, sums)`` stores it for a segment of this rank,
and ``lost()`` is a sum that cannot be made. With ``tile_rows`` above 1 rows are copied, many at
once, by the functions of ``many``.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, vectors, sync, points = load("words"), load("vectors"), load("sync"), load("points")
many, of_rows, ranks = load("many"), load("sums"), load("ranks")

BYTES = tl.constexpr(1024)  # poisoned at once


@triton.jit
def joins(call, peer):
    """Whether a peer has joined the dispatch, and so joins its combines."""
    return ranks.refuses(call, peer) == 0


@triton.jit
def note_refusal(call, rank):
    """Count that a rank has refused the running call, once, unless nobody waits for it any more."""
    state = sync.array(call, words.STATE, tl.int32)
    number = tl.load(state + words.NUM_COMBINES) + 1
    noted = state + words.REFUSALS + sync.word(call, words.NUM_KNOWN) + rank
    is_new = tl.atomic_xchg(noted, number) != number
    if is_new & (sync.aborted(call) == 0):
        sync.note(call, words.REFUSALS + rank, 1)


@triton.jit
def poison(to, nbytes):
    """Bytes of which any floating-point number is NaN, at an address."""
    to = to.to(tl.pointer_type(tl.int8))
    for start in range(0, nbytes, BYTES):
        at = start + tl.arange(0, BYTES).to(tl.int64)
        tl.store(to + at, tl.full((BYTES,), -1, tl.int8), mask=at < nbytes)


@triton.jit
def sent_here(call, source):
    """The lowest slot of a segment on each other rank of the node, -1 where it has none."""
    peers = tl.arange(0, words.MAX_RANKS)
    first = sync.array(call, words.FIRST_SLOTS, tl.int32) + source * words.MAX_RANKS
    is_other = (peers < sync.word(call, words.NUM_RANKS)) & (peers != sync.word(call, words.RANK))
    return tl.load(first + peers, mask=is_other, other=-1)


@triton.jit
def lacking(there, absent):
    """Ranks, in a vector, that have rows of a segment which do not come."""
    return ((there >= 0) & (ranks.each(absent) == 1)).to(tl.int32)


@triton.jit
def finalise(
    call, source, tag, absent, weights, rows, result, zero: tl.constexpr, add_row: tl.constexpr,
    add_partial: tl.constexpr, store_partial: tl.constexpr, store_result: tl.constexpr,
    lost: tl.constexpr, partial_bytes: tl.constexpr, fanout: tl.constexpr, lanes: tl.constexpr,
    parts: tl.constexpr, weighted: tl.constexpr, places: tl.constexpr, strided: tl.constexpr,
):  # fmt: skip
    """The result of a segment of this rank: its own rows, and a partial row of each other rank; NaN
    if one that ``absent`` ranks have does not come. If it ``places`` results, one that has no rows
    is left as it is: where it lies another may lie, too."""
    codes, bits = points.own_points(call, source, weights, fanout, lanes, weighted)
    slots = points.slots_here(call, codes)
    there = sent_here(call, source)
    place = source
    stores = True
    if places:
        place = points.cell_of(call, source, fanout, strided)
        stores = (vectors.largest(slots, 0) >= 0) | (vectors.largest(there, 0) >= 0)
    for part in range(parts):
        _, sums = of_rows.sum_here(
            call, part, source, slots, bits, there, rows, zero, add_row, add_partial,
            partial_bytes, fanout, lanes, weighted,
        )  # fmt: skip
        if stores:
            store_result(part, result, place, sums)
    lacks = lacking(there, absent)
    if vectors.largest(lacks, 0) == 1:
        tl.debug_barrier()
        for part in range(parts):
            store_result(part, result, place, lost())
        for peer in range(sync.word(call, words.NUM_RANKS)):
            if (vectors.pick(lacks, peer, words.MAX_RANKS) == 1) & joins(call, peer):
                note_refusal(call, peer)


@triton.jit
def same_source(call, first, end, index):
    """The segment at an index, of those that a kernel finalises: inside a node the same number."""
    return index


@triton.jit
def tell(call, name: tl.constexpr, peer, tag):
    """Write the combine that this rank has got to into a peer's window."""
    words_of = sync.section(call, peer, name, tl.int64)
    tl.atomic_xchg(words_of + sync.word(call, words.RANK), tag, sem="release", scope="sys")


@triton.jit
def reached(tag, other):
    """Whether one combine with a handle is the ``other`` or a later one; those with the handle of
    another dispatch are not."""
    return ((tag >> 32) == (other >> 32)) & ((tag - other).to(tl.int32) >= 0)


@triton.jit
def has_reached(call, name: tl.constexpr, peer, tag):
    """Whether a peer has told this rank of the combine."""
    at = sync.section(call, sync.word(call, words.RANK), name, tl.int64) + peer
    return reached(tl.atomic_add(at, 0, sem="acquire", scope="sys"), tag).to(tl.int32)


@triton.jit
def has_left(call, peer):
    """Whether a peer has begun a dispatch since this rank's latest: what it has not sent for the
    running call will not come."""
    state = sync.array(call, words.STATE, tl.int32)
    flags = sync.section(call, sync.word(call, words.RANK), words.PLAN_FLAGS_AT, tl.int32)
    at = flags + peer * sync.word(call, words.PLAN_BLOCKS)
    latest = tl.load(state + words.PLAN_EPOCH)
    left = tl.atomic_add(at, 0, sem="acquire", scope="sys") - latest > 0
    if sync.word(call, words.NOTES_AT) != 0:  # of pieces: flags are set where boxes are made
        at = sync.section(call, sync.word(call, words.RANK), words.NOTES_AT, tl.int32) + peer
        left = left | (tl.atomic_add(at, 0, sem="acquire", scope="sys") - 2 * latest > 1)
    return left.to(tl.int32)


@triton.jit
def flag_of(call, peer, group):
    """Where a peer flags its rows of a group."""
    flags = sync.section(call, sync.word(call, words.RANK), words.COMBINE_FLAGS_AT, tl.int64)
    return flags + peer * sync.word(call, words.MAX_SOURCES) + group


@triton.jit
def enter(call, tag, planned):
    """Tell the peers that this rank has begun the call, hence finished all before it. Without a
    plan since then, which has said so already, wait until they have told it, too: then their
    staging may be written. Whether it may."""
    entered = 1
    rank = sync.word(call, words.RANK)
    num_ranks = sync.word(call, words.NUM_RANKS)
    for step in range(1, num_ranks):
        peer = (rank + step) % num_ranks
        if joins(call, peer) & (tl.program_id(0) == 0):
            tell(call, words.BARRIER_AT, peer, tag)
    if planned == 0:
        entered = entered & told_by_all(call, words.BARRIER_AT, tag, tag)
    return entered


@triton.jit
def told_by_all(call, name: tl.constexpr, told, tag):
    """Wait until every peer that joins has ``told`` that it has got so far in the call with that
    ``tag``, or has refused it; whether all have."""
    stage: tl.constexpr = words.COMBINE_ENTER
    rank = sync.word(call, words.RANK)
    num_ranks = sync.word(call, words.NUM_RANKS)
    all_there = 1
    for step in range(1, num_ranks):
        peer = (rank + step) % num_ranks
        if joins(call, peer):
            there = has_reached(call, name, peer, told)
            if there == 0:
                polls = 0
                shown = 0
                stopped = 0
                while (there == 0) & (stopped == 0):
                    stopped = sync.aborted(call)
                    there = has_reached(call, name, peer, told)
                    there |= has_reached(call, words.REFUSED_AT, peer, tag)
                    there |= has_left(call, peer)
                    polls += 1
                    shown = sync.show(call, polls, shown, stage, peer, 0)
                    sync.pause()
                all_there = all_there & there
                if there == 1:
                    sync.end_wait(call, shown)
    return all_there


@triton.jit
def flagged_by_all(call, group, tag):
    """Whether every peer that joins has flagged a group, without waiting for it."""
    rank = sync.word(call, words.RANK)
    num_ranks = sync.word(call, words.NUM_RANKS)
    there = 1
    for step in range(1, num_ranks):
        peer = (rank + step) % num_ranks
        if joins(call, peer):
            there = there & sync.is_there(flag_of(call, peer, group), tag)
    return there != 0


@triton.jit
def wait_for_flags(call, group, tag):
    """Wait until they have. The set of those that have refused the call instead, or that the host
    wants nobody to wait for any more."""
    rank = sync.word(call, words.RANK)
    num_ranks = sync.word(call, words.NUM_RANKS)
    absent = ranks.none()
    for step in range(1, num_ranks):
        peer = (rank + step) % num_ranks
        if joins(call, peer):
            there = wait_for_rows(call, flag_of(call, peer, group), peer, group, tag)
            absent |= ranks.one(peer, 1 - there)
    return absent


@triton.jit
def wait_for_rows(call, flag, peer, item, tag):
    """Wait for what a peer flags; whether it has come."""
    stage: tl.constexpr = words.COMBINE_GROUP_ROWS
    there = sync.is_there(flag, tag)
    if there == 0:
        refused = 0
        polls = 0
        shown = 0
        stopped = 0
        while (there == 0) & (refused == 0) & (stopped == 0):
            polls += 1
            if polls % sync.POLLS == 0:
                stopped = sync.aborted(call)
                # One that has refused this call, or a later one, has sent all it ever will: what it
                # has not flagged by now does not come.
                refused = has_reached(call, words.REFUSED_AT, peer, tag)
                refused |= has_left(call, peer)
                shown = sync.show(call, polls, shown, stage, peer, item)
            there = sync.is_there(flag, tag)
            sync.pause()
        if (there == 1) | (refused == 1):
            sync.end_wait(call, shown)
    return there


@triton.jit
def refuse(call, tag):
    """Tell the peers that this rank does not join the call."""
    rank = sync.word(call, words.RANK)
    num_ranks = sync.word(call, words.NUM_RANKS)
    for step in range(1, num_ranks):
        peer = (rank + step) % num_ranks
        if joins(call, peer):
            tell(call, words.BARRIER_AT, peer, tag)
            tell(call, words.REFUSED_AT, peer, tag)


@triton.jit
def combine(
    call, num_sources, ticket, rows_ticket, weights, rows, result, result_bytes,
    num_fields: tl.constexpr, partial_bytes: tl.constexpr, fanout: tl.constexpr,
    lanes: tl.constexpr, parts: tl.constexpr, weighted: tl.constexpr, zero: tl.constexpr = None,
    add_row: tl.constexpr = None, add_partial: tl.constexpr = None,
    store_partial: tl.constexpr = None, store_result: tl.constexpr = None,
    lost: tl.constexpr = None, load_rows: tl.constexpr = None, store_sent: tl.constexpr = None,
    load_back: tl.constexpr = None, store_results: tl.constexpr = None,
    places: tl.constexpr = False, strided: tl.constexpr = False, tile_rows: tl.constexpr = 1,
):  # fmt: skip
    """Results of a field lie one behind the other in ``result_bytes``, or, if it ``places`` them,
    anywhere there, where all is 0 before. ``rows_ticket`` is the dispatch that put the rows into
    the window, 0 if they are not there, -1 if this rank has none and only says that it does not
    join."""
    turn = begin(call, ticket, rows_ticket)
    joins, tag = turn[0], turn[1]
    if joins == 1:
        sum_rows(
            call, num_sources, tag, 1, weights, rows, result, zero, add_row, add_partial,
            store_partial, store_result, lost, load_rows, store_sent, load_back, store_results,
            partial_bytes, fanout, lanes, parts, weighted, places, strided, tile_rows,
        )  # fmt: skip
    else:
        give_up(call, turn, rows_ticket, result, result_bytes, num_fields)
    finish(call, turn)


@triton.jit
def begin(call, ticket, rows_ticket):
    """Enter the running combine: whether this rank joins it, its tag, the dispatches finished
    before, and whether the handle is outdated, rows are overwritten, or this rank refuses."""
    return join(call, look(call, ticket, rows_ticket), False)


@triton.jit
def join(call, turn, meets: tl.constexpr):
    """The same of what `look` has found; if it ``meets`` the peers, when all of them have come."""
    joins, tag, plans, outdated, overwritten, refuses = turn
    if joins == 1:
        state = sync.array(call, words.STATE, tl.int32)
        planned = (plans != tl.load(state + words.COMBINE_SAW_PLAN)).to(tl.int32)
        if meets:
            planned = planned * 0
        joins = enter(call, tag, planned)
    return joins, tag, plans, outdated, overwritten, refuses


@triton.jit
def look(call, ticket, rows_ticket):
    """The same without entering it: as far as this rank alone knows."""
    state = sync.array(call, words.STATE, tl.int32)
    routing = sync.array(call, words.ROUTING, tl.int32)
    number = tl.load(routing + words.COMBINES) + 1
    tag = tl.load(routing + words.EPOCH).to(tl.int64) << 32
    tag |= number.to(tl.int64) & 0xFFFFFFFF
    plans = tl.load(state + words.PLAN_EPOCH)
    outdated = tl.load(routing + words.TICKET) != ticket.to(tl.int32)
    overwritten = (rows_ticket > 0) & (
        tl.load(state + words.ROWS_TICKET) != rows_ticket.to(tl.int32)
    )
    refuses = overwritten | (rows_ticket < 0)
    joins = ((outdated | refuses | (sync.aborted(call) != 0)) == 0).to(tl.int32)
    return joins, tag, plans, outdated, overwritten, refuses


@triton.jit
def give_up(call, turn, rows_ticket, result, result_bytes, num_fields: tl.constexpr):
    """Do not join the combine: results are NaN, if this rank wants some."""
    _, tag, _, outdated, _, refuses = turn
    if (tl.program_id(0) == 0) & refuses & (outdated == 0):
        refuse(call, tag)
    if rows_ticket >= 0:  # where single results lie may not be known any more
        poison_all(result, result_bytes, num_fields)


@triton.jit
def poison_all(result, result_bytes, num_fields: tl.constexpr):
    """Results of all fields; a share by each program."""
    for field in tl.static_range(num_fields):
        share = (result_bytes[field] + tl.num_programs(0) - 1) // tl.num_programs(0)
        begins = tl.program_id(0) * share
        poison(result[field] + begins, tl.minimum(share, result_bytes[field] - begins))


@triton.jit
def finish(call, turn):
    """Leave the combine; the last program makes its numbers those of the next one."""
    state = sync.array(call, words.STATE, tl.int32)
    number = tl.load(state + words.NUM_COMBINES) + 1  # while what was stored is on its way
    if sync.leave(state, "gpu"):
        number_next(call, turn, number)


@triton.jit
def number_next(call, turn, number):
    """The numbers alone; this combine is that one."""
    _, tag, plans, outdated, overwritten, _ = turn
    state = sync.array(call, words.STATE, tl.int32)
    tl.store(state + words.NUM_COMBINES, number)
    tl.store(state + words.COMBINE_SAW_PLAN, plans)
    if outdated:
        if sync.is_exact(call) == 0:  # else its dispatch has told
            sync.note(call, words.OUTDATED, 1)
    else:
        routing = sync.array(call, words.ROUTING, tl.int32)
        tl.store(routing + words.COMBINES, tag.to(tl.int32))
        if overwritten:
            sync.note(call, words.OVERWRITTEN, 1)
    sync.tell_troubles(call)


@triton.jit
def sum_rows(
    call, num_sources, tag, reduces: tl.constexpr, weights, rows, result, zero: tl.constexpr,
    add_row: tl.constexpr, add_partial: tl.constexpr, store_partial: tl.constexpr,
    store_result: tl.constexpr, lost: tl.constexpr, load_rows: tl.constexpr,
    store_sent: tl.constexpr, load_back: tl.constexpr, store_results: tl.constexpr,
    partial_bytes: tl.constexpr, fanout: tl.constexpr, lanes: tl.constexpr, parts: tl.constexpr,
    weighted: tl.constexpr, places: tl.constexpr, strided: tl.constexpr, tile_rows: tl.constexpr,
    finalise: tl.constexpr = finalise, source_at: tl.constexpr = same_source, first_place=0,
    end_place=0, num_reduced: tl.constexpr = None,
    reduced_at: tl.constexpr = None,
):  # fmt: skip
    """Reduce the rows of other ranks' segments, if it ``reduces`` any, and ``finalise`` so many of
    this rank's own, of which ``source_at`` says which they are of the places between these.
    ``reduced_at`` says which segments of a rank are reduced, ``num_reduced`` how many; without it
    all are."""
    state = sync.array(call, words.STATE, tl.int32)
    refusing = ranks.refusing(call)
    rank = sync.word(call, words.RANK)
    max_sources = sync.word(call, words.MAX_SOURCES)
    size = sync.group_size(call, sync.word(call, words.COMBINE_GROUP))
    if tile_rows > 1:
        size = tile_rows
    most = points.most_sources(call)
    if reduced_at is not None:
        most = num_reduced(call, first_place, most)
    num_items = points.num_remote_items(call, most, size) * reduces
    num_groups = (num_sources + size - 1) // size
    left = (num_items > 0).to(tl.int32)  # whether there may be something to reduce
    takes = (left == 1) | (num_groups > tl.num_programs(0))
    reduces_first = (tl.program_id(0) < sync.word(call, words.NUM_REDUCERS)) & (left == 1)
    group = num_groups.to(tl.int64)
    if reduces_first == 0:
        group = sync.first_item(state, words.NEXT_GROUP, takes)
    while (left == 1) | (group < num_groups):
        there = False
        absent = refusing
        if group < num_groups:
            flag = source_at(call, first_place, end_place, group * size) // size
            if left == 1:
                there = flagged_by_all(call, flag, tag)
            else:
                absent |= wait_for_flags(call, flag, tag)
                there = True
        if there:
            limit = tl.minimum(group * size + size, num_sources)
            if tile_rows > 1:
                sent = of_rows.staging(call, rank, 0, 0, partial_bytes)
                missing = many.take_back(
                    call, group * size, limit, absent, rows, result, sent, load_back,
                    store_results, partial_bytes, places, tile_rows,
                )  # fmt: skip
                for peer in range(tl.where(ranks.is_any(missing), words.MAX_RANKS, 0)):
                    if (ranks.has(missing, peer) == 1) & joins(call, peer):
                        note_refusal(call, peer)
            else:
                for index in range(group * size, limit):
                    source = source_at(call, first_place, end_place, index)
                    finalise(
                        call, source, tag, absent, weights, rows, result, zero, add_row,
                        add_partial, store_partial, store_result, lost, partial_bytes, fanout,
                        lanes, parts, weighted, places, strided,
                    )  # fmt: skip
            group = sync.next_item(state, words.NEXT_GROUP, num_groups, takes)
        elif reduces:  # then something may be left
            item = sync.take(state, words.NEXT_ITEM)
            if item < num_items:
                source_rank, index = points.remote_item(call, item)
                limit = points.sources_of(call, source_rank)
                first = index * size
                if reduced_at is not None:
                    first = reduced_at(call, first_place, first)
                    index = first // size
                last = tl.minimum(first + size, limit)
                if tile_rows > 1:
                    to = of_rows.staging(call, source_rank, rank, first, partial_bytes)
                    many.send_back(
                        call, source_rank, first, last, rows, load_rows, store_sent, to,
                        partial_bytes, tile_rows,
                    )  # fmt: skip
                else:
                    for source in range(first, last):
                        of_rows.reduce(
                            call, source_rank, source, rows, zero, add_row, store_partial,
                            partial_bytes, fanout, lanes, parts, weighted,
                        )  # fmt: skip
                if first < limit:
                    flags = sync.section(call, source_rank, words.COMBINE_FLAGS_AT, tl.int64)
                    tl.debug_barrier()  # the stores of every thread come first
                    at = flags + rank * max_sources + index
                    tl.atomic_xchg(at, tag, sem="release", scope="sys")
            else:
                left = 0
                if reduces_first:
                    group = sync.take(state, words.NEXT_GROUP)
