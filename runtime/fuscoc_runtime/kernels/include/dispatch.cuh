// Dispatch kernel: each row is read once and stored once to every remote rank that needs it,
// straight into the first of its final slots there; receivers fill the further slots from it.
//
// Sending warps and expanding warps share every SM, so NVLink and HBM are busy together. A sender
// takes a group of segments, writes their slot codes (and weights) and rows to the peers, and then
// sets the group's flag there; expanders do this rank's own rows, then remote rows as they are
// flagged, one at a time so that the work ends evenly. Rows pass through one shared-memory buffer
// per warp.
#pragma once
#include "call.cuh"
#include "segments.cuh"

namespace fuscoc {

template <class Shape, class Relation>
struct Dispatch : Segments<Shape, Relation> {
  using Base = Segments<Shape, Relation>;
  using Base::call, Base::row, Base::keep, Base::drop, Base::epoch, Base::lane;
  using Base::points, Base::flag, Base::source_row, Base::target_row, Base::store_all;
  const int group;       // segments sent under one flag

  __device__ Dispatch(const Call& call, char* memory, u64* barriers)
      : Base(call, memory, barriers, *(volatile u32*)&call.state->plan_epoch),
        group(group_size(call, call.dispatch_group)) {}

  // Lanes of the points of the group's i-th segment.
  __device__ static __forceinline__ u32 segment_lanes(int i) {
    return (Shape::fanout == kWarp ? kAllLanes : (1u << Shape::fanout % kWarp) - 1) << (i * Shape::fanout);
  }
  __device__ __forceinline__ int points_in_group(i64 first, i64 num_sources) const {
    return int(min(i64(group), num_sources - first)) * Shape::fanout;
  }

  __device__ __forceinline__ void signal(i64 index) {
    row.arrived();  // rows have arrived, every lane's codes were stored before this point
    if (lane < call.num_ranks && lane != call.rank) {
      fence_system();
      store_relaxed(flag(lane, call.rank, index), epoch);
    }
    __syncwarp();
  }

  // `pending` is the previous group, flagged while the first row of this one loads.
  __device__ void send(i64 index, i64& pending) {
    const i64 first = index * group;
    const int num_points = points_in_group(first, call.num_sources);
    const i64 point = first * Shape::fanout + lane;
    const int code = lane < num_points ? call.codes[point] : -1;
    u32 weight = 0;
    if (Shape::weighted && lane < num_points) weight = __float_as_uint(call.weights[point]);
    if (lane < num_points)
      for (int step = 1; step < call.num_ranks; ++step) {
        const int peer = (call.rank + step) % call.num_ranks;
        points(peer, call.rank, first)[lane] = tagged(u32(code), weight);
      }

    // The first point of a segment on each rank leads: the row goes to its slot.
    const bool remote = code >= 0 && code_rank(code) != call.rank;
    const int pair = (lane / Shape::fanout) * kMaxRanks + (code_rank(code) & (kMaxRanks - 1));
    const u32 same = __match_any_sync(kAllLanes, remote ? pair : -1 - lane);
    const u32 leaders = __ballot_sync(kAllLanes, remote && (same & lanes_below()) == 0);
    for (int i = 0; i * Shape::fanout < num_points; ++i) {
      const u32 lanes = leaders & segment_lanes(i);
      if (!lanes) continue;
      const auto from = source_row(first + i);
#pragma unroll 1
      for (int pass = 0; pass < Shape::num_passes; ++pass) {
        row.reusable();
        row.load(pass, from, keep);
        if (pending >= 0) {
          signal(pending);
          pending = -1;
        }
        row.loaded(from);
        store_all(pass, lanes, code, keep);
      }
    }
    if (pending >= 0) signal(pending);
    pending = index;
  }

