// Where the segments, points and flags of a dispatch lie, and a warp that moves segments. It looks at
// a group of them at once, a lane a point.
#pragma once
#include "call.cuh"
#include "places.cuh"
#include "row_copy.cuh"

namespace fuscoc {

// The flag of a group of a rank's segments in a window.
__device__ __forceinline__ u32* dispatch_flag(const Call& call, int window, int source_rank, i64 index) {
  return reinterpret_cast<u32*>(call.window[window] + call.dispatch_flags_at) + source_rank * call.max_sources + index;
}

// By one warp, where warps only send: the rows of this CTA have arrived. The last one tells the peers, and
// waits for them.
__device__ __forceinline__ void finish(const Call& call, u32 epoch) {
  const int lane = threadIdx.x % kWarp;
  bool last = false;
  if (lane == 0) {
    fence_system();
    last = atomicAdd(&call.state->sent[epoch & 1], 1u) == gridDim.x - 1;
    fence_system();
    for (int peer = 0; last && peer < call.num_ranks; ++peer)
      if (peer != call.rank) store_relaxed(dispatch_flag(call, peer, call.rank, 0), epoch);
  }
  if (!__shfl_sync(kAllLanes, last, 0)) return;
  if (lane >= call.num_ranks || lane == call.rank) return;
  const u32* const told = dispatch_flag(call, call.rank, lane, 0);
  wait_until(call, kDispatchGroup, lane, 0, [&] { return reached(load_acquire(told), epoch); });
}

template <class Shape, class Relation>
struct Segments {
  const Call& call;
  const Relation relation;
  RowBuffer<Shape> row;
  const u64 keep, drop;  // L2 policies: default, evict first
  const u32 epoch;
  const int lane;

  // `memory` holds row buffers, `barriers` an mbarrier, for every warp of the CTA.
  __device__ Segments(const Call& call, char* memory, u64* barriers, u32 epoch)
      : call(call),
        relation{call},
        keep(evict_normal_policy()),
        drop(evict_first_policy()),
        epoch(epoch),
        lane(threadIdx.x % kWarp) {
    const int warp = threadIdx.x / kWarp;
    row.init(memory + warp * Shape::dispatch_rows * Shape::buffer_bytes, barriers + warp, lane);
  }

  __device__ __forceinline__ u64* points(int window, int source_rank, i64 source) const {
    return reinterpret_cast<u64*>(call.window[window] + call.points_at) +
           (source_rank * call.max_sources + source) * Shape::fanout;
  }
  __device__ __forceinline__ u32* flag(int window, int source_rank, i64 index) const {
    return dispatch_flag(call, window, source_rank, index);
  }
  __device__ __forceinline__ auto source_row(i64 source) const {
    if constexpr (kPlaced<typename Shape::Source>) {
      return PlacedRow<typename Shape::Source>{call, Place<typename Shape::Source>(call, source)};
    } else {
      const i64 cell = relation.source_cell(source);
      return row_of<typename Shape::Source>(
          [this, cell](int f) { return call.source[f] + cell * Shape::Source::cell_bytes(f); });
    }
  }
  __device__ __forceinline__ auto target_row(int window, i64 slot) const {
    return row_of<Shape>(
        [this, window, slot](int f) { return call.window[window] + call.rows_at[f] + slot * Shape::row_bytes(f); });
  }
  __device__ __forceinline__ auto staged_row(int window, int source_rank, i64 source) const {
    const i64 index = ((epoch & 1) * call.num_ranks + source_rank) * call.staged_sources + source;
    return row_of<Shape>([this, window, index](int f) {
      return call.window[window] + call.staged_at[f] + index * Shape::row_bytes(f);
    });
  }

