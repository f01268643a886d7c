// Where the segments, points and flags of a dispatch lie, and a warp that moves segments.
#pragma once
#include "call.cuh"
#include "row_copy.cuh"

namespace fuscoc {

template <class Shape, class Relation>
struct Segments {
  const Call& call;
  const Relation relation;
  RowBuffer<Shape> row;
  const u64 keep, drop;  // L2 policies: default, evict first
  const u32 epoch;
  const int lane;

  // `memory` holds a row buffer, `barriers` an mbarrier, for every warp of the CTA.
  __device__ Segments(const Call& call, char* memory, u64* barriers, u32 epoch)
      : call(call),
        relation{call},
        keep(evict_normal_policy()),
        drop(evict_first_policy()),
        epoch(epoch),
        lane(threadIdx.x % kWarp) {
    const int warp = threadIdx.x / kWarp;
    row.init(memory + warp * Shape::buffer_bytes, barriers + warp, lane);
  }

  __device__ __forceinline__ u64* points(int window, int source_rank, i64 source) const {
    return reinterpret_cast<u64*>(call.window[window] + call.points_at) +
           (source_rank * call.max_sources + source) * Shape::fanout;
  }
  __device__ __forceinline__ u32* flag(int window, int source_rank, i64 index) const {
    return reinterpret_cast<u32*>(call.window[window] + call.dispatch_flags_at) +
           source_rank * call.max_sources + index;
  }
  __device__ __forceinline__ auto source_row(i64 source) const {
    const i64 cell = relation.source_cell(source);
    return row_of<typename Shape::Source>(
        [this, cell](int f) { return call.source[f] + cell * Shape::Source::cell_bytes(f); });
  }
  __device__ __forceinline__ auto target_row(int window, i64 slot) const {
    return row_of<Shape>(
        [this, window, slot](int f) { return call.window[window] + call.rows_at[f] + slot * Shape::row_bytes(f); });
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

}  // namespace fuscoc
