"""What the kernels of one node read from memory: an int64 table, and the device's state.

A table belongs to a handle and never changes. Offsets are bytes from the base of a rank's window,
and every window has the same layout.
"""

import triton.language as tl

MAX_RANKS = tl.constexpr(8)
SLOT_BITS = tl.constexpr(27)  # a slot code packs (rank, slot); -1 is a dropped point
SLOT_MASK = tl.constexpr((1 << 27) - 1)

# Words of the table.
WINDOWS = tl.constexpr(0)  # [MAX_RANKS] base of every rank's window, as mapped here
RANK = tl.constexpr(8)
NUM_RANKS = tl.constexpr(9)
MAX_SOURCES = tl.constexpr(10)
CAPACITY = tl.constexpr(11)
MAX_SPINS = tl.constexpr(12)
COUNTS_AT = tl.constexpr(13)  # i32 [2 parities][num_ranks][columns + 1], the last: num_sources
PLAN_FLAGS_AT = tl.constexpr(14)  # i32 [num_ranks][blocks of keys] epochs
DISPATCH_FLAGS_AT = tl.constexpr(15)  # i32 [num_ranks][max_sources] epochs, one a group
COMBINE_FLAGS_AT = tl.constexpr(16)  # i32 [num_ranks][max_sources]
BARRIER_AT = tl.constexpr(17)  # i32 [num_ranks] combine epochs
POINTS_AT = tl.constexpr(18)  # i64 [num_ranks][max_sources][fanout] slot code, weight in the top
STAGING_AT = tl.constexpr(19)  # [num_ranks][max_sources] partial rows
STATE = tl.constexpr(20)  # address of the state
RANKS = tl.constexpr(21)  # address of i64 [points], what the relation says of each
KEYS = tl.constexpr(22)
SRC_OFFSETS = tl.constexpr(23)
WITHIN = tl.constexpr(24)  # address of i32 [points], rows of its key before a point in its tile
TILE_COUNTS = tl.constexpr(25)  # address of i32 [tiles][padded keys]
CODES = tl.constexpr(26)  # address of i32 [max_sources][fanout] slot codes of my points
FIRST_SLOTS = tl.constexpr(27)  # address of i32 [max_sources][MAX_RANKS] slots or rows, -1: none
KEY_COUNTS = tl.constexpr(28)  # address of i32 [num_keys] rows of each of my keys, in key order
KEY_STARTS = tl.constexpr(29)  # address of i32 [num_keys]
NUM_SOURCES_OF = tl.constexpr(30)  # address of i32 [MAX_RANKS + 1], the last: the most of any
NUM_SENDERS = tl.constexpr(31)  # programs that send before they expand
NUM_REDUCERS = tl.constexpr(32)  # programs that reduce while anything is left to
DISPATCH_GROUP = tl.constexpr(33)  # most source segments signalled together
COMBINE_GROUP = tl.constexpr(34)
REFUSALS_AT = tl.constexpr(35)  # i32 [num_ranks] calls that every rank has refused
ROW_INDEX_AT = tl.constexpr(36)  # i64 [capacity] row of every slot of a compact target, -1: padding
WITHIN_ROWS = tl.constexpr(37)  # address of i32 [points], rows of its rank before its own, likewise
NUM_WORDS = tl.constexpr(38)

# Words of the state, zeroed once; the last four as in kernels/include/call.cuh.
PLAN_EPOCH = tl.constexpr(0)  # dispatches finished
COMBINE_EPOCH = tl.constexpr(1)  # combines finished
COMBINE_SAW_PLAN = tl.constexpr(2)  # dispatches finished before the last combine
EXITS = tl.constexpr(3)  # programs that have left the running kernel
NEXT_ITEM = tl.constexpr(4)  # work counters of the running kernel: to expand or to reduce,
NEXT_GROUP = tl.constexpr(5)  # and to finalise
GAVE_UP = tl.constexpr(12)  # 0, or stage * 2^24 + peer * 2^20 + (item mod 2^20) + 2^31
BAD_KEYS = tl.constexpr(13)  # points whose key or rank does not exist, never moved
OVERFLOWED = tl.constexpr(14)  # points whose slot was beyond the capacity, never moved
REFUSALS = tl.constexpr(15)  # calls that this rank raised an error for instead of joining them

# What a wait was for: `STAGES` of fuscoc_runtime/engine/node/state.py.
PLAN_PEERS = tl.constexpr(1)
DISPATCH_GROUP_ROWS = tl.constexpr(2)
COMBINE_GROUP_ROWS = tl.constexpr(3)
COMBINE_ENTER = tl.constexpr(4)
REFUSED = tl.constexpr(6)
