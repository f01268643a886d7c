// Shuffle `ulysses` in ulysses.fsc, by fuscoc 0.1.0. Do not edit.
//
// ulysses.fsc:9: segment head { x : bf16[block, width] }
// ulysses.fsc:18: dispatch part[b, h] -> by_head[h % (heads / ranks), rank * (num_blocks / ...
// ulysses.fsc:19: on h / (heads / ranks)
// ulysses.fsc:20: combine reverse
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
  static constexpr int num_strides = 0;
  static constexpr int teams = 7;
  static constexpr int team_warps = 4;
  static constexpr int team_vectors = 2;
  static constexpr int team_batch = 2;
  __device__ static constexpr i64 row_bytes(int field) { return 16384; }
  __device__ static constexpr i64 cell_bytes(int field) { return 256; }
  __device__ static constexpr int unit_bytes(int field) { return 16; }
  __device__ static constexpr int buffer_offset(int field) { return 0; }
  __device__ static constexpr int part_size(int field) { return 16384; }
  __device__ static constexpr int part_offset(int field, int pass) {
    return part_size(field) * pass;
  }
  __device__ static constexpr int part_bytes(int field, int pass) {
    if (num_passes == 1) return part_size(field);
    const int left = int(row_bytes(field)) - part_offset(field, pass);
    return left <= 0 ? 0 : left < part_size(field) ? left : part_size(field);
  }
  __device__ static constexpr int run_bytes(int field) { return 256; }
  __device__ static i64 run_offset(int field, int run, const i64* strides) {
    return i64(run) * 8192;
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
  static constexpr int buffer_bytes = 16384;
  static constexpr int dispatch_warps = 14;
  __device__ static constexpr i64 row_bytes(int field) { return 16384; }
  __device__ static constexpr i64 cell_bytes(int field) { return 16384; }
  __device__ static constexpr int unit_bytes(int field) { return 16; }
  __device__ static constexpr int buffer_offset(int field) { return 0; }
  __device__ static constexpr int part_size(int field) { return 16384; }
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
    const auto h_ = point % i64(32);
    const auto b_ = point / i64(32);
    const auto value_ = i64(32) / i64(call.num_ranks);
    const auto is_rank_ = ((h_ / value_) >= i64(-1)) && ((h_ / value_) < i64(call.num_ranks));
    return {(is_rank_ ? (h_ / value_) : i64(-2)), (((h_ % value_) * i64(64)) + ((i64(call.rank) * (i64(64) / i64(call.num_ranks))) + b_)), {((b_ * i64(2048)) + h_)}};
  }
};
}  // namespace

extern "C" __global__ void __launch_bounds__(1024, 1)
ulysses_plan(const __grid_constant__ Call call) { place<Shape, Relation>(call); }
extern "C" __global__ void __launch_bounds__(448, 1)
ulysses_dispatch(const __grid_constant__ Call call) { dispatch<Dispatch<Shape, Relation>>(call); }
extern "C" __global__ void __launch_bounds__(256, 1)
ulysses_refuse(const __grid_constant__ Call call) { refuse<Shape>(call); }
extern "C" __global__ void __launch_bounds__(896, 1)
ulysses_combine(const __grid_constant__ Call call) { combine<Shape::Source, InPlace>(call); }
