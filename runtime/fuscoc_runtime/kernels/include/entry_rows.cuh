// Entries that are one row of whole words each: a warp takes the words of a group of them, a lane one, and so many of
// each lane are under way.
#pragma once
#include "boxes.cuh"

namespace fuscoc {

// Rank and slot as one word, in which a slot and what may lie behind it never reach the rank.
__device__ __forceinline__ i64 entry_code(int rank, i64 slot) { return i64(rank) << 32 | slot; }
__device__ __forceinline__ int entry_rank(i64 code) { return int(code >> 32); }
__device__ __forceinline__ i64 entry_slot(i64 code) { return i64(u32(code)); }

// Where a word of a row is and where it goes; `to` null: nowhere, `from` null: it is 0, kLostWord: it is lost.
struct RowWord {
  const char* from;
  char* to;
};
__device__ __forceinline__ const char* lost_word() { return reinterpret_cast<const char*>(u64(1)); }

// The codes of a group: rows of a warp, and as many times more as a lane has words in flight.
template <class Shape>
struct Rows {
  static constexpr int kWords = int(Shape::row_bytes(0) / kLine);
  static constexpr int kChunks = Shape::entry_group / kWarp, kAtOnce = kWords < kLinesInFlight / kChunks ? kWords : kLinesInFlight / kChunks;
  static_assert(Shape::entry_group % kWarp == 0 && kAtOnce > 0);
  const int lane;
  i64 code[kChunks];

  template <class Word>
  __device__ __forceinline__ Rows(const Word* words, i64 first, i64 num, int lane) : lane(lane) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const i64 entry = first + c * kWarp + lane;
      code[c] = entry < num ? __ldcg(words + entry) : -1;
    }
  }
  // `place(code of a row, byte of the group, byte of the row)` says where each word is, and where it goes.
  template <class PlaceOf>
  __device__ __forceinline__ void copy(PlaceOf place) const {
    const auto word = [&](int chunk, int number) {
      const int index = number * kWarp + lane, row = index / kWords;
      const i64 of_row = __shfl_sync(kAllLanes, code[chunk], row);
      return place(of_row, i64(chunk * kWarp * kWords + index) * kLine, i64(index % kWords) * kLine);
    };
#pragma unroll 1
    for (int first = 0; first < kWords; first += kAtOnce) {
      uint4 value[kChunks][kAtOnce];
#pragma unroll
      for (int c = 0; c < kChunks; ++c)
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (first + i >= kWords) continue;
          const RowWord at = word(c, first + i);
          const u32 fill = at.from == lost_word() ? ~0u : 0;
          value[c][i] = {fill, fill, fill, fill};
          if (at.to && at.from && !fill) value[c][i] = __ldcg(reinterpret_cast<const uint4*>(at.from));
        }
#pragma unroll
      for (int c = 0; c < kChunks; ++c)
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (first + i >= kWords) continue;
          const RowWord at = word(c, first + i);
          if (at.to) *reinterpret_cast<uint4*>(at.to) = value[c][i];
        }
    }
  }
};

}  // namespace fuscoc