  // Loads a row and stores it to the slots of `lanes`.
  template <class From>
  __device__ __forceinline__ void expand(u32 lanes, int code, From from) {
#pragma unroll 1
    for (int pass = 0; pass < Shape::num_passes; ++pass) {
      row.reusable();
      row.load(pass, from, drop);
      row.loaded(from);
      store_all(pass, lanes, code, drop);
    }
  }
  __device__ void expand_local(i64 source) {
    const int code = lane < Shape::fanout ? call.codes[source * Shape::fanout + lane] : -1;
    const u32 mine = __ballot_sync(kAllLanes, code >= 0 && code_rank(code) == call.rank);
    if (mine) expand(mine, code, source_row(source));
  }
  __device__ void expand_remote(int source_rank, i64 source) {
    if (source >= call.num_sources_of[source_rank]) return;
    bool there = true;
    if (lane == 0) {
      const i64 index = source / group;
      const u32* at = flag(call.rank, source_rank, index);
      there = wait_until(call, kDispatchGroup, source_rank, u32(index),
                         [&] { return reached(load_acquire(at), epoch); });
      fence_bulk_proxy();
    }
    if (!__shfl_sync(kAllLanes, there, 0)) return;
    const int code =
        lane < Shape::fanout ? int(u32(__ldcg(points(call.rank, source_rank, source) + lane))) : -1;
    const u32 mine = __ballot_sync(kAllLanes, code >= 0 && code_rank(code) == call.rank);
    const u32 others = mine & (mine - 1);  // the first slot has the row already
    if (others)
      expand(others, code, target_row(call.rank, code_slot(__shfl_sync(kAllLanes, code, __ffs(mine) - 1))));
  }

  // The next item is fetched while this one is worked on.
  template <class Work>
  __device__ __forceinline__ void take(u32 item, u32 num_items, u32* counter, u32 first_dynamic, Work work) {
    while (item < num_items) {
      u32 next = lane == 0 ? first_dynamic + atomicAdd(counter, 1u) : 0;
      work(item);
      item = __shfl_sync(kAllLanes, next, 0);
    }
  }

  __device__ void run(int warp, int num_warps) {
    u32* const next_send = &call.state->next_send[epoch & 1];
    u32* const next_expand = &call.state->next_expand[epoch & 1];
    const int send_ctas = min(call.send_ctas, int(gridDim.x));
    const int send_warps = min(call.send_warps, num_warps);
    const u32 senders = send_ctas * send_warps;
    const u32 groups = u32(ceil_div(call.num_sources, group));
    const bool sends = int(blockIdx.x) < send_ctas && warp < send_warps;
    if (sends && call.num_ranks > 1) {
      i64 pending = -1;
      take(warp * send_ctas + blockIdx.x, groups, next_send, senders,
           [&](u32 item) { send(item, pending); });
      if (pending >= 0) signal(pending);
    }
    // Expanders start on distinct items; senders join through the counter when they have finished.
    const u32 own = u32(call.num_sources);
    const u32 num_items = own + (call.num_ranks > 1 ? num_remote_items(call, 1) : 0);
    const u32 expanders = gridDim.x * num_warps - senders;
    u32 item;
    if (sends) {
      item = __shfl_sync(kAllLanes, lane == 0 ? expanders + atomicAdd(next_expand, 1u) : 0, 0);
    } else {
      const int before = int(blockIdx.x) < send_ctas ? blockIdx.x * (num_warps - send_warps)
                                                     : blockIdx.x * num_warps - senders;
      item = before + warp - (int(blockIdx.x) < send_ctas ? send_warps : 0);
    }
    take(item, num_items, next_expand, expanders, [&](u32 i) {
      if (i < own) {
        expand_local(i);
      } else {
        const RemoteItem at = remote_item(call, i - own);
        expand_remote(at.source_rank, at.index);
      }
    });
    row.arrived();
  }
};

template <class Shape, class Relation>
__device__ __forceinline__ void dispatch(const Call& call) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ u64 barriers[kWarp];
  Dispatch<Shape, Relation> state(call, reinterpret_cast<char*>(memory), barriers);
  entered(call, [&](State& words) {
    const u32 other = ~state.epoch & 1;
    words.next_send[other] = words.next_expand[other] = 0;
  });
  state.run(threadIdx.x / kWarp, blockDim.x / kWarp);
}

}  // namespace fuscoc
