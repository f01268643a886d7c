"""Slabs: what a rank sends the rank of its own place in another node, of sizes that are fixed.

In a dispatch every source segment has a place in the slab of every node, the same in all; or, where
ranks alone decide where segments go, in those of the nodes that it goes to (`place_of`). A slab has
a header, then a word for every point, then what its rank has counted of them (`hop_counts`), then
the table that places keys, if one does, then the rows, of the target's fields, unless these travel
as flows. The word says in its lower half to which rank of that node the point goes, and its key, as
a slot code says rank and slot; where the relation gives slots, nothing is counted, and the slot
itself is there. In its upper half are the bits of the weight. It is -1 if the point does not go
there, and places without any such point hold no row. On the way back a slab has a header, a flag
for every place, and what the node's rows of a segment add up to.

A large slab travels in rounds, of the rows of some places each; all that is said of points goes
with the first one.

The slab of this rank's own node never travels: it is packed where those of others arrive, but for
its rows, which stay in the source.
"""

import triton
import triton.language as tl

from fuscoc_runtime.kernels.device import load, room
from fuscoc_runtime.room import num_row_bits

words, sync, points = load("words"), load("sync"), load("points")

HEADER_BYTES = tl.constexpr(1024)
STATUS = tl.constexpr(2)  # i32 word of a header, behind the tag of its call: source segments of a
# rank, more than there are places for if it has packed none, -1 if it refuses the dispatch; on the
# way back a bit for each rank of the node whose rows some of the segments lack

# Flags of places on the way back.
SUMMED = tl.constexpr(1)
LOST = tl.constexpr(2)  # its rows cannot be summed

ROUTINGS = tl.constexpr((1 << 30) - 1)  # bits of a tag that number a dispatch

# Of the number of a row of a flow; above is the rank that has it.
ROW_BITS = tl.constexpr(num_row_bits(room()))
ROW_MASK = tl.constexpr((1 << num_row_bits(room())) - 1)

RECEIPTS = tl.constexpr(3)  # kinds of points that are not moved, words of the state from BAD_KEYS


@triton.jit
def leaving(call, node):
    """The slab that a dispatch sends to a node."""
    own = sync.word(call, words.NODE) == node
    first = tl.where(own, sync.word(call, words.SLABS_IN), sync.word(call, words.SLABS_OUT))
    return first + node * sync.word(call, words.SLAB_BYTES)


@triton.jit
def landed(call, node):
    """The slab that has come from a node."""
    return sync.word(call, words.SLABS_IN) + node * sync.word(call, words.SLAB_BYTES)


@triton.jit
def going_back(call, node):
    """The slab that a combine sends to a node."""
    return sync.word(call, words.BACKS_OUT) + node * sync.word(call, words.BACK_BYTES)


@triton.jit
def come_back(call, node):
    """The slab that a combine has got from a node."""
    return sync.word(call, words.BACKS_IN) + node * sync.word(call, words.BACK_BYTES)


@triton.jit
def store_header(slab, tag, status):
    tl.store(slab.to(tl.pointer_type(tl.int64)), tag)
    tl.store(slab.to(tl.pointer_type(tl.int32)) + STATUS, status)


@triton.jit
def tell_exchange(call, place: tl.constexpr, ahead: tl.constexpr = 1):
    """Let the host know that the stream has come to where the slabs of a call travel, 0, or beyond,
    1; by one program. The call is so many ``ahead`` of the last one that has ended."""
    if tl.program_id(0) == 0:
        state = sync.array(call, words.STATE, tl.int32)
        calls = tl.load(state + words.PLAN_EPOCH) + tl.load(state + words.NUM_COMBINES)
        tl.store(sync.array(call, words.EXCHANGES, tl.int32) + place, calls + ahead)


@triton.jit
def status_of(slab):
    """Where a header has its status."""
    return slab.to(tl.pointer_type(tl.int32)) + STATUS


