// Sizes of a ragged domain, which inputs on the device give: points and source cells before every outer
// index. A kernel of one CTA, in front of the plan on the stream: what it stores is private memory of
// the rank, which only plans read, and the end of a kernel orders it.
//
// What is wrong with the sizes of a call is counted by the plan, which knows the call. Then the rank has
// no points at all: cells behind a wrong size are anywhere.
#pragma once
#include "call.cuh"

namespace fuscoc {

constexpr int kExtentsThreads = 1024;
constexpr i64 kMostInside = i64(1) << 40;  // points or cells of an outer index, so that sums stay in 64 bits

// The product of sizes, or more than there may be.
__device__ __forceinline__ i64 times(i64 a, i64 b) {
  const i64 high = __mul64hi(a, b), low = a * b;
  const bool fits = high == low >> 63;
  return fits ? low : (a < 0) == (b < 0) ? i64(~0ull >> 1) : -i64(~0ull >> 1);
}

struct Extents {
  i64 points;
  i64 cells;
  bool wrong;  // a division left a remainder, or a size is negative
};

// `Call::ragged`: what there is of a call, then a sum for every outer index.
struct Ragged {
  i64 num_points;  // of this rank that are moved,
  i64 excess;      // and those for which there is no room
  i64 bad_sizes;   // not 0: nothing can be moved
  i64 num_outer;
  struct Before {
    i64 points, cells;
  } before[1];     // [num_outer + 1]
};
static_assert(sizeof(Ragged) == 6 * sizeof(i64));
__device__ __forceinline__ Ragged& ragged_of(const Call& call) { return *reinterpret_cast<Ragged*>(call.ragged); }

// The outer index of a point, which there is.
__device__ __forceinline__ i64 outer_of(const Call& call, i64 point) {
  const Ragged& ragged = ragged_of(call);
  i64 low = 0, high = ragged.num_outer;  // the last one that does not begin behind it
  while (high - low > 1) {
    const i64 middle = (low + high) / 2;
    if (ragged.before[middle].points <= point) low = middle;
    else high = middle;
  }
  return low;
}
__device__ __forceinline__ i64 points_before(const Call& call, i64 outer) { return ragged_of(call).before[outer].points; }
__device__ __forceinline__ i64 cells_before(const Call& call, i64 outer) { return ragged_of(call).before[outer].cells; }

// An inclusive prefix sum over the threads of the CTA.
__device__ __forceinline__ i64 sum_up_to_here(i64 value, i64 (&sums)[kWarp]) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const i64 below = __shfl_up_sync(kAllLanes, value, offset);
    if (lane >= offset) value += below;
  }
  if (lane == kWarp - 1) sums[warp] = value;
  __syncthreads();
  for (int w = 0; w < warp; ++w) value += sums[w];
  __syncthreads();
  return value;
}

template <class Shape, class Relation>
__device__ __forceinline__ void extents(const Call& call) {
  static_assert(kExtentsThreads == kWarp * kWarp);
  __shared__ i64 sums[kWarp];
  __shared__ i64 points, cells;
  const Relation relation{call};
  Ragged& ragged = ragged_of(call);
  // There is room for as many as segments. More are more than enough, unless most have none.
  const i64 num_outer = relation.num_outer(), room = call.max_sources;
  const i64 most_cells = call.source_bytes / Shape::Source::cell_bytes(0);
  bool wrong = false;
  if (threadIdx.x == 0) {
    points = cells = 0;
    ragged.before[0] = {0, 0};
  }
  __syncthreads();
  for (i64 first = 0; first < num_outer && num_outer <= room; first += kExtentsThreads) {
    const i64 outer = first + threadIdx.x;
    Extents here{0, 0, false};
    if (outer < num_outer) here = relation.extents(outer);
    if (here.wrong || here.cells > most_cells || here.points > kMostInside) here = {0, 0, true};
    wrong |= __syncthreads_or(here.wrong) != 0;
    const i64 points_first = points, cells_first = cells;
    const i64 points_here = points_first + sum_up_to_here(here.points, sums);
    const i64 cells_here = cells_first + sum_up_to_here(here.cells, sums);
    if (outer < num_outer) ragged.before[outer + 1] = {points_here, cells_here};
    if (threadIdx.x == kExtentsThreads - 1) points = points_here, cells = cells_here;
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    const i64 most = call.max_sources * Shape::fanout;
    ragged.num_outer = num_outer;
    ragged.bad_sizes = wrong || (num_outer <= room && cells != most_cells);
    ragged.excess = ragged.bad_sizes ? 0 : num_outer > room ? num_outer - room : max(points - most, i64(0)) / Shape::fanout;
    ragged.num_points = ragged.bad_sizes || num_outer > room ? 0 : min(points, most);
  }
}

}  // namespace fuscoc
