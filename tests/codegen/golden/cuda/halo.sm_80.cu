// Shuffle `halo` in halo.fsc, by fuscoc 0.1.0. Do not edit.
//
// halo.fsc:11: segment line { x : f32[width] }
// halo.fsc:16: dispatch mine[i] -> padded[reach + rank * part + i - p * part] on p clip
// halo.fsc:17: combine reverse reduce sum
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
  static constexpr bool every_rank = true;
  static constexpr bool few = false;
  using Element = F32;
  static constexpr int num_fields = 1;
  static constexpr int fanout = 1;
  static constexpr int num_keys = 0;
  static constexpr int num_boxes = 0;
  static constexpr int num_loops = 0;
  static constexpr int num_run_loops = 0;
  static constexpr int num_strides = 0;
  static constexpr int tile_bytes = 0;
  static constexpr int carried_bytes = 0;
  static constexpr int entry_group = 4;
  static constexpr int entry_points = 1;
  __device__ static constexpr i64 row_bytes(int field) { return 4096; }
  __device__ static constexpr i64 cell_bytes(int field) { return 4096; }
  __device__ static constexpr int unit_bytes(int field) { return 16; }
  __device__ static constexpr i64 run_bytes(int field) { return 4096; }
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
    const auto p_ = point % i64(call.num_ranks);
    const auto i_ = point / i64(call.num_ranks);
    const auto value_ = (i64(call.num_ranks) + i64(4095)) / i64(call.num_ranks);
    const auto value_1 = p_ * value_;
    const auto value_2 = (((i64(call.rank) * value_) + i64(2)) + i_) - value_1;
    const auto is_rank_ = ((((p_ + i64(1)) * max((i64(1) - (max(max((i64(0) - p_), (p_ - (i64(call.num_ranks) - i64(1)))), i64(0)) + max(max((i64(0) - value_2), (value_2 - (max(min(value_, (i64(4096) - value_1)), i64(0)) + i64(3)))), i64(0)))), i64(0))) - i64(1)) >= i64(-1)) && ((((p_ + i64(1)) * max((i64(1) - (max(max((i64(0) - p_), (p_ - (i64(call.num_ranks) - i64(1)))), i64(0)) + max(max((i64(0) - value_2), (value_2 - (max(min(value_, (i64(4096) - value_1)), i64(0)) + i64(3)))), i64(0)))), i64(0))) - i64(1)) < i64(call.num_ranks));
    piece.src = i_;
    piece.rank = (is_rank_ ? (((p_ + i64(1)) * max((i64(1) - (max(max((i64(0) - p_), (p_ - (i64(call.num_ranks) - i64(1)))), i64(0)) + max(max((i64(0) - value_2), (value_2 - (max(min(value_, (i64(4096) - value_1)), i64(0)) + i64(3)))), i64(0)))), i64(0))) - i64(1)) : i64(-2));
    piece.slot = value_2;
    piece.num_loops = 0;
  }
};
}  // namespace

extern "C" __global__ void __launch_bounds__(512, 1)
halo_plan(const __grid_constant__ Call call) { place_entries<Shape, Relation>(call); }
extern "C" __global__ void __launch_bounds__(640, 1)
halo_dispatch(const __grid_constant__ Call call) { move_entries<Shape>(call); }
extern "C" __global__ void __launch_bounds__(256, 1)
halo_refuse(const __grid_constant__ Call call) { refuse<Shape>(call); }
extern "C" __global__ void __launch_bounds__(640, 1)
halo_combine(const __grid_constant__ Call call) { give_entries<Shape>(call); }
