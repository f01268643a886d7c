// Shuffle `vit_patches` in vit_patches.fsc, by fuscoc 0.1.0. Do not edit.
//
// vit_patches.fsc:6: index i : height(n) / p
// vit_patches.fsc:7: index j : width(n) / p
// vit_patches.fsc:10: segment patch { pixels : u8[p, p, c] }
// vit_patches.fsc:16: route where(n) -> (rank, offset) = input packing : int64[2]
// vit_patches.fsc:18: dispatch patches[n, i, j] -> sequence[where(n).offset + i * width(n) / p ...
// vit_patches.fsc:19: combine reverse
#include "place.cuh"
#include "dispatch.cuh"
#include "refuse.cuh"
#include "combine.cuh"

namespace {
using namespace fuscoc;

struct SourceShape {
  using Source = SourceShape;
  using Element = Raw;
  static constexpr bool weighted = false;
  static constexpr bool compact = false;
  static constexpr bool scattered = true;
  static constexpr int num_fields = 1;
  static constexpr int fanout = 1;
  static constexpr int num_passes = 1;
  static constexpr int num_strides = 1;
  static constexpr int teams = 14;
  static constexpr int team_warps = 2;
  static constexpr int team_vectors = 1;
  static constexpr int team_batch = 4;
  __device__ static constexpr i64 row_bytes(int field) { return 588; }
  __device__ static constexpr i64 cell_bytes(int field) { return 3; }
  __device__ static constexpr int unit_bytes(int field) { return 2; }
  __device__ static constexpr int buffer_offset(int field) { return 0; }
  __device__ static constexpr int part_size(int field) { return 588; }
  __device__ static constexpr int part_offset(int field, int pass) {
    return part_size(field) * pass;
  }
  __device__ static constexpr int part_bytes(int field, int pass) {
    if (num_passes == 1) return part_size(field);
    const int left = int(row_bytes(field)) - part_offset(field, pass);
    return left <= 0 ? 0 : left < part_size(field) ? left : part_size(field);
  }
  __device__ static constexpr int run_bytes(int field) { return 42; }
  __device__ static i64 run_offset(int field, int run, const i64* strides) {
    return i64(run) * 3 * strides[0];
  }
};

struct Shape {
  using Source = SourceShape;
  static constexpr bool weighted = false;
  static constexpr bool compact = false;
  static constexpr int num_fields = 1;
  static constexpr int fanout = 1;
  static constexpr int num_passes = 1;
  static constexpr int num_keys = 0;
  static constexpr int align = 1;
  static constexpr int buffer_bytes = 640;
  static constexpr int dispatch_warps = 24;
  __device__ static constexpr i64 row_bytes(int field) { return 588; }
  __device__ static constexpr i64 cell_bytes(int field) { return 588; }
  __device__ static constexpr int unit_bytes(int field) { return 4; }
  __device__ static constexpr int buffer_offset(int field) { return 0; }
  __device__ static constexpr int part_size(int field) { return 588; }
  __device__ static constexpr int part_offset(int field, int pass) {
    return part_size(field) * pass;
  }
  __device__ static constexpr int part_bytes(int field, int pass) {
    if (num_passes == 1) return part_size(field);
    const int left = int(row_bytes(field)) - part_offset(field, pass);
    return left <= 0 ? 0 : left < part_size(field) ? left : part_size(field);
  }
  __device__ static __forceinline__ void cast(char* row, int lane) {
  }
};

struct Relation {
  const Call& call;
  using To = Destination<Shape::Source>;
  __device__ __forceinline__ To destination(i64 point) const {
    const auto n_ = call.outer[point];
    const auto width_ = static_cast<const i64*>(call.inputs[1])[n_];
    const auto num_j_ = width_ / i64(14);
    const auto first_ = call.points_before[n_];
    const auto inner_ = point - first_;
    const auto j_ = inner_ % num_j_;
    const auto i_ = inner_ / num_j_;
    const auto width_1 = static_cast<const i64*>(call.inputs[1])[n_];
    const auto value_ = n_ * i64(2);
    const auto packing_ = static_cast<const i64*>(call.inputs[2])[value_];
    const auto packing_1 = static_cast<const i64*>(call.inputs[2])[(value_ + i64(1))];
    const auto is_rank_ = (packing_ >= i64(-1)) && (packing_ < i64(call.num_ranks));
    return {((packing_1 == i64(-1)) ? i64(-1) : (is_rank_ ? packing_ : i64(-2))), ((packing_1 + ((i_ * width_1) / i64(14))) + j_), {(call.cells_before[n_] + (((i_ * i64(14)) * width_1) + (j_ * i64(14)))), width_1}};
  }
};
}  // namespace

extern "C" __global__ void __launch_bounds__(1024, 1)
vit_patches_plan(const __grid_constant__ Call call) { place<Shape, Relation>(call); }
extern "C" __global__ void __launch_bounds__(768, 1)
vit_patches_dispatch(const __grid_constant__ Call call) { dispatch<Dispatch<Shape, Relation>>(call); }
extern "C" __global__ void __launch_bounds__(256, 1)
vit_patches_refuse(const __grid_constant__ Call call) { refuse<Shape>(call); }
extern "C" __global__ void __launch_bounds__(896, 1)
vit_patches_combine(const __grid_constant__ Call call) { combine<Shape::Source, InPlace>(call); }
