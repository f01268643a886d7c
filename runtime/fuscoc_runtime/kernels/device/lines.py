"""Copies the lines of boxes: a program takes those of an item, some at once.

Where words are whole lines, a lane reads and writes one. Other lines are put together from *units*,
the widest words that divide all of a field's runs: a lane reads those of a line one by one, and
writes them at once. A line has bytes of two runs at most, unless runs are shorter than it.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

boxes = load("boxes")


@triton.jit
def find(before, num_boxes, item):
    """The box of an item, and its number there; ``before`` [num_boxes + 1] are the items before
    every box."""
    low = num_boxes * 0
    high = num_boxes
    while high - low > 1:
        middle = (low + high) // 2
        is_behind = tl.load(before + middle) <= item
        low = tl.where(is_behind, middle, low)
        high = tl.where(is_behind, high, middle)
    return low, item - tl.load(before + low)


@triton.jit
def divided(step, number, count):
    """What is left of numbers of steps behind those of a loop, and so many of its own."""
    rest = boxes.quotient(number, tl.load(step + boxes.MAGIC))
    return rest, (number - rest * count.to(tl.uint32)).to(tl.int64)


@triton.jit
def range_at(box, start, end, number, steps: tl.constexpr):
    """Where a range begins, at both ends."""
    for i in tl.static_range(steps):
        step = box + boxes.STEPS + (steps - 1 - i) * boxes.STEP_WORDS
        count = tl.load(step + boxes.OUTER)
        if count > 1:
            number, index = divided(step, number, count)
            start += index * tl.load(step + boxes.STEP_FROM)
            end += index * tl.load(step + boxes.STEP_TO)
    return start, end


@triton.jit
def run_at(box, start, number, steps: tl.constexpr):
    """Where a run of a range is read."""
    for i in tl.static_range(steps):
        step = box + boxes.STEPS + (steps - 1 - i) * boxes.STEP_WORDS
        count = tl.load(step + boxes.INNER)
        if count > 1:
            number, index = divided(step, number, count)
            start += index * tl.load(step + boxes.STEP_FROM)
    return start


@triton.jit
def signal(flag, tag):
    """Set the flag of a peer at an address, 0 for none, behind all that this program has stored."""
    if flag != 0:
        tl.debug_barrier()  # the stores of every thread come first
        tl.atomic_xchg(flag.to(tl.pointer_type(tl.int64)), tag, sem="release", scope="sys")


@triton.jit
def copy_item(
    box, start, end, item, lost, pending, tag, steps: tl.constexpr, unit: tl.constexpr,
    short: tl.constexpr, lines: tl.constexpr, item_lines: tl.constexpr, signals: tl.constexpr,
):  # fmt: skip
    """An item of a cell of a box, whose ends have the addresses ``start`` and ``end``. With
    ``lost`` nothing is read, and all bits are 1. With ``signals`` a ``pending`` flag of what was
    stored before becomes ``tag`` while the first lines come, since it waits until that has
    arrived."""
    num_lines = tl.load(box + boxes.NUM_LINES).to(tl.int32)
    first = (item * item_lines).to(tl.int32)
    last = tl.minimum(first + item_lines, num_lines)
    for begin in range(first, last, lines):
        if signals:
            pending = tl.where(begin == first, pending, 0)
        if unit == boxes.LINE:
            copy_words(box, start, end, begin, last, lost, pending, tag, steps, lines, signals)
        else:
            if signals:
                signal(pending, tag)
            copy_units(box, start, end, begin, last, lost, steps, unit, short, lines)


@triton.jit
def lines_of(box, start, end, begin, last, lost, steps: tl.constexpr, lines: tl.constexpr):
    """Some lines: which of them there are and which are read, the places of their ranges, and
    theirs in these."""
    number = begin + tl.arange(0, lines)
    live = number < last
    reads = number < tl.where(lost == 0, last, begin)
    number = tl.minimum(number, last - 1).to(tl.uint32)
    which = boxes.quotient(number, tl.load(box + boxes.RANGE_LINES + 1))
    place = number - which * tl.load(box + boxes.RANGE_LINES).to(tl.uint32)
    start = tl.full((lines,), 0, tl.int64) + start
    end = tl.full((lines,), 0, tl.int64) + end
    start, end = range_at(box, start, end, which, steps)
    return live, reads, start, end, place


@triton.jit
def words_of(box, start, end, begin, last, lost, steps: tl.constexpr, lines: tl.constexpr):
    """Where lines that are words are read and written; which of them there are and which are
    read."""
    live, reads, start, end, place = lines_of(box, start, end, begin, last, lost, steps, lines)
    byte = place * boxes.LINE
    run = boxes.quotient(byte, tl.load(box + boxes.RUN_BYTES + 1))
    inside = byte - run * tl.load(box + boxes.RUN_BYTES).to(tl.uint32)
    source = run_at(box, start, run, steps) + inside.to(tl.int64)
    target = end + byte.to(tl.int64)
    return source, target, live, reads


@triton.jit
def load_words(source, reads):
    """Lines at addresses, of two words each."""
    at = source.to(tl.pointer_type(tl.int64))[:, None] + tl.arange(0, 2)[None, :]
    at = tl.multiple_of(at, (1, 16))
    return tl.load(at, mask=reads[:, None], other=-1, cache_modifier=".cg")


@triton.jit
def store_words(target, words, live):
    at = target.to(tl.pointer_type(tl.int64))[:, None] + tl.arange(0, 2)[None, :]
    tl.store(tl.multiple_of(at, (1, 16)), words, mask=live[:, None])


@triton.jit
def copy_words(
    box, start, end, begin, last, lost, pending, tag, steps: tl.constexpr, lines: tl.constexpr,
    signals: tl.constexpr,
):  # fmt: skip
    source, target, live, reads = words_of(box, start, end, begin, last, lost, steps, lines)
    words = load_words(source, reads)
    if signals:
        signal(pending, tag)
    store_words(target, words, live)


@triton.jit
def copy_units(
    box, start, end, begin, last, lost, steps: tl.constexpr, unit: tl.constexpr,
    short: tl.constexpr, lines: tl.constexpr,
):  # fmt: skip
    size: tl.constexpr = boxes.LINE // unit
    word: tl.constexpr = tl.int8 if unit == 1 else tl.int16 if unit == 2 else tl.int32
    dtype: tl.constexpr = tl.int64 if unit == 8 else word
    range_bytes = tl.load(box + boxes.RANGE_BYTES).to(tl.int32)
    run_bytes = tl.load(box + boxes.RUN_BYTES).to(tl.int32)
    run_magic = tl.load(box + boxes.RUN_BYTES + 1)
    live, reads, start, end, place = lines_of(box, start, end, begin, last, lost, steps, lines)
    byte = place.to(tl.int32) * boxes.LINE - boxes.floor_mod(end, boxes.LINE).to(tl.int32)
    each = tl.arange(0, size)[None, :]
    at = byte[:, None] + each * unit
    has = live[:, None] & (at >= 0) & (at < range_bytes)
    if short:
        run = boxes.quotient(tl.maximum(at, 0).to(tl.uint32), run_magic)
        inside = at - run.to(tl.int32) * run_bytes
        begins = start[:, None] + tl.full((lines, size), 0, tl.int64)
        source = run_at(box, begins, run, steps) + inside.to(tl.int64)
    else:
        run = boxes.quotient(tl.maximum(byte, 0).to(tl.uint32), run_magic)
        inside = byte - run.to(tl.int32) * run_bytes
        left = run_bytes - inside  # behind it the next run has the rest
        here = run_at(box, start, run, steps) + inside.to(tl.int64)
        there = run_at(box, start, run + 1, steps) - left.to(tl.int64)
        source = tl.where(each * unit < left[:, None], here[:, None], there[:, None]) + each * unit
    words = tl.load(source.to(tl.pointer_type(dtype)), mask=has & reads[:, None], other=-1)
    target = (end + byte.to(tl.int64)).to(tl.pointer_type(dtype))[:, None] + each
    target = tl.multiple_of(target, (1, 16))
    whole = live & (byte >= 0) & (byte <= range_bytes - boxes.LINE)
    tl.store(target, words, mask=whole[:, None])
    if has_ends(box, begin, tl.minimum(begin + lines, last)):
        tl.store(target, words, mask=has & (whole[:, None] == 0))


@triton.jit
def has_ends(box, begin, last):
    """Whether any of these lines may hold less than 16 bytes of its range."""
    range_lines = tl.load(box + boxes.RANGE_LINES).to(tl.int32)
    which = begin // range_lines * range_lines
    return (begin - which < 1) | (last - which > range_lines - 2)
