// Shuffle `reshard` in reshard.fsc, by fuscoc 0.1.0. Do not edit.
//
// reshard.fsc:17: segment quad { x : f32[4] }
// reshard.fsc:23: dispatch in_rows[i, j]
// reshard.fsc:24: -> in_blocks[at(i) / y_cycle * high + at(i) % high, j / x_cycle * wide + j % ...
// reshard.fsc:25: on at(i) / high % down * across + j / wide % across
// reshard.fsc:26: combine reverse
#include "entries.cuh"
#include "refuse.cuh"
#include "entries_back.cuh"

namespace {
using namespace fuscoc;

struct Shape {
  static constexpr bool compact = false;
  static constexpr bool ragged = false;
  static constexpr bool looks_up = false;
  static constexpr bool comes_back = true;
  static constexpr bool disjoint = true;
  static constexpr bool apart = false;
  static constexpr bool every_rank = false;
  static constexpr bool few = false;
  static constexpr int num_fields = 1;
  static constexpr int fanout = 1;
  static constexpr int num_keys = 0;
  static constexpr int num_boxes = 0;
  static constexpr int num_loops = 0;
  static constexpr int num_run_loops = 0;
  static constexpr int num_strides = 0;
  static constexpr int tile_bytes = 0;
  static constexpr int carried_bytes = 0;
  static constexpr int entry_group = 256;
  static constexpr int entry_points = 1;
  __device__ static constexpr i64 row_bytes(int field) { return 16; }
  __device__ static constexpr i64 cell_bytes(int field) { return 16; }
  __device__ static constexpr int unit_bytes(int field) { return 16; }
  __device__ static constexpr i64 run_bytes(int field) { return 16; }
  __device__ static constexpr int num_runs(int field) { return 0; }
  __device__ static constexpr i64 run_count(int field, int loop) {
    return 1;
  }
  __device__ static i64 run_stride(int field, int loop, const i64* strides) {
    return 1;
  }
  __device__ static constexpr i64 entry_count(int loop) { return 1; }
  __device__ static constexpr i64 entry_src_step(int loop) { return 1; }
  __device__ static constexpr i64 entry_slot_step(int loop) { return 1; }
};

struct Relation {
  const Call& call;
  static constexpr int num_pieces = 1;
  __device__ __forceinline__ i64 num_entries() const { return call.num_sources; }
  template <int kPiece>
  __device__ __forceinline__ void piece(i64 point, PieceOf<Shape>& piece) const {
    const auto j_ = point % i64(363);
    const auto i_ = point / i64(363);
    const auto value_ = (i64(call.rank) * ((i64(call.num_ranks) + i64(999)) / i64(call.num_ranks))) + i_;
    const auto value_1 = i64(call.num_ranks) / i64(2);
    const auto value_2 = (((value_ / i64(32)) % value_1) * i64(2)) + ((j_ / i64(8)) % i64(2));
    const auto is_rank_ = (value_2 >= i64(-1)) && (value_2 < i64(call.num_ranks));
    piece.src = ((i_ * i64(363)) + j_);
    piece.rank = (is_rank_ ? value_2 : i64(-2));
    piece.slot = (((((value_ / (value_1 * i64(32))) * i64(32)) + (value_ % i64(32))) * (max(min((i64(11) - ((value_2 % i64(2)) * i64(8))), i64(8)), i64(0)) + i64(176))) + (((j_ / i64(16)) * i64(8)) + (j_ % i64(8))));
    piece.num_loops = 0;
  }
};
}  // namespace

extern "C" __global__ void __launch_bounds__(512, 1)
reshard_plan(const __grid_constant__ Call call) { place_entries<Shape, Relation>(call); }
extern "C" __global__ void __launch_bounds__(896, 1)
reshard_dispatch(const __grid_constant__ Call call) { move_entries<Shape>(call); }
extern "C" __global__ void __launch_bounds__(256, 1)
reshard_refuse(const __grid_constant__ Call call) { refuse<Shape>(call); }
extern "C" __global__ void __launch_bounds__(768, 1)
reshard_combine(const __grid_constant__ Call call) { give_entries<Shape>(call); }
