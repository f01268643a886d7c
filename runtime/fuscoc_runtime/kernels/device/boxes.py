"""Boxes: many bytes that move at once, whose places at both ends are sums of strides.

What a box copies lies in contiguous *ranges* where it goes to, each read in *runs*. It is written
in lines, 16 bytes at a multiple of 16; the number of a line says where it is, and nothing is looked
up. A box has *cells*, all alike, each on a rank of its own.

Loops over segments, and over the runs of one, are tuples: ``counts``, and their steps in bytes at
one end each. Loops of one number are in nobody's way.
"""

import triton
import triton.language as tl

LINE = tl.constexpr(16)
MOST = tl.constexpr(2**31)  # numbers that `quotient` divides are below it

# Words of a box, i64. A divisor is two: the number, and its `magic`.
FROM = tl.constexpr(0)  # bytes to the first cell
TO = tl.constexpr(1)
CELL_FROM = tl.constexpr(2)  # and from cell to cell
CELL_TO = tl.constexpr(3)
NUM_CELLS = tl.constexpr(4)
RANK = tl.constexpr(5)  # of the first cell
RANK_STEP = tl.constexpr(6)
NUM_ITEMS = tl.constexpr(7)  # of a cell, 0: nothing to copy
FLAG = tl.constexpr(8)  # of the first item of the first cell
SHAPE = tl.constexpr(9)  # from here on what `shape_of` gives:
RANGE_BYTES = tl.constexpr(9)
RANGE_LINES = tl.constexpr(10)
RUN_BYTES = tl.constexpr(12)
NUM_LINES = tl.constexpr(14)  # of a cell
STEPS = tl.constexpr(15)  # of every loop, the slowest first:
OUTER = tl.constexpr(0)  # a number of steps from range to range,
INNER = tl.constexpr(1)  # and one from run to run of a range, one of both 1
MAGIC = tl.constexpr(2)  # of the other
STEP_FROM = tl.constexpr(3)
STEP_TO = tl.constexpr(4)
STEP_WORDS = tl.constexpr(5)


@triton.jit
def magic(by):
    """What `quotient` needs to divide by a number below 2^31 (Granlund, Montgomery, PLDI 1994)."""
    one = by * 0 + 1
    shift = by * 0
    for bit in tl.static_range(31):
        shift += ((one << bit) < by).to(tl.int64)
    return (((one << shift) - by) << 32) // by + 1 | shift << 32


@triton.jit
def quotient(number, magic):
    """A uint32 below 2^31 by the divisor of ``magic``."""
    return (tl.umulhi(number, magic.to(tl.uint32)) + number) >> (magic >> 32).to(tl.uint32)


@triton.jit
def floor_mod(value, by: tl.constexpr):
    """The rest of a division by a power of two, which is not negative."""
    return value & (by - 1)


@triton.jit
def replaced(values, i: tl.constexpr, value):
    """A tuple with another value at ``i``."""
    return values[:i] + (value,) + values[i + 1 :]


@triton.jit
def swapped(values, i: tl.constexpr, swap):
    """A tuple whose values ``i`` and ``i + 1`` are exchanged where they are to ``swap``."""
    lower, upper = values[i], values[i + 1]
    both = (tl.where(swap, upper, lower), tl.where(swap, lower, upper))
    return values[:i] + both + values[i + 2 :]


@triton.jit
def sort_loops(counts, steps, others):
    """Loops with the slowest one first, as ``steps`` have them, and those of one number last."""
    num: tl.constexpr = len(counts)
    for end in tl.static_range(1, num):
        for i in tl.static_range(num - end):
            slow = tl.where(counts[i] == 1, -1, tl.abs(steps[i]))
            fast = tl.where(counts[i + 1] == 1, -1, tl.abs(steps[i + 1]))
            swap = slow < fast
            counts = swapped(counts, i, swap)
            steps = swapped(steps, i, swap)
            others = swapped(others, i, swap)
    return counts, steps, others


@triton.jit
def outer_loops(counts, steps, nbytes):
    """Which of sorted loops step from one contiguous range to the next, the others and runs of
    ``nbytes`` making up one; and the bytes of a range."""
    num: tl.constexpr = len(counts)
    inside = nbytes == nbytes
    outer = ()
    for j in tl.static_range(num - 1, -1, -1):
        inside = inside & ((counts[j] == 1) | (steps[j] == nbytes))
        nbytes = tl.where(inside, nbytes * counts[j], nbytes)
        outer = (inside == 0,) + outer
    return outer, nbytes


@triton.jit
def merge_loops(counts, start, end, outer, run_bytes):
    """Sorted loops whose steps continue each other at both ends as one; and the bytes of a run,
    which is as long as they make it."""
    num: tl.constexpr = len(counts)
    for j in tl.static_range(num - 1, -1, -1):
        joins = (outer[j] == 0) & (start[j] == run_bytes) & (end[j] == run_bytes)
        run_bytes = tl.where(joins, run_bytes * counts[j], run_bytes)
        counts = replaced(counts, j, tl.where(joins, 1, counts[j]))
    for j in tl.static_range(num - 2, -1, -1):
        fast = counts[j + 1]
        joins = (counts[j] > 1) & (fast > 1) & (outer[j] == outer[j + 1])
        joins = joins & (start[j] == start[j + 1] * fast) & (end[j] == end[j + 1] * fast)
        slow = tl.where(joins, counts[j] * fast, counts[j])
        counts = replaced(replaced(counts, j, slow), j + 1, tl.where(joins, 1, fast))
        start = replaced(start, j, tl.where(joins, start[j + 1], start[j]))
        end = replaced(end, j, tl.where(joins, end[j + 1], end[j]))
    return counts, start, end, run_bytes


@triton.jit
def count_lines(counts, outer, range_bytes, unit: tl.constexpr):
    """Lines of a range and of all ranges, and whether kernels can count them."""
    lines = range_bytes // LINE if unit == LINE else (range_bytes + LINE - 1) // LINE + 1
    num_lines = lines
    fits = range_bytes < MOST - 4 * LINE  # so is what its lines have
    for i in tl.static_range(len(counts)):
        num_lines = num_lines * tl.where(outer[i], counts[i], 1)
        fits = fits & (num_lines < MOST)  # so the next product does not wrap
    return lines, num_lines, fits


@triton.jit
def shape_of(counts, start, end, outer, range_bytes, run_bytes, unit: tl.constexpr):
    """The words from ``SHAPE`` on of a box, from its sorted loops; its lines, and whether
    kernels can count these."""
    counts, start, end, run_bytes = merge_loops(counts, start, end, outer, run_bytes)
    lines, num_lines, fits = count_lines(counts, outer, range_bytes, unit)
    lines, run_bytes = tl.where(fits, lines, 1), tl.where(fits, run_bytes, 1)
    shape = (range_bytes, lines, magic(lines), run_bytes, magic(run_bytes), num_lines)
    for i in tl.static_range(len(counts)):
        count = tl.where(fits, counts[i], 1)
        both = (tl.where(outer[i], count, 1), tl.where(outer[i], 1, count))
        shape = shape + both + (magic(count), start[i], end[i])
    return shape, num_lines, fits


@triton.jit
def store(box, values, first: tl.constexpr):
    """Words of a box, from the word ``first`` on."""
    for i in tl.static_range(len(values)):
        tl.store(box + (first + i), values[i])
