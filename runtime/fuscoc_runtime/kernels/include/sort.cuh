// Dispatch of short rows that each have one destination, planned and moved by one kernel.
//
// A CTA takes thousands of rows at once, a tile. Those with one key go to consecutive slots, a run, so it
// sorts the tile by key, stably, and consecutive threads store consecutive words of it. Rows stay in shared
// memory as they have come; only their numbers are sorted, and the codes of their slots.
//
// First a CTA counts the keys of all its rows, and learns from other CTAs and ranks where its runs begin, as
// in `plan.cuh`. The rows of its first tile come meanwhile, later ones while the tile before is stored.
//
// Where rows are to come back as copies, a peer gets the slots that a group's rows have there, one behind the
// other in the order of the group, and -1 behind them if they are fewer. All else gets every point.
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
// Of the copies of this thread: ends a batch, waits for all batches but the latest.
__device__ __forceinline__ void commit_async() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void wait_but_latest() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }

// Bytes of the fields of a row before one, or of all.
template <class Shape>
__device__ constexpr int bytes_before(int field) {
  int bytes = 0;
  for (int f = 0; f < field; ++f) bytes += int(Shape::row_bytes(f));
  return bytes;
}

template <class Shape>
struct SortShared {
  static constexpr int rows = Shape::sorted_rows;
  PlanShared<Shape> plan;
  int first[Shape::num_keys];  // place of a key's first row in the sorted tile
  int num_sorted;
  int begin, end;              // rows of this CTA: looked up, rather than kept in registers
  int code[rows];              // by place: the code of a row's slot,
  u16 row[rows];               // and its number in the tile
  alignas(kBulkLine) char tile[2][rows * bytes_before<Shape>(Shape::num_fields)];
};

template <class Shape, class Relation>
struct Sort {
  using Shared = SortShared<Shape>;
  static constexpr int num_keys = Shape::num_keys, tile_rows = Shape::sorted_rows;
  static constexpr int steps = int(ceil_div(tile_rows, kPlanThreads));  // rows of a tile that a thread looks at
  static constexpr int kRange = kPlanThreads;  // a CTA has whole ranges of so many rows
  const Call& call;
  Shared& shared;
  const Numbers& numbers;
  Plan<Shape, Relation> plan;
  const int warp, lane;

  __device__ Sort(const Call& call, unsigned char* memory, const Numbers& numbers)
      : call(call),
        shared(*reinterpret_cast<Shared*>(memory)),
        numbers(numbers),
        plan(call, memory, numbers.epoch, numbers.use, call.plan_ctas),
        warp(threadIdx.x / kWarp),
        lane(threadIdx.x % kWarp) {}

  __device__ __forceinline__ int first_row(int cta) const {
    return int(min(ceil_div(call.num_sources, kRange) * cta / int(gridDim.x) * kRange, call.num_sources));
  }
  // Rows of a tile that begins with one.
  __device__ __forceinline__ int num_rows(int from) const { return max(0, min(tile_rows, shared.end - from)); }
  // The number in a tile of the row that this thread looks at in a step.
  __device__ __forceinline__ int row_of_step(int step) const { return (warp * steps + step) * kWarp + lane; }

