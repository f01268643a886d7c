// Shuffle `vit_unpack` in vit_unpack.fsc, by fuscoc 0.1.0. Do not edit.
//
// vit_unpack.fsc:14: layout pictures[n, y, x] of u8[c] dense(rows * p, columns * p)
// vit_unpack.fsc:17: route to(s) -> (rank, n, i, j) = input places : int64[4]
// vit_unpack.fsc:19: dispatch sequence[s] -> patches[to(s).n, to(s).i, to(s).j] on to(s).rank
// vit_unpack.fsc:20: combine reverse
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
  static constexpr int num_loops = 1;
  static constexpr int num_run_loops = 0;
  static constexpr int num_strides = 0;
  static constexpr int tile_bytes = 0;
  static constexpr int carried_bytes = 0;
  static constexpr int entry_group = 16;
  static constexpr int entry_points = 14;
  __device__ static constexpr i64 row_bytes(int field) { return 42; }
  __device__ static constexpr i64 cell_bytes(int field) { return 42; }
  __device__ static constexpr int unit_bytes(int field) { return 2; }
  __device__ static constexpr i64 run_bytes(int field) { return 42; }
  __device__ static constexpr int num_runs(int field) { return 0; }
  __device__ static constexpr i64 run_count(int field, int loop) {
    return 1;
  }
  __device__ static i64 run_stride(int field, int loop, const i64* strides) {
    return 1;
  }
  __device__ static constexpr i64 entry_count(int loop) { return (14); }
  __device__ static constexpr i64 entry_src_step(int loop) { return (1); }
  __device__ static constexpr i64 entry_slot_step(int loop) { return (16); }
};

struct Relation {
  const Call& call;
  static constexpr int num_pieces = 1;
  __device__ __forceinline__ i64 num_entries() const {
    return call.extents[0];
  }
  template <int kPiece>
  __device__ __forceinline__ void piece(i64 entry, PieceOf<Shape>& piece) const {
    if constexpr (kPiece == 0) {
      const auto value_ = entry * i64(4);
      const auto places_ = static_cast<const i64*>(call.inputs[0])[value_];
      const auto places_1 = static_cast<const i64*>(call.inputs[0])[(value_ + i64(2))];
      const auto is_inside_ = (places_1 >= i64(0)) && (places_1 < i64(16));
      const auto places_2 = static_cast<const i64*>(call.inputs[0])[(value_ + i64(3))];
      const auto is_inside_1 = (places_2 >= i64(0)) && (places_2 < i64(16));
      const auto places_3 = static_cast<const i64*>(call.inputs[0])[(value_ + i64(1))];
      const auto is_rank_ = (places_ >= i64(-1)) && (places_ < i64(call.num_ranks));
      const auto dropped_ = (places_ == i64(-1)) || (places_3 == i64(-1));
      const auto reached_ = (is_inside_ && is_inside_1) ? (is_rank_ ? places_ : i64(-2)) : i64(-2);
      piece.src = (i64(14) * entry);
      piece.rank = (((dropped_ || (places_1 == i64(-1))) || (places_2 == i64(-1))) ? i64(-1) : reached_);
      piece.slot = (((i64(224) * (is_inside_ ? places_1 : i64(0))) + (is_inside_1 ? places_2 : i64(0))) + (i64(3584) * places_3));
      piece.num_loops = 1;
      piece.count[0] = i64(14);
      piece.src_step[0] = i64(1);
      piece.rank_step[0] = i64(0);
      piece.slot_step[0] = i64(16);
    }
  }
};
}  // namespace

extern "C" __global__ void __launch_bounds__(512, 1)
vit_unpack_plan(const __grid_constant__ Call call) { place_entries<Shape, Relation>(call); }
extern "C" __global__ void __launch_bounds__(896, 1)
vit_unpack_dispatch(const __grid_constant__ Call call) { move_entries<Shape>(call); }
extern "C" __global__ void __launch_bounds__(256, 1)
vit_unpack_refuse(const __grid_constant__ Call call) { refuse<Shape>(call); }
extern "C" __global__ void __launch_bounds__(768, 1)
vit_unpack_combine(const __grid_constant__ Call call) { give_entries<Shape>(call); }
