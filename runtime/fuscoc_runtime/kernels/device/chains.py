"""Planning of entries that are short and alike, such as the patches of a sequence: each is one
piece, in the source they lie one behind the other, and all have the same loops. Those that go on
at a rank where the one before ends are a *chain*, which has boxes as one piece of `pieces`, with a
loop over its entries around the others. So boxes are as few as the lines of a picture, not as its
patches.

A program looks at a group of entries at once, a lane an entry. Boxes are numbered as they come:
nothing depends on their order.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load

words, vectors, sync, plan = load("words"), load("vectors"), load("sync"), load("plan")
of_piece, made_boxes, pieces = load("cells"), load("made_boxes"), load("pieces")
ranks = load("ranks")


@triton.jit
def place(
    call, part, given, piece: tl.constexpr, rows: tl.constexpr, item_lines: tl.constexpr,
    group: tl.constexpr, entry: tl.constexpr, fixed: tl.constexpr, comes_back: tl.constexpr,
):  # fmt: skip
    """The boxes of all chains, unless those that are there are right, behind `pieces.meet`.
    ``entry`` says of every one:
    (source cells, slots to the next one of a chain, points, its lowest and its highest slot from
    the first). The first loop of a ``piece`` is of one number, and becomes that over entries."""
    taken = sync.array(call, words.TAKEN, tl.int64)
    num_entries = tl.load(taken + 2)
    stale = tl.load(taken + pieces.STALE)
    makes = (stale != 0) & (part != pieces.MEETS)
    num_groups = tl.where(makes, (num_entries + group - 1) // group, 0)
    for number in range(tl.program_id(0), num_groups, tl.num_programs(0)):
        place_group(
            call, number, num_entries, given, piece, rows, item_lines, group, entry, comes_back
        )
    made = sync.array(call, words.NUM_BOXES, tl.int64)
    pieces.finish(call, part, taken + pieces.CHAINS, made, 1, stale, len(rows), fixed, comes_back)


@triton.jit
def place_group(
    call, number, num_entries, given, piece: tl.constexpr, rows: tl.constexpr,
    item_lines: tl.constexpr, group: tl.constexpr, entry: tl.constexpr, comes_back: tl.constexpr,
):  # fmt: skip
    lane = tl.arange(0, group)
    index = number * group + lane.to(tl.int64)
    exists = index < num_entries
    index = tl.minimum(index, num_entries - 1)
    src, rank, slot, goes = look_up(call, index, given, piece, entry)
    before = look_up(call, tl.maximum(index - 1, 0), given, piece, entry)
    bad = vectors.total((exists & (goes == 0) & (rank != -1)).to(tl.int64), 0)
    of_piece.drop(call, words.BAD_KEYS, bad * entry[2])
    goes = goes & exists
    follows = before[3] & (rank == before[1]) & (slot == before[2] + entry[1]) & (lane > 0)
    begins = goes & (follows == 0)
    taken = sync.array(call, words.TAKEN, tl.int64)
    of_all = piece(0, number, number, given)
    first = tl.full((), -1, tl.int32)
    for _ in range(vectors.total(begins.to(tl.int32), 0)):
        first = vectors.smallest(tl.where(begins & (lane > first), lane, group), 0)
        ends = (lane > first) & (begins | (goes == 0))
        count = (vectors.smallest(tl.where(ends, lane, group), 0) - first).to(tl.int64)
        chain = (
            vectors.pick(src, first, group),
            vectors.pick(rank, first, group),
            vectors.pick(slot, first, group),
            0,
            (count,) + of_all[4][1:],
            (entry[0],) + of_all[5][1:],
            (entry[1],) + of_all[6][1:],
            of_all[7],
        )
        zero = count * 0
        found = of_piece.as_numbers(chain, zero)
        cells = (zero, zero + 1, count * entry[2], zero)
        box = tl.atomic_add(taken + pieces.CHAINS, 1, sem="relaxed", scope="gpu")
        for kind in range(1 + len(rows) + comes_back):
            made_boxes.make(call, kind, box, found, cells, rows, item_lines, comes_back, False)


@triton.jit
def look_up(call, index, given, piece: tl.constexpr, entry: tl.constexpr):
    """The first cells, ranks and slots of entries, and whether these exist."""
    zero = index * 0
    found = piece(0, index, index, given)
    src, rank, slot = zero + found[0], zero + found[1], zero + found[2]
    known = (rank >= 0) & (rank < sync.word(call, words.NUM_RANKS))
    at = plan.counts_of_ranks(call, of_piece.COLUMNS) + rank * (of_piece.COLUMNS + 1)
    length = tl.load(at, mask=known, other=0)
    refuses = ranks.refuses(call, tl.where(known, rank, 0).to(tl.int32))  # it has told no length
    inside = (slot + entry[3] >= 0) & (slot + entry[4] < length)
    return src, rank, slot, known & (inside | (refuses == 1))
