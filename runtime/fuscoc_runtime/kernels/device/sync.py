"""Epoch words: how programs of one GPU and of several wait for each other.

A flag holds the epoch of the call that set it and is never cleared, so a captured graph can be
replayed. Epochs wrap: only their differences count. What others write is looked at so that all
threads know the same of it: by atomics, by `look`, or by `is_there`.
"""

import time

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait, num_threads
from triton.language.target_info import cuda_capability_geq

from fuscoc_runtime.kernels.device import load

words = load("words")

POLLS = tl.constexpr(16)  # of a flag, between two looks whether anybody still waits

if triton.knobs.runtime.interpret:

    def pause():
        """Leave the processor to the ranks that are waited for."""
        time.sleep(2e-3)

    def follow():
        """Wait for the kernel before, of which this one may be a programmatic dependent."""

    def lead():
        """Let the next kernel come when all programs of this one have said so, or have ended. What
        waits for peers does not lead one that fills the GPU: it may keep theirs from running."""

    def lanes():
        return words.MAX_RANKS.value

    def is_there(at, value):
        return (tl.load(at, volatile=True) == value).to(tl.int32)

    def word(call, name):
        """A word of the table, read once a launch: it never changes, and kernels ask for it more
        often than for anything else."""
        known = vars(call).setdefault("words", {})
        at = name.value if isinstance(name, tl.constexpr) else name
        if at not in known:
            known[at] = tl.load(call + at)
        return known[at]

    def array(call, name, dtype):
        known = vars(call).setdefault("arrays", {})
        at = name.value if isinstance(name, tl.constexpr) else name
        if (at, dtype.name) not in known:
            known[at, dtype.name] = word(call, at).to(tl.pointer_type(dtype))
        return known[at, dtype.name]

else:

    @triton.jit
    def pause():
        pass

    @triton.jit
    def follow():
        if cuda_capability_geq(9, 0):
            gdc_wait()

    @triton.jit
    def lead():
        if cuda_capability_geq(9, 0):
            gdc_launch_dependents()

    @tl.core.builtin
    def lanes(_semantic=None):
        """A lane for each rank, and for each thread, so that none has what another has."""
        threads = num_threads(_semantic=_semantic).value
        return tl.constexpr(max(threads, words.MAX_RANKS.value))

    @triton.jit
    def is_there(at, value):
        """Whether others have written a value, i64, at an address, as all threads of the program
        have seen, which come here together. Each acquires by itself, and so reads all that was
        stored before it."""
        return tl.inline_asm_elementwise(
            """{
            .reg .b64 seen;
            .reg .pred same;
            ld.acquire.sys.global.b64 seen, [$1];
            setp.eq.b64 same, seen, $2;
            barrier.cta.red.and.pred same, 0, same;
            selp.b32 $0, 1, 0, same;
            }""",
            "=r,l,l",
            [at.to(tl.int64), value],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )

    @triton.jit
    def word(call, name: tl.constexpr):
        return tl.load(call + name)

    @triton.jit
    def array(call, name: tl.constexpr, dtype: tl.constexpr):
        """The array whose address is in the table."""
        return tl.load(call + name).to(tl.pointer_type(dtype))


@triton.jit
def look(at, there):
    """What others write, at an address for each of `lanes`, 0 where there is none. It orders
    nothing. Threads may see different values: only what is made of those of all lanes is the same
    in every thread."""
    return tl.load(at, mask=there, other=0, volatile=True)


@triton.jit
def window(call, peer):
    """Where the window of a rank, or of each of some, begins."""
    return tl.load(call + peer + words.WINDOWS)  # the constant last costs nothing


@triton.jit
def section(call, peer, name: tl.constexpr, dtype: tl.constexpr):
    """A part of a rank's window."""
    return (window(call, peer) + tl.load(call + name)).to(tl.pointer_type(dtype))


@triton.jit
def first_rank(call):
    """The rank, of those of all nodes, that is the first one of this node."""
    return word(call, words.NODE) * word(call, words.NUM_RANKS)


@triton.jit
def num_source_ranks(call):
    """Ranks of all nodes."""
    return word(call, words.NUM_RANKS) * word(call, words.NUM_NODES)


@triton.jit
def signal(call, name: tl.constexpr, index, epoch):
    """Set the flag ``index`` of a section at every peer, behind all this program has stored."""
    rank = word(call, words.RANK)
    num_ranks = word(call, words.NUM_RANKS)
    tl.debug_barrier()  # the stores of every thread come first
    for step in range(1, num_ranks):
        flag = section(call, (rank + step) % num_ranks, name, tl.int32) + index
        tl.atomic_xchg(flag, epoch, sem="release", scope="sys")


