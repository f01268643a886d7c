// Sorted rows that are stored word by word: rows stay in shared memory as they have come, only their numbers are
// sorted, and the codes of their slots. Consecutive threads store consecutive words of a run.
#pragma once
#include "sort.cuh"

namespace fuscoc {

template <class Shape>
struct SortWordsShared : SortShared<Shape> {
  static constexpr int rows = Shape::sorted_rows;
  int first[Shape::num_keys];  // place of a key's first row in the sorted tile
  int num_sorted;
  int code[rows];              // by place: the code of a row's slot,
  u16 row[rows];               // and its number in the tile
  alignas(kBulkLine) char tile[2][rows * kRowBytes<Shape>];
};

template <class Shape, class Relation>
struct SortWords : Sort<Shape, Relation> {
  using Base = Sort<Shape, Relation>;
  using Shared = SortWordsShared<Shape>;
  using Base::call, Base::numbers, Base::plan, Base::tile, Base::warp, Base::lane, Base::steps, Base::num_keys;
  using Base::num_rows, Base::row_of_step;
  Shared& shared;

  __device__ SortWords(const Call& call, unsigned char* memory, const Numbers& numbers)
      : Base(call, memory, numbers), shared(*reinterpret_cast<Shared*>(memory)) {}

  // By one warp: where the rows of every key begin in the sorted tile.
  __device__ __forceinline__ void find_first() const {
    const int all = this->add_up([&](int key) { return this->kept(key); },
                                 [&](int key, int at) { shared.first[key] = at; });
    if (lane == 0) shared.num_sorted = all;
  }
  // Codes of the rows of a tile, and their places in it when it is sorted.
  __device__ __forceinline__ void assign(const int (&key)[steps], const int (&before)[steps], int from, int num_rows) const {
#pragma unroll
    for (int s = 0; s < steps; ++s) {
      const int row = row_of_step(s), k = key[s];
      if (row >= num_rows) continue;
      int code = -1, n = 0;
      if (k < num_keys) {
        n = shared.plan.chunk[warp][k] + before[s];
        if (n < this->kept(k)) {
          code = this->slot_code(k, n);
          shared.code[shared.first[k] + n] = code;
          shared.row[shared.first[k] + n] = u16(row);
        } else if (!shared.plan.peers.failed) {
          note_dropped(call, call.state->overflowed, numbers.use & 1);
        }
      }
      this->keep_code(from + row, k, n, code);
    }
  }
  // Stores the words of the sorted tile.
  template <int kField = 0>
  __device__ __forceinline__ void store(const char* tile) const {
    constexpr int unit = Shape::unit_bytes(kField), words = int(Shape::row_bytes(kField)) / unit, batch = 2;
    using Word = typename UnitOf<unit>::type;
    const Word* const rows = reinterpret_cast<const Word*>(tile + bytes_before<Shape>(kField) * Shape::sorted_rows);
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

  __device__ void run() {
    int key[steps], before[steps];
    this->start(shared.tile[0], key);
    int turn = 0;
    for (int from = shared.begin; from < shared.end; from += tile, turn ^= 1) {
      const int behind = from + tile;
      this->load(shared.tile[turn ^ 1], behind, num_rows(behind));
      commit_async();
      this->rank(key, before, num_rows(from));
      __syncthreads();
      plan.prefix_over_warps();
      if (warp == 0) find_first();
      else if (kCopiedRows<Shape> > 1 && warp <= call.num_ranks) this->tell_runs(warp - 1, from, num_rows(from));
      __syncthreads();
      assign(key, before, from, num_rows(from));
      this->load_keys(key, behind, num_rows(behind));
      wait_but_latest();
      __syncthreads();
      store(shared.tile[turn]);
      this->clear();
      plan.advance();
    }
  }
};

}  // namespace fuscoc
