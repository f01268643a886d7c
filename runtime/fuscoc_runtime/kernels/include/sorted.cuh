// The kernel that plans and moves rows of one destination each: the stead of `plan` and `dispatch`.
#pragma once
#include "sort_rows.cuh"
#include "sort_runs.cuh"
#include "sort_words.cuh"

namespace fuscoc {

// Whether bulk copies can store runs: all fields are words of 16 bytes.
template <class Shape>
__device__ constexpr bool has_bulk_words() {
  for (int f = 0; f < Shape::num_fields; ++f)
    if (Shape::unit_bytes(f) != 16) return false;
  return kBulkCopies;
}
template <bool kCondition, class Then, class Else>
struct Chosen { using type = Then; };
template <class Then, class Else>
struct Chosen<false, Then, Else> { using type = Else; };
template <class Shape, class Relation>
using SortOf = typename Chosen<
    has_bulk_words<Shape>(),
    typename Chosen<(Shape::dispatch_rows > 1), SortRows<Shape, Relation>, SortRuns<Shape, Relation>>::type,
    SortWords<Shape, Relation>>::type;

template <class Shape, class Relation>
__device__ __forceinline__ void sort(const Call& call) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ Numbers numbers;
  __shared__ u32 place;  // of the last thread
  const u32 own_place = begin_plan(call, numbers);
  if (threadIdx.x == kPlanThreads - 1) place = own_place;
  if (numbers.aborted) {
    plan_nothing<Shape>(call);
  } else {
    SortOf<Shape, Relation> state(call, memory, numbers);
    if (threadIdx.x == 0) {
      state.shared.begin = state.first_row(blockIdx.x);
      state.shared.end = state.first_row(blockIdx.x + 1);
    }
    __syncthreads();
    state.run();
    __syncthreads();
    if (state.warp == 0) finish(call, numbers.epoch);
  }
  end_plan(call, numbers, place);
  leave(call, place, [&](State& state) {
    const u32 other = ~numbers.epoch & 1;
    state.sent[other] = state.next_send[other] = state.next_expand[other] = 0;
  });
}

}  // namespace fuscoc