@triton.jit
def publish(call, name: tl.constexpr, epoch):
    """Let this rank's programs know, by a word of the state, of all that this one has stored."""
    tl.debug_barrier()  # the stores of every thread come first
    tl.atomic_xchg(array(call, words.STATE, tl.int32) + name, epoch, sem="release", scope="gpu")


@triton.jit
def await_published(call, name: tl.constexpr, epoch):
    """Wait for another program of this rank, which says so also when nobody waits any more. It
    does not wait for this one: its number is lower, or its kernel has come before."""
    word_of = array(call, words.STATE, tl.int32) + name
    while epoch - tl.atomic_add(word_of, 0, sem="acquire", scope="gpu") > 0:
        pause()


@triton.jit
def note(call, trouble, times):
    """Count something that has gone wrong."""
    state = array(call, words.STATE, tl.int32)
    tl.atomic_add(state + trouble, times)
    tl.atomic_add(state + words.TROUBLES, times)


@triton.jit
def note_dropped(call, trouble, times):
    """The same of points, which are the handle's, too. With exact sizes the call stops by it, and
    the host is told otherwise."""
    if is_exact(call) == 0:
        note(call, trouble, times)
    drop(call, times)


@triton.jit
def drop(call, times):
    """Count points that the running dispatch does not move."""
    routing = array(call, words.ROUTING, tl.int32)
    use = tl.load(routing + words.USES) + 1
    tl.atomic_add(routing + words.DROPPED + (use & 1), times)


@triton.jit
def is_exact(call):
    """Whether sizes are exact: the host waits for what planning reports."""
    return (word(call, words.REPORT) != 0).to(tl.int32)


@triton.jit
def num_troubles(call):
    """Words of the state from BAD_KEYS on that the host is told."""
    return word(call, words.NUM_KNOWN) + words.NUM_KINDS


@triton.jit
def tell_troubles(call):
    """Bring the counts to the page, if they have changed; by one program when others have ended,
    so that nobody changes what it reads."""
    untold = has_untold(array(call, words.STATE, tl.int32))
    tl.debug_barrier()  # every thread has read what is replaced
    if untold:
        bring_troubles(call)


@triton.jit
def bring_troubles(call):
    """The same whether they have changed or not."""
    state = array(call, words.STATE, tl.int32)
    page = array(call, words.PAGE, tl.int32) + words.PAGE_TROUBLES
    for index in range(num_troubles(call)):
        tl.store(page + index, tl.load(state + words.BAD_KEYS + index))
    tl.store(state + words.TOLD, tl.load(state + words.TROUBLES))


@triton.jit
def has_untold(state):
    """Whether they have changed since they were told."""
    return tl.load(state + words.TROUBLES) != tl.load(state + words.TOLD)


@triton.jit
def show(call, polls, shown, stage: tl.constexpr, peer, item):
    """Show a wait to the host, which has the clock, when it has taken long; one at a time. The
    host's memory is far away: who has seen it raise ABORT tells the others."""
    if polls % word(call, words.LONG_WAIT) == 0:
        state = array(call, words.STATE, tl.int32)
        abort = array(call, words.PAGE, tl.int32) + words.PAGE_TROUBLES + num_troubles(call)
        stop = (tl.load(abort, volatile=True) != 0).to(tl.int32)  # each thread's own: no branch
        tl.atomic_max(state + words.ABORT, stop, sem="relaxed", scope="gpu")
        telling = 1
        if shown == 0:
            telling = tl.atomic_cas(state + words.TELLING, 0, 1)
        if telling == 0:
            shown = 1
            calls = tl.load(state + words.PLAN_EPOCH) + tl.load(state + words.NUM_COMBINES)
            code = wait_code(stage, peer, item).to(tl.int64) << 32
            page = array(call, words.PAGE, tl.int64)
            tl.store(page, code | (calls.to(tl.int64) & 0xFFFFFFFF))
    return shown


@triton.jit
def end_wait(call, shown):
    """Take a wait back that has been shown; what the host has ended stays."""
    state = array(call, words.STATE, tl.int32)
    if shown == 1:
        tl.store(array(call, words.PAGE, tl.int64), 0)
        tl.atomic_xchg(state + words.TELLING, 0, sem="acq_rel", scope="sys")


