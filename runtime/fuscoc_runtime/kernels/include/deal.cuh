// How a tile is dealt out to the threads that turn it: a thread has the same word of many rows. The warp that brings a tile
// computes what all of them compute with; where the next tile is dealt out alike, it stays as it is.
#pragma once
#include "tile.cuh"

namespace fuscoc {

// What all threads compute with.
struct alignas(16) Split {
  u32 words;            // of a row,
  u32 period;           // and rows that lie differently to words
  u32 num;              // words of all these: a thread has some, of every row that lies as that does, but
  u32 full;             // as many as there are for all threads as often; what is left
  u32 parts, of_part;   // so many threads have together, these rows each
  u32 rows;
  u32 fold, fold_step;  // rows are of columns: so many follow each other, and what the next one is further on in shared memory
  u32 width, row_step;  // of a row, or its column, where it goes, and from row to row,
  u32 low, pitch;       // the first one there, modulo lines, and from row to row in shared memory
  u32 from;             // the first segment, modulo lines,
  u32 from_step;        // what the next one is further on,
  u32 apart, line;      // and from one to the next in shared memory, where they lie as there modulo so much and 1
  u32 runs;             // rows are one range, and read where runs follow each other: every row, or every second
};
// Whether rows are one range, and read where runs follow each other.
template <int kSteps>
__device__ __forceinline__ bool follows(const Box<kSteps>& box, u32 run_bytes) {
  const Tiling<kSteps>& tiling = box.tiling;
  const int last = tiling.first + 1;
  return tiling.whole && tiling.staged[tiling.first] == run_bytes && box.run.by == run_bytes && box.num_steps == last + 1;
}
// Tiles that are dealt out alike, but for where they lie, have the same key: those of whole words, read from one segment. Others
// have 0. Rows, and what is between runs, are no longer than a buffer.
template <int kSteps>
__device__ __forceinline__ u64 key_of(const Box<kSteps>& box, const Tile& tile, int field, u32 word, u32 run_bytes) {
  const Tiling<kSteps>& tiling = box.tiling;
  const int last = tiling.first + 1;
  const u32 width = tile.columns * tiling.column_bytes, apart = tiling.staged[last];
  const bool whole = (width | u32(reinterpret_cast<u64>(tile.to))) % word == 0;
  if (!whole || !follows(box, run_bytes) || !(tiling.merged >> last & 1) || apart >> 16) return 0;
  return u64(2 * (field + 1) + (tiling.alike == kBulkLine)) << 48 | u64(apart) << 32 | tile.rows << 16 | width;
}
// Of numbers below 2^20, in fewer instructions than a division of others.
__device__ __forceinline__ u32 small_quotient(u32 n, u32 by) { return u32(__fdividef(float(n) + 0.5f, float(by))); }
template <int kSteps>
__device__ __forceinline__ Split split(const Box<kSteps>& box, const Tile& tile, u32 word, u32 run_bytes, u32 num_threads) {
  const Tiling<kSteps>& tiling = box.tiling;
  const Ranges ranges(box, tile);
  const int last = tiling.first + 1;
  Split made;
  made.rows = tile.rows;
  made.width = tile.columns * tiling.column_bytes;
  made.row_step = tiling.whole ? made.width : ranges.odd_step;
  made.low = ranges.low % kBulkLine;
  made.pitch = ranges.pitch;
  made.from = u32(reinterpret_cast<u64>(tile.from));
  made.from_step = tiling.merged >> last & 1 ? 0 : u32(box.step[last].from);
  made.apart = tiling.staged[last];
  made.line = tiling.alike - 1;
  const u32 odd = made.row_step % word;
  made.period = odd == 0 ? 1 : word >> (__ffs(int(odd)) - 1);
  const bool follow = follows(box, run_bytes);
  made.runs = follow && made.period <= 2 ? made.period : 0;
  made.fold = 1;
  made.fold_step = tiling.staged[last];
  made.words = (made.width + (odd || ranges.low % word ? 2 * (word - 1) : word - 1)) / word;
  // Columns of whole words are read alike, too: threads that have more than a word of a row have that of several columns.
  if (!made.runs && made.words > num_threads && tile.columns > 1 && tiling.merged >> last & 1 &&
      (odd | ranges.low | tiling.column_bytes) % word == 0) {
    made.fold = tile.columns;
    made.rows *= tile.columns;
    made.width = tiling.column_bytes;
    made.words = made.width / word;
  }
  const u32 alike = (made.rows + made.period - 1) >> (__ffs(int(made.period)) - 1);
  made.num = made.words * made.period;
  made.full = small_quotient(made.num, num_threads) * num_threads;
  made.parts = made.num > made.full ? small_quotient(num_threads, made.num - made.full) : 1;
  made.of_part = small_quotient(alike + made.parts - 1, made.parts);
  return made;
}

// What a thread has of tiles with a key: where it reads a word's units, and makes the word, from the buffers on, and of how many
// rows. All threads have a word, and then another, if there are more words. Two such numbers are a register.
struct Share {
  static constexpr int kTurns = 2;
  struct Word {
    u32 from_to, from_num, others;
  };
  u64 key;
  Word word[kTurns];
};

}  // namespace fuscoc
