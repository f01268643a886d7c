// Dispatch of short rows that each have one destination, planned and moved by one kernel.
//
// A CTA takes thousands of rows at once, a tile. Those with one key go to consecutive slots, a run, so it
// sorts the tile by key, stably, and stores runs: `sort_runs.cuh` by a bulk copy each, `sort_words.cuh` word by
// word.
//
// First a CTA counts the keys of all its rows, and learns from other CTAs and ranks where its runs begin, as
// in `plan.cuh`. The rows of its first tile come meanwhile, later ones while the tile before is stored.
//
// Where rows are to come back as copies, a peer gets the runs of a tile that lie there. It sends their rows back
// one behind the other, so this rank keeps for a row that has gone to a peer not its slot, but its place among
// the rows of the tile that have gone there.
#pragma once
#include "plan.cuh"
#include "segments.cuh"

namespace fuscoc {

template <int kBytes>
__device__ __forceinline__ void copy_async(char* shared, const char* global) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global) : "memory");
  } else if constexpr (kBytes >= 4) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(shared)), "l"(global), "n"(kBytes)
                 : "memory");
  } else {
    using Unit = typename UnitOf<kBytes>::type;
    *reinterpret_cast<Unit*>(shared) = *reinterpret_cast<const Unit*>(global);
  }
}
// Of the copies of this thread: ends a batch, waits for all batches but the latest, or for all.
__device__ __forceinline__ void commit_async() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void wait_but_latest() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }
__device__ __forceinline__ void wait_async() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

// Bytes of the fields of a row before one, or of all.
template <class Shape>
__device__ constexpr int bytes_before(int field) {
  int bytes = 0;
  for (int f = 0; f < field; ++f) bytes += int(Shape::row_bytes(f));
  return bytes;
}
template <class Shape>
constexpr int kRowBytes = bytes_before<Shape>(Shape::num_fields);

template <class Shape>
struct SortShared {
  PlanShared<Shape> plan;
  int back[Shape::num_keys];   // place of a key's first row among those of the tile that go to its rank
  int begin, end;              // rows of this CTA: looked up, rather than kept in registers
};

template <class Shape, class Relation>
struct Sort {
  static constexpr int num_keys = Shape::num_keys;
  static constexpr int steps = int(ceil_div(Shape::sorted_rows, kPlanThreads));  // rows of a tile of a thread
  static constexpr int lane_keys = int(ceil_div(num_keys, kWarp));  // consecutive ones, where a warp looks at all
  const Call& call;
  SortShared<Shape>& shared;
  const Numbers& numbers;
  Plan<Shape, Relation> plan;
  const int tile;  // rows of a tile, at most
  const int warp, lane;

  __device__ Sort(const Call& call, unsigned char* memory, const Numbers& numbers)
      : call(call),
        shared(*reinterpret_cast<SortShared<Shape>*>(memory)),
        numbers(numbers),
        plan(call, memory, numbers.epoch, numbers.use, call.plan_ctas),
        tile(tile_rows<Shape>(call.num_sources)),
        warp(threadIdx.x / kWarp),
        lane(threadIdx.x % kWarp) {}

  __device__ __forceinline__ int first_row(int cta) const {
    return int(min(ceil_div(call.num_sources, tile) * cta / int(gridDim.x) * tile, call.num_sources));
  }
  // Rows of a tile that begins with one.
  __device__ __forceinline__ int num_rows(int from) const { return max(0, min(tile, shared.end - from)); }
  // The number in a tile of the row that this thread looks at in a step.
  __device__ __forceinline__ int row_of_step(int step) const { return (warp * steps + step) * kWarp + lane; }

  // Starts to read the rows of a tile, field by field.
  template <int kField = 0>
  __device__ __forceinline__ void load(char* to, int from, int num_rows) const {
    constexpr int unit = Shape::unit_bytes(kField), words = int(Shape::row_bytes(kField)) / unit;
    constexpr int unrolled = Shape::num_fields == 1 ? 4 : 2;  // 64 registers a thread
#pragma unroll unrolled
    for (int i = threadIdx.x; i < num_rows * words; i += kPlanThreads) {
      const i64 begin = plan.relation.source_cell(i64(from) + i / words) * Shape::cell_bytes(kField);
      copy_async<unit>(to + bytes_before<Shape>(kField) * Shape::sorted_rows + i * unit,
                       call.source[kField] + begin + i % words * unit);
    }
    if constexpr (kField + 1 < Shape::num_fields) load<kField + 1>(to, from, num_rows);
  }