@triton.jit
def wait_code(stage: tl.constexpr, peer, item):
    """A wait as one word, as the host reads it."""
    return ((peer << 20) + (item & 0xFFFFF) + ((stage << 28) - 2**31)).to(tl.int32)


@triton.jit
def aborted(call):
    """Whether the host wants nobody to wait any more."""
    state = array(call, words.STATE, tl.int32)
    return tl.atomic_add(state + words.ABORT, 0, sem="relaxed", scope="gpu")


@triton.jit
def wait(call, flag, epoch, stage: tl.constexpr, peer, item):
    """Poll ``flag`` until it has reached ``epoch``, or the host has raised ABORT: then False."""
    behind = epoch - tl.atomic_add(flag, 0, sem="acquire", scope="sys")
    if behind > 0:
        polls = 0
        shown = 0
        stopped = 0
        while (behind > 0) & (stopped == 0):
            behind = epoch - tl.atomic_add(flag, 0, sem="acquire", scope="sys")
            polls += 1
            if polls % POLLS == 0:
                stopped = aborted(call)
                shown = show(call, polls, shown, stage, peer, item)
            pause()
        if behind <= 0:
            end_wait(call, shown)
    return behind <= 0


@triton.jit
def wait_for_all(call, name: tl.constexpr, stride, index, epoch, stage: tl.constexpr):
    """Wait for the flag ``index`` of every peer, in this rank's window; whether all came."""
    rank = word(call, words.RANK)
    num_ranks = word(call, words.NUM_RANKS)
    flags = section(call, rank, name, tl.int32)
    there = 1
    for step in range(1, num_ranks):
        peer = (rank + step) % num_ranks
        came = wait(call, flags + peer * stride + index, epoch, stage, peer, index)
        there = there & came.to(tl.int32)
    return there != 0


@triton.jit
def group_size(call, most):
    """Source segments under one flag: fewer when every rank has few, to spread a small batch."""
    longest = tl.load(array(call, words.ROUTING, tl.int32) + words.MOST_SOURCES)
    return tl.minimum(most, tl.maximum(longest // 2048, 1))


@triton.jit
def take(state, counter: tl.constexpr):
    """The next item of a work counter."""
    return tl.atomic_add(state + counter, 1, sem="relaxed", scope="gpu").to(tl.int64)


@triton.jit
def first_item(state, counter: tl.constexpr, takes):
    """Where a program begins: with what it ``takes``, or, where each has one item at most, with
    that of its number."""
    item = tl.program_id(0).to(tl.int64)
    if takes:
        item = take(state, counter)
    return item


@triton.jit
def next_item(state, counter: tl.constexpr, num_items, takes):
    """Where it goes on, from ``num_items`` on nowhere."""
    item = num_items.to(tl.int64)
    if takes:
        item = take(state, counter)
    return item


@triton.jit
def leave(state, scope: tl.constexpr):
    """Whether this program is the last, behind all that others have stored, which it may tell all
    of that ``scope``; that one resets the work counters."""
    tl.debug_barrier()
    return is_last(state, tl.atomic_add(state + words.EXITS, 1, scope=scope))


@triton.jit
def is_last(state, num_before):
    """The same with how many programs have left before this one, which the caller has put in
    order."""
    last = num_before == tl.num_programs(0) - 1
    if last:
        tl.store(state + words.EXITS, 0)
        tl.store(state + words.NEXT_ITEM, 0)
        tl.store(state + words.NEXT_GROUP, 0)
        tl.store(state + words.NEXT_SHARE, 0)
        tl.store(state + words.CLEARED, 0)
    return last


@triton.jit
def end_dispatch(call, epoch, ticket):
    """Make the numbers of the running dispatch those of the next one; by its last program."""
    routing = array(call, words.ROUTING, tl.int32)
    use = tl.load(routing + words.USES) + 1
    number_next(array(call, words.STATE, tl.int32), routing, epoch, ticket, use)
    tell_troubles(call)


@triton.jit
def number_next(state, routing, epoch, ticket, use):
    """The numbers alone; ``use`` is that of the handle's memory."""
    ticket = ticket.to(tl.int32)
    tl.store(routing + words.TICKET, ticket)
    tl.store(routing + words.EPOCH, epoch)
    tl.store(routing + words.COMBINES, 0)
    tl.store(routing + words.USES, use)
    tl.store(routing + words.DROPPED + 1 - (use & 1), 0)
    tl.store(state + words.ROWS_TICKET, ticket)
    tl.store(state + words.PLAN_EPOCH, epoch)