  // The rank of this lane's point of the segment; -1 when it has none, which the plan records.
  __device__ __forceinline__ int destination(i64 source) const {
    const i64 key = lane < Shape::fanout ? relation.key(source * Shape::fanout + lane) : -1;
    if (key < 0 || key >= Shape::num_keys) return -1;
    const int rank = relation.place(int(key));
    return u32(rank) < u32(call.num_ranks) ? rank : -1;
  }
  // Sends a segment to the staging areas of its remote ranks, each of which one lane returns.
  __device__ int stage(i64 source) {
    const auto from = source_row(source);
    row.reusable();
    row.load(0, from, keep);
    const int to = destination(source);
    const bool remote = to >= 0 && to != call.rank;
    const u32 same = __match_any_sync(kAllLanes, remote ? to : -1 - lane);
    const bool leads = remote && (same & lanes_below()) == 0;
    const u32 leaders = __ballot_sync(kAllLanes, leads);
#pragma unroll 1
    for (int pass = 0; pass < Shape::num_passes; ++pass) {
      if (pass > 0) {
        row.reusable();
        row.load(pass, from, keep);
      }
      row.loaded(from);
      for (u32 lanes = leaders; lanes; lanes &= lanes - 1)
        row.store(pass, staged_row(__shfl_sync(kAllLanes, to, __ffs(lanes) - 1), call.rank, source), keep);
      row.commit();
    }
    return leads ? to : -1;
  }

  // Lanes of the points of the group's i-th segment.
  __device__ static __forceinline__ u32 segment_lanes(int i) {
    return (Shape::fanout == kWarp ? kAllLanes : (1u << Shape::fanout % kWarp) - 1) << (i * Shape::fanout);
  }
  // Tells the peers the points of a group: slot codes and weights.
  __device__ __forceinline__ void tell_points(i64 first, int num_points, int code) {
    if (lane >= num_points) return;
    const u32 weight = Shape::weighted ? __float_as_uint(call.weights[first * Shape::fanout + lane]) : 0;
    for (int step = 1; step < call.num_ranks; ++step) {
      const int peer = (call.rank + step) % call.num_ranks;
      points(peer, call.rank, first)[lane] = tagged(u32(code), weight);
    }
  }
  // Lanes of the first points that the group's segments have on each rank, among those that go.
  __device__ __forceinline__ u32 leaders(bool goes, int code) const {
    const int pair = (lane / Shape::fanout) * kMaxRanks + (code_rank(code) & (kMaxRanks - 1));
    const u32 same = __match_any_sync(kAllLanes, goes ? pair : -1 - lane);
    return __ballot_sync(kAllLanes, goes && (same & lanes_below()) == 0);
  }

  // Works on items; the next one is fetched while this one is worked on.
  template <class Work>
  __device__ __forceinline__ void take(u32 item, u32 num_items, u32* counter, u32 first_dynamic, Work work) {
    while (item < num_items) {
      u32 next = lane == 0 ? first_dynamic + atomicAdd(counter, 1u) : 0;
      work(item);
      item = __shfl_sync(kAllLanes, next, 0);
    }
  }

  // Stores the buffered part to the slot of every lane in `lanes`.
  __device__ __forceinline__ void store_all(int pass, u32 lanes, int code, u64 policy) {
    for (; lanes; lanes &= lanes - 1) {
      const int to = __shfl_sync(kAllLanes, code, __ffs(lanes) - 1);
      row.store(pass, target_row(code_rank(to), code_slot(to)), policy);
    }
    row.commit();
  }
};

// Waits for all CTAs of the plan kernel, which finish in bounded time, and not for its end: that would
// also wait until rows which are under way have arrived.
__device__ __forceinline__ void wait_for_plan(const Call& call) {
  if (threadIdx.x == 0)
    while (load_acquire(&call.state->planned) != u32(call.plan_ctas)) __nanosleep(32);
  __syncthreads();
}

// A dispatch of what is being planned, by a kind of `Segments`.
template <class Kind>
__device__ __forceinline__ void dispatch(const Call& call) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ u64 barriers[kWarp];
  __shared__ u32 epoch;
  __shared__ bool aborted;
  if (threadIdx.x == 0) begin_dispatch(call, epoch, aborted);
  __syncthreads();
  Kind state(call, reinterpret_cast<char*>(memory), barriers, epoch);
  if (!aborted) state.before_plan(threadIdx.x / kWarp, blockDim.x / kWarp);
  wait_for_plan(call);
  entered(call, [&](State& words) {
    const u32 other = ~epoch & 1;
    words.dispatch_epoch = epoch;
    words.planned = 0;
    words.next_send[other] = words.next_expand[other] = words.sent[other] = 0;
  });
  if (!aborted) state.run(threadIdx.x / kWarp, blockDim.x / kWarp);
  wait_for_previous();
}

}  // namespace fuscoc
