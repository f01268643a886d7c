// Shuffle `reshard` in reshard.fsc, by fuscoc 0.1.0. Do not edit.
//
// reshard.fsc:17: segment quad { x : f32[4] }
// reshard.fsc:23: dispatch in_rows[i, j]
// reshard.fsc:24: -> in_blocks[at(i) / y_cycle * high + at(i) % high, j / x_cycle * wide + j % ...
// reshard.fsc:25: on at(i) / high % down * across + j / wide % across
// reshard.fsc:26: combine reverse
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
  static constexpr int buffer_bytes = 128;
  static constexpr int dispatch_warps = 24;
  static constexpr int dispatch_rows = 1;
  static constexpr int num_strides = 0;
  static constexpr int teams = 24;
  static constexpr int team_warps = 1;
  static constexpr int team_vectors = 1;
  static constexpr int team_batch = 8;
  static constexpr int combine_rows = 256;
  __device__ static constexpr i64 row_bytes(int field) { return 16; }
  __device__ static constexpr i64 cell_bytes(int field) { return 16; }
  __device__ static constexpr int unit_bytes(int field) { return 16; }
  __device__ static constexpr int buffer_offset(int field) { return 0; }
  __device__ static constexpr int part_size(int field) { return 16; }
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
    const auto j_ = point % i64(363);
    const auto i_ = point / i64(363);
    const auto value_ = (i64(call.rank) * ((i64(call.num_ranks) + i64(999)) / i64(call.num_ranks))) + i_;
    const auto value_1 = i64(call.num_ranks) / i64(2);
    const auto value_2 = (((value_ / i64(32)) % value_1) * i64(2)) + ((j_ / i64(8)) % i64(2));
    const auto is_rank_ = (value_2 >= i64(-1)) && (value_2 < i64(call.num_ranks));
    return {(is_rank_ ? value_2 : i64(-2)), (((((value_ / (value_1 * i64(32))) * i64(32)) + (value_ % i64(32))) * ((((((i64(11) - ((value_2 % i64(2)) * i64(8))) < i64(8)) ? (i64(11) - ((value_2 % i64(2)) * i64(8))) : i64(8)) >= i64(0)) ? (((i64(11) - ((value_2 % i64(2)) * i64(8))) < i64(8)) ? (i64(11) - ((value_2 % i64(2)) * i64(8))) : i64(8)) : i64(0)) + i64(176))) + (((j_ / i64(16)) * i64(8)) + (j_ % i64(8)))), {((i_ * i64(363)) + j_)}};
  }
};
}  // namespace

extern "C" __global__ void __launch_bounds__(1024, 1)
reshard_plan(const __grid_constant__ Call call) { place<Shape, Relation>(call); }
extern "C" __global__ void __launch_bounds__(768, 1)
reshard_dispatch(const __grid_constant__ Call call) { dispatch<Dispatch<Shape, Relation>>(call); }
extern "C" __global__ void __launch_bounds__(256, 1)
reshard_refuse(const __grid_constant__ Call call) { refuse<Shape>(call); }
extern "C" __global__ void __launch_bounds__(768, 1)
reshard_combine(const __grid_constant__ Call call) { copy_back<Shape::Source, InPlace>(call); }
