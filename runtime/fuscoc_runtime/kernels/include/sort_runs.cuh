// Sorted rows that are stored run by run, by bulk copies: rows change places in shared memory, and one thread
// stores a run. Nobody waits for stores, so a tile is sorted while those of the two before it are under way.
//
// A run lies in shared memory as it does in its slots modulo 128: a bulk store that is not aligned with its target
// is cut up.
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

template <class Shape>
struct SortRunsShared : SortShared<Shape> {
  int at[Shape::num_fields][Shape::num_keys];  // byte of the sorted tile where a run begins
  alignas(kBulkLine) char tile[Shape::sorted_rows * kRowBytes<Shape>];
  alignas(kBulkLine) char sorted[2][sorted_before<Shape>(Shape::num_fields)];
};

template <class Shape, class Relation>
struct SortRuns : Sort<Shape, Relation> {
  using Base = Sort<Shape, Relation>;
  using Shared = SortRunsShared<Shape>;
  using Base::call, Base::numbers, Base::plan, Base::tile, Base::warp, Base::lane, Base::steps, Base::num_keys;
  using Base::num_rows, Base::row_of_step;
  static constexpr int num_fields = Shape::num_fields;
  Shared& shared;
  const u64 keep;  // L2 policy

  __device__ SortRuns(const Call& call, unsigned char* memory, const Numbers& numbers)
      : Base(call, memory, numbers), shared(*reinterpret_cast<Shared*>(memory)), keep(evict_normal_policy()) {}

  // By one warp for a field: where runs begin in the sorted tile.
  __device__ __forceinline__ void place_runs(int field) const {
    const int row_bytes = int(Shape::row_bytes(field));
    const auto lead = [&](int key) { return int(i64(shared.plan.next[key]) * row_bytes % kBulkLine); };
    const auto room = [&](int key) {
      const int rows = this->kept(key);
      return rows ? int(round_up(lead(key) + rows * row_bytes, kBulkLine)) : 0;
    };
    const int begin = sorted_before<Shape>(field);
    this->add_up(room, [&](int key, int at) { shared.at[field][key] = begin + at + lead(key); });
  }

  // By a warp: brings consecutive rows of the tile, a lane's to a byte of the sorted tile, unless that is negative.
  template <int kField>
  __device__ __forceinline__ void move(char* sorted, int first, int to) const {
    constexpr int words = int(Shape::row_bytes(kField)) / 16;
    const uint4* const rows =
        reinterpret_cast<const uint4*>(shared.tile + bytes_before<Shape>(kField) * Shape::sorted_rows) + first * words;
#pragma unroll
    for (int j = 0; j < words; ++j) {
      const int i = j * kWarp + lane;
      const int at = __shfl_sync(kAllLanes, to, i / words);
      if (at >= 0) *reinterpret_cast<uint4*>(sorted + at + i % words * 16) = rows[i];
    }
  }
  template <int kField = 0>
  __device__ __forceinline__ void move_fields(char* sorted, int first, int key, int n) const {
    move<kField>(sorted, first, n < 0 ? -1 : shared.at[kField][key] + n * int(Shape::row_bytes(kField)));
    if constexpr (kField + 1 < num_fields) move_fields<kField + 1>(sorted, first, key, n);
  }
  // Codes of the rows of a tile; they go to their places in the sorted one.
  __device__ __forceinline__ void assign(const int (&key)[steps], const int (&before)[steps], char* sorted, int from,
                                         int num_rows) const {
#pragma unroll
    for (int s = 0; s < steps; ++s) {
      const int row = row_of_step(s), k = key[s];
      if (row - lane >= num_rows) continue;
      int n = -1;
      if (k < num_keys) {
        n = shared.plan.chunk[warp][k] + before[s];
        if (n >= this->kept(k)) {
          n = -1;
          if (!shared.plan.peers.failed) note_dropped(call, call.state->overflowed, numbers.use & 1);
        }
      }
      if (row < num_rows) this->keep_code(from + row, k, n, n < 0 ? -1 : this->slot_code(k, n));
      move_fields(sorted, row - lane, k, n);
    }
  }
  // A thread stores the run of a key.
  __device__ __forceinline__ void store(const char* sorted) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const int key = threadIdx.x;
    if (key >= num_keys) return;
    if (const int rows = this->kept(key)) {
      char* const window = call.window[shared.plan.owner[key]];
#pragma unroll
      for (int f = 0; f < num_fields; ++f)
        bulk_store(window + call.rows_at[f] + shared.plan.next[key] * Shape::row_bytes(f),
                   shared_address(sorted) + shared.at[f][key], u32(rows * Shape::row_bytes(f)), keep);
    }
    bulk_commit();
#endif
  }

  __device__ void run() {
    int key[steps], before[steps];
    this->start(shared.tile, key);
    int turn = 0;
    for (int from = shared.begin; from < shared.end; from += tile, turn ^= 1) {
      const int behind = from + tile;
      this->rank(key, before, num_rows(from));
      __syncthreads();
      plan.prefix_over_warps();
      if (warp < num_fields) place_runs(warp);
      else if (kCopiedRows<Shape> > 1 && warp - num_fields < call.num_ranks)
        this->tell_runs(warp - num_fields, from, num_rows(from));
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
      if (threadIdx.x < num_keys) bulk_read_but_latest();
#endif
      wait_async();
      __syncthreads();
      assign(key, before, shared.sorted[turn], from, num_rows(from));
      fence_bulk_proxy();
      __syncthreads();
      store(shared.sorted[turn]);
      this->load(shared.tile, behind, num_rows(behind));
      commit_async();
      this->load_keys(key, behind, num_rows(behind));
      this->clear();
      plan.advance();
    }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (threadIdx.x < num_keys) bulk_arrived();
#endif
  }
};

}  // namespace fuscoc
