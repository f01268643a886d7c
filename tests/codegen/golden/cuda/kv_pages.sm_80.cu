// Shuffle `kv_pages` in kv_pages.fsc, by fuscoc 0.1.0. Do not edit.
//
// kv_pages.fsc:11: segment kv { x : bf16[layers, page, 2, heads, width] }
// kv_pages.fsc:16: route from(m) -> page_idx = input source_page : int64
// kv_pages.fsc:17: route to(m) -> (rank, slot) = input destination : int64[2]
// kv_pages.fsc:21: dispatch leaving[m] -> arrived[to(m).slot] on to(m).rank
// kv_pages.fsc:22: combine reverse
#include "move.cuh"
#include "refuse.cuh"
#include "give_lent.cuh"

namespace {
using namespace fuscoc;

struct Shape {
  static constexpr bool compact = false;
  static constexpr bool ragged = false;
  static constexpr bool looks_up = true;
  static constexpr bool comes_back = true;
  static constexpr bool disjoint = true;
  static constexpr bool apart = true;
  static constexpr bool every_rank = false;
  static constexpr bool few = false;
  static constexpr int num_fields = 1;
  static constexpr int fanout = 1;
  static constexpr int num_keys = 0;
  static constexpr int num_boxes = 0;
  static constexpr int num_loops = 0;
  static constexpr int num_run_loops = 1;
  static constexpr int num_strides = 1;
  static constexpr int tile_bytes = 0;
  static constexpr int carried_bytes = 0;
  __device__ static constexpr i64 row_bytes(int field) { return 2097152; }
  __device__ static constexpr i64 cell_bytes(int field) { return 65536; }
  __device__ static constexpr int unit_bytes(int field) { return 16; }
  __device__ static constexpr i64 run_bytes(int field) { return 65536; }
  __device__ static constexpr int num_runs(int field) { return 1; }
  __device__ static constexpr i64 run_count(int field, int loop) {
    return (32);
  }
  __device__ static i64 run_stride(int field, int loop, const i64* strides) {
    return (65536 * strides[0]);
  }
};
static_assert(sizeof(BoxOf<Shape>) == 288);
static_assert(sizeof(Marks<Shape::num_loops>) == 48);

struct Relation {
  const Call& call;
  static constexpr int num_pieces = 1;
  __device__ __forceinline__ i64 num_entries() const {
    return call.extents[0];
  }
  template <int kPiece>
  __device__ __forceinline__ void piece(i64 entry, PieceOf<Shape>& piece) const {
    if constexpr (kPiece == 0) {
      const auto source_page_ = static_cast<const i64*>(call.inputs[0])[entry];
      const auto is_inside_ = (source_page_ >= i64(0)) && (source_page_ < call.extents[1]);
      const auto value_ = entry * i64(2);
      const auto destination_ = static_cast<const i64*>(call.inputs[1])[value_];
      const auto destination_1 = static_cast<const i64*>(call.inputs[1])[(value_ + i64(1))];
      const auto is_rank_ = (destination_ >= i64(-1)) && (destination_ < i64(call.num_ranks));
      const auto dropped_ = (source_page_ == i64(-1)) || (destination_ == i64(-1));
      const auto reached_ = is_inside_ ? (is_rank_ ? destination_ : i64(-2)) : i64(-2);
      piece.src = (is_inside_ ? source_page_ : i64(0));
      piece.rank = ((dropped_ || (destination_1 == i64(-1))) ? i64(-1) : reached_);
      piece.slot = destination_1;
      piece.num_loops = 0;
      piece.strides[0] = call.extents[1];
    }
  }
};
}  // namespace

extern "C" __global__ void __launch_bounds__(512, 1)
kv_pages_plan(const __grid_constant__ Call call) { place_pieces<Shape, Relation>(call); }
extern "C" __global__ void __launch_bounds__(896, 1)
kv_pages_dispatch(const __grid_constant__ Call call) { move<Shape, Relation>(call); }
extern "C" __global__ void __launch_bounds__(256, 1)
kv_pages_refuse(const __grid_constant__ Call call) { refuse<Shape>(call); }
extern "C" __global__ void __launch_bounds__(768, 1)
kv_pages_combine(const __grid_constant__ Call call) { give_back<Shape>(call); }
extern "C" __global__ void __launch_bounds__(896, 1)
kv_pages_lend(const __grid_constant__ Call call) { give_lent<Shape>(call); }
