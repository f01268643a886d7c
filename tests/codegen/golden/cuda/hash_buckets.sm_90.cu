// Shuffle `hash_buckets` in hash_buckets.fsc, by fuscoc 0.1.0. Do not edit.
//
// hash_buckets.fsc:8: segment row { x : f32[width] }
// hash_buckets.fsc:13: place b on rank by cyclic
// hash_buckets.fsc:14: route id(t) -> value = input ids : int64
// hash_buckets.fsc:17: dispatch by_lookup[t] -> by_bucket[hash(t), *]
// hash_buckets.fsc:18: combine reverse
#include "sorted.cuh"
#include "refuse.cuh"
#include "sorted_back.cuh"

namespace {
using namespace fuscoc;

struct Shape {
  using Source = Shape;
  using Element = Raw;
  static constexpr bool weighted = false;
  static constexpr bool compact = false;
  static constexpr int num_fields = 1;
  static constexpr int fanout = 1;
  static constexpr int num_passes = 1;
  static constexpr int num_keys = 64;
  static constexpr int align = 1;
  static constexpr int buffer_bytes = 512;
  static constexpr int dispatch_warps = 13;
  static constexpr int dispatch_rows = 32;
  static constexpr int sorted_rows = 128;
  static constexpr int teams = 24;
  static constexpr int team_warps = 1;
  static constexpr int team_vectors = 1;
  static constexpr int team_batch = 8;
  static constexpr int combine_rows = 16;
  __device__ static constexpr i64 row_bytes(int field) { return 512; }
  __device__ static constexpr i64 cell_bytes(int field) { return 512; }
  __device__ static constexpr int unit_bytes(int field) { return 16; }
  __device__ static constexpr int buffer_offset(int field) { return 0; }
  __device__ static constexpr int part_size(int field) { return 512; }
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
  static constexpr int num_keys = 64;
  __device__ __forceinline__ i64 key(i64 point) const {
    const auto ids_ = static_cast<const i64*>(call.inputs[0])[point];
    const auto value_ = (ids_ * i64(31)) + i64(7);
    const auto value_1 = value_ - (floor_div(value_, i64(64)) * i64(64));
    return ((ids_ == i64(-1)) ? i64(-1) : value_1);
  }
  __device__ __forceinline__ int place(int key) const {
    return int(key % call.num_ranks);
  }
  __device__ __forceinline__ i64 source_cell(i64 source) const {
    return source;
  }
};
static_assert(sizeof(SortOf<Shape, Relation>::Shared) <= 223488);
}  // namespace

extern "C" __global__ void __launch_bounds__(1024, 1)
hash_buckets_dispatch(const __grid_constant__ Call call) { sort<Shape, Relation>(call); }
extern "C" __global__ void __launch_bounds__(256, 1)
hash_buckets_refuse(const __grid_constant__ Call call) { refuse<Shape>(call); }
extern "C" __global__ void __launch_bounds__(768, 1)
hash_buckets_combine(const __grid_constant__ Call call) { sorted_back<Shape::Source>(call); }
