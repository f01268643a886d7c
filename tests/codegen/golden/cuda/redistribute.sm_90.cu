// Shuffle `redistribute` in redistribute.fsc, by fuscoc 0.1.0. Do not edit.
//
// redistribute.fsc:7: segment row { x : f32[columns] }
// redistribute.fsc:12: dispatch block[i] -> cyclic[(rank * (rows / ranks) + i) / ranks]
// redistribute.fsc:13: on (rank * (rows / ranks) + i) % ranks
// redistribute.fsc:14: combine reverse
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
  static constexpr int num_boxes = 3;
  static constexpr int num_loops = 2;
  static constexpr int num_run_loops = 0;
  static constexpr int num_strides = 0;
  static constexpr int tile_bytes = 0;
  static constexpr int carried_bytes = 124800;
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
};
static_assert(sizeof(BoxOf<Shape>) == 328);
static_assert(sizeof(Marks<Shape::num_loops>) == 80);

struct Few : Shape {
  static constexpr bool few = true;
  static constexpr int carried_bytes = 124800;
};

struct Relation {
  const Call& call;
  static constexpr int num_pieces = 3;
  __device__ __forceinline__ i64 num_entries() const {
    return 1;
  }
  template <int kPiece>
  __device__ __forceinline__ void piece(i64 entry, PieceOf<Shape>& piece) const {
    if constexpr (kPiece == 0) {
      const auto value_ = floor_div(i64(8192), i64(call.num_ranks));
      const auto value_1 = i64(call.rank) * value_;
      const auto value_2 = floor_div(value_1, i64(call.num_ranks));
      const auto value_3 = i64(call.num_ranks) * value_2;
      const auto value_4 = value_1 - value_3;
      const auto value_5 = min(value_4, i64(1));
      piece.src = i64(0);
      piece.rank = value_4;
      piece.slot = value_2;
      piece.num_loops = 1;
      piece.count[0] = (min(((i64(call.num_ranks) + value_3) - value_1), value_) * value_5);
      piece.src_step[0] = i64(1);
      piece.rank_step[0] = i64(1);
      piece.slot_step[0] = i64(0);
    }
    if constexpr (kPiece == 1) {
      const auto value_ = floor_div(i64(8192), i64(call.num_ranks));
      const auto value_1 = i64(call.rank) * value_;
      const auto value_2 = floor_div(value_1, i64(call.num_ranks));
      const auto value_3 = i64(call.num_ranks) * value_2;
      const auto value_4 = value_1 - value_3;
      const auto value_5 = min(value_4, i64(1));
      const auto value_6 = floor_div((value_1 + value_), i64(call.num_ranks));
      piece.src = ((value_3 + (i64(call.num_ranks) * value_5)) - value_1);
      piece.rank = i64(0);
      piece.slot = (value_2 + value_5);
      piece.num_loops = 2;
      piece.count[0] = max(((value_6 - value_2) - value_5), i64(0));
      piece.count[1] = i64(call.num_ranks);
      piece.src_step[0] = i64(call.num_ranks);
      piece.src_step[1] = i64(1);
      piece.rank_step[0] = i64(0);
      piece.rank_step[1] = i64(1);
      piece.slot_step[0] = i64(1);
      piece.slot_step[1] = i64(0);
    }
    if constexpr (kPiece == 2) {
      const auto value_ = floor_div(i64(8192), i64(call.num_ranks));
      const auto value_1 = i64(call.rank) * value_;
      const auto value_2 = floor_div((value_1 + value_), i64(call.num_ranks));
      const auto value_3 = i64(call.num_ranks) * value_2;
      const auto value_4 = floor_div(value_1, i64(call.num_ranks));
      const auto value_5 = i64(call.num_ranks) * value_4;
      const auto value_6 = value_1 - value_5;
      const auto value_7 = min(value_6, i64(1));
      const auto value_8 = min(i64(1), (((i64(1) + value_2) - value_4) - value_7));
      piece.src = (value_3 - value_1);
      piece.rank = i64(0);
      piece.slot = value_2;
      piece.num_loops = 1;
      piece.count[0] = (((value_1 * value_8) + (value_ * value_8)) - (value_3 * value_8));
      piece.src_step[0] = i64(1);
      piece.rank_step[0] = i64(1);
      piece.slot_step[0] = i64(0);
    }
  }
};
}  // namespace

extern "C" __global__ void __launch_bounds__(512, 1)
redistribute_plan(const __grid_constant__ Call call) { place_pieces<Shape, Relation>(call); }
extern "C" __global__ void __launch_bounds__(896, 1)
redistribute_dispatch(const __grid_constant__ Call call) { move<Shape, Relation>(call); }
extern "C" __global__ void __launch_bounds__(256, 1)
redistribute_refuse(const __grid_constant__ Call call) { refuse<Shape>(call); }
extern "C" __global__ void __launch_bounds__(768, 1)
redistribute_combine(const __grid_constant__ Call call) { give_back<Shape>(call); }
extern "C" __global__ void __launch_bounds__(896, 1)
redistribute_lend(const __grid_constant__ Call call) { give_lent<Shape>(call); }
extern "C" __global__ void __launch_bounds__(896, 1)
redistribute_dispatch_few(const __grid_constant__ Call call) { move<Few, Relation>(call); }
extern "C" __global__ void __launch_bounds__(896, 1)
redistribute_lend_few(const __grid_constant__ Call call) { give_lent<Few>(call); }
