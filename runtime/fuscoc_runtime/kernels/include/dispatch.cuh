// Dispatch kernel: each row is read once and stored once to every remote rank that needs it,
// straight into the first of its final slots there; receivers fill the further slots from it.
//
// Sending warps and expanding warps share every SM, so NVLink and HBM are busy together. A sender
// takes a group of segments, writes their slot codes (and weights) and rows to the peers, and then
// sets the group's flag there; expanders do this rank's own rows and, as they are flagged, remote
// ones, one at a time so that the work ends evenly. Rows pass through one shared-memory buffer per
// warp.
//
// The first segments do not wait for the plan: while another kernel makes it, senders store their rows
// into staging areas of the peers, as in `staged.cuh`, and tell their slots afterwards.
#pragma once
#include "call.cuh"
#include "segments.cuh"

namespace fuscoc {

template <class Shape, class Relation>
struct Dispatch : Segments<Shape, Relation> {
  using Base = Segments<Shape, Relation>;
  using Base::call, Base::row, Base::keep, Base::drop, Base::epoch, Base::lane;
  using Base::points, Base::flag, Base::source_row, Base::staged_row, Base::stage, Base::target_row;
  using Base::store_all, Base::segment_lanes, Base::tell_points, Base::leaders, Base::take;
  using Base::Base;
  int group;         // segments sent under one flag; one staged segment has a flag of its own
  int num_senders;   // warps that send first
  int sender;        // which of them this one is, -1: it expands
  u32 expander;      // which of the others it is

  __device__ __forceinline__ i64 num_staged() const { return min(call.staged_sources, call.num_sources); }
  // The flag of a segment.
  __device__ __forceinline__ i64 flag_index(i64 source) const {
    return source < call.staged_sources ? source : call.staged_sources + (source - call.staged_sources) / group;
  }
  __device__ __forceinline__ int points_in_group(i64 first, i64 num_sources) const {
    return int(min(i64(group), num_sources - first)) * Shape::fanout;
  }

  __device__ void before_plan(int warp, int num_warps) {
    const int send_ctas = min(call.send_ctas, int(gridDim.x)), send_warps = min(call.send_warps, num_warps);
    num_senders = send_ctas * send_warps;
    sender = int(blockIdx.x) < send_ctas && warp < send_warps ? warp * send_ctas + int(blockIdx.x) : -1;
    if (sender < 0) {
      const int before = int(blockIdx.x) < send_ctas ? blockIdx.x * (num_warps - send_warps)
                                                     : blockIdx.x * num_warps - num_senders;
      expander = before + warp - (int(blockIdx.x) < send_ctas ? send_warps : 0);
    } else if constexpr (!kPlaced<typename Shape::Source>) {  // which the plan has to tell first
      if (call.num_ranks > 1)
        for (i64 source = sender; source < num_staged(); source += num_senders) stage(source);
    }
  }

  // Sets the flag of a group, or those of all that this warp has staged.
  __device__ __forceinline__ void signal(i64 index) {
    row.arrived();  // rows have arrived, every lane's codes were stored before this point
    if (lane < call.num_ranks && lane != call.rank) {
      fence_system();
      do {
        store_relaxed(flag(lane, call.rank, index), epoch);
        index += num_senders;
      } while (index < num_staged());
    }
    __syncwarp();
  }

  // `pending` is the previous group, flagged while the first row of this one loads.
  __device__ void send(i64 index, i64& pending) {
    const i64 first = call.staged_sources + index * group;
    const int num_points = points_in_group(first, call.num_sources);
    const i64 point = first * Shape::fanout + lane;
    const int code = lane < num_points ? call.codes[point] : -1;
    tell_points(first, num_points, code);
    // The first point of a segment on each rank leads: the row goes to its slot.
    const u32 leading = leaders(code >= 0 && code_rank(code) != call.rank, code);
    for (int i = 0; i * Shape::fanout < num_points; ++i) {
      const u32 lanes = leading & segment_lanes(i);
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
    pending = call.staged_sources + index;
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
    if (source >= call.routing->num_sources_of[source_rank]) return;
    bool there = true;
    if (lane == 0) {
      const i64 index = flag_index(source);
      const u32* at = flag(call.rank, source_rank, index);
      there = wait_until(call, kDispatchGroup, source_rank, u32(index),
                         [&] { return reached(load_acquire(at), epoch); });
      fence_bulk_proxy();
    }
    if (!told_by(0, there)) return;
    const int code =
        lane < Shape::fanout ? int(u32(__ldcg(points(call.rank, source_rank, source) + lane))) : -1;
    const u32 mine = __ballot_sync(kAllLanes, code >= 0 && code_rank(code) == call.rank);
    const bool staged = source < call.staged_sources;
    const u32 others = staged ? mine : mine & (mine - 1);  // the first slot has the row already
    if (!others) return;
    const auto first_slot = target_row(call.rank, code_slot(__shfl_sync(kAllLanes, code, __ffs(mine) - 1)));
    const auto waiting = staged_row(call.rank, source_rank, source);
    expand(others, code, row_of<Shape>([&](int f) { return staged ? waiting(f) : first_slot(f); }));
  }

  __device__ void run(int warp, int num_warps) {
    u32* const next_send = &call.state->next_send[epoch & 1];
    u32* const next_expand = &call.state->next_expand[epoch & 1];
    group = group_size(call, call.dispatch_group);
    const u32 groups = u32(ceil_div(call.num_sources - num_staged(), group));
    if (sender >= 0 && call.num_ranks > 1) {
      for (i64 source = sender; source < num_staged(); source += num_senders)
        tell_points(source, Shape::fanout, lane < Shape::fanout ? call.codes[source * Shape::fanout + lane] : -1);
      i64 pending = sender < num_staged() ? sender : -1;
      take(u32(sender), groups, next_send, num_senders, [&](u32 item) { send(item, pending); });
      if (pending >= 0) signal(pending);
    }
    // Expanders start on distinct items; senders join through the counter when they have finished.
    const u32 own = u32(call.num_sources);
    const u32 num_items = own + (call.num_ranks > 1 ? num_remote_items(call, 1) : 0);
    const u32 expanders = gridDim.x * num_warps - num_senders;
    u32 item;
    if (sender >= 0) {
      item = __shfl_sync(kAllLanes, lane == 0 ? expanders + atomicAdd(next_expand, 1u) : 0, 0);
    } else {
      item = expander;
    }
    take(item, num_items, next_expand, expanders, [&](u32 i) {
      // Own rows and peers' in turn, in proportion: so L2 still holds them, the own ones as senders
      // have read them, and peers' as they have arrived.
      const u64 share = u64(i) * own;
      const u32 own_before = u32(share / num_items);
      if (share % num_items + own >= num_items) {
        expand_local(own_before);
      } else {
        const RemoteItem at = remote_item(call, i - own_before);
        expand_remote(at.source_rank, at.index);
      }
    });
    row.arrived();
  }
};

}  // namespace fuscoc
