// Shuffle `ulysses` in ulysses.fsc, by fuscoc 0.1.0. Do not edit.
//
// ulysses.fsc:9: segment head { x : bf16[block, width] }
// ulysses.fsc:18: dispatch part[b, h] -> by_head[h % (heads / ranks), rank * (num_blocks / ...
// ulysses.fsc:19: on h / (heads / ranks)
// ulysses.fsc:20: combine reverse
#include "move.cuh"
#include "refuse.cuh"
#include "give_lent.cuh"

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
  static constexpr int num_boxes = 2;
  static constexpr int num_loops = 3;
  static constexpr int num_run_loops = 1;
  static constexpr int num_strides = 0;
  static constexpr int tile_bytes = 0;
  static constexpr int carried_bytes = 0;
  __device__ static constexpr i64 row_bytes(int field) { return 16384; }
  __device__ static constexpr i64 cell_bytes(int field) { return 256; }
  __device__ static constexpr int unit_bytes(int field) { return 16; }
  __device__ static constexpr i64 run_bytes(int field) { return 256; }
  __device__ static constexpr int num_runs(int field) { return 1; }
  __device__ static constexpr i64 run_count(int field, int loop) {
    return (64);
  }
  __device__ static i64 run_stride(int field, int loop, const i64* strides) {
    return (8192);
  }
};
static_assert(sizeof(BoxOf<Shape>) == 400);
static_assert(sizeof(Marks<Shape::num_loops>) == 96);

struct Few : Shape {
  static constexpr bool few = true;
  static constexpr int carried_bytes = 124800;
};

struct Relation {
  const Call& call;
  static constexpr int num_pieces = 2;
  __device__ __forceinline__ i64 num_entries() const {
    return 1;
  }
  template <int kPiece>
  __device__ __forceinline__ void piece(i64 entry, PieceOf<Shape>& piece) const {
    if constexpr (kPiece == 0) {
      const auto value_ = floor_div(i64(64), i64(call.num_ranks));
      const auto value_1 = i64(call.rank) * value_;
      const auto value_2 = floor_div(i64(32), i64(call.num_ranks));
      const auto value_3 = floor_div(i64(32), value_2);
      piece.src = i64(0);
      piece.rank = i64(0);
      piece.slot = value_1;
      piece.num_loops = 3;
      piece.count[0] = value_;
      piece.count[1] = value_3;
      piece.count[2] = value_2;
      piece.src_step[0] = i64(2048);
      piece.src_step[1] = value_2;
      piece.src_step[2] = i64(1);
      piece.rank_step[0] = i64(0);
      piece.rank_step[1] = i64(1);
      piece.rank_step[2] = i64(0);
      piece.slot_step[0] = i64(1);
      piece.slot_step[1] = i64(0);
      piece.slot_step[2] = i64(64);
    }
    if constexpr (kPiece == 1) {
      const auto value_ = floor_div(i64(32), i64(call.num_ranks));
      const auto value_1 = floor_div(i64(32), value_);
      const auto value_2 = value_ * value_1;
      const auto value_3 = floor_div(i64(64), i64(call.num_ranks));
      const auto value_4 = i64(call.rank) * value_3;
      const auto is_rank_ = (value_1 >= i64(-1)) && (value_1 < i64(call.num_ranks));
      piece.src = value_2;
      piece.rank = (is_rank_ ? value_1 : i64(-2));
      piece.slot = value_4;
      piece.num_loops = 2;
      piece.count[0] = value_3;
      piece.count[1] = (i64(32) - value_2);
      piece.src_step[0] = i64(2048);
      piece.src_step[1] = i64(1);
      piece.rank_step[0] = i64(0);
      piece.rank_step[1] = i64(0);
      piece.slot_step[0] = i64(1);
      piece.slot_step[1] = i64(64);
    }
  }
};
}  // namespace

extern "C" __global__ void __launch_bounds__(512, 1)
ulysses_plan(const __grid_constant__ Call call) { place_pieces<Shape, Relation>(call); }
extern "C" __global__ void __launch_bounds__(896, 1)
ulysses_dispatch(const __grid_constant__ Call call) { move<Shape, Relation>(call); }
extern "C" __global__ void __launch_bounds__(256, 1)
ulysses_refuse(const __grid_constant__ Call call) { refuse<Shape>(call); }
extern "C" __global__ void __launch_bounds__(768, 1)
ulysses_combine(const __grid_constant__ Call call) { give_back<Shape>(call); }
extern "C" __global__ void __launch_bounds__(896, 1)
ulysses_lend(const __grid_constant__ Call call) { give_lent<Shape>(call); }
extern "C" __global__ void __launch_bounds__(896, 1)
ulysses_dispatch_few(const __grid_constant__ Call call) { move<Few, Relation>(call); }
extern "C" __global__ void __launch_bounds__(896, 1)
ulysses_lend_few(const __grid_constant__ Call call) { give_lent<Few>(call); }
