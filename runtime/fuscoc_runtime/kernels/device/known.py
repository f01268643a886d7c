"""With exact sizes: what goes before the rows of calls whose routing is known, and behind the
planning of slots that the relation gives.

A handle may be of any dispatch so far, so what a call needs of other ranks is not in their windows
any more. Ranks tell each other anew: before a dispatch that they begin it, before a combine the
points of all segments and their weights, which may be given as late as that. They also say which
dispatch the routing is of. What ranks disagree on, or one of them refuses, moves nothing between
them, and their hosts read of it later.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, vectors, sync, points = load("words"), load("vectors"), load("sync"), load("points")
plan, place, reports = load("plan"), load("place"), load("reports")
refuse, ranks, verdicts = load("refuse"), load("ranks"), load("verdicts")

POINTS = tl.constexpr(1024)  # that a program tells at once
ACROSS = tl.constexpr(1)  # in place of an epoch: combines are numbered across dispatches


@triton.jit
def meet(call, said):
    """Tell every peer a word, also that this rank has finished all before; by one program. Returns
    where the words of all ranks are, when they have come."""
    state = sync.array(call, words.STATE, tl.int32)
    rank = sync.word(call, words.RANK)
    num_ranks = sync.word(call, words.NUM_RANKS)
    meeting = tl.load(state + words.MEETINGS) + 1
    parity = (meeting & 1) * num_ranks
    if sync.aborted(call) == 0:
        for peer in range(num_ranks):
            tl.store(sync.section(call, peer, words.SAID_AT, tl.int32) + parity + rank, said)
        sync.signal(call, words.MEETING_FLAGS_AT, rank, meeting)
    sync.wait_for_all(call, words.MEETING_FLAGS_AT, 1, 0, meeting, words.COMBINE_ENTER)
    tl.store(state + words.MEETINGS, meeting)
    return sync.section(call, rank, words.SAID_AT, tl.int32) + parity


@triton.jit
def note_other(call, peer, number, theirs):
    """Let the host read that a peer has said something else of a call that this rank joins."""
    if (number >= 0) & (theirs != number) & (sync.aborted(call) == 0):
        both = (number.to(tl.int64) << 32) | (theirs.to(tl.int64) & 0xFFFFFFFF)
        tl.store(sync.array(call, words.REPORT, tl.int64) + words.REPORT_OTHERS + peer, both)


@triton.jit
def carry_out_none(call):
    """Let the running dispatch have no segments, of any rank."""
    routing = sync.array(call, words.ROUTING, tl.int32)
    for peer in range(words.MAX_RANKS):
        tl.store(routing + peer + words.SOURCES, 0)
    tl.store(routing + words.MOST_SOURCES, 0)
    ranks.store_set(routing + words.REFUSING, ranks.everyone())


@triton.jit(do_not_specialize=range(3))
def again(call: tl.int64, number: tl.int64, ticket: tl.int64):
    """A kernel of one program before the rows of a dispatch whose routing is that of dispatch
    ``number``; -1 if this rank refuses it, whose turn then ends here."""
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    number = number.to(tl.int32)
    they_say = meet(call, number)
    agreed = (number >= 0) & (sync.aborted(call) == 0)
    for peer in range(sync.word(call, words.NUM_RANKS)):
        theirs = tl.load(they_say + peer)
        agreed = agreed & (theirs == number)
        note_other(call, peer, number, theirs)
    if agreed == 0:
        carry_out_none(call)
    if number < 0:
        epoch = tl.load(sync.array(call, words.STATE, tl.int32) + words.PLAN_EPOCH) + 1
        refuse.end_turn(call, epoch, ticket)


@triton.jit(do_not_specialize=range(3))
def agree(call: tl.int64, joins: tl.int64, num_slots: tl.int64):
    """A kernel of one program behind those that place points: the host is told whether any rank has
    some that cannot be moved, and then nothing is. One that has refused the call only meets."""
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    routing = sync.array(call, words.ROUTING, tl.int32)
    use = tl.load(routing + words.USES) + 1
    dropped = tl.load(routing + words.DROPPED + (use & 1))
    said = tl.where((joins != 0) & (dropped > 0), 1, 0).to(tl.int32)
    they_say = meet(call, said)
    if joins != 0:
        peer = tl.arange(0, words.MAX_RANKS)
        there = peer < sync.word(call, words.NUM_RANKS)
        cannot = tl.load(they_say + peer, mask=there, other=0) != 0
        counts = plan.counts_of_ranks(call, place.COLUMNS)
        here = sync.first_rank(call) + peer
        tl.store(counts + here * (place.COLUMNS + 1) + place.COLUMNS, -1, mask=cannot)
        tl.debug_barrier()
        lengths = place.lengths(call, counts)
        reports.report(call, counts, lengths, num_slots, place.COLUMNS)
        if vectors.largest(cannot.to(tl.int32), 0) > 0:
            carry_out_none(call)


@triton.jit(do_not_specialize=range(1))
def judge(call: tl.int64):
    """A kernel of one program behind the exchange of verdicts, before rows move: what the host
    waits for then."""
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    verdict = verdicts.of_all_nodes(call)
    if verdict != verdicts.GOES:
        carry_out_none(call)
    verdict = tl.where(sync.aborted(call) != 0, -1, verdict)
    reports.store_report(call, words.REPORT_VERDICT, verdict)


@triton.jit(do_not_specialize=range(7))
def tell(
    call: tl.int64, number: tl.int64, num_sources: tl.int64, fanout: tl.int64, weights: tl.int64,
    known: tl.int64, refuses: tl.int64,
):  # fmt: skip
    """Before a combine of dispatch ``number``: the points of this rank's segments, and what it says
    of the call, to every peer; what they say makes the routing of the combine.

    ``weights``: f32 [num_sources, fanout], or 0. ``known``: the routing of the dispatch; of one
    that was not carried out nothing is combined. A rank that ``refuses`` has none, and its turn
    ends.
    """
    call = call.to(tl.int64).to(tl.pointer_type(tl.int64))
    state = sync.array(call, words.STATE, tl.int32)
    routing = sync.array(call, words.ROUTING, tl.int32)
    known = known.to(tl.int64).to(tl.pointer_type(tl.int32))
    goes = True
    for word in tl.static_range(words.RANK_WORDS):
        refusing = tl.load(known + words.REFUSING + word, mask=refuses == 0, other=0)
        goes = goes & (refusing == 0)
    if goes & (sync.aborted(call) == 0):
        tell_points(call, num_sources * fanout, fanout, weights)
    tl.debug_barrier()  # the stores of every thread come first
    told = tl.atomic_add(state + words.NEXT_GROUP, 1, sem="acq_rel", scope="sys")
    if told == tl.num_programs(0) - 1:
        if goes:
            said = tl.where(refuses != 0, -1, number).to(tl.int32)
            route(call, said, known)
        tl.store(routing + words.TICKET, goes.to(tl.int32))
        if refuses != 0:
            tl.store(routing + words.COMBINES, tl.load(routing + words.COMBINES) + 1)
            tl.store(state + words.NUM_COMBINES, tl.load(state + words.NUM_COMBINES) + 1)
    sync.leave(state, "gpu")


@triton.jit
def tell_points(call, num_points, fanout, weights):
    """Slot codes of all points, and weights where they have any, to every peer; a share by each
    program."""
    rank = sync.word(call, words.RANK)
    num_ranks = sync.word(call, words.NUM_RANKS)
    codes = sync.array(call, words.CODES, tl.int32)
    bits_at = weights.to(tl.int64).to(tl.pointer_type(tl.int32))
    begin = rank * sync.word(call, words.MAX_SOURCES) * fanout
    are_codes = sync.word(call, words.POINT_BYTES) == 4
    stride = tl.num_programs(0).to(tl.int64) * POINTS
    for first in range(tl.program_id(0).to(tl.int64) * POINTS, num_points, stride):
        point = first + tl.arange(0, POINTS).to(tl.int64)
        inside = point < num_points
        code = tl.load(codes + point, mask=inside, other=-1)
        bits = tl.full((POINTS,), 0, tl.int32)
        if weights != 0:
            bits = tl.load(bits_at + point, mask=inside, other=0)
        both = (bits.to(tl.int64) << 32) | (code.to(tl.int64) & 0xFFFFFFFF)
        for step in range(1, num_ranks):
            peer = (rank + step) % num_ranks
            to = sync.section(call, peer, words.POINTS_AT, tl.int64) + begin
            tl.store(to + point, both, mask=inside & (are_codes == 0))
            tl.store(points.codes_at(call, peer, rank) + point, code, mask=inside & are_codes)


@triton.jit
def route(call, said, known):
    """The routing of a combine: the segments of those ranks that say the same of it."""
    state = sync.array(call, words.STATE, tl.int32)
    routing = sync.array(call, words.ROUTING, tl.int32)
    they_say = meet(call, said)
    others = ranks.none()
    most = 0
    for peer in range(sync.word(call, words.NUM_RANKS)):
        theirs = tl.load(they_say + peer)
        note_other(call, peer, said, theirs)
        agrees = (said >= 0) & (theirs == said)
        sources = tl.load(known + peer + words.SOURCES, mask=agrees, other=0)
        tl.store(routing + peer + words.SOURCES, sources)
        most = tl.maximum(most, sources)
        others |= ranks.one(peer, tl.where(agrees, 0, 1))
    tl.store(routing + words.MOST_SOURCES, most)
    ranks.store_set(routing + words.REFUSING, others)
    tl.store(routing + words.EPOCH, ACROSS)
    # All have begun this call: combine need not wait for that once more.
    tl.store(state + words.COMBINE_SAW_PLAN, tl.load(state + words.PLAN_EPOCH) - 1)
