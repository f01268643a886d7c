// Shuffle `fft_transpose` in fft_transpose.fsc, by fuscoc 0.1.0. Do not edit.
//
// fft_transpose.fsc:8: segment line { values : f32[nx, 2] }
// fft_transpose.fsc:13: dispatch of_z[z, y] -> of_y[y % (ny / ranks), rank * (nz / ranks) + z] ...
// fft_transpose.fsc:14: combine reverse
#include "place.cuh"
#include "dispatch.cuh"
#include "refuse.cuh"
#include "combine.cuh"

namespace {
using namespace fuscoc;

struct Shape {
  using Source = Shape;
  using Element = Raw;
  static constexpr bool weighted = false;
  static constexpr bool compact = false;
  static constexpr bool scattered = false;
  static constexpr int num_fields = 1;
  static constexpr int fanout = 1;
  static constexpr int num_passes = 1;
  static constexpr int num_keys = 0;
  static constexpr int align = 1;
  static constexpr int buffer_bytes = 2048;
  static constexpr int dispatch_warps = 24;
  static constexpr int num_strides = 0;
  static constexpr int teams = 7;
  static constexpr int team_warps = 4;
  static constexpr int team_vectors = 1;
  static constexpr int team_batch = 4;
  __device__ static constexpr i64 row_bytes(int field) { return 2048; }
  __device__ static constexpr i64 cell_bytes(int field) { return 2048; }
  __device__ static constexpr int unit_bytes(int field) { return 16; }
  __device__ static constexpr int buffer_offset(int field) { return 0; }
  __device__ static constexpr int part_size(int field) { return 2048; }
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
    const auto y_ = point % i64(128);
    const auto z_ = point / i64(128);
    const auto value_ = i64(128) / i64(call.num_ranks);
    const auto is_rank_ = ((y_ / value_) >= i64(-1)) && ((y_ / value_) < i64(call.num_ranks));
    return {(is_rank_ ? (y_ / value_) : i64(-2)), (((y_ % value_) * i64(128)) + ((i64(call.rank) * value_) + z_)), {((z_ * i64(128)) + y_)}};
  }
};
}  // namespace

extern "C" __global__ void __launch_bounds__(1024, 1)
fft_transpose_plan(const __grid_constant__ Call call) { place<Shape, Relation>(call); }
extern "C" __global__ void __launch_bounds__(768, 1)
fft_transpose_dispatch(const __grid_constant__ Call call) { dispatch<Dispatch<Shape, Relation>>(call); }
extern "C" __global__ void __launch_bounds__(256, 1)
fft_transpose_refuse(const __grid_constant__ Call call) { refuse<Shape>(call); }
extern "C" __global__ void __launch_bounds__(896, 1)
fft_transpose_combine(const __grid_constant__ Call call) { combine<Shape::Source, InPlace>(call); }
