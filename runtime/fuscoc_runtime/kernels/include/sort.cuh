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

// What there is to know of a key's rows in a tile, its run.
struct alignas(16) Run {
  int rows;   // that have slots: the first ones
  int code;   // of the first one's slot
  int back;   // its place among those of the tile that go to its rank
  int begin;  // where it lies when the tile is sorted
};

// Rows of a run, and the first one's slot.
struct Part {
  int rows;
  int slot;
};

template <class Shape>
struct SortShared {
  PlanShared<Shape> plan;
  Run run[Shape::num_keys];
  int begin, end;  // rows of this CTA: looked up, rather than kept in registers
};

template <class Shape, class Relation>
struct Sort {
  static constexpr int num_keys = Shape::num_keys;
  static constexpr int steps = int(ceil_div(Shape::sorted_rows, kPlanThreads));  // rows of a tile of a thread
  static constexpr int lane_keys = int(ceil_div(num_keys, kWarp));  // consecutive ones, where a warp looks at all
  static_assert(num_keys < 256 && steps <= 4, "a key is a byte, and a thread keeps four in a register");
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
    const u32 tiles = u32(ceil_div(call.num_sources, tile));
    return int(min(i64(tiles * cta / gridDim.x) * tile, call.num_sources));
  }
  // Rows of a tile that begins with one.
  __device__ __forceinline__ int num_rows(int from) const { return max(0, min(tile, shared.end - from)); }
  // The number in a tile of the row that this thread looks at in a step.
  __device__ __forceinline__ int row_of_step(int step) const { return (warp * steps + step) * kWarp + lane; }

  // Starts to read the rows of a tile, field by field.
  template <int kField = 0>
  __device__ __forceinline__ void load(char* to, int from, int num_rows) const {
    constexpr int unit = Shape::unit_bytes(kField), words = int(Shape::row_bytes(kField)) / unit;
    constexpr int unrolled = Shape::num_fields == 1 && (words & (words - 1)) == 0 ? 4 : 2;  // 64 registers a thread
#pragma unroll unrolled
    for (int i = threadIdx.x; i < num_rows * words; i += kPlanThreads) {
      const i64 begin = plan.relation.source_cell(i64(from) + i / words) * Shape::cell_bytes(kField);
      copy_async<unit>(to + bytes_before<Shape>(kField) * Shape::sorted_rows + i * unit,
                       call.source[kField] + begin + i % words * unit);
    }
    if constexpr (kField + 1 < Shape::num_fields) load<kField + 1>(to, from, num_rows);
  }

  // Adds the rows of this CTA to `total` by key, and keeps their keys; returns that of this thread's first one. No
  // branch lies between the loads of a batch, or they would come one after the other: what is behind the end is
  // read from the last row.
  __device__ __forceinline__ u32 count() const {
    constexpr int batch = 8;
    const int end = shared.end;
    u32 bad = 0, first = num_keys;
    for (int start = shared.begin + threadIdx.x; start < end; start += batch * kPlanThreads) {
      i64 key[batch];
#pragma unroll
      for (int b = 0; b < batch; ++b) key[b] = plan.relation.key(min(start + b * kPlanThreads, end - 1));
#pragma unroll
      for (int b = 0; b < batch; ++b) {
        const int row = start + b * kPlanThreads;
        if (row >= end) break;
        const int known = plan.known(key[b]);
        if (known >= 0) atomicAdd(&shared.plan.total[known], 1);
        else bad += key[b] != -1;
        const u32 kept = known >= 0 ? known : num_keys;
        if (b == 0 && start < shared.begin + kPlanThreads) first = kept;
        call.keys[row] = static_cast<unsigned char>(kept);
      }
    }
    if (bad) note_dropped(call, call.state->bad_keys, numbers.use & 1, bad);
    __syncthreads();
    return first;
  }
  // The keys of this thread's rows of a tile, a byte a step.
  __device__ __forceinline__ u32 load_keys(int from, int num_rows) const {
    u32 keys = 0;
#pragma unroll
    for (int s = 0; s < steps; ++s)
      keys |= u32(row_of_step(s) < num_rows ? __ldcg(call.keys + from + row_of_step(s)) : num_keys) << 8 * s;
    return keys;
  }
  __device__ static __forceinline__ int key_of_step(u32 keys, int step) { return int(keys >> 8 * step & 0xff); }

  // Counts all rows, and learns where their runs begin. Returns the keys of the first ones, which are ranked before
  // it does `meanwhile()`.
  template <class Meanwhile>
  __device__ __forceinline__ u32 begin(int (&before)[steps], int num_rows, Meanwhile meanwhile) {
    plan.begin();
    const u32 first = count();
    u32 keys = int(threadIdx.x) < num_rows ? first : num_keys;
    if constexpr (steps > 1) keys = load_keys(shared.begin, num_rows);
    plan.exchange([&] {
      rank(keys, before, num_rows);
      meanwhile();
    });
    return keys;
  }
  // The same of the first tile, whose rows are read meanwhile.
  __device__ __forceinline__ u32 start(char* to, int (&before)[steps]) {
    const int rows = num_rows(shared.begin);
    load(to, shared.begin, rows);
    commit_async();
    return begin(before, rows, [] {});
  }

  // How many rows of the warp with the same key lie before this thread's; `chunk` gets the warp's counts.
  __device__ __forceinline__ void rank(u32 keys, int (&before)[steps], int num_rows) const {
    for (int k = lane; k < num_keys; k += kWarp) shared.plan.chunk[warp][k] = 0;
    __syncwarp();
    if (warp * steps * kWarp >= num_rows) return;
#pragma unroll
    for (int s = 0; s < steps; ++s) {
      const int key = key_of_step(keys, s);
      u32 same = kAllLanes;
#pragma unroll
      for (int bit = 1; bit <= num_keys; bit *= 2) {
        const u32 lanes = __ballot_sync(kAllLanes, key & bit);
        same &= key & bit ? lanes : ~lanes;
      }
      const bool has_key = key < num_keys;
      u16* const counted = &shared.plan.chunk[warp][has_key ? key : 0];
      const int earlier = *counted, below = __popc(same & lanes_below());
      __syncwarp();
      before[s] = earlier + below;
      if (has_key && below == 0) *counted = u16(earlier + __popc(same));
      __syncwarp();
    }
  }
  // By the thread of each key: `chunk` becomes its prefix over warps, and runs are known but for their places.
  __device__ __forceinline__ void find_runs() {
    const int key = threadIdx.x;
    if (key >= num_keys) return;
    plan.add_warps(key);
    const int first = shared.plan.next[key];
    const i64 room = shared.plan.peers.failed || shared.plan.peers.differ() ? 0 : call.capacity - first;
    shared.run[key].rows = int(max(i64(0), min(room, i64(shared.plan.total[key] - first))));
    shared.run[key].code = code_of(shared.plan.owner[key], first);
  }
  // By the thread of each key, when all rows of the tile have their slots.
  __device__ __forceinline__ void advance() const {
    if (const int key = threadIdx.x; key < num_keys) shared.plan.next[key] = shared.plan.total[key];
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
  // By one warp for a rank: the places among its rows where those of every key begin, by keep(key, place). `of(key)`
  // are the key's rows in the tile, and the first one's slot. A peer is told its runs.
  template <class Of, class Keep>
  __device__ __forceinline__ void tell_runs(int rank, int from, int num_rows, Of of, Keep keep) const {
    constexpr int one = 1 << 16;  // a run; below are rows, of which a tile has fewer
    u64* const told = told_runs(call, rank, call.rank, from);
    const auto there = [&](int key) { return shared.plan.owner[key] == rank ? of(key) : Part{0, 0}; };
    const auto size = [](const Part& part) { return part.rows ? one + part.rows : 0; };
    const int all = add_up([&](int key) { return size(there(key)); },
                           [&](int key, int at) {
                             const Part part = there(key);
                             if (part.rows == 0) return;
                             keep(key, at % one);
                             if (rank != call.rank) told[at / one] = tagged(u32(part.slot), u32(part.rows));
                           });
    if (lane == 0 && rank != call.rank && all / one < num_rows) told[all / one] = 0;
  }
  // The same of whole runs.
  __device__ __forceinline__ void tell_runs(int rank, int from, int num_rows) const {
    tell_runs(
        rank, from, num_rows,
        [&](int key) { return Part{shared.run[key].rows, int(code_slot(shared.run[key].code))}; },
        [&](int key, int place) { shared.run[key].back = place; });
  }

  // The run of a row's key, and the row's number there: -1 where it has no key or no slot. One that should have a
  // slot is dropped.
  __device__ __forceinline__ int find(int key, int before, Run& run) const {
    run = {0, 0, 0, 0};
    if (key >= num_keys) return -1;
    run = shared.run[key];
    const int n = shared.plan.chunk[warp][key] + before;
    if (n < run.rows) return n;
    if (!shared.plan.peers.failed) plan.drop();
    return -1;
  }
  // What is left of a row, the n-th one of a run: its code, or what it needs to come back as a copy. -1: none has a
  // slot.
  __device__ __forceinline__ void keep_code(int row, const Run& run, int n) const {
    int code = n < 0 ? -1 : run.code + n;
    if constexpr (kCopiedRows<Shape> == 1) {
      tell_point(row, code);
    } else {
      if (code >= 0 && code_rank(code) != call.rank) code = code_of(code_rank(code), run.back + n);
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
