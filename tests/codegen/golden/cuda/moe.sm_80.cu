// Shuffle `moe` in moe.fsc, by fuscoc 0.1.0. Do not edit.
//
// moe.fsc:9: segment token { x : bf16[hidden] }
// moe.fsc:14: place e on rank by block
// moe.fsc:15: route r(t, k) -> e = input topk_idx : int64
// moe.fsc:16: weight w(t, k) : f32 = input topk_weights
// moe.fsc:18: dispatch by_token[t] -> by_expert[r(t, k), *] dedup(node, rank)
// moe.fsc:19: combine by_expert[r(t, k), *] -> by_token[t] reduce sum(w)
#include "plan.cuh"
#include "dispatch.cuh"
#include "refuse.cuh"
#include "combine.cuh"

namespace {
using namespace fuscoc;

struct Shape {
  using Source = Shape;
  using Element = Bf16;
  static constexpr bool weighted = true;
  static constexpr bool compact = false;
  static constexpr int num_fields = 1;
  static constexpr int fanout = 8;
  static constexpr int num_passes = 1;
  static constexpr int num_keys = 256;
  static constexpr int align = 128;
  static constexpr int buffer_bytes = 14336;
  static constexpr int dispatch_warps = 11;
  static constexpr int dispatch_rows = 1;
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
moe_plan(const __grid_constant__ Call call) { plan<Shape, Relation>(call); }
extern "C" __global__ void __launch_bounds__(352, 1)
moe_dispatch(const __grid_constant__ Call call) { dispatch<Dispatch<Shape, Relation>>(call); }
extern "C" __global__ void __launch_bounds__(1024, 1)
moe_staged(const __grid_constant__ Call call) { staged<Shape, Relation>(call); }
extern "C" __global__ void __launch_bounds__(256, 1)
moe_refuse(const __grid_constant__ Call call) { refuse<Shape>(call); }
extern "C" __global__ void __launch_bounds__(896, 1)
moe_combine(const __grid_constant__ Call call) { combine<Shape::Source>(call); }