@triton.jit
def is_of(slab, tag):
    """Whether slabs are of the call with that tag: their rank makes the same calls as this one."""
    return tl.load(slab.to(tl.pointer_type(tl.int64))) == tag


@triton.jit
def tag_of(call):
    """The tag of the running dispatch. With exact sizes the epochs of nodes differ: one whose
    windows are too small plans once more."""
    epoch = tl.load(sync.array(call, words.STATE, tl.int32) + words.PLAN_EPOCH) + 1
    tag = sync.word(call, words.CALL_TAG)
    return tl.where(tag != 0, tag, epoch.to(tl.int64))


@triton.jit
def tag_back(call, tag):
    """The tag of the slabs of a combine, of which ``tag`` is that inside its node."""
    return tag + (sync.word(call, words.CALL_TAG) << 33)


@triton.jit
def routing_of(slab, returns):
    """Of a call of exact sizes along a known routing, on its way back if it ``returns``: which
    dispatch has made that, by the tag of a slab."""
    tag = tl.load(slab.to(tl.pointer_type(tl.int64)))
    return (tl.where(returns != 0, tag >> 33, tag >> 32) & ROUTINGS).to(tl.int32)


@triton.jit
def sources_of(call, node):
    """The source segments that a slab has come with, -1 if its rank has refused the dispatch or is
    out of step."""
    slab = landed(call, node)
    return tl.where(is_of(slab, tag_of(call)), tl.load(status_of(slab)), -1)


@triton.jit
def cell_of(call, source, fanout: tl.constexpr, strided: tl.constexpr):
    """Where a segment has landed: its slab and its place there; and whether it is this rank's own,
    which is nowhere but in the source, with its cell there. As `points.cell_of`, for segments of
    all nodes."""
    stride = sync.word(call, words.STRIDE)
    node, place = source // stride, source % stride
    is_own = node == sync.word(call, words.NODE)
    # There are more places than segments, and what lies behind the last one is no cell.
    is_there = is_own & (place * fanout < sync.word(call, words.NUM_POINTS))
    cell = points.cell_of(call, tl.where(is_there, place, 0), fanout, strided)
    slab, at = row_in(call, landed(call, node), words.ROWS_IN, words.ROWS_GOT, node, place)
    return slab, at, is_own, cell


@triton.jit
def row_in(call, slab, places: tl.constexpr, side: tl.constexpr, node, place):
    """Where rows begin among which that of a place is, and its number there, -1 if it has none: in
    a slab, or in memory of a rank of this node where rows travel as flows."""
    codes = sync.word(call, places)
    begin, at = tl.cast(slab, tl.int64), tl.cast(place, tl.int64)  # in the interpreter numbers
    if codes != 0:
        to = codes.to(tl.pointer_type(tl.int32)) + node * sync.word(call, words.STRIDE) + place
        code = tl.load(to).to(tl.int64)
        bases = sync.array(call, words.ROW_BASES, tl.int64)
        begin = tl.load(bases + (tl.maximum(code, 0) >> ROW_BITS)) + sync.word(call, side)
        at = tl.where(code >= 0, code & ROW_MASK, -1)
    return begin, at


@triton.jit
def places_of(call, node):
    """How many segments have places in the slab of a node: in that of this rank's own, which stays,
    each one."""
    own = node == sync.word(call, words.NODE)
    return tl.where(own, sync.word(call, words.STRIDE), sync.word(call, words.SLAB_PLACES))


@triton.jit
def place_of(call, node, segment):
    """The place of a segment of this rank in the slab of a node, or of several; -1 if it has none
    there."""
    at = segment + node * 0
    table = sync.word(call, words.PLACES_AT)
    if table != 0:
        of_node = table.to(tl.pointer_type(tl.int32)) + node * sync.word(call, words.STRIDE)
        exists = node < sync.word(call, words.NUM_NODES)
        at = tl.load(of_node + segment, mask=exists, other=-1).to(tl.int64)
    return at


