// What a call hands to the kernels, and where things lie in a rank's symmetric window.
//
// `Call` is mirrored by a ctypes structure in fuscoc_runtime/engine/node/call.py: same order, same
// types. Every rank's window has the same layout; offsets are bytes from its base.
#pragma once
#include "base.cuh"

namespace fuscoc {

// Device-resident, zeroed once. Epochs live here and not in kernel arguments, so that a captured
// graph can be replayed; flags hold the epoch that wrote them and are never cleared. Of a pair of
// work counters a kernel uses the one of its epoch's parity and clears the other.
struct State {
  u32 plan_epoch;          // plans begun
  u32 combine_epoch;       // combines begun
  u32 combine_saw_plan;    // plan_epoch when the last combine began
  u32 entries;             // CTAs that have entered the running kernel
  u32 next_send[2];        // work counters
  u32 next_expand[2];
  u32 next_reduce[2];
  u32 next_finalise[2];
  u32 gave_up;             // 0, or stage * 2^24 + peer * 2^20 + (group mod 2^20) + 2^31
  u32 bad_keys;            // points whose key was outside [-1, num_keys), never moved
  u32 overflowed;          // points whose slot was beyond the capacity, never moved
  u32 refusals;            // calls that this rank raised an error for instead of joining them
  u32 sent[2];             // CTAs that have sent all their rows (compact targets)
  u32 dispatch_epoch;      // dispatches begun that were planned by a kernel of their own,
  u32 planned;             // and the CTAs of that kernel that have finished
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
  i64 refusals_at;                // u32 [num_ranks] refusals of every rank
  i64 counts_at;                  // u64 [2 parities][num_ranks][columns + 1] {count, epoch}
  i64 dispatch_flags_at;          // u32 [num_ranks][max_sources] epochs, one a group
  i64 combine_flags_at;           // u32 [num_ranks][max_sources]
  i64 barrier_at;                 // u32 [num_ranks] combine epochs
  i64 points_at;                  // u64 [num_ranks][max_sources][fanout] {slot code, weight bits}
  i64 staging_at;                 // [num_ranks][max_sources] partial rows
  i64 row_index_at;               // i64 [capacity] row of every slot, -1: padding (compact targets)
  State* state;
  u64* cta_counts;                // [plan CTAs][columns] {count, epoch}; see plan.cuh
  int* codes;                     // [num_sources][fanout] slot codes of my points, -1 dropped
  int* point_rows;                // [num_sources][fanout] rows of my points (compact targets)
  int* key_counts;                // [num_keys] rows of each of my keys, in key order
  int* key_starts;                // [num_keys] first slot of each of my keys
  int* num_sources_of;            // [kMaxRanks] source segments on every rank, then the most of any
  const float* weights;           // [num_sources][fanout], null when unweighted
  const char* rows;               // combine: rows in slot order
  char* result;                   // combine: [num_sources] rows
  i64 num_sources;
  i64 max_sources;
  i64 staged_sources;             // segments of a rank, the first ones, that are staged
  i64 capacity;
  i64 timeout_cycles;
  int rank;
  int num_ranks;
  int plan_ctas;                  // CTAs that plan
  int send_ctas;                  // CTAs that hold sending warps, and how many each;
  int send_warps;                 // the others expand (dispatch)
  int reduce_teams;               // teams of a CTA that prefer to reduce (combine), at most all
  int dispatch_group;             // most source segments signalled together
  int combine_group;
};

// A slot code packs (rank, slot); -1 is a dropped point.
constexpr int kSlotBits = 27;
__device__ __forceinline__ int code_of(int rank, i64 slot) { return (rank << kSlotBits) | int(slot); }
__device__ __forceinline__ int code_rank(int code) { return code >> kSlotBits; }
__device__ __forceinline__ i64 code_slot(int code) { return code & ((1 << kSlotBits) - 1); }

// What the slot of a code refers to in a compact target, in the window of its rank.
__device__ __forceinline__ i64* row_index(const Call& call, int code) {
  return reinterpret_cast<i64*>(call.window[code_rank(code)] + call.row_index_at) + code_slot(code);
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
  kRefused = 6,
};

// The first reason for giving up is kept.
__device__ __forceinline__ void give_up(const Call& call, Stage stage, int peer, u32 item) {
  atomicCAS(&call.state->gave_up, 0u, 0x80000000u | (u32(stage) << 24) | (u32(peer) << 20) | (item & 0xfffff));
}

// A peer that has refused more calls than this rank is not in this one and never will be.
__device__ __forceinline__ int refusing_peer(const Call& call) {
  const u32* counts = reinterpret_cast<const u32*>(call.window[call.rank] + call.refusals_at);
  for (int r = 0; r < call.num_ranks; ++r)
    if (int(load_relaxed(counts + r) - *(volatile u32*)&call.state->refusals) > 0) return r;
  return -1;
}

// Spins until ready() or the call's time is up; false, and recorded once, when it never was.
template <class Ready>
__device__ __forceinline__ bool wait_until(const Call& call, Stage stage, int peer, u32 item, Ready ready) {
  if (ready()) return true;
  const i64 start = clock64();
  for (u32 spins = 1;; ++spins) {
    if (ready()) return true;
    if (spins % 64 == 0) {
      if (*(volatile u32*)&call.state->gave_up) return false;  // someone else gave up: so do we
      if (const int refusing = refusing_peer(call); refusing >= 0) {
        give_up(call, kRefused, refusing, 0);
        return false;
      }
      if (clock64() - start > call.timeout_cycles) {
        give_up(call, stage, peer, item);
        return false;
      }
    }
    __nanosleep(32);
  }
}

// Source segments signalled together: fewer when every rank has few, so that a small batch still
// spreads over the machine. All ranks see the same counts, hence the same size.
__device__ __forceinline__ int group_size(const Call& call, int most) {
  return min(most, max(1, call.num_sources_of[kMaxRanks] / 2048));
}

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
  return (call.num_sources_of[kMaxRanks] + group - 1) / group * (call.num_ranks - 1);
}

// The last CTA to enter runs `advance`: what it changes, every CTA has read before. Thread 0 reads
// it and tells the others, so that no thread's load is still under way.
template <class Advance>
__device__ __forceinline__ void entered(const Call& call, Advance advance) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    if (atomicAdd(&call.state->entries, 1u) == gridDim.x - 1) {
      call.state->entries = 0;
      advance(*call.state);
    }
  }
}

}  // namespace fuscoc
