// Shuffle `scatter_add` in scatter_add.fsc, by fuscoc 0.1.0. Do not edit.
//
// scatter_add.fsc:10: segment message { x : f32[width] }
// scatter_add.fsc:16: route to(t) -> (rank, slot) = input destination : int64[2]
// scatter_add.fsc:19: dispatch sent[t] -> arrived[to(t).slot] on to(t).rank into sums[head(s)] ...
// scatter_add.fsc:20: combine reverse
#include "place.cuh"
#include "dispatch.cuh"
#include "refuse.cuh"
#include "copy_back.cuh"

namespace {
using namespace fuscoc;

struct Shape {
  using Source = Shape;
  using Element = Raw;
  static constexpr bool weighted = false;
  static constexpr bool compact = false;
  static constexpr bool scattered = false;
  static constexpr bool apart = false;
  static constexpr int num_fields = 1;
  static constexpr int fanout = 1;
  static constexpr int num_passes = 1;
  static constexpr int num_keys = 0;
  static constexpr int align = 1;
  static constexpr int buffer_bytes = 256;
  static constexpr int dispatch_warps = 24;
  static constexpr int dispatch_rows = 1;
  static constexpr int num_strides = 0;
  static constexpr int teams = 24;
  static constexpr int team_warps = 1;
  static constexpr int team_vectors = 1;
  static constexpr int team_batch = 8;
  static constexpr int combine_rows = 32;
  __device__ static constexpr i64 row_bytes(int field) { return 256; }
  __device__ static constexpr i64 cell_bytes(int field) { return 256; }
  __device__ static constexpr int unit_bytes(int field) { return 16; }
  __device__ static constexpr int buffer_offset(int field) { return 0; }
  __device__ static constexpr int part_size(int field) { return 256; }
  __device__ static constexpr int part_offset(int field, int pass) {
    return part_size(field) * pass;
  }
  __device__ static constexpr int part_bytes(int field, int pass) {
    if (num_passes == 1) return part_size(field);
    const int left = int(row_bytes(field)) - part_offset(field, pass);
    return left <= 0 ? 0 : left < part_size(field) ? left : part_size(field);
  }
};

struct Relation {
  const Call& call;
  using To = Destination<Shape::Source>;
  __device__ __forceinline__ To destination(i64 point) const {
    const auto value_ = point * i64(2);
    const auto destination_ = static_cast<const i64*>(call.inputs[0])[value_];
    const auto destination_1 = static_cast<const i64*>(call.inputs[0])[(value_ + i64(1))];
    const auto is_rank_ = (destination_ >= i64(-1)) && (destination_ < i64(call.num_ranks));
    return {((destination_1 == i64(-1)) ? i64(-1) : (is_rank_ ? destination_ : i64(-2))), destination_1, {point}};
  }
};
}  // namespace

extern "C" __global__ void __launch_bounds__(1024, 1)
scatter_add_plan(const __grid_constant__ Call call) { place<Shape, Relation>(call); }
extern "C" __global__ void __launch_bounds__(768, 1)
scatter_add_dispatch(const __grid_constant__ Call call) { dispatch<Dispatch<Shape, Relation>>(call); }
extern "C" __global__ void __launch_bounds__(256, 1)
scatter_add_refuse(const __grid_constant__ Call call) { refuse<Shape>(call); }
extern "C" __global__ void __launch_bounds__(768, 1)
scatter_add_combine(const __grid_constant__ Call call) { copy_back<Shape::Source, InPlace>(call); }
