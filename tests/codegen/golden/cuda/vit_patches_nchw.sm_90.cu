// Shuffle `vit_patches_nchw` in vit_patches_nchw.fsc, by fuscoc 0.1.0. Do not edit.
//
// vit_patches_nchw.fsc:7: index i : height(n) / p
// vit_patches_nchw.fsc:8: index j : width(n) / p
// vit_patches_nchw.fsc:11: segment patch { pixels : u8[p, p, c] }
// vit_patches_nchw.fsc:17: route where(n) -> (rank, offset) = input packing : int64[2]
// vit_patches_nchw.fsc:19: dispatch patches[n, i, j] -> sequence[where(n).offset + i * width(n) ...
// vit_patches_nchw.fsc:20: combine reverse
#include "move.cuh"
#include "refuse.cuh"
#include "give_lent.cuh"

namespace {
using namespace fuscoc;

struct Shape {
  static constexpr bool compact = false;
  static constexpr bool ragged = true;
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
  static constexpr int num_loops = 2;
  static constexpr int num_run_loops = 3;
  static constexpr int num_strides = 2;
  static constexpr int tile_bytes = 43648;
  static constexpr int carried_bytes = 0;
  __device__ static constexpr i64 row_bytes(int field) { return 588; }
  __device__ static constexpr i64 cell_bytes(int field) { return 1; }
  __device__ static constexpr int unit_bytes(int field) { return 1; }
  __device__ static constexpr i64 run_bytes(int field) { return 1; }
  __device__ static constexpr int num_runs(int field) { return 3; }
  __device__ static constexpr i64 run_count(int field, int loop) {
    return (loop == 0 ? 14 : loop == 1 ? 14 : 3);
  }
  __device__ static i64 run_stride(int field, int loop, const i64* strides) {
    return (loop == 0 ? 1 * strides[0] : loop == 1 ? 1 : 1 * strides[1]);
  }
};
static_assert(sizeof(BoxOf<Shape>) == 432);
static_assert(sizeof(Marks<Shape::num_loops>) == 80);

struct Relation {
  const Call& call;
  static constexpr int num_pieces = 1;
  __device__ __forceinline__ i64 num_entries() const {
    return call.extents[0];
  }
  __device__ __forceinline__ Sizes sizes(i64 entry) const {
    const auto height_ = static_cast<const i64*>(call.inputs[0])[entry];
    const auto width_ = static_cast<const i64*>(call.inputs[1])[entry];
    return {(height_ / i64(14)) * (width_ / i64(14)), ((height_ * i64(3)) * width_), u64((height_ / i64(14))) < u64(2147483648) && u64((width_ / i64(14))) < u64(2147483648) && height_ % i64(14) == 0 && width_ % i64(14) == 0 && double((height_ / i64(14))) * double((width_ / i64(14))) < 4.611686018427388e+18 && ((height_ * i64(3)) * width_) >= 0};
  }
  template <int kPiece>
  __device__ __forceinline__ void piece(i64 entry, PieceOf<Shape>& piece) const {
    if constexpr (kPiece == 0) {
      const auto width_ = static_cast<const i64*>(call.inputs[1])[entry];
      const auto height_ = static_cast<const i64*>(call.inputs[0])[entry];
      const auto value_ = entry * i64(2);
      const auto packing_ = static_cast<const i64*>(call.inputs[2])[value_];
      const auto packing_1 = static_cast<const i64*>(call.inputs[2])[(value_ + i64(1))];
      const auto is_rank_ = (packing_ >= i64(-1)) && (packing_ < i64(call.num_ranks));
      const auto value_1 = width_ / i64(14);
      piece.src = call.cells_before[entry];
      piece.rank = ((packing_1 == i64(-1)) ? i64(-1) : (is_rank_ ? packing_ : i64(-2)));
      piece.slot = packing_1;
      piece.num_loops = 2;
      piece.count[0] = (height_ / i64(14));
      piece.count[1] = value_1;
      piece.src_step[0] = (i64(196) * value_1);
      piece.src_step[1] = i64(14);
      piece.rank_step[0] = i64(0);
      piece.rank_step[1] = i64(0);
      piece.slot_step[0] = value_1;
      piece.slot_step[1] = i64(1);
      piece.strides[0] = width_;
      piece.strides[1] = (height_ * width_);
    }
  }
};
}  // namespace

extern "C" __global__ void __launch_bounds__(512, 1)
vit_patches_nchw_plan(const __grid_constant__ Call call) { place_pieces<Shape, Relation>(call); }
extern "C" __global__ void __launch_bounds__(896, 1)
vit_patches_nchw_dispatch(const __grid_constant__ Call call) { move<Shape, Relation>(call); }
extern "C" __global__ void __launch_bounds__(256, 1)
vit_patches_nchw_refuse(const __grid_constant__ Call call) { refuse<Shape>(call); }
extern "C" __global__ void __launch_bounds__(896, 1)
vit_patches_nchw_combine(const __grid_constant__ Call call) { give_back<Shape>(call); }
extern "C" __global__ void __launch_bounds__(896, 1)
vit_patches_nchw_lend(const __grid_constant__ Call call) { give_lent<Shape>(call); }