@triton.jit
def others_source(call, first, end, index):
    """The segment at an index of those of other nodes from the places ``first`` to ``end``."""
    node = index // (end - first)
    node += (node >= sync.word(call, words.NODE)).to(tl.int64)
    return node * sync.word(call, words.STRIDE) + first + index % (end - first)


@triton.jit
def own_source(call, first, end, index):
    """The segment at an index of this rank's own from there on."""
    return sync.word(call, words.NODE) * sync.word(call, words.STRIDE) + first + index


@triton.jit
def finished_source(call, first, end, index):
    """The same of those that are finished from there on, in their order."""
    segment = first + index
    order = sync.word(call, words.ORDER_AT)
    if order != 0:
        segment = tl.load(order.to(tl.pointer_type(tl.int32)) + segment).to(tl.int64)
    return own_source(call, 0, end, segment)


@triton.jit
def places_in_turn(call, first):
    """Of each other node, in the turn that begins with the place ``first``."""
    left = sync.word(call, words.SLAB_PLACES) - first
    return tl.minimum(sync.word(call, words.STAGED_PLACES), left)


@triton.jit
def num_reduced(call, first, most):
    """Segments of each other rank, of which there are at ``most`` so many, whose rows are reduced
    before those from the place ``first`` on are added up: all of a turn at its begin."""
    begins = (first % sync.word(call, words.STAGED_PLACES) == 0) & (most > 0)
    own = tl.where(first == 0, sync.word(call, words.STRIDE), 0)
    others = (sync.word(call, words.NUM_NODES) - 1) * places_in_turn(call, first)
    return tl.where(begins, others + own, 0)


@triton.jit
def reduced_source(call, first, index):
    """The segment at an index of these: what will travel, then, in the first turn, what is of this
    node."""
    places = places_in_turn(call, first)
    others = (sync.word(call, words.NUM_NODES) - 1) * places
    of_other = others_source(call, first, first + places, tl.minimum(index, others - 1))
    return tl.where(index < others, of_other, own_source(call, 0, 0, index - others))


@triton.jit
def taken_on(call, first, end, index):
    """The segment at an index of those that move once the places from ``first`` to ``end`` have
    come: with the first ones all of this rank's own do, before others."""
    own = tl.where(first == 0, sync.word(call, words.STRIDE), 0)
    others = others_source(call, first, end, tl.maximum(index - own, 0))
    return tl.where(index < own, own_source(call, 0, end, index), others)


@triton.jit
def num_taken_on(call, first, end):
    """How many they are."""
    own = tl.where(first == 0, sync.word(call, words.STRIDE), 0)
    return own + (sync.word(call, words.NUM_NODES) - 1) * (end - first)


@triton.jit
def is_last(call, end):
    """Whether these are the last places."""
    return end >= sync.word(call, words.SLAB_PLACES)


@triton.jit
def point_words(slab):
    """The words of a slab's points."""
    return (slab + HEADER_BYTES).to(tl.pointer_type(tl.int64))


@triton.jit
def load_points(call, source, point, mask, fanout: tl.constexpr):
    """Words of points, among those of all nodes, of the node that a segment has landed from; -1 if
    its slab is of another call."""
    node = source // sync.word(call, words.STRIDE)
    slab, at = landed(call, node), point - node * sync.word(call, words.STRIDE) * fanout
    there = mask & (at < places_of(call, node) * fanout)
    word = tl.load(point_words(slab) + at, mask=there, other=-1)
    return tl.where(is_of(slab, tag_of(call)), word, -1)


@triton.jit
def table_of(call, slab):
    """The table that its rank places keys by."""
    return (slab + sync.word(call, words.SLAB_TABLE)).to(tl.pointer_type(tl.int64))


@triton.jit
def counts_of(call, slab, index):
    """Counts of the tiles of one program of the planner."""
    counts = (slab + sync.word(call, words.SLAB_COUNTS)).to(tl.pointer_type(tl.int16))
    return counts + index * sync.word(call, words.SLAB_COLUMNS)


