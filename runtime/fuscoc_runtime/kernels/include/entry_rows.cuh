// Entries that are one row of whole words each: a warp takes the words of a group of them, a lane one, and so many of
// each lane are under way.
#pragma once
#include "box_copy.cuh"

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

// One of `num_words` codes of each entry of a group: rows of a warp, or fewer, or as many times more as a lane has
// words in flight.
template <class Shape>
struct Rows {
  static constexpr int kRow = int(Shape::row_bytes(0) / kLine), kGroup = Shape::entry_group;
  static constexpr int kChunks = kGroup > kWarp ? kGroup / kWarp : 1, kOfChunk = kGroup / kChunks;
  static constexpr int kWords = (kOfChunk * kRow + kWarp - 1) / kWarp;  // of a lane in a chunk
  static constexpr int kAtOnce = kWords < kLinesInFlight / kChunks ? kWords : kLinesInFlight / kChunks;
  static_assert(kOfChunk <= kWarp && kAtOnce > 0);
  // Whether lanes have whole words of one row under way, whose place they share.
  static constexpr int kOfRow = kRow % kWarp == 0 ? kRow / kWarp : 0;
  static constexpr bool kRowByRow = kChunks == 1 && kOfRow > 0 && kOfRow % kAtOnce == 0;
  int lane;
  i64 code[kChunks];

  template <class Word>
  __device__ __forceinline__ Rows(const Word* words, i64 first, i64 num, int which, int num_words, int lane) : lane(lane) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const i64 entry = first + c * kWarp + lane;
      code[c] = lane < kOfChunk && entry < num ? __ldcg(words + entry * num_words + which) : -1;
    }
  }
  // Forgets those that `goes` does not hold of.
  template <class Goes>
  __device__ __forceinline__ void keep(Goes goes) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
      if (!goes(code[c])) code[c] = -1;
  }
  // Whether any of them goes anywhere.
  __device__ __forceinline__ bool any() const {
    bool found = false;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) found |= code[c] >= 0;
    return __ballot_sync(kAllLanes, found) != 0;
  }
  // `place(code of a row, byte of the group, byte of the row)` says where each word is, and where it goes.
  template <class PlaceOf>
  __device__ __forceinline__ void copy(PlaceOf place) const {
    if constexpr (kRowByRow) {
#pragma unroll 1
      for (int row = 0; row < kGroup; ++row) {
        const i64 of_row = __shfl_sync(kAllLanes, code[0], row);
#pragma unroll 1
        for (int first = 0; first < kOfRow; first += kAtOnce)
          copy_words([&](int, int i) -> RowWord {
            const int index = (first + i) * kWarp + lane;
            return place(of_row, i64(row * kRow + index) * kLine, i64(index) * kLine);
          });
      }
    } else {
#pragma unroll 1
      for (int first = 0; first < kWords; first += kAtOnce)
        copy_words([&](int chunk, int i) -> RowWord {
          const int index = (first + i) * kWarp + lane, row = kOfRow > 0 ? (first + i) / max(kOfRow, 1) : index / kRow;
          const i64 of_row = __shfl_sync(kAllLanes, code[chunk], row % kWarp);
          if (row >= kOfChunk) return {};
          return place(of_row, i64(chunk * kOfChunk * kRow + index) * kLine, i64(index % kRow) * kLine);
        });
    }
  }
  // Those of all chunks with numbers below `kAtOnce`.
  template <class Word>
  __device__ __forceinline__ void copy_words(Word word) const {
    uint4 value[kChunks][kAtOnce];
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const RowWord at = word(c, i);
        const u32 fill = at.from == lost_word() ? ~0u : 0;
        value[c][i] = {fill, fill, fill, fill};
        if (at.to && at.from && !fill) value[c][i] = __ldcg(reinterpret_cast<const uint4*>(at.from));
      }
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const RowWord at = word(c, i);
        if (at.to) *reinterpret_cast<uint4*>(at.to) = value[c][i];
      }
  }
};

}  // namespace fuscoc
