"""What the kernels of one node read from memory: an int64 table, and the device's state.

A table belongs to a handle and never changes. Offsets are bytes from the base of a rank's window,
and every window has the same layout.
"""

import triton.language as tl

from fuscoc_runtime.kernels.device import room
from fuscoc_runtime.room import first_source, is_wide, num_rank_words, num_slot_bits

MAX_RANKS = tl.constexpr(room())  # of a node that there is room for: a power of two
IS_WIDE = tl.constexpr(is_wide(room()))  # more than the texts of kernels count with
RANK_WORDS = tl.constexpr(num_rank_words(room()))  # of a bit for each
SLOT_BITS = tl.constexpr(num_slot_bits(room()))
# a slot code packs (rank, slot); -1 is a dropped point
SLOT_MASK = tl.constexpr((1 << num_slot_bits(room())) - 1)

# What a relation says of a point.
OUT_OF_RANGE = tl.constexpr(-2)  # its rank: that, its key or what it looks up does not exist

# Words of the table.
WINDOWS = tl.constexpr(115 if IS_WIDE.value else 0)  # [MAX_RANKS] base of every rank's window, as
# mapped here: of few they lie at the address that kernels have in a register
RANK = tl.constexpr(8)
NUM_RANKS = tl.constexpr(9)
MAX_SOURCES = tl.constexpr(10)
CAPACITY = tl.constexpr(11)
LONG_WAIT = tl.constexpr(12)  # polls after which a wait is shown to the host
COUNTS_AT = tl.constexpr(13)  # i32 [2 parities][num_ranks][columns + 1], the last: num_sources
PLAN_FLAGS_AT = tl.constexpr(14)  # i32 [num_ranks][blocks of keys] epochs
DISPATCH_FLAGS_AT = tl.constexpr(15)  # i32 [num_ranks][max_sources] epochs, one a group
COMBINE_FLAGS_AT = tl.constexpr(16)  # i64 [num_ranks][max_sources] tags of combines, one a group
BARRIER_AT = tl.constexpr(17)  # i64 [num_ranks] latest combine of the handle that each has begun
POINTS_AT = tl.constexpr(18)  # i64 [num_ranks][max_sources][fanout] slot code, weight in the top;
# where rows are moved many at once i32 [num_ranks][max_sources], the code alone
STAGING_AT = tl.constexpr(19)  # [num_ranks - 1][STAGED] partial rows
STATE = tl.constexpr(20)  # address of the state
RANKS = tl.constexpr(21)  # address of i64 [points], what the relation says of each
KEYS = tl.constexpr(22)  # or slots, where the relation gives them
SRC_OFFSETS = tl.constexpr(23)
WITHIN = tl.constexpr(24)  # address of i32 [points], rows of its key before a point in its tile
TILE_COUNTS = tl.constexpr(25)  # address of i32 [tiles][padded keys]
CODES = tl.constexpr(26)  # address of i32 [max_sources][fanout] slot codes of my points
FIRST_SLOTS = tl.constexpr(27)  # address of i32 [max_sources][MAX_RANKS] slots or rows, -1: none
KEY_COUNTS = tl.constexpr(28)  # address of i32 [num_keys] rows of each of my keys, in key order
KEY_STARTS = tl.constexpr(29)  # address of i32 [num_keys]
ROUTING = tl.constexpr(30)  # address of the handle's words, below
NUM_SENDERS = tl.constexpr(31)  # programs that send before they expand
NUM_REDUCERS = tl.constexpr(32)  # programs that reduce while anything is left to
DISPATCH_GROUP = tl.constexpr(33)  # most source segments signalled together
COMBINE_GROUP = tl.constexpr(34)
REFUSED_AT = tl.constexpr(35)  # i64 [num_ranks] latest combine of the handle that each has refused
ROW_INDEX_AT = tl.constexpr(36)  # i64 [capacity] row of every slot of a compact target, -1: padding
WITHIN_ROWS = tl.constexpr(37)  # address of i32 [points], rows of its rank before its own, likewise
PAGE = tl.constexpr(38)  # address of the page, words of which are below
PLAN_BLOCKS = tl.constexpr(39)  # blocks of keys, each with a plan flag of its own
CLAIMS_AT = tl.constexpr(40)  # i32 [capacity] epoch of the dispatch that filled a given slot
SRC_STRIDES = tl.constexpr(41)  # address of i64 [strides][points], in source cells
NUM_POINTS = tl.constexpr(42)  # of a rank, that those have room for
REPORT = tl.constexpr(43)  # address of what planning reports; 0 unless sizes are exact
MEETING_FLAGS_AT = tl.constexpr(44)  # i32 [num_ranks] meetings that each has come to, likewise
SAID_AT = tl.constexpr(45)  # i32 [2 parities][num_ranks] what it has said there
# Of a dispatch of pieces, i64 words; `boxes` and `pieces` say what of.
BOXES_AT = tl.constexpr(46)  # [num_ranks][max_boxes] boxes, which this rank's combine copies,
BEFORE_AT = tl.constexpr(47)  # [num_ranks][max_boxes + 1] items before each,
MARKS_AT = tl.constexpr(48)  # [num_ranks][max_boxes] slots that they are of,
TOLD_AT = tl.constexpr(49)  # [num_ranks] and how many there are, the epoch in the top
TOLD_FLAGS_AT = tl.constexpr(50)  # i32 [num_ranks] epochs, when all of it is there
BOXES_FORTH = tl.constexpr(51)  # address of [halves][max_boxes][fields] boxes
FORTH = tl.constexpr(52)  # address of what is said of these, in `made_boxes`: words of either half
BOXES_BACK = tl.constexpr(53)  # address of [max_boxes] boxes
BACK_BEFORE = tl.constexpr(54)  # address of [max_boxes + 1] items before each
NUM_BOXES = tl.constexpr(55)  # address of how many boxes there are to come back
FILLED = tl.constexpr(56)  # address of i32 [capacity / 32] bits of slots that are filled
MOVED = tl.constexpr(57)  # address of [2 + MAX_RANKS], bytes that move, points, points to each rank
POINTS_BEFORE = tl.constexpr(58)  # address of [max_entries] points before every entry,
CELLS_BEFORE = tl.constexpr(59)  # and source cells
MAX_ENTRIES = tl.constexpr(60)
MAX_BOXES = tl.constexpr(61)
STAGING_BYTES = tl.constexpr(62)
MAX_FLAGS = tl.constexpr(63)
TAKEN = tl.constexpr(64)  # address of staging bytes and flags that boxes take, entries, points,
# whether boxes are stale, boxes of `chains` so far, whether those of all ranks are kept, and the
# half that those of dispatch are in
SENT_ITEMS = tl.constexpr(65)  # address of [num_ranks][max_boxes] items of boxes that it has told
MADE_OF = tl.constexpr(66)  # address of what fixed boxes were made of; see `kept`
# Of several nodes, whose source segments this rank takes on; see `slabs`.
NUM_NODES = tl.constexpr(67)  # 1: windows reach all ranks
NODE = tl.constexpr(68)  # this rank's
STRIDE = tl.constexpr(69)  # source segments of node n, and of this place there, are from n * STRIDE
NUM_KNOWN = tl.constexpr(70)  # ranks of all nodes, or more
OWN_RANKS = tl.constexpr(71)  # address of i64 [points] of this rank, as RANKS, of all nodes,
OWN_KEYS = tl.constexpr(72)  # and their keys, where KEYS are numbers in this node
WEIGHTS = tl.constexpr(73)  # address of f32 [max_sources][fanout] that have come with the segments
SLABS_OUT = tl.constexpr(74)  # address of a slab for every node, and how many bytes it has,
SLABS_IN = tl.constexpr(75)  # of one from every node
SLAB_BYTES = tl.constexpr(76)
BACKS_OUT = tl.constexpr(77)  # the same on the way back
BACKS_IN = tl.constexpr(78)
BACK_BYTES = tl.constexpr(79)
BACK_ROWS = tl.constexpr(80)  # where sums begin in such a slab
RECEIPTS_OUT = tl.constexpr(81)  # address of i64 [nodes][RECEIPTS of `slabs`]: points of each that
RECEIPTS_IN = tl.constexpr(82)  # were not moved here, and of this rank's that were not there
EXCHANGES = tl.constexpr(83)  # address of i32 [3] of the host: calls whose slabs travel, or have,
DO_NOT_FIT = tl.constexpr(2)  # and whether rows of several ranks would do so that do not fit
NUM_KEYS = tl.constexpr(84)  # that are counted: of all, or of several nodes those of this one
NODE_KEYS = tl.constexpr(85)  # address of i64 [keys], the number of each in the node that it is of
# Where the parts of a slab begin that a rank counts, in bytes, and how many columns it has:
SLAB_WITHIN = tl.constexpr(86)  # i16 [stride][fanout] rows of its key before a point in its tile,
SLAB_WITHIN_ROWS = tl.constexpr(87)  # of its rank, likewise,
SLAB_COUNTS = tl.constexpr(88)  # i16 [tiles][columns] rows of every key and rank
SLAB_COLUMNS = tl.constexpr(89)
SLAB_KEYS = tl.constexpr(90)  # of them for keys, as many as any node has
CELL_MARKS = tl.constexpr(91)  # address of [max_boxes] source cells that segments begin with
POINT_BYTES = tl.constexpr(92)  # of what ranks tell each other of a point: 8, or 4
RECEIPTS_TRAVEL = tl.constexpr(93)  # 1: behind every dispatch
STAGED = tl.constexpr(94)  # partial rows of each other rank that staging has room for
STAGED_PLACES = tl.constexpr(95)  # and of how many places of another node: more come in turns
TURNS_AT = tl.constexpr(96)  # i64 [num_ranks] latest turn, but for the first, that each has begun
CALL_TAG = tl.constexpr(97)  # with exact sizes what slabs are told by: a call, and the dispatch
# whose routing it follows; 0: by the epoch
IS_KNOWN = tl.constexpr(98)  # 1: a dispatch along a known routing, whose report no host waits for
TABLES_AT = tl.constexpr(99)  # i64 [2 parities][ranks of all nodes], numbers of `tables`
SLAB_TABLE = tl.constexpr(100)  # where a slab has that table, i64 [keys], in bytes
MOST_SLOTS = tl.constexpr(101)  # that a rank may have where nodes tell each other a verdict; see
# `verdicts`; 0: they do not
SLAB_PLACES = tl.constexpr(102)  # of a slab, for segments of the rank that sends it
PLACES_AT = tl.constexpr(103)  # address of i32 [nodes][stride]: the place of each of this rank's
# segments in the slab of a node, -1: none; 0: all slabs have the same places for the same segments
ORDER_AT = tl.constexpr(104)  # address of i32 [stride]: these in the order in which combines finish
# them; 0: their own
# Of calls whose rows travel as flows; see `flows`.
ROWS_OUT = tl.constexpr(105)  # address of i32 [nodes][stride], where the rows of places are that go
ROWS_IN = tl.constexpr(106)  # to a node, and come from there; 0: rows travel in slabs
ROW_BASES = tl.constexpr(107)  # address of i64 [num_ranks], the memory of every rank of the node,
ROWS_SENT = tl.constexpr(108)  # and where in it rows begin that it sends,
ROWS_GOT = tl.constexpr(109)  # and that it gets, in bytes
NOTES_AT = tl.constexpr(110)  # i32 [num_ranks] of pieces: twice the epoch of a dispatch, and 1 more
# if the rank has nothing new in it; see `kept`; 0 of others
# Of results of pieces that are lent; see `lend`.
LENT_AT = tl.constexpr(111)  # i64 [num_ranks] where each lends that of its combine
ARRIVED_AT = tl.constexpr(112)  # i64 [num_ranks] the combine of which all is here that each stores
BOXES_LENT_AT = tl.constexpr(113)  # as BOXES_AT, for such results; 0: none are lent
RESULTS = tl.constexpr(114)  # address of i64 [num_ranks], where each has memory for them, as mapped
# here
NUM_WORDS = tl.constexpr(115 + IS_WIDE.value * MAX_RANKS.value)

