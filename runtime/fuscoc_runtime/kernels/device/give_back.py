"""Combine where slots follow from pieces: rows go back to where their segments lie.

Where rows lie, programs copy the boxes that their sources have told this rank, item by item into
the staging memory of the source, and flag every item there. At the source they copy flagged items
to the result, line by line, and this rank's own rows straight. Half of the programs begin with what
goes to peers, the others with what is for this rank; or, of a small call, each has an item, the
first ones those that go to peers. Sending never waits, so every flag comes.

Where results are lent (`lend`) all goes straight to its place, with this rank's own items among
those for the others, and there is nothing to get.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, vectors, sync, back = load("words"), load("vectors"), load("sync"), load("combine")
boxes, lines, lend = load("boxes"), load("lines"), load("lend")

SHARE = tl.constexpr(2048)  # words of 8 bytes that are cleared at once


@triton.jit
def clear(call, result, result_bytes):
    """Of a result that rows do not fill, the rest is 0 before any row is there: programs clear
    shares of it, and wait for those of others."""
    state = sync.array(call, words.STATE, tl.int32)
    num_shares = (result_bytes + 8 * SHARE - 1) // (8 * SHARE)
    cleared = tl.full((), 0, tl.int32)
    share = sync.take(state, words.NEXT_SHARE)
    while share < num_shares:
        at = share * SHARE + tl.arange(0, SHARE).to(tl.int64)
        to = result.to(tl.pointer_type(tl.int64)) + at
        tl.store(to, tl.full((SHARE,), 0, tl.int64), mask=at * 8 + 8 <= result_bytes)
        at = result_bytes // 8 * 8 + tl.arange(0, 8)
        to = result.to(tl.pointer_type(tl.int8)) + at
        is_last = share == num_shares - 1
        tl.store(to, tl.full((8,), 0, tl.int8), mask=is_last & (at < result_bytes))
        cleared += 1
        share = sync.take(state, words.NEXT_SHARE)
    tl.debug_barrier()  # the stores of every thread come first
    done = state + words.CLEARED
    num_cleared = cleared + tl.atomic_add(done, cleared, sem="acq_rel", scope="gpu")
    while num_cleared < num_shares:
        num_cleared = tl.atomic_add(done, 0, sem="acquire", scope="gpu")
        sync.pause()


@triton.jit
def combine(
    call, ticket, rows_ticket, rows, result, result_bytes, sizes: tl.constexpr,
    steps: tl.constexpr, lines_at_once: tl.constexpr, item_lines: tl.constexpr,
    disjoint: tl.constexpr, fixed: tl.constexpr, result_at=-1, may_lend: tl.constexpr = False,
):  # fmt: skip
    """``sizes`` are those of the one field, and ``fixed``, as in `pieces`; ``rows_ticket`` as in
    `combine`. Rows fill the result if no two segments have a byte in common, as ``disjoint`` ones,
    and all bytes are moved. If ranks ``may_lend`` their results, ``result_at`` is as in `lend`."""
    turn = back.look(call, ticket, rows_ticket)
    lent = turn[0] * 0
    if may_lend:
        lent += (result_at >= 0).to(tl.int32)
        if turn[0] == 1:  # before any peer stores there
            fill_up(call, result, result_bytes, disjoint)
        tells = ((turn[0] == 1) | turn[5]) & (turn[3] == 0)
        if tells & (tl.program_id(0) == 0):
            lend.offer(call, turn[1], tl.where(turn[0] == 1, result_at, -1))
    turn = back.join(call, turn, may_lend)
    if turn[0] == 1:
        if may_lend:
            lent = lent & lend.peers_lend(call, turn[1]).to(tl.int32)
        else:
            fill_up(call, result, result_bytes, disjoint)
        give_back(
            call, turn[1], lent, rows, result, sizes, steps, lines_at_once, item_lines, fixed,
            may_lend,
        )  # fmt: skip
    else:
        lent = lent * 0
        back.give_up(call, turn, rows_ticket, (result,), (result_bytes,), 1)
    if may_lend:
        state = sync.array(call, words.STATE, tl.int32)
        number = tl.load(state + words.NUM_COMBINES) + 1
        if sync.leave(state, "sys"):
            turn = back.look(call, ticket, rows_ticket)  # in no register meanwhile
            if lent == 1:
                lend.meet(call, turn[1], result, result_bytes)
            back.number_next(call, turn, number)
    else:
        back.finish(call, turn)


@triton.jit
def fill_up(call, result, result_bytes, disjoint: tl.constexpr):
    """Clear a result that rows do not fill."""
    moved = tl.load(sync.array(call, words.MOVED, tl.int64))
    if (not disjoint) | (moved != result_bytes):
        clear(call, result, result_bytes)


@triton.jit
def give_back(
    call, tag, lent, rows, result, sizes: tl.constexpr, steps: tl.constexpr,
    lines_at_once: tl.constexpr, item_lines: tl.constexpr, fixed: tl.constexpr,
    may_lend: tl.constexpr,
):  # fmt: skip
    """All items, of results that are ``lent``, 1, or not."""
    me = sync.word(call, words.RANK)
    num_ranks = sync.word(call, words.NUM_RANKS)
    most = tl.full((), 0, tl.int64)
    for peer in range(num_ranks):
        stays = (peer == me) & (lent == 0)
        most = tl.maximum(most, tl.where(stays, 0, num_items(call, peer, tag)))
    num_sent = most * (num_ranks - 1 + lent)
    num_own = tl.where(lent == 1, 0, num_items(call, me, tag))
    num_boxes = tl.load(sync.array(call, words.NUM_BOXES, tl.int64))
    arriving = tl.load(sync.array(call, words.BACK_BEFORE, tl.int64) + num_boxes)
    num_got = num_own + tl.where((num_ranks > 1) & (lent == 0), arriving, 0)
    takes = num_sent == num_sent
    if fixed:
        takes = num_sent + num_got > tl.num_programs(0)
    # Without taking: first what is sent, an item each. The first program is the last in that order,
    # since it has told the peers that this rank is here, which takes as long as an item.
    number = ((tl.program_id(0) + tl.num_programs(0) - 1) % tl.num_programs(0)).to(tl.int64)
    sends = tl.where(takes, (number % 2 == 0) | (lent == 1), number < num_sent).to(tl.int32)
    pending = tl.full((), 0, tl.int64)  # the flag of what was sent last
    left = tl.where(takes & (lent == 0), 2, 1)  # kinds of items that there may be more of
    item = tl.where(sends == 1, number, number - num_sent)
    if takes:
        item = take(call, sends)
    while left > 0:
        if item < tl.where(sends == 1, num_sent, num_got):
            following = num_sent + num_got
            if takes:
                following = take(call, sends)
            box, start, end, inside, lost, flag = ends_of(
                call, tag, lent, item, sends, num_own, num_boxes, rows, result, steps, may_lend
            )
            if box != 0:
                lines.copy_item(
                    box.to(tl.pointer_type(tl.int64)), start, end, inside, lost, pending, tag,
                    steps, sizes[0], sizes[3] < boxes.LINE, lines_at_once, item_lines, True,
                )  # fmt: skip
                pending = flag
            item = following
        else:
            lines.signal(pending, tag)  # before this program waits for what peers send
            pending = pending * 0
            left -= 1
            sends = 1 - sends
            if left > 0:
                item = take(call, sends)


@triton.jit
def take(call, sends):
    """The next item that is sent, or that this rank gets."""
    counter = sync.array(call, words.STATE, tl.int32)
    counter += tl.where(sends == 1, words.NEXT_ITEM, words.NEXT_GROUP)
    return tl.atomic_add(counter, 1, sem="relaxed", scope="gpu").to(tl.int64)


@triton.jit
def ends_of(
    call, tag, lent, item, sends, num_own, num_boxes, rows, result, steps: tl.constexpr,
    may_lend: tl.constexpr,
):  # fmt: skip
    """What an item copies: the address of its box, 0 for nothing, of both ends, its number in the
    cell, whether it is lost, and the address of the flag to set, if that is not 0."""
    size: tl.constexpr = 8 * (boxes.STEPS + boxes.STEP_WORDS * steps)
    me = sync.word(call, words.RANK)
    num_ranks = sync.word(call, words.NUM_RANKS)
    none = item * 0
    box, flag, start, end, cell, lost = none, none, rows, result, none, none
    if (sends == 1) | (item < num_own):  # boxes that ranks have told this one
        peer = me
        told = sync.word(call, words.BOXES_AT)
        if sends == 1:  # in turn, the next one first
            turns = num_ranks - 1 + lent
            peer = (me + 1 + item % turns) % num_ranks
            item = item // turns
            end = sync.window(call, peer) + sync.word(call, words.STAGING_AT)
            flag = sync.window(call, peer) + sync.word(call, words.COMBINE_FLAGS_AT)
            if may_lend:
                if lent == 1:
                    told = sync.word(call, words.BOXES_LENT_AT)
                    end, flag = result, none
                    if peer != me:
                        end = lend.result_of(call, peer)
        if item < num_items(call, peer, tag):
            index, item = lines.find(before_of(call, peer), boxes_of(call, peer, tag), item)
            index += peer * sync.word(call, words.MAX_BOXES)
            box = sync.window(call, me) + told + index * size
    else:  # what peers have sent back
        before = sync.array(call, words.BACK_BEFORE, tl.int64)
        index, item = lines.find(before, num_boxes, item - num_own)
        home = sync.word(call, words.BOXES_BACK) + index * size
        at = home.to(tl.pointer_type(tl.int64))
        num_cells = tl.load(at + boxes.NUM_CELLS)
        cell = item % num_cells
        item = item // num_cells
        peer = tl.load(at + boxes.RANK) + cell * tl.load(at + boxes.RANK_STEP)
        if peer != me:
            box = home
            start = sync.window(call, me) + sync.word(call, words.STAGING_AT)
            number = tl.load(at + boxes.FLAG) + cell * tl.load(at + boxes.NUM_ITEMS) + item
            lost += wait_for_item(call, tag, peer, number)
    if box != 0:
        at = box.to(tl.pointer_type(tl.int64))
        start += tl.load(at + boxes.FROM) + cell * tl.load(at + boxes.CELL_FROM)
        end += tl.load(at + boxes.TO) + cell * tl.load(at + boxes.CELL_TO)
        if flag != 0:
            flag += 8 * (tl.load(at + boxes.FLAG) + item)
    return box, start, end, item, lost, flag


@triton.jit
def wait_for_item(call, tag, peer, number):
    """Wait for what a peer sends back; 1 if it does not come."""
    lost = 1
    if back.joins(call, peer):
        flags = sync.section(call, sync.word(call, words.RANK), words.COMBINE_FLAGS_AT, tl.int64)
        lost = 1 - back.wait_for_rows(call, flags + number, peer, number, tag)
        if lost == 1:
            back.note_refusal(call, peer)
    return lost


@triton.jit
def boxes_of(call, source, tag):
    """How many boxes a rank has told this one for the dispatch of the running call."""
    told = sync.section(call, sync.word(call, words.RANK), words.TOLD_AT, tl.int64)
    told = tl.load(told + source)
    came = ((told >> 32) == (tag >> 32)) & back.joins(call, source)
    return tl.where(came, told & 0xFFFFFFFF, 0)


@triton.jit
def before_of(call, source):
    """The items before every box that a rank has told this one."""
    at = source * (sync.word(call, words.MAX_BOXES) + 1)
    return sync.section(call, sync.word(call, words.RANK), words.BEFORE_AT, tl.int64) + at


@triton.jit
def num_items(call, source, tag):
    """Items of these boxes."""
    num_boxes = boxes_of(call, source, tag)
    return tl.where(num_boxes > 0, tl.load(before_of(call, source) + num_boxes), 0)
