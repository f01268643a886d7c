// What a call hands to the kernels, and where things lie in a rank's symmetric window.
//
// `Call` is mirrored by a ctypes structure in fuscoc_runtime/engine/node/call.py: same order, same
// types. Every rank's window has the same layout; offsets are bytes from its base.
#pragma once
#include "base.cuh"

namespace fuscoc {

// Device-resident, zeroed once. Epochs live here and not in kernel arguments, so that a captured
// graph can be replayed; flags hold the epoch that wrote them and are never cleared. Of a pair of
// work counters a kernel uses the one of its epoch's parity and clears the other. Words that the host
// knows are named in engine/node/state.py.
struct State {
  u32 plan_epoch;          // dispatches planned, refused ones too: the same on all ranks
  u32 num_combines;        // combines begun
  u32 combine_saw_plan;    // plan_epoch when the last combine began
  u32 entries;             // CTAs that have entered the running kernel
  u32 next_send[2];        // work counters
  u32 next_expand[2];
  u32 next_reduce[2];
  u32 next_finalise[2];
  u32 abort;               // not 0: somebody has seen that the host wants nobody to wait any more
  u32 telling;             // whether somebody's wait is on the page
  u32 troubles;            // all that is counted below,
  u32 told;                // and how much of it the page has
  u32 rows_ticket;         // the dispatch whose rows are in the window
  u32 bad_keys;            // points whose key, rank or slot does not exist, never moved
  u32 overflowed;          // points whose slot was beyond the capacity, never moved
  u32 clashed;             // points whose slot another point of the call had, never moved
  u32 excess;              // ragged source segments beyond max_sources, never moved
  u32 bad_sizes;           // dispatches whose ragged sizes were none, which moved nothing
  u32 outdated;            // combines with a handle whose memory a later dispatch had taken
  u32 overwritten;         // combines of rows in the window that a later dispatch had replaced
  u32 shared;              // segments that begin with the source cell of another one of the call
  u32 misplaced;           // dispatches that ranks gave different tables to, which moved nothing
  u32 refusals[kMaxRanks]; // calls that a rank refused while this one had joined them
  u32 noted[kMaxRanks];    // num_combines of the latest of them that was a combine
  u32 sent[2];             // CTAs that have sent all their rows (compact targets; results that are lent, the first)
  u32 dispatch_epoch;      // dispatches begun that were planned by a kernel of their own,
  u32 planned;             // and the CTAs of that kernel that have finished; the latest one whose boxes are there (pieces without lookups)
  u32 cleared[2];          // parts of a result that are 0 (pieces), as of the work counters of a combine
  u32 lent;                // the latest combine whose results all ranks have lent, by its number; 0: none (pieces)
};
constexpr int kNumTroubles = 9 + kMaxRanks;  // words from `bad_keys` on

// In the host's memory, where host and kernels meet without a call of CUDA: the host may be waiting in
// one, for these very kernels, and its other threads could then make none.
struct Page {
  u64 waiting;               // 0, or {wait_code, calls begun} of a wait that takes long
  u32 troubles[kNumTroubles];  // the words of `State`, as of the latest call but those under way
  u32 abort;                 // not 0: the host wants nobody to wait any more
};

// What belongs to the memory of a handle and changes with every dispatch that uses it.
struct Routing {
  int num_sources_of[kMaxRanks];  // source segments on every rank, 0 on one that refused the call
  int most_sources;        // the most of any
  u32 ticket;              // the dispatch whose routing this is
  u32 epoch;               // its plan_epoch
  u32 combines;            // combines of it that have begun, the same on all ranks but the refusing
  u32 refusing;            // ranks, a bit each, that refused the dispatch
  u32 uses;                // dispatches that have used this memory
  u32 dropped[2];          // points dropped: of the latest use by parity, 0 for the next one
};

constexpr int kMaxStagedPlans = 4;  // CTAs that plan in a staged dispatch, at most

struct Call {
  char* window[kMaxRanks];        // every rank's window, as mapped here
  const char* source[kMaxFields]; // dispatch: source tensors
  const void* inputs[kMaxInputs]; // the relation's input tensors
  i64 extents[kMaxInputs];        // the relation's run-time extents
  i64 rows_at[kMaxFields];        // [capacity] rows of each field
  i64 staged_at[kMaxFields];      // [2 parities][num_ranks][staged_sources] rows that wait for slots
  i64 ready_at;                   // u64 [num_ranks][kMaxStagedPlans] {num_sources, epoch}
  i64 counts_at;                  // u64 [2 parities][num_ranks][columns + 1] {count, epoch}
  i64 dispatch_flags_at;          // u32 [num_ranks][max_sources] epochs, one a group
  i64 combine_flags_at;           // u64 [num_ranks][max_sources] {epoch, number} of combines
  i64 barrier_at;                 // u64 [num_ranks] latest combine of the handle that each has begun
  i64 refused_at;                 // u64 [num_ranks] latest one that each has refused
  i64 points_at;                  // u64 [num_ranks][max_sources][fanout] {slot code, weight bits}
  i64 staging_at;                 // [num_ranks][max_sources] partial rows
  i64 row_index_at;               // i64 [capacity] row of every slot, -1: padding (compact targets)
  i64 claims_at;                  // u32 [capacity] latest epoch that filled each slot (given slots)
  i64 boxes_at;                   // [num_ranks][max_boxes] boxes, marks and their numbers that the ranks have
  i64 marks_at;                   // told this one (pieces),
  i64 told_at;                    // u64 [num_ranks] {number, epoch}
  i64 arrived_at;                 // u64 [num_ranks] latest combine of which all that each sends has arrived, where results
                                  // may be lent; else 0 (pieces)
  i64 lent_at;                    // u64 [num_ranks] where in its memory each lends its result, and 1; 0: it does not (pieces)
  i64 boxes_lent_at;              // [num_ranks][max_boxes] boxes that the ranks have told this one for such results (pieces)
  char* results[kMaxRanks];       // every rank's memory for results that it lends, as mapped here (pieces)
  i64 result_at;                  // combine: where in that `result` lies, -1: elsewhere (pieces)
  State* state;
  Page* page;
  Routing* routing;
  u64* cta_counts;                // [plan CTAs][columns] {count, epoch}; see plan.cuh
  int* codes;                     // [num_sources][fanout] slot codes of my points, -1 dropped
  int* point_rows;                // [num_sources][fanout] rows of my points (compact targets)
  unsigned char* keys;            // [num_sources] keys while a dispatch sorts, num_keys: none (sorted rows)
  int* slots;                     // [num_sources] slot codes while it moves rows one by one (sorted rows)
  i64* places;                    // [num_sources][1 + strides] cells of my segments (given slots)
  void* boxes_forth;              // [max_boxes][fields] boxes of this rank's dispatch,
  void* boxes_back;               // [max_boxes] where its results come from,
  u32* num_boxes;                 // how many there are
  u64* moved;                     // [2 + ranks] bytes of the first field that they move, points that there
                                  // are, and those that go to every rank (pieces)
  i64* made_of;                   // [extents, slots of ranks, 1] what boxes were last made of (pieces)
  u32* filled;                    // [capacity] bits: the slots that have a row (pieces)
  void* cell_marks;               // [max_boxes] source cells that segments begin with (pieces),
  u32* begun;                     // and bits of those, 0 but for pieces (segments that must lie apart)
  const i64* outer;               // [max_sources][fanout] outermost index of a point (ragged domains),
  i64* points_before;             // [outermost extent + 1] points
  i64* cells_before;              // and source cells before an outermost index,
  const i64* num_points;          // and the points that there are; null: all
  int* key_counts;                // [num_keys] rows of each of my keys, in key order
  int* key_starts;                // [num_keys] first slot of each of my keys
  const float* weights;           // [num_sources][fanout], null when unweighted
  const char* rows;               // combine: rows in slot order
  char* result;                   // combine: [num_sources] rows
  i64 num_sources;
  i64 max_sources;
  i64 staged_sources;             // segments of a rank, the first ones, that are staged
  i64 capacity;
  i64 num_slots;                  // of this rank (given slots)
  i64 result_bytes;               // combine: of `result` (given slots); dispatch: of the first field (pieces)
  i64 num_cells;                  // of the source, -1: whatever entries say (pieces)
  i64 max_entries;                // (pieces)
  i64 max_boxes;                  // of them
  i64 staging_bytes;              // (pieces)
  i64 max_flags;                  // of items of a combine (pieces)
  u32 ticket;                     // of the handle
  u32 rows_ticket;                // combine: the dispatch that put `rows` into the window, 0: none did
  int refuses;                    // combine: this rank only says that it does not join
  int rank;
  int num_ranks;
  int columns;                    // of `counts_at`
  int plan_ctas;                  // CTAs that plan
  int send_ctas;                  // CTAs that hold sending warps, and how many each; of pieces all that copy
  int send_warps;                 // the others expand (dispatch)
  int reduce_teams;               // teams of a CTA that prefer to reduce (combine), at most all
  int dispatch_group;             // most source segments signalled together
  int combine_group;
  void* kept;                     // [pieces] what boxes of the next call may have in common with those of this one
  u32* covered;                   // parts of a result that what comes back covers; see `Covered` (pieces)
};

// A slot code packs (rank, slot); -1 is a dropped point.
constexpr int kSlotBits = 27;
__device__ __forceinline__ int code_of(int rank, i64 slot) { return (rank << kSlotBits) | int(slot); }
__device__ __forceinline__ int code_rank(int code) { return code >> kSlotBits; }
__device__ __forceinline__ i64 code_slot(int code) { return code & ((1 << kSlotBits) - 1); }

// Without keys the relation gives the slots.
template <class Shape>
constexpr bool kGivenSlots = Shape::num_keys == 0;

// Whether planning stores a place for every segment; if not, the relation computes where it lies.
template <class Layout, class = void>
constexpr bool kPlaced = false;
template <class Layout>
constexpr bool kPlaced<Layout, decltype(void(Layout::num_strides))> = true;

// Rows of a group that comes back as copies, at most; 1 where rows are summed up, or do not come back.
template <class Shape, class = void>
constexpr int kCopiedRows = 1;
template <class Shape>
constexpr int kCopiedRows<Shape, decltype(void(Shape::combine_rows))> = Shape::combine_rows;

// Whether dispatch sorts rows by key: then, of rows that come back as copies, runs are told and not points.
template <class Shape, class = void>
constexpr bool kSorted = false;
template <class Shape>
constexpr bool kSorted<Shape, decltype(void(Shape::sorted_rows))> = true;

// What a dispatch adds to the flag of its rank at a peer, where it has one flag there and that is not the
// epoch: its CTAs a share each, which are whole together, however many they are.
constexpr u32 kWholeFlag = 1 << 16;
template <class Shape, class = void>
constexpr u32 kFlagStep = 1;
template <class Shape>
constexpr u32 kFlagStep<Shape, decltype(void(Shape::num_loops))> = kWholeFlag;

// Where a rank's window has what rank `from` counted: of every column, of which a table that places keys has
// two more for its number, and its source segments, -1 if it refused the call.
__device__ __forceinline__ u64* counts_of(const Call& call, u32 epoch, int window, int from) {
  return reinterpret_cast<u64*>(call.window[window] + call.counts_at) +
         (i64(epoch & 1) * call.num_ranks + from) * (call.columns + 1);
}

// Rows of a tile of a rank that has so many, a power of two. Fewer where few CTAs would have tiles, but whole groups
// of those that come back together. Ranks know it of each other.
template <class Shape>
__device__ __forceinline__ int tile_rows(i64 num_sources) {
  constexpr int group = kCopiedRows<Shape> > kWarp ? kCopiedRows<Shape> : kWarp, tiles = 128;
  constexpr int least = Shape::sorted_rows < 512 ? group : 512;
  int rows = Shape::sorted_rows;
  while (rows > least && num_sources < i64(rows) * tiles) rows /= 2;
  return rows;
}
// Where a window has the runs of a tile of rank `from`, which begins with a segment: rows there of one key, which
// lie one behind the other, as {how many, the first one's slot}. 0 is behind them if there are fewer than rows.
__device__ __forceinline__ u64* told_runs(const Call& call, int window, int from, i64 first) {
  return reinterpret_cast<u64*>(call.window[window] + call.points_at) + from * call.max_sources + first;
}

// What the slot of a code refers to in a compact target, in the window of its rank.
__device__ __forceinline__ i64* row_index(const Call& call, int code) {
  return reinterpret_cast<i64*>(call.window[code_rank(code)] + call.row_index_at) + code_slot(code);
}
// What says which dispatch has filled the slot of a code, where the relation gives slots.
__device__ __forceinline__ u32* claim_of(const Call& call, int code) {
  return reinterpret_cast<u32*>(call.window[code_rank(code)] + call.claims_at) + code_slot(code);
}
// Rows that a rank has room for in a compact target.
__device__ __forceinline__ i64 row_capacity(const Call& call) {
  return min(call.capacity, call.num_ranks * call.max_sources);
}

enum Stage : u32 {
  kPlanLocal = 0,
  kPlanPeers = 1,
  kDispatchGroup = 2,
  kCombineGroup = 3,
  kCombineEnter = 4,
  kStagedSlots = 5,
};

// What a wait is for, as one word.
__device__ __forceinline__ u32 wait_code(Stage stage, int peer, u32 item) {
  return 0x80000000u | (u32(stage) << 28) | (u32(peer) << 20) | (item & 0xfffff);
}

// Counts what has gone wrong, for `check`, and for the page at the next call.
__device__ __forceinline__ void note(const Call& call, u32& word, u32 times = 1) {
  atomicAdd(&word, times);
  atomicAdd(&call.state->troubles, times);
}
__device__ __forceinline__ void note_dropped(const Call& call, u32& word, int parity, u32 times = 1) {
  note(call, word, times);
  atomicAdd(&call.routing->dropped[parity], times);
}
// Done by one thread of a call, when all earlier ones have ended. What the call itself adds meanwhile, the
// next one tells.
__device__ __forceinline__ void tell_troubles(const Call& call) {
  State& state = *call.state;
  const u32 troubles = *(volatile u32*)&state.troubles;
  if (troubles == state.told) return;
  for (int i = 0; i < kNumTroubles; ++i) store_relaxed(&call.page->troubles[i], *((volatile u32*)&state.bad_keys + i));
  state.told = troubles;
}

constexpr u32 kLongWait = 1 << 16;  // polls, some milliseconds: after so many the page is worth a look

enum Outcome { kReady, kNever, kAborted };

// Polls ready() until it holds, or never(), which is asked now and then, or the host has raised `abort`.
// A wait that takes long is shown to the host, which has the clock; one at a time. The host's memory is
// far away: who has seen it raise `abort` tells the others.
template <class Ready, class Never>
__device__ __forceinline__ Outcome wait_until(const Call& call, Stage stage, int peer, u32 item, Ready ready, Never never) {
  if (ready()) return kReady;
  State& state = *call.state;
  bool shown = false;
  Outcome outcome = kReady;
  for (u32 polls = 1; !ready(); ++polls) {
    if (polls % 64 == 0) {
      if (*(volatile u32*)&state.abort) return kAborted;
      if (never()) {  // unless it has become ready before
        outcome = ready() ? kReady : kNever;
        break;
      }
      if (polls % kLongWait == 0) {
        if (load_relaxed(&call.page->abort)) *(volatile u32*)&state.abort = 1;
        if (!shown && atomicCAS(&state.telling, 0u, 1u) == 0) {
          shown = true;
          const u32 calls = state.plan_epoch + state.num_combines;
          store_relaxed(&call.page->waiting, tagged(calls, wait_code(stage, peer, item)));
        }
      }
    }
    __nanosleep(32);
  }
  if (shown) {
    store_relaxed(&call.page->waiting, 0);
    fence_system();
    atomicExch(&state.telling, 0u);
  }
  return outcome;
}
template <class Ready>
__device__ __forceinline__ bool wait_until(const Call& call, Stage stage, int peer, u32 item, Ready ready) {
  return wait_until(call, stage, peer, item, ready, [] { return false; }) == kReady;
}

// Source segments signalled together: fewer when every rank has few, so that a small batch still
// spreads over the machine. All ranks see the same counts, hence the same size.
__device__ __forceinline__ int group_size(int most_sources, int most) { return min(most, max(1, most_sources / 2048)); }
__device__ __forceinline__ int group_size(const Call& call, int most) {
  return group_size(call.routing->most_sources, most);
}
// The same of rows that are copied, a power of two: so tiles of a dispatch have whole groups.
__device__ __forceinline__ int copied_group(int group) { return 1 << (31 - __clz(group)); }

// Remote items (segments or groups) are visited round-robin over their source ranks, nearest
// following rank first, so that ranks do not all work for the same peer at once.
struct RemoteItem {
  int source_rank;
  int index;
};
__device__ __forceinline__ RemoteItem remote_item(const Call& call, u32 item) {
  const u32 others = call.num_ranks - 1;
  return {int((call.rank + 1 + item % others) % call.num_ranks), int(item / others)};
}
// Ranks with fewer segments than the most of any have items that do not exist: they are skipped.
__device__ __forceinline__ u32 num_remote_items(const Call& call, int group) {
  return (call.routing->most_sources + group - 1) / group * (call.num_ranks - 1);
}

// By one thread, before the CTA enters: the number of this dispatch, and whether a rank is lost.
__device__ __forceinline__ void begin_dispatch(const Call& call, u32& epoch, bool& aborted) {
  const u32 before = *(volatile u32*)&call.state->dispatch_epoch, abort = *(volatile u32*)&call.state->abort;
  epoch = before + 1;
  aborted = abort;
}

// The last CTA to enter runs `advance`: what it changes, every CTA has read before. Thread 0 reads
// it and tells the others, so that no thread's load is still under way. The last thread does the rest:
// its warp has the least to do in small calls.
template <class Advance>
__device__ __forceinline__ void entered_behind(const Call& call, Advance advance) {
  if (threadIdx.x == blockDim.x - 1) {
    fence_gpu();
    if (atomicAdd(&call.state->entries, 1u) == gridDim.x - 1) {
      call.state->entries = 0;
      advance(*call.state);
    }
  }
}
template <class Advance>
__device__ __forceinline__ void entered(const Call& call, Advance advance) {
  __syncthreads();
  entered_behind(call, advance);
}
// The same in two steps, where a thread has a register for it: the last CTA to `enter` runs `advance` as it
// leaves. Its last thread alone knows that it is the one, and goes on without waiting to hear so.
__device__ __forceinline__ u32 enter(const Call& call) {
  __syncthreads();
  if (threadIdx.x != blockDim.x - 1) return 0;
  fence_gpu();
  return atomicAdd(&call.state->entries, 1u);
}
template <class Advance>
__device__ __forceinline__ void leave(const Call& call, u32 place, Advance advance) {
  if (threadIdx.x != blockDim.x - 1 || place != gridDim.x - 1) return;
  call.state->entries = 0;
  advance(*call.state);
}

// By a warp, of which one lane has waited for something: whether it is there. If so, it is for all lanes: a shuffle
// alone orders no memory.
__device__ __forceinline__ bool told_by(int lane, bool there) {
  const bool all = __shfl_sync(kAllLanes, there, lane);
  __syncwarp();
  return all;
}
// By a warp, each of whose lanes may have waited: those that have not seen it, a bit each.
__device__ __forceinline__ u32 lanes_without(bool there) {
  const u32 lanes = __ballot_sync(kAllLanes, !there);
  __syncwarp();
  return lanes;
}

// By a warp: the sum of the numbers of this lane and of all lower ones.
template <class Number>
__device__ __forceinline__ Number sum_to_lane(Number sum) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int by = 1; by < kWarp; by *= 2) {
    const Number below = __shfl_up_sync(kAllLanes, sum, by);
    if (lane >= by) sum += below;
  }
  return sum;
}

}  // namespace fuscoc