# Words of the state, zeroed once; those from ABORT on as in kernels/include/call.cuh.
PLAN_EPOCH = tl.constexpr(0)  # dispatches finished, refused ones too: the same on all ranks
NUM_COMBINES = tl.constexpr(1)  # combines finished
COMBINE_SAW_PLAN = tl.constexpr(2)  # dispatches finished before the last combine
EXITS = tl.constexpr(3)  # programs that have left the running kernel
NEXT_ITEM = tl.constexpr(4)  # work counters of the running kernel: to expand or to reduce,
NEXT_GROUP = tl.constexpr(5)  # and to finalise
MEETINGS = tl.constexpr(6)  # meetings that have ended, the same on all ranks
MET = tl.constexpr(7)  # the dispatch, by its epoch, in which all ranks have told of pieces,
PLANNED = tl.constexpr(8)  # and the one whose boxes are there
NEXT_SHARE = tl.constexpr(9)  # a work counter: shares of a result to clear,
CLEARED = tl.constexpr(10)  # and how many are
ABORT = tl.constexpr(12)  # not 0: somebody has seen that the host wants nobody to wait any more
TELLING = tl.constexpr(13)  # whether somebody's wait is on the page
TROUBLES = tl.constexpr(14)  # all that is counted below,
TOLD = tl.constexpr(15)  # and how much of it the page has
ROWS_TICKET = tl.constexpr(16)  # the dispatch whose rows are in the window
BAD_KEYS = tl.constexpr(17)  # points whose key, rank or slot does not exist, never moved
OVERFLOWED = tl.constexpr(18)  # points whose slot was beyond the capacity, never moved
CLASHED = tl.constexpr(19)  # points whose slot another point of the call had, never moved
EXCESS = tl.constexpr(20)  # ragged source segments beyond max_sources, never moved
BAD_SIZES = tl.constexpr(21)  # dispatches whose ragged sizes were none, which moved nothing
OUTDATED = tl.constexpr(22)  # combines with a handle whose memory a later dispatch had taken
OVERWRITTEN = tl.constexpr(23)  # combines of rows that a later dispatch had replaced
SHARED = tl.constexpr(24)  # segments that begin with the source cell of another one of the call
MISPLACED = tl.constexpr(25)  # dispatches that ranks gave different tables to, which moved nothing
REFUSALS = tl.constexpr(26)  # [NUM_KNOWN] calls that a rank refused while this one had joined
# them; behind these [NUM_KNOWN] the latest of them that was a combine, by NUM_COMBINES
NUM_KINDS = tl.constexpr(9)  # words from BAD_KEYS to REFUSALS

