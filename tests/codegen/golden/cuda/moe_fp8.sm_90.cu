// Shuffle `moe_fp8` in moe_fp8.fsc, by fuscoc 0.1.0. Do not edit.
//
// moe_fp8.fsc:10: segment token { x : f8e4m3[hidden], scales : f32[hidden / block] }
// moe_fp8.fsc:15: place e on rank by block
// moe_fp8.fsc:16: route r(t, k) -> e = input topk_idx : int64
// moe_fp8.fsc:17: weight w(t, k) : f32 = input topk_weights
// moe_fp8.fsc:19: dispatch by_token[t] -> by_expert[r(t, k), *] cast(x by scales)
// moe_fp8.fsc:20: combine reverse reduce sum(w)
#include "cast.cuh"
#include "plan.cuh"
#include "dispatch.cuh"
#include "refuse.cuh"
#include "combine.cuh"

namespace {
using namespace fuscoc;

struct SourceShape {
  using Source = SourceShape;
  using Element = Bf16;
  static constexpr bool weighted = true;
  static constexpr bool compact = false;
  static constexpr int num_fields = 1;
  static constexpr int fanout = 8;
  static constexpr int num_passes = 1;
  static constexpr int teams = 4;
  static constexpr int team_warps = 7;
  static constexpr int team_vectors = 2;
  static constexpr int team_batch = 2;
  __device__ static constexpr i64 row_bytes(int field) { return 14336; }
  __device__ static constexpr i64 cell_bytes(int field) { return 14336; }
  __device__ static constexpr int unit_bytes(int field) { return 16; }
  __device__ static constexpr int buffer_offset(int field) { return 0; }
  __device__ static constexpr int part_size(int field) { return 14336; }
  __device__ static constexpr int part_offset(int field, int pass) {
    return part_size(field) * pass;
  }
  __device__ static constexpr int part_bytes(int field, int pass) {
    if (num_passes == 1) return part_size(field);
    const int left = int(row_bytes(field)) - part_offset(field, pass);
    return left <= 0 ? 0 : left < part_size(field) ? left : part_size(field);
  }
};

struct Shape {
  using Source = SourceShape;
  static constexpr bool weighted = true;
  static constexpr bool compact = false;
  static constexpr int num_fields = 2;
  static constexpr int fanout = 8;
  static constexpr int num_passes = 1;
  static constexpr int num_keys = 256;
  static constexpr int align = 128;
  static constexpr int buffer_bytes = 14592;
  static constexpr int dispatch_warps = 15;
  static constexpr int dispatch_rows = 1;
  __device__ static constexpr i64 row_bytes(int field) { return field == 0 ? 7168 : 224; }
  __device__ static constexpr i64 cell_bytes(int field) { return field == 0 ? 7168 : 224; }
  __device__ static constexpr int unit_bytes(int field) { return field == 0 ? 16 : 16; }
  __device__ static constexpr int buffer_offset(int field) { return field == 0 ? 0 : 14336; }
  __device__ static constexpr int part_size(int field) { return field == 0 ? 7168 : 224; }
  __device__ static constexpr int part_offset(int field, int pass) {
    return part_size(field) * pass;
  }
  __device__ static constexpr int part_bytes(int field, int pass) {
    if (num_passes == 1) return part_size(field);
    const int left = int(row_bytes(field)) - part_offset(field, pass);
    return left <= 0 ? 0 : left < part_size(field) ? left : part_size(field);
  }
  __device__ static __forceinline__ void cast(char* row, int lane) {
    cast_elements<Bf16, E4m3, 7168, 128>(row + 0, reinterpret_cast<float*>(row + 14336), lane);
  }
};

struct Relation {
  const Call& call;
  static constexpr int num_keys = 256;
  __device__ __forceinline__ i64 key(i64 point) const {
    const auto k_ = point % i64(8);
    const auto t_ = point / i64(8);
    const auto value_ = t_ * i64(8);
    const auto topk_idx_ = static_cast<const i64*>(call.inputs[0])[(value_ + k_)];
    const auto topk_idx_1 = static_cast<const i64*>(call.inputs[0])[value_];
    const auto topk_idx_2 = static_cast<const i64*>(call.inputs[0])[(value_ + i64(1))];
    const auto topk_idx_3 = static_cast<const i64*>(call.inputs[0])[(value_ + i64(2))];
    const auto topk_idx_4 = static_cast<const i64*>(call.inputs[0])[(value_ + i64(3))];
    const auto topk_idx_5 = static_cast<const i64*>(call.inputs[0])[(value_ + i64(4))];
    const auto topk_idx_6 = static_cast<const i64*>(call.inputs[0])[(value_ + i64(5))];
    const auto topk_idx_7 = static_cast<const i64*>(call.inputs[0])[(value_ + i64(6))];
    const auto is_inside_ = ((min(max((topk_idx_ + i64(1)), i64(0)), i64(1)) * (((((((min(max(k_, i64(0)), i64(1)) * (i64(1) - min(max((topk_idx_ - topk_idx_1), (topk_idx_1 - topk_idx_)), i64(1)))) + (min(max((k_ - i64(1)), i64(0)), i64(1)) * (i64(1) - min(max((topk_idx_ - topk_idx_2), (topk_idx_2 - topk_idx_)), i64(1))))) + (min(max((k_ - i64(2)), i64(0)), i64(1)) * (i64(1) - min(max((topk_idx_ - topk_idx_3), (topk_idx_3 - topk_idx_)), i64(1))))) + (min(max((k_ - i64(3)), i64(0)), i64(1)) * (i64(1) - min(max((topk_idx_ - topk_idx_4), (topk_idx_4 - topk_idx_)), i64(1))))) + (min(max((k_ - i64(4)), i64(0)), i64(1)) * (i64(1) - min(max((topk_idx_ - topk_idx_5), (topk_idx_5 - topk_idx_)), i64(1))))) + (min(max((k_ - i64(5)), i64(0)), i64(1)) * (i64(1) - min(max((topk_idx_ - topk_idx_6), (topk_idx_6 - topk_idx_)), i64(1))))) + (min(max((k_ - i64(6)), i64(0)), i64(1)) * (i64(1) - min(max((topk_idx_ - topk_idx_7), (topk_idx_7 - topk_idx_)), i64(1)))))) >= i64(0)) && ((min(max((topk_idx_ + i64(1)), i64(0)), i64(1)) * (((((((min(max(k_, i64(0)), i64(1)) * (i64(1) - min(max((topk_idx_ - topk_idx_1), (topk_idx_1 - topk_idx_)), i64(1)))) + (min(max((k_ - i64(1)), i64(0)), i64(1)) * (i64(1) - min(max((topk_idx_ - topk_idx_2), (topk_idx_2 - topk_idx_)), i64(1))))) + (min(max((k_ - i64(2)), i64(0)), i64(1)) * (i64(1) - min(max((topk_idx_ - topk_idx_3), (topk_idx_3 - topk_idx_)), i64(1))))) + (min(max((k_ - i64(3)), i64(0)), i64(1)) * (i64(1) - min(max((topk_idx_ - topk_idx_4), (topk_idx_4 - topk_idx_)), i64(1))))) + (min(max((k_ - i64(4)), i64(0)), i64(1)) * (i64(1) - min(max((topk_idx_ - topk_idx_5), (topk_idx_5 - topk_idx_)), i64(1))))) + (min(max((k_ - i64(5)), i64(0)), i64(1)) * (i64(1) - min(max((topk_idx_ - topk_idx_6), (topk_idx_6 - topk_idx_)), i64(1))))) + (min(max((k_ - i64(6)), i64(0)), i64(1)) * (i64(1) - min(max((topk_idx_ - topk_idx_7), (topk_idx_7 - topk_idx_)), i64(1)))))) < i64(1));
    const auto value_1 = topk_idx_ + (is_inside_ ? (min(max((topk_idx_ + i64(1)), i64(0)), i64(1)) * (((((((min(max(k_, i64(0)), i64(1)) * (i64(1) - min(max((topk_idx_ - topk_idx_1), (topk_idx_1 - topk_idx_)), i64(1)))) + (min(max((k_ - i64(1)), i64(0)), i64(1)) * (i64(1) - min(max((topk_idx_ - topk_idx_2), (topk_idx_2 - topk_idx_)), i64(1))))) + (min(max((k_ - i64(2)), i64(0)), i64(1)) * (i64(1) - min(max((topk_idx_ - topk_idx_3), (topk_idx_3 - topk_idx_)), i64(1))))) + (min(max((k_ - i64(3)), i64(0)), i64(1)) * (i64(1) - min(max((topk_idx_ - topk_idx_4), (topk_idx_4 - topk_idx_)), i64(1))))) + (min(max((k_ - i64(4)), i64(0)), i64(1)) * (i64(1) - min(max((topk_idx_ - topk_idx_5), (topk_idx_5 - topk_idx_)), i64(1))))) + (min(max((k_ - i64(5)), i64(0)), i64(1)) * (i64(1) - min(max((topk_idx_ - topk_idx_6), (topk_idx_6 - topk_idx_)), i64(1))))) + (min(max((k_ - i64(6)), i64(0)), i64(1)) * (i64(1) - min(max((topk_idx_ - topk_idx_7), (topk_idx_7 - topk_idx_)), i64(1)))))) : i64(0));
    const auto dropped_ = (topk_idx_ == i64(-1)) || ((min(max((topk_idx_ + i64(1)), i64(0)), i64(1)) * (((((((min(max(k_, i64(0)), i64(1)) * (i64(1) - min(max((topk_idx_ - topk_idx_1), (topk_idx_1 - topk_idx_)), i64(1)))) + (min(max((k_ - i64(1)), i64(0)), i64(1)) * (i64(1) - min(max((topk_idx_ - topk_idx_2), (topk_idx_2 - topk_idx_)), i64(1))))) + (min(max((k_ - i64(2)), i64(0)), i64(1)) * (i64(1) - min(max((topk_idx_ - topk_idx_3), (topk_idx_3 - topk_idx_)), i64(1))))) + (min(max((k_ - i64(3)), i64(0)), i64(1)) * (i64(1) - min(max((topk_idx_ - topk_idx_4), (topk_idx_4 - topk_idx_)), i64(1))))) + (min(max((k_ - i64(4)), i64(0)), i64(1)) * (i64(1) - min(max((topk_idx_ - topk_idx_5), (topk_idx_5 - topk_idx_)), i64(1))))) + (min(max((k_ - i64(5)), i64(0)), i64(1)) * (i64(1) - min(max((topk_idx_ - topk_idx_6), (topk_idx_6 - topk_idx_)), i64(1))))) + (min(max((k_ - i64(6)), i64(0)), i64(1)) * (i64(1) - min(max((topk_idx_ - topk_idx_7), (topk_idx_7 - topk_idx_)), i64(1)))))) == i64(-1));
    return ((dropped_ || ((value_1 == i64(-1)) && is_inside_)) ? i64(-1) : (is_inside_ ? value_1 : i64(-2)));
  }
  __device__ __forceinline__ int place(int key) const {
    return int(key / ((num_keys + call.num_ranks - 1) / call.num_ranks));
  }
  __device__ __forceinline__ i64 source_cell(i64 source) const {
    return source;
  }
};
static_assert(sizeof(PlanShared<Shape>) <= 19776);
}  // namespace

extern "C" __global__ void __launch_bounds__(1024, 1)
moe_fp8_plan(const __grid_constant__ Call call) { plan<Shape, Relation>(call); }
extern "C" __global__ void __launch_bounds__(480, 1)
moe_fp8_dispatch(const __grid_constant__ Call call) { dispatch<Dispatch<Shape, Relation>>(call); }
extern "C" __global__ void __launch_bounds__(1024, 1)
moe_fp8_staged(const __grid_constant__ Call call) { staged<Shape, Relation>(call); }
extern "C" __global__ void __launch_bounds__(256, 1)
moe_fp8_refuse(const __grid_constant__ Call call) { refuse<Shape>(call); }
extern "C" __global__ void __launch_bounds__(896, 1)
moe_fp8_combine(const __grid_constant__ Call call) { combine<Shape::Source>(call); }
