// Dispatch of small rows that each have one destination: a lane moves a row.
//
// A warp takes up to `dispatch_rows` segments, 32 or fewer. A lane loads one to memory of its own and stores it
// to its slot, by bulk copies, so as many rows are under way. A row lies in shared memory as its slot does
// modulo 128: a bulk store that is not aligned with its target is cut up.
//
// As into compact targets, all warps send, and nothing is left to do with what arrives.
#pragma once
#include "call.cuh"
#include "segments.cuh"

namespace fuscoc {

template <class Shape, class Relation>
struct Scatter : Segments<Shape, Relation> {
  using Base = Segments<Shape, Relation>;
  using Base::call, Base::row, Base::keep, Base::epoch, Base::lane;
  using Base::source_row, Base::target_row, Base::tell_points, Base::take;
  using Base::Base;
  static_assert(Shape::fanout == 1 && Shape::num_passes == 1 && Shape::dispatch_rows <= kWarp);

  __device__ void before_plan(int, int) {}

  // Segments of a warp at once: fewer where there would be nothing for others.
  __device__ __forceinline__ int group_of(int num_warps) const {
    return int(min(i64(Shape::dispatch_rows), max(i64(1), ceil_div(call.num_sources, i64(gridDim.x) * num_warps))));
  }
  // Where a field of this lane's row is in shared memory, which goes to `to`.
  __device__ __forceinline__ u32 shared_at(int field, const char* to) const {
    const u32 begin = shared_address(row.buffer + lane * Shape::buffer_bytes + Shape::buffer_offset(field));
    return Shape::row_bytes(field) % kBulkLine ? begin + u32(u64(to) % kBulkLine) : begin;
  }

  __device__ void send(i64 first, int group) {
    const int num_points = int(min(i64(group), call.num_sources - first));
    const int code = lane < num_points ? call.codes[first + lane] : -1;
    tell_points(first, num_points, code);
    send_row(first + lane, code);
  }
  // By a warp: every lane moves a row to the slot of a code, if that is one.
  __device__ __forceinline__ void send_row(i64 source, int code) {
    const auto to = target_row(code_rank(code), code_slot(code));
    if (load_row(source, code >= 0, to)) store_row(code >= 0, to);
  }
  // The same in two steps: whether any lane of the warp loads a row, and the stores.
  template <class To>
  __device__ __forceinline__ bool load_row(i64 source, bool goes, To to) {
    const u32 going = __ballot_sync(kAllLanes, goes);
    if (!going) return false;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    bulk_read();
    if (lane == 0) {
      u32 bytes = 0;
#pragma unroll
      for (int f = 0; f < Shape::num_fields; ++f) bytes += u32(Shape::row_bytes(f));
      row.expect(bytes * __popc(going));
    }
    __syncwarp();  // what arrives is expected
    if (goes) {
      const auto from = source_row(source);
#pragma unroll
      for (int f = 0; f < Shape::num_fields; ++f)
        bulk_load(shared_at(f, to(f)), from(f), u32(Shape::row_bytes(f)), row.barrier, keep);
    }
#endif
    return true;
  }
  template <class To>
  __device__ __forceinline__ void store_row(bool goes, To to) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    row.loaded();
    if (goes) {
#pragma unroll
      for (int f = 0; f < Shape::num_fields; ++f)
        bulk_store(to(f), shared_at(f, to(f)), u32(Shape::row_bytes(f)), keep);
    }
    bulk_commit();
#endif
  }
  // Whether a row lies in its buffer alike, wherever it goes.
  __device__ static constexpr bool lies_alike() {
    for (int f = 0; f < Shape::num_fields; ++f)
      if (Shape::row_bytes(f) % kBulkLine) return false;
    return true;
  }

  __device__ void run(int warp, int num_warps) {
    const int group = group_of(num_warps);
    take(warp * gridDim.x + blockIdx.x, u32(ceil_div(call.num_sources, group)), &call.state->next_send[epoch & 1],
         num_warps * gridDim.x, [&](u32 item) { send(i64(item) * group, group); });
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    bulk_arrived();
#endif
    __syncthreads();
    if (warp == 0) finish(call, epoch);
  }
};

}  // namespace fuscoc
