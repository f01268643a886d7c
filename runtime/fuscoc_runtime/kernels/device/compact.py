"""Dispatch into a compact target: each row is read once and stored once to every rank that needs
it, this one too, into the segment's row there. What slots refer to has been written by planning.

All programs send, and nothing is left to do with what arrives. So a rank tells its peers once that
it has sent everything, and is done when they have told it.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, sync, rows, points = load("words"), load("sync"), load("dispatch"), load("points")
slabs = load("slabs")


@triton.jit
def dispatch(
    call, num_sources, ticket, weights, source_fields, rows_at, load_source: tl.constexpr,
    store_row: tl.constexpr, fanout: tl.constexpr, lanes: tl.constexpr, parts: tl.constexpr,
    weighted: tl.constexpr, strided: tl.constexpr = False,
    cell_of: tl.constexpr = points.cell_of,
):  # fmt: skip
    sync.follow()
    if sync.word(call, words.NUM_NODES) > 1:
        slabs.tell_exchange(call, 1)
    state = sync.array(call, words.STATE, tl.int32)
    epoch = tl.load(state + words.PLAN_EPOCH) + 1
    num_sources = points.own_sources(call, num_sources)
    size = sync.group_size(call, sync.word(call, words.DISPATCH_GROUP))
    num_groups = (num_sources + size - 1) // size
    if sync.aborted(call) != 0:  # what is sent now could be taken for an earlier call's
        num_groups = num_groups * 0
    for group in range(tl.program_id(0), num_groups, tl.num_programs(0)):
        rows.send(
            call, group * size, size, num_sources, weights, source_fields, rows_at, load_source,
            store_row, fanout, lanes, parts, weighted, True, strided, cell_of,
        )  # fmt: skip
    arrive(call, epoch, ticket)


@triton.jit
def arrive(call, epoch, ticket):
    """End a dispatch that leaves nothing to do with what arrives: the last program tells the peers
    that this rank has sent everything, and waits until they have."""
    state = sync.array(call, words.STATE, tl.int32)
    max_sources = sync.word(call, words.MAX_SOURCES)
    tl.debug_barrier()  # the stores of every thread come first
    sent = tl.atomic_add(state + words.NEXT_GROUP, 1, sem="acq_rel", scope="sys")
    if sent == tl.num_programs(0) - 1:
        stage: tl.constexpr = words.DISPATCH_GROUP_ROWS
        flag = sync.word(call, words.RANK) * max_sources
        sync.signal(call, words.DISPATCH_FLAGS_AT, flag, epoch)
        sync.wait_for_all(call, words.DISPATCH_FLAGS_AT, max_sources, 0, epoch, stage)
    if sync.leave(state, "gpu"):
        sync.end_dispatch(call, epoch, ticket)