# Words of the page, in the host's memory, behind a wait that takes long, i64.
PAGE_TROUBLES = tl.constexpr(2)  # those of the state, from BAD_KEYS on; behind them ABORT, not 0 if
# the host wants nobody to wait any more

# Words of the report, i64, the call's epoch in their upper halves but for the last.
REPORT_SLOTS = tl.constexpr(0)  # [MAX_RANKS] slots of every rank
REPORT_SOURCES = tl.constexpr(MAX_RANKS.value)  # [MAX_RANKS] its source segments, -1: it refuses
# the call
REPORT_ROWS = tl.constexpr(2 * MAX_RANKS.value)  # rows of this rank
REPORT_ABORTED = tl.constexpr(REPORT_ROWS.value + 1)  # not 0: nobody waits any more, and nothing
# here is true
REPORT_VERDICT = tl.constexpr(REPORT_ROWS.value + 2)  # one of `verdicts`, if nodes tell each other
# any; -1 as before
REPORT_OTHERS = tl.constexpr(REPORT_ROWS.value + 3)  # [MAX_RANKS] if not 0: what this rank, in the
# upper half, and another have said of one call: the dispatch whose routing it uses, -1: it refuses

# A handle's words; of few ranks as in kernels/include/call.cuh.
SOURCES = tl.constexpr(first_source(room()))  # [MAX_RANKS] source segments of every rank
MOST_SOURCES = tl.constexpr(8)  # the most of any
TICKET = tl.constexpr(9)  # the dispatch whose routing this is
EPOCH = tl.constexpr(10)  # its PLAN_EPOCH
COMBINES = tl.constexpr(11)  # combines of it that have ended, the same on all ranks
REFUSING = tl.constexpr(SOURCES.value + MAX_RANKS.value if IS_WIDE.value else 12)  # [RANK_WORDS]
# ranks, a bit each, that refused the dispatch
USES = tl.constexpr(13)  # dispatches that have used this memory
DROPPED = tl.constexpr(14)  # points dropped: of the latest use by parity, 0 for the next one

# What a wait was for: `STAGES` of fuscoc_runtime/engine/node/state.py.
PLAN_PEERS = tl.constexpr(1)
DISPATCH_GROUP_ROWS = tl.constexpr(2)
COMBINE_GROUP_ROWS = tl.constexpr(3)
COMBINE_ENTER = tl.constexpr(4)
STAGED_SLOTS = tl.constexpr(5)