  // Adds to `total` the rows from `first` to `end` by key. Until a point has a code, its key stands there;
  // `num_keys` is none.
  __device__ __forceinline__ void count(int first, int end) {
    constexpr int batch = 8;
    for (int start = first + threadIdx.x; start < end; start += batch * kPlanThreads) {
      i64 key[batch];  // in flight together
#pragma unroll
      for (int b = 0; b < batch; ++b) {
        const int point = start + b * kPlanThreads;
        key[b] = point < end ? plan.relation.key(point) : -1;
      }
#pragma unroll
      for (int b = 0; b < batch; ++b) {
        const int point = start + b * kPlanThreads;
        const int known = int(plan.known(key[b], true));
        if (known >= 0) atomicAdd(&shared.plan.total[known], 1);
        if (point < end) call.codes[point] = known >= 0 ? known : num_keys;
      }
    }
    __syncthreads();
  }
  // Counts all rows of this CTA, and learns where their runs begin.
  __device__ __forceinline__ void exchange() {
    plan.begin();
    count(shared.begin, shared.end);
    plan.exchange();
  }
  __device__ __forceinline__ void load_keys(int (&key)[steps], int from, int num_rows) const {
#pragma unroll
    for (int s = 0; s < steps; ++s)
      key[s] = row_of_step(s) < num_rows ? __ldcg(call.codes + from + row_of_step(s)) : num_keys;
  }
  // Before the first tile: reads its rows, counts all, and has its keys.
  __device__ __forceinline__ void start(char* to, int (&key)[steps]) {
    const int rows = num_rows(shared.begin);
    load(to, shared.begin, rows);
    commit_async();
    exchange();
    load_keys(key, shared.begin, rows);
    clear();
    __syncthreads();
  }
  __device__ __forceinline__ void clear() const {
    uint4* const chunks = reinterpret_cast<uint4*>(&shared.plan.chunk[0][0]);
    for (int i = threadIdx.x; i < int(sizeof(shared.plan.chunk) / sizeof(uint4)); i += kPlanThreads) chunks[i] = {};
  }

  // How many rows of the warp with the same key lie before this thread's; `chunk` gets the warp's counts.
  __device__ __forceinline__ void rank(const int (&key)[steps], int (&before)[steps], int num_rows) const {
    if (warp * steps * kWarp >= num_rows) return;
#pragma unroll
    for (int s = 0; s < steps; ++s) {
      u32 same = kAllLanes;
#pragma unroll
      for (int bit = 1; bit <= num_keys; bit *= 2) {
        const u32 lanes = __ballot_sync(kAllLanes, key[s] & bit);
        same &= key[s] & bit ? lanes : ~lanes;
      }
      const bool has_key = key[s] < num_keys;
      u16* const counted = &shared.plan.chunk[warp][has_key ? key[s] : 0];
      const int earlier = *counted, below = __popc(same & lanes_below());
      __syncwarp();
      before[s] = earlier + below;
      if (has_key && below == 0) *counted = u16(earlier + __popc(same));
      __syncwarp();
    }
  }

  // Rows of a key in the tile, and those of them that have slots: the first ones.
  __device__ __forceinline__ int counted(int key) const { return shared.plan.total[key] - shared.plan.next[key]; }
  __device__ __forceinline__ int kept(int key) const {
    if (shared.plan.peers.failed) return 0;
    return int(max(i64(0), min(call.capacity - shared.plan.next[key], i64(counted(key)))));
  }
  // By one warp: calls to(key, the sum of `of` of all lower keys), and returns the sum of all.
  template <class Of, class To>
  __device__ __forceinline__ int add_up(Of of, To to) const {
    const int begin = lane * lane_keys, behind = min(begin + lane_keys, num_keys);
    int own = 0;
    for (int key = begin; key < behind; ++key) own += of(key);
    const int end = sum_to_lane(own);
    int at = end - own;
    for (int key = begin; key < behind; ++key) {
      to(key, at);
      at += of(key);
    }
    return __shfl_sync(kAllLanes, end, kWarp - 1);
  }
  // By one warp for a rank: the places among its rows where those of every key begin. A peer is told its runs.
  __device__ __forceinline__ void tell_runs(int rank, int from, int num_rows) const {
    constexpr int one = 1 << 16;  // a run; below are rows, of which a tile has fewer
    u64* const told = told_runs(call, rank, call.rank, from);
    const auto rows = [&](int key) { return shared.plan.owner[key] == rank ? kept(key) : 0; };
    const int all = add_up([&](int key) { return rows(key) ? one + rows(key) : 0; },
                           [&](int key, int at) {
                             if (rows(key) == 0) return;
                             shared.back[key] = at % one;
                             if (rank != call.rank) told[at / one] = tagged(shared.plan.next[key], rows(key));
                           });
    if (lane == 0 && rank != call.rank && all / one < num_rows) told[all / one] = 0;
  }

  // The code of a row of a key in the tile, the n-th one that is kept.
  __device__ __forceinline__ int slot_code(int key, int n) const {
    return code_of(shared.plan.owner[key], i64(shared.plan.next[key]) + n);
  }
  // What is left of a row: its code, or what it needs to come back as a copy.
  __device__ __forceinline__ void keep_code(int row, int key, int n, int code) const {
    if constexpr (kCopiedRows<Shape> == 1) {
      tell_point(row, code);
    } else {
      if (code >= 0 && code_rank(code) != call.rank) code = code_of(code_rank(code), shared.back[key] + n);
    }
    call.codes[row] = code;
  }
  __device__ __forceinline__ void tell_point(i64 point, int code) const {
    const u32 weight = Shape::weighted ? __float_as_uint(call.weights[point]) : 0;
    for (int step = 1; step < call.num_ranks; ++step) {
      u64* const points = reinterpret_cast<u64*>(call.window[(call.rank + step) % call.num_ranks] + call.points_at);
      points[call.rank * call.max_sources + point] = tagged(u32(code), weight);
    }
  }
};

}  // namespace fuscoc
