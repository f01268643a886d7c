// Sorted rows that are stored run by run, by bulk copies: rows change places in shared memory, and one thread
// stores a run. Nobody waits for stores, so a tile is sorted while those of the two before it are under way.
//
// A run lies in shared memory as it does in its slots modulo 128: a bulk store that is not aligned with its target
// is cut up. What is stored of a tile are whole lines of 128 bytes: the end of a run that is none waits in front
// of the next tile's, which goes on in the same line.
#pragma once
#include "sort.cuh"

namespace fuscoc {

// Bytes of the fields of sorted rows before one, or of all: a run begins anywhere in a line, and the next one in
// another.
template <class Shape>
__device__ constexpr int sorted_before(int field) {
  constexpr int ends = int(round_up(2 * (kBulkLine - 16) * Shape::num_keys, kBulkLine));
  return Shape::sorted_rows * bytes_before<Shape>(field) + ends * field;
}

// Bytes of a run that have not been stored, and where they lie in the sorted tile.
struct Waiting {
  u32 packed;
  __device__ __forceinline__ int bytes() const { return int(packed % kBulkLine); }
  __device__ __forceinline__ int at() const { return int(packed / kBulkLine); }
};

template <class Shape>
struct SortRunsShared : SortShared<Shape> {
  static constexpr int fields = Shape::num_fields;
  int further[fields > 1 ? fields - 1 : 1][fields > 1 ? Shape::num_keys : 1];  // where runs of other fields begin
  Waiting waiting[fields][Shape::num_keys];
  alignas(kBulkLine) char tile[Shape::sorted_rows * kRowBytes<Shape>];
  alignas(kBulkLine) char sorted[2][sorted_before<Shape>(fields)];
};

template <class Shape, class Relation>
struct SortRuns : Sort<Shape, Relation> {
  using Base = Sort<Shape, Relation>;
  using Shared = SortRunsShared<Shape>;
  using Base::call, Base::numbers, Base::plan, Base::tile, Base::warp, Base::lane, Base::steps, Base::num_keys;
  using Base::num_rows, Base::row_of_step;
  static constexpr int num_fields = Shape::num_fields;
  static constexpr int line_words = kBulkLine / 16;
  Shared& shared;
  const u64 keep;  // L2 policy

  __device__ SortRuns(const Call& call, unsigned char* memory, const Numbers& numbers)
      : Base(call, memory, numbers), shared(*reinterpret_cast<Shared*>(memory)), keep(evict_normal_policy()) {}

  // Where a run begins in the sorted tile.
  __device__ __forceinline__ int& begin_of(int field, int key) const {
    return field == 0 ? shared.run[key].begin : shared.further[field - 1][key];
  }
  // By one warp for a field: where runs begin in the sorted tile, behind what waits of them.
  __device__ __forceinline__ void place_runs(int field) const {
    const u32 row_bytes = u32(Shape::row_bytes(field));
    const auto lead = [&](int key) { return int(u32(shared.plan.next[key]) * row_bytes % kBulkLine); };
    const auto room = [&](int key) {
      const int rows = shared.run[key].rows;
      return rows || shared.waiting[field][key].bytes() ? int(round_up(lead(key) + rows * int(row_bytes), kBulkLine)) : 0;
    };
    const int begin = sorted_before<Shape>(field);
    this->add_up(room, [&](int key, int at) { begin_of(field, key) = begin + at + lead(key); });
  }