  // Starts to read the rows of a tile.
  template <int kField = 0>
  __device__ __forceinline__ void load(char* tile, int from, int num_rows) const {
    constexpr int unit = Shape::unit_bytes(kField), words = int(Shape::row_bytes(kField)) / unit;
    constexpr int unrolled = Shape::num_fields == 1 ? 4 : 2;  // 64 registers a thread
#pragma unroll unrolled
    for (int i = threadIdx.x; i < num_rows * words; i += kPlanThreads) {
      const i64 begin = plan.relation.source_cell(i64(from) + i / words) * Shape::cell_bytes(kField);
      copy_async<unit>(tile + bytes_before<Shape>(kField) * tile_rows + i * unit,
                       call.source[kField] + begin + i % words * unit);
    }
    if constexpr (kField + 1 < Shape::num_fields) load<kField + 1>(tile, from, num_rows);
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
  __device__ __forceinline__ void load_keys(int (&key)[steps], int from, int num_rows) const {
#pragma unroll
    for (int s = 0; s < steps; ++s)
      key[s] = row_of_step(s) < num_rows ? __ldcg(call.codes + from + row_of_step(s)) : num_keys;
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

  // By one warp: where the rows of every key begin in the sorted tile. A lane has some consecutive keys.
  __device__ __forceinline__ void find_first() const {
    constexpr int lane_keys = int(ceil_div(num_keys, kWarp));
    const PlanShared<Shape>& counts = shared.plan;
    const int begin = lane * lane_keys, behind = min(begin + lane_keys, num_keys);
    int own = 0;
    for (int key = begin; key < behind; ++key) own += counts.total[key] - counts.next[key];
    int end = own;
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const int below = __shfl_up_sync(kAllLanes, end, offset);
      if (lane >= offset) end += below;
    }
    if (lane == kWarp - 1) shared.num_sorted = counts.peers.failed ? 0 : end;
    int at = end - own;
    for (int key = begin; key < behind; ++key) {
      shared.first[key] = at;
      at += counts.total[key] - counts.next[key];
    }
  }

  // Codes of the rows of a tile, and their places in it when it is sorted.
  __device__ __forceinline__ void assign(const int (&key)[steps], const int (&before)[steps], int from, int num_rows) const {
    const PlanShared<Shape>& counts = shared.plan;
#pragma unroll
    for (int s = 0; s < steps; ++s) {
      const int row = row_of_step(s), k = key[s];
      if (row >= num_rows) continue;
      int code = -1;
      if (k < num_keys && !counts.peers.failed) {
        const int in_tile = counts.chunk[warp][k] + before[s];
        const i64 slot = i64(counts.next[k]) + in_tile;
        if (slot < call.capacity) code = code_of(counts.owner[k], slot);
        else note_dropped(call, call.state->overflowed, numbers.use & 1);
        shared.code[shared.first[k] + in_tile] = code;
        shared.row[shared.first[k] + in_tile] = u16(row);
      }
      call.codes[from + row] = code;
      if constexpr (kCopiedRows<Shape> == 1) tell_point(from + row, code);
    }
  }

  // Stores the words of the sorted tile.
  template <int kField = 0>
  __device__ __forceinline__ void store(const char* tile) const {
    constexpr int unit = Shape::unit_bytes(kField), words = int(Shape::row_bytes(kField)) / unit, batch = 2;
    using Word = typename UnitOf<unit>::type;
    const Word* const rows = reinterpret_cast<const Word*>(tile + bytes_before<Shape>(kField) * tile_rows);
    const int num_words = shared.num_sorted * words;
#pragma unroll 1
    for (int first = threadIdx.x; first < num_words; first += batch * kPlanThreads) {
      int code[batch];
      Word word[batch];
#pragma unroll
      for (int b = 0; b < batch; ++b) {
        const int i = first + b * kPlanThreads;
        code[b] = i < num_words ? shared.code[i / words] : -1;
        if (i < num_words) word[b] = rows[shared.row[i / words] * words + i % words];
      }
#pragma unroll
      for (int b = 0; b < batch; ++b) {
        if (code[b] < 0) continue;
        char* const to = call.window[code_rank(code[b])] + call.rows_at[kField];
        reinterpret_cast<Word*>(to)[code_slot(code[b]) * words + (first + b * kPlanThreads) % words] = word[b];
      }
    }
    if constexpr (kField + 1 < Shape::num_fields) store<kField + 1>(tile);
  }

  __device__ __forceinline__ void tell_point(i64 point, int code) const {
    const u32 weight = Shape::weighted ? __float_as_uint(call.weights[point]) : 0;
    for (int step = 1; step < call.num_ranks; ++step) {
      u64* const points = reinterpret_cast<u64*>(call.window[(call.rank + step) % call.num_ranks] + call.points_at);
      points[call.rank * call.max_sources + point] = tagged(u32(code), weight);
    }
  }
  // A warp takes the groups of a tile in turn.
  __device__ __forceinline__ void tell_slots(int from, int num_rows, int group) const {
    constexpr int chunks = int(ceil_div(kCopiedRows<Shape>, kWarp));
    if (call.num_ranks == 1) return;
    for (int first = warp * group; first < num_rows; first += kPlanWarps * group) {
      const int num_points = min(group, num_rows - first);
      int code[chunks];
#pragma unroll
      for (int c = 0; c < chunks; ++c)
        code[c] = c * kWarp + lane < num_points ? __ldcg(call.codes + from + first + c * kWarp + lane) : -1;
      for (int step = 1; step < call.num_ranks; ++step) {
        const int peer = (call.rank + step) % call.num_ranks;
        int* const slots = told_slots(call, peer, call.rank, from + first);
        int num = 0;
#pragma unroll
        for (int c = 0; c < chunks; ++c) {
          const bool there = code[c] >= 0 && code_rank(code[c]) == peer;
          const u32 lanes = __ballot_sync(kAllLanes, there);
          if (there) slots[num + __popc(lanes & lanes_below())] = int(code_slot(code[c]));
          num += __popc(lanes);
        }
        if (lane == 0 && num < num_points) slots[num] = -1;
      }
    }
  }
  // As all ranks compute it.
  __device__ __forceinline__ int group() const {
    int most = 0;
    for (int rank = 0; rank < call.num_ranks; ++rank) most = max(most, shared.plan.peers.num_sources_of[rank]);
    return copied_group(group_size(most, kCopiedRows<Shape>));
  }

  __device__ void run() {
    if (threadIdx.x == 0) shared.begin = first_row(blockIdx.x), shared.end = first_row(blockIdx.x + 1);
    __syncthreads();
    load(shared.tile[0], shared.begin, num_rows(shared.begin));
    commit_async();
    plan.begin();
    count(shared.begin, shared.end);
    plan.exchange();
    int key[steps], before[steps];
    load_keys(key, shared.begin, num_rows(shared.begin));
    clear();
    __syncthreads();
    int turn = 0;
    for (int from = shared.begin; from < shared.end; from += tile_rows, turn ^= 1) {
      const int behind = from + tile_rows;
      load(shared.tile[turn ^ 1], behind, num_rows(behind));
      commit_async();
      rank(key, before, num_rows(from));
      __syncthreads();
      plan.prefix_over_warps();
      if (warp == 0) find_first();
      __syncthreads();
      assign(key, before, from, num_rows(from));
      load_keys(key, behind, num_rows(behind));
      wait_but_latest();
      __syncthreads();
      store(shared.tile[turn]);
      if constexpr (kCopiedRows<Shape> > 1) tell_slots(from, num_rows(from), group());
      clear();
      plan.advance();
    }
    __syncthreads();
    if (warp == 0) finish(call, numbers.epoch);
  }
};

// The kernel, in the stead of `plan` and `dispatch`.
template <class Shape, class Relation>
__device__ __forceinline__ void sort(const Call& call) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ Numbers numbers;
  __shared__ u32 place;  // of the last thread
  const u32 own_place = begin_plan(call, numbers);
  if (threadIdx.x == kPlanThreads - 1) place = own_place;
  if (numbers.aborted) plan_nothing<Shape>(call);
  else Sort<Shape, Relation>(call, memory, numbers).run();
  end_plan(call, numbers, place);
  leave(call, place, [&](State& state) { state.sent[~numbers.epoch & 1] = 0; });
}

}  // namespace fuscoc