@triton.jit
def count_one(counts, mask):
    """Add 1 to counts, each by an atomic on the word that it is a half of."""
    at = counts.to(tl.int64)
    one = tl.where(at % 4 == 0, 1, 1 << 16)
    word = (at - at % 4).to(tl.pointer_type(tl.int32))
    tl.atomic_add(word, one, mask=mask, sem="relaxed")


@triton.jit
def within_of(call, slab, name: tl.constexpr):
    """Rows before each point in its tile: of its key, or, by the other ``name``, of its rank."""
    return (slab + sync.word(call, name)).to(tl.pointer_type(tl.int16))


@triton.jit
def lay_out(call, source, point, mask, fanout: tl.constexpr, compact: tl.constexpr):
    """Of points, among those of all nodes, of the node that a segment has landed from: ranks, keys,
    and rows before them."""
    rank, key = take_on(call, source, point, mask, fanout)
    node = source // sync.word(call, words.STRIDE)
    at = point - node * sync.word(call, words.STRIDE) * fanout
    slab = landed(call, node)  # what goes nowhere has any
    within = tl.load(within_of(call, slab, words.SLAB_WITHIN) + at, mask=mask, other=0)
    rows = within
    if compact:
        rows = tl.load(within_of(call, slab, words.SLAB_WITHIN_ROWS) + at, mask=mask, other=0)
    return rank, key, within.to(tl.int32), rows.to(tl.int32)


@triton.jit
def take_on(call, source, point, mask, fanout: tl.constexpr):
    """Of such points the ranks, and keys or slots. Weights are put where kernels behind this one
    find them."""
    word = load_points(call, source, point, mask, fanout)
    tl.store(sync.array(call, words.WEIGHTS, tl.int32) + point, weight_of(word), mask=mask)
    return rank_of(word), key_of(word)


@triton.jit
def point_word(rank, key, bits):
    """What says where a point goes in its node, with the bits of its weight."""
    return (bits.to(tl.int64) << 32) | (rank << words.SLOT_BITS) | key


@triton.jit
def rank_of(word):
    """The rank that a point goes to, -1 if to none."""
    code = word.to(tl.int32)
    return tl.where(code >= 0, code >> words.SLOT_BITS, -1).to(tl.int64)


@triton.jit
def key_of(word):
    """Its key or slot, likewise."""
    code = word.to(tl.int32)
    return tl.where(code >= 0, code & words.SLOT_MASK, -1).to(tl.int64)


@triton.jit
def weight_of(word):
    """The bits of its weight."""
    return (word >> 32).to(tl.int32)


@triton.jit
def note_dropped(call, node, trouble: tl.constexpr, times):
    """Count points of a node that are not moved, where the rank that they are of finds them. With
    exact sizes all nodes are told that there are any; see `verdicts`."""
    if (node == sync.word(call, words.NODE)) | (sync.is_exact(call) != 0):
        sync.note_dropped(call, trouble, times)
    else:
        kind: tl.constexpr = trouble - words.BAD_KEYS
        receipt = sync.array(call, words.RECEIPTS_OUT, tl.int64) + node * RECEIPTS + kind
        tl.atomic_add(receipt, times.to(tl.int64), sem="relaxed")


@triton.jit
def flag_of(slab, place):
    """Where the flag of a place is."""
    return (slab + HEADER_BYTES).to(tl.pointer_type(tl.int32)) + place


@triton.jit
def sum_at(
    call, slab, places: tl.constexpr, side: tl.constexpr, node, place, partial_bytes: tl.constexpr
):
    """Where the sum of a place travels back from, or has come back: as its row has come, or left,
    which is told as to `row_in`."""
    begin, at = row_in(call, slab, places, side, node, place)
    return begin + sync.word(call, words.BACK_ROWS) + at * partial_bytes
