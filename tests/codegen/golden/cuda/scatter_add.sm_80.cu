// Shuffle `scatter_add` in scatter_add.fsc, by fuscoc 0.1.0. Do not edit.
//
// scatter_add.fsc:10: segment message { x : f32[width] }
// scatter_add.fsc:16: route to(t) -> (rank, slot) = input destination : int64[2]
// scatter_add.fsc:19: dispatch sent[t] -> arrived[to(t).slot] on to(t).rank into sums[head(s)] ...
// scatter_add.fsc:20: combine reverse
#include "entries.cuh"
#include "refuse.cuh"
#include "entries_back.cuh"

namespace {
using namespace fuscoc;

struct Shape {
  static constexpr bool compact = false;
  static constexpr bool ragged = false;
  static constexpr bool looks_up = true;
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
  static constexpr int entry_group = 32;
  static constexpr int entry_points = 1;
  __device__ static constexpr i64 row_bytes(int field) { return 256; }
  __device__ static constexpr i64 cell_bytes(int field) { return 256; }
  __device__ static constexpr int unit_bytes(int field) { return 16; }
  __device__ static constexpr i64 run_bytes(int field) { return 256; }
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
    const auto value_ = point * i64(2);
    const auto destination_ = static_cast<const i64*>(call.inputs[0])[value_];
    const auto destination_1 = static_cast<const i64*>(call.inputs[0])[(value_ + i64(1))];
    const auto is_rank_ = (destination_ >= i64(-1)) && (destination_ < i64(call.num_ranks));
    piece.src = point;
    piece.rank = ((destination_1 == i64(-1)) ? i64(-1) : (is_rank_ ? destination_ : i64(-2)));
    piece.slot = destination_1;
    piece.num_loops = 0;
  }
};
}  // namespace

extern "C" __global__ void __launch_bounds__(512, 1)
scatter_add_plan(const __grid_constant__ Call call) { place_entries<Shape, Relation>(call); }
extern "C" __global__ void __launch_bounds__(896, 1)
scatter_add_dispatch(const __grid_constant__ Call call) { move_entries<Shape>(call); }
extern "C" __global__ void __launch_bounds__(256, 1)
scatter_add_refuse(const __grid_constant__ Call call) { refuse<Shape>(call); }
extern "C" __global__ void __launch_bounds__(768, 1)
scatter_add_combine(const __grid_constant__ Call call) { give_entries<Shape>(call); }
