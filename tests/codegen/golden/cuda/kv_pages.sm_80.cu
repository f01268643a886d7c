// Shuffle `kv_pages` in kv_pages.fsc, by fuscoc 0.1.0. Do not edit.
//
// kv_pages.fsc:10: segment kv { x : bf16[layers, page, 2, heads, width] }
// kv_pages.fsc:15: route from(m) -> page_idx = input source_page : int64
// kv_pages.fsc:16: route to(m) -> (rank, slot) = input destination : int64[2]
// kv_pages.fsc:20: dispatch leaving[m] -> arrived[to(m).slot] on to(m).rank
#include "place.cuh"
#include "dispatch.cuh"
#include "refuse.cuh"

namespace {
using namespace fuscoc;

struct SourceShape {
  using Source = SourceShape;
  static constexpr bool weighted = false;
  static constexpr bool compact = false;
  static constexpr bool scattered = true;
  static constexpr int num_fields = 1;
  static constexpr int fanout = 1;
  static constexpr int num_passes = 51;
  static constexpr int num_strides = 1;
  static constexpr int teams = 7;
  static constexpr int team_warps = 4;
  static constexpr int team_vectors = 2;
  static constexpr int team_batch = 2;
  __device__ static constexpr i64 row_bytes(int field) { return 2097152; }
  __device__ static constexpr i64 cell_bytes(int field) { return 65536; }
  __device__ static constexpr int unit_bytes(int field) { return 16; }
  __device__ static constexpr int buffer_offset(int field) { return 0; }
  __device__ static constexpr int part_size(int field) { return 41136; }
  __device__ static constexpr int part_offset(int field, int pass) {
    return part_size(field) * pass;
  }
  __device__ static constexpr int part_bytes(int field, int pass) {
    if (num_passes == 1) return part_size(field);
    const int left = int(row_bytes(field)) - part_offset(field, pass);
    return left <= 0 ? 0 : left < part_size(field) ? left : part_size(field);
  }
  __device__ static constexpr int run_bytes(int field) { return 65536; }
  __device__ static i64 run_offset(int field, int run, const i64* strides) {
    return i64(run) * 65536 * strides[0];
  }
};

struct Shape {
  using Source = SourceShape;
  static constexpr bool weighted = false;
  static constexpr bool compact = false;
  static constexpr int num_fields = 1;
  static constexpr int fanout = 1;
  static constexpr int num_passes = 51;
  static constexpr int num_keys = 0;
  static constexpr int align = 1;
  static constexpr int buffer_bytes = 41216;
  static constexpr int dispatch_warps = 4;
  __device__ static constexpr i64 row_bytes(int field) { return 2097152; }
  __device__ static constexpr i64 cell_bytes(int field) { return 2097152; }
  __device__ static constexpr int unit_bytes(int field) { return 16; }
  __device__ static constexpr int buffer_offset(int field) { return 0; }
  __device__ static constexpr int part_size(int field) { return 41136; }
  __device__ static constexpr int part_offset(int field, int pass) {
    return part_size(field) * pass;
  }
  __device__ static constexpr int part_bytes(int field, int pass) {
    if (num_passes == 1) return part_size(field);
    const int left = int(row_bytes(field)) - part_offset(field, pass);
    return left <= 0 ? 0 : left < part_size(field) ? left : part_size(field);
  }
  __device__ static __forceinline__ void cast(char* row, int lane) {
  }
};

struct Relation {
  const Call& call;
  using To = Destination<Shape::Source>;
  __device__ __forceinline__ To destination(i64 point) const {
    const auto source_page_ = static_cast<const i64*>(call.inputs[0])[point];
    const auto is_inside_ = (source_page_ >= i64(0)) && (source_page_ < call.extents[1]);
    const auto value_ = point * i64(2);
    const auto destination_ = static_cast<const i64*>(call.inputs[1])[value_];
    const auto destination_1 = static_cast<const i64*>(call.inputs[1])[(value_ + i64(1))];
    const auto is_rank_ = (destination_ >= i64(-1)) && (destination_ < i64(call.num_ranks));
    const auto dropped_ = (source_page_ == i64(-1)) || (destination_ == i64(-1));
    const auto reached_ = is_inside_ ? (is_rank_ ? destination_ : i64(-2)) : i64(-2);
    return {((dropped_ || (destination_1 == i64(-1))) ? i64(-1) : reached_), destination_1, {(is_inside_ ? source_page_ : i64(0)), call.extents[1]}};
  }
};
}  // namespace

extern "C" __global__ void __launch_bounds__(1024, 1)
kv_pages_plan(const __grid_constant__ Call call) { place<Shape, Relation>(call); }
extern "C" __global__ void __launch_bounds__(128, 1)
kv_pages_dispatch(const __grid_constant__ Call call) { dispatch<Dispatch<Shape, Relation>>(call); }
extern "C" __global__ void __launch_bounds__(256, 1)
kv_pages_refuse(const __grid_constant__ Call call) { refuse<Shape>(call); }
