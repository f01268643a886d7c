"""Sizes of a ragged source that inputs give: where every outer index begins, and the outer index of
every point. Nothing of it waits for a host, which knows the outer indices and what there is room
for.

``offsets`` are int64 [2, num_outer + 1], points and cells before an outer index, and ``totals``
int64 [2]: the points that there are, of those that there is room for, and the others.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, vectors = load("words"), load("vectors")

BLOCK = tl.constexpr(1024)  # outer indices, or points, that a program looks at at once
MANY = tl.constexpr(2**30)  # what counters of 32 bits are told of more


@triton.jit(do_not_specialize=range(9))
def add_up(
    num_outer: tl.int64,
    least_cells: tl.int64,
    most_cells: tl.int64,
    room: tl.int64,
    fanout: tl.int64,
    table: tl.int64,
    offsets: tl.int64,
    totals: tl.int64,
    state: tl.int64,
):
    """A kernel of one program: ``offsets`` and ``totals`` of the ``table`` int64 [3, num_outer] of
    points, cells and a status, which is not 0 where there cannot be such. Then all of them are 0,
    as where the source's fields, of which the shortest has ``least_cells``, have not just these
    cells; -1: that is not asked. ``state`` counts what is wrong."""
    num_outer = num_outer.to(tl.int64)
    least_cells = least_cells.to(tl.int64)
    most_cells = most_cells.to(tl.int64)
    table = table.to(tl.int64).to(tl.pointer_type(tl.int64))
    offsets = offsets.to(tl.int64).to(tl.pointer_type(tl.int64))
    cell_offsets = offsets + num_outer + 1
    totals = totals.to(tl.int64).to(tl.pointer_type(tl.int64))
    state = state.to(tl.int64).to(tl.pointer_type(tl.int32))
    points = tl.full((), 0, tl.int64)
    cells = tl.full((), 0, tl.int64)
    faults = tl.full((), 0, tl.int64)
    for first in range(0, num_outer, BLOCK):
        outer = first + tl.arange(0, BLOCK).to(tl.int64)
        exists = outer < num_outer
        own_points = tl.load(table + outer, mask=exists, other=0)
        own_cells = tl.load(table + num_outer + outer, mask=exists, other=0)
        faults += vectors.total(tl.load(table + 2 * num_outer + outer, mask=exists, other=0), 0)
        tl.store(offsets + outer, points + vectors.running(own_points, 0) - own_points, exists)
        tl.store(cell_offsets + outer, cells + vectors.running(own_cells, 0) - own_cells, exists)
        points += vectors.total(own_points, 0)
        cells += vectors.total(own_cells, 0)
    bad = (faults > 0) | ((least_cells >= 0) & ((cells != least_cells) | (cells != most_cells)))
    if bad:
        points = points * 0
        cells = cells * 0
        tl.debug_barrier()  # behind what has been stored above
        for first in range(0, num_outer, BLOCK):
            outer = first + tl.arange(0, BLOCK).to(tl.int64)
            tl.store(offsets + outer, tl.full((BLOCK,), 0, tl.int64), outer < num_outer)
            tl.store(cell_offsets + outer, tl.full((BLOCK,), 0, tl.int64), outer < num_outer)
        tl.atomic_add(state + words.BAD_SIZES, 1)
        tl.atomic_add(state + words.TROUBLES, 1)
    tl.store(offsets + num_outer, points)
    tl.store(cell_offsets + num_outer, cells)
    excess = tl.minimum(tl.maximum(points - room, 0), MANY)
    tl.store(totals, tl.minimum(points, room))
    tl.store(totals + 1, excess)
    if excess > 0:
        segments = (excess // fanout).to(tl.int32)
        tl.atomic_add(state + words.EXCESS, segments)
        tl.atomic_add(state + words.TROUBLES, segments)


@triton.jit(do_not_specialize=range(5))
def spread(
    num_points: tl.int64, num_outer: tl.int64, steps: tl.int64, offsets: tl.int64, outer: tl.int64
):
    """``outer`` int64 [num_points]: the outer index of every point, found in so many ``steps`` as
    there are bits of ``num_outer``; points behind the last one have that of the last one, or 0."""
    num_points = num_points.to(tl.int64)
    num_outer = num_outer.to(tl.int64)
    ends = offsets.to(tl.int64).to(tl.pointer_type(tl.int64)) + 1
    outer = outer.to(tl.int64).to(tl.pointer_type(tl.int64))
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    wanted = tl.minimum(point, tl.load(ends + num_outer - 1) - 1)
    low = tl.full((BLOCK,), 0, tl.int64)  # all indices below it end before the point, none from
    high = low + num_outer  # this one on
    for _ in range(steps):
        middle = (low + high) // 2
        searches = low < high
        ends_before = tl.load(ends + middle, mask=searches, other=0) <= wanted
        low, high = (
            tl.where(searches & ends_before, middle + 1, low),
            tl.where(searches & (ends_before == 0), middle, high),
        )
    tl.store(outer + point, tl.minimum(low, num_outer - 1), mask=point < num_points)


@triton.jit(do_not_specialize=range(4))
def leave_out(num_points: tl.int64, totals: tl.int64, first: tl.int64, second: tl.int64):
    """Two columns int64 [num_points] say of points that there are not that they go nowhere."""
    num_points = num_points.to(tl.int64)
    totals = totals.to(tl.int64).to(tl.pointer_type(tl.int64))
    first = first.to(tl.int64).to(tl.pointer_type(tl.int64))
    second = second.to(tl.int64).to(tl.pointer_type(tl.int64))
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_behind = (point >= tl.load(totals)) & (point < num_points)
    tl.store(first + point, tl.full((BLOCK,), -1, tl.int64), is_behind)
    tl.store(second + point, tl.full((BLOCK,), -1, tl.int64), is_behind)


@triton.jit(do_not_specialize=range(2))
def drop(totals: tl.int64, routing: tl.int64):
    """A kernel of one program behind a dispatch, which has counted its use of the handle's memory:
    count the points for which there was no room as dropped."""
    totals = totals.to(tl.int64).to(tl.pointer_type(tl.int64))
    routing = routing.to(tl.int64).to(tl.pointer_type(tl.int32))
    at = words.DROPPED + (tl.load(routing + words.USES) & 1)
    tl.atomic_add(routing + at, tl.load(totals + 1).to(tl.int32))
