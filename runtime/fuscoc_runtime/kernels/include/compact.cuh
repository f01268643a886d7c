// Dispatch into a compact target: each row is read once and stored once to every rank that needs it,
// this one too, into the segment's row there. What slots refer to is written with it.
//
// All warps send, and nothing is left to do with what arrives. So a rank tells its peers once that it
// has sent everything, and is done when they have told it.
#pragma once
#include "call.cuh"
#include "segments.cuh"

namespace fuscoc {

template <class Shape, class Relation>
struct CompactDispatch : Segments<Shape, Relation> {
  using Base = Segments<Shape, Relation>;
  using Base::call, Base::row, Base::keep, Base::epoch, Base::lane;
  using Base::source_row, Base::store_all;
  using Base::segment_lanes, Base::tell_points, Base::leaders, Base::take;
  using Base::Base;

  __device__ void before_plan(int, int) {}

  __device__ void send(i64 first, int group) {
    const int num_points = int(min(i64(group), call.num_sources - first)) * Shape::fanout;
    const i64 point = first * Shape::fanout + lane;
    const int code = lane < num_points ? call.codes[point] : -1;
    tell_points(first, num_points, code);
    int to = -1;  // the code of a row instead of a slot
    if (code >= 0) {
      const int target = call.point_rows[point];
      *row_index(call, code) = target;
      to = code_of(code_rank(code), target);
    }
    const u32 leading = leaders(code >= 0, code);
    for (int i = 0; i * Shape::fanout < num_points; ++i) {
      const u32 lanes = leading & segment_lanes(i);
      if (!lanes) continue;
      const auto from = source_row(first + i);
#pragma unroll 1
      for (int pass = 0; pass < Shape::num_passes; ++pass) {
        row.reusable();
        row.load(pass, from, keep);
        row.loaded(from);
        store_all(pass, lanes, to, keep);
      }
    }
  }

  __device__ void run(int warp, int num_warps) {
    const int group = group_size(call, call.dispatch_group);  // segments that a warp takes at once
    take(warp * gridDim.x + blockIdx.x, u32(ceil_div(call.num_sources, group)), &call.state->next_send[epoch & 1],
         num_warps * gridDim.x, [&](u32 item) { send(i64(item) * group, group); });
    row.arrived();
    __syncthreads();
    if (warp == 0) finish(call, epoch);
  }
};

}  // namespace fuscoc