  // By a warp: brings consecutive rows of the tile, a lane's to a byte of the sorted tile, unless that is negative.
  template <int kField>
  __device__ __forceinline__ void move(char* sorted, int first, int to) const {
    constexpr int words = int(Shape::row_bytes(kField)) / 16;
    constexpr int unrolled = words <= 4 ? words : 2;  // 64 registers a thread
    const uint4* const rows =
        reinterpret_cast<const uint4*>(shared.tile + bytes_before<Shape>(kField) * Shape::sorted_rows) + first * words;
#pragma unroll unrolled
    for (int j = 0; j < words; ++j) {
      const int i = j * kWarp + lane;
      const int at = words == 1 ? to : __shfl_sync(kAllLanes, to, i / words);
      if (at >= 0) *reinterpret_cast<uint4*>(sorted + at + i % words * 16) = rows[i];
    }
  }
  template <int kField = 0>
  __device__ __forceinline__ void move_fields(char* sorted, int first, int key, int begin, int n) const {
    if constexpr (kField > 0) begin = n < 0 ? 0 : begin_of(kField, key);
    move<kField>(sorted, first, n < 0 ? -1 : begin + n * int(Shape::row_bytes(kField)));
    if constexpr (kField + 1 < num_fields) move_fields<kField + 1>(sorted, first, key, begin, n);
  }
  // Codes of the rows of a tile; they go to their places in the sorted one.
  __device__ __forceinline__ void assign(u32 keys, const int (&before)[steps], char* sorted, int from, int num_rows) const {
#pragma unroll
    for (int s = 0; s < steps; ++s) {
      const int row = row_of_step(s), key = Base::key_of_step(keys, s);
      if (row - lane >= num_rows) continue;
      Run run;
      const int n = this->find(key, before[s], run);
      if (row < num_rows) this->keep_code(from + row, run, n);
      move_fields(sorted, row - lane, key, run.begin, n);
    }
  }
  // Brings what waits of runs in front of them, from the tile that was sorted before.
  __device__ __forceinline__ void bring(const char* before, char* sorted) const {
#pragma unroll
    for (int f = 0; f < num_fields; ++f)
      for (int i = threadIdx.x; i < num_keys * line_words; i += kPlanThreads) {
        const int key = i / line_words, at = i % line_words * 16;
        const Waiting waiting = shared.waiting[f][key];
        if (at >= waiting.bytes()) continue;
        *reinterpret_cast<uint4*>(sorted + begin_of(f, key) - waiting.bytes() + at) =
            *reinterpret_cast<const uint4*>(before + waiting.at() + at);
      }
  }
  // By the thread of each key: stores the whole lines of its run; all of it where nothing follows, in the last tile
  // or since slots have ended.
  __device__ __forceinline__ void store(const char* sorted, bool is_last) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const int key = threadIdx.x;
    if (key >= num_keys) return;
    const int rows = shared.run[key].rows, next = shared.plan.next[key];
    const bool ends = is_last || shared.plan.total[key] - next > rows;
    char* const window = call.window[max(int(shared.plan.owner[key]), 0)];
#pragma unroll
    for (int f = 0; f < num_fields; ++f) {
      const int row_bytes = int(Shape::row_bytes(f)), waited = shared.waiting[f][key].bytes();
      const i64 to = i64(next) * row_bytes - waited;
      const int begin = begin_of(f, key) - waited, bytes = waited + rows * row_bytes;
      const int waits = ends ? 0 : min(bytes, int(u32(to + bytes) % kBulkLine));
      if (bytes > waits) bulk_store(window + call.rows_at[f] + to, shared_address(sorted) + begin, u32(bytes - waits), keep);
      shared.waiting[f][key].packed = u32(begin + bytes - waits) * kBulkLine + waits;
    }
    bulk_commit();
#endif
  }

  __device__ void run() {
    int before[steps];
    for (int i = threadIdx.x; i < num_fields * num_keys; i += kPlanThreads) shared.waiting[i / num_keys][i % num_keys] = {0};
    u32 keys = this->start(shared.tile, before);
    int turn = 0;
    for (int from = shared.begin; from < shared.end; from += tile, turn ^= 1) {
      const int behind = from + tile;
      const u32 next_keys = this->load_keys(behind, num_rows(behind));
      this->find_runs();
      __syncthreads();
      if (warp < num_fields) place_runs(warp);
      else if (kCopiedRows<Shape> > 1 && warp - num_fields < call.num_ranks)
        this->tell_runs(warp - num_fields, from, num_rows(from));
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
      if (threadIdx.x < num_keys) bulk_read_but_latest();
#endif
      wait_async();
      __syncthreads();
      assign(keys, before, shared.sorted[turn], from, num_rows(from));
      bring(shared.sorted[turn ^ 1], shared.sorted[turn]);
      fence_bulk_proxy();
      __syncthreads();
      store(shared.sorted[turn], behind >= shared.end);
      this->advance();
      this->load(shared.tile, behind, num_rows(behind));
      commit_async();
      keys = next_keys;
      this->rank(keys, before, num_rows(behind));
      __syncthreads();
    }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (threadIdx.x < num_keys) bulk_arrived();
#endif
  }
};

}  // namespace fuscoc
