// Sorted rows that are stored word by word: rows stay in shared memory as they have come, only their numbers are
// sorted, and the codes of their slots. Consecutive threads store consecutive words of a run.
#pragma once
#include "sort.cuh"

namespace fuscoc {

template <class Shape>
struct SortWordsShared : SortShared<Shape> {
  static constexpr int rows = Shape::sorted_rows;
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

  // By one warp: where runs begin in the sorted tile.
  __device__ __forceinline__ void place_runs() const {
    const int all = this->add_up([&](int key) { return shared.run[key].rows; },
                                 [&](int key, int at) { shared.run[key].begin = at; });
    if (lane == 0) shared.num_sorted = all;
  }
  // Codes of the rows of a tile, and their places in it when it is sorted.
  __device__ __forceinline__ void assign(u32 keys, const int (&before)[steps], int from, int num_rows) const {
#pragma unroll
    for (int s = 0; s < steps; ++s) {
      const int row = row_of_step(s), key = Base::key_of_step(keys, s);
      if (row >= num_rows) continue;
      Run run;
      const int n = this->find(key, before[s], run);
      if (n >= 0) {
        shared.code[run.begin + n] = run.code + n;
        shared.row[run.begin + n] = u16(row);
      }
      this->keep_code(from + row, run, n);
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
    int before[steps];
    u32 keys = this->start(shared.tile[0], before);
    int turn = 0;
    for (int from = shared.begin; from < shared.end; from += tile, turn ^= 1) {
      const int behind = from + tile;
      this->load(shared.tile[turn ^ 1], behind, num_rows(behind));
      commit_async();
      const u32 next_keys = this->load_keys(behind, num_rows(behind));
      this->find_runs();
      __syncthreads();
      if (warp == 0) place_runs();
      else if (kCopiedRows<Shape> > 1 && warp <= call.num_ranks) this->tell_runs(warp - 1, from, num_rows(from));
      __syncthreads();
      assign(keys, before, from, num_rows(from));
      wait_but_latest();
      __syncthreads();
      store(shared.tile[turn]);
      this->advance();
      keys = next_keys;
      this->rank(keys, before, num_rows(behind));
      __syncthreads();
    }
  }
};

}  // namespace fuscoc
