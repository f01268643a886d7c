// Boxes that transpose short runs: a warp reads a tile of them into shared memory in the order of the source,
// and writes it in that of the target, words of 4 or 8 bytes and many in a row. NVLink carries such words badly, so
// boxes that leave the rank are copied in lines.
//
// A patch of a picture is such a matrix, or a transpose of small elements: [rows][columns] of runs that are
// contiguous where they go, and [columns][rows] where they are read, where the runs of a column are
// contiguous. Read run by run, every run is an access of its own.
#pragma once
#include "boxes.cuh"

namespace fuscoc {

constexpr u32 kMostOfTile = 512;    // bytes of a row or a column that a tile gains from
constexpr u32 kLongRun = 128;       // runs of so many bytes are read well one by one

// Tiles of a row meet at multiples of 16 bytes where they go, so one has up to 15 bytes of columns before its own.
__device__ __forceinline__ u32 columns_before(u32 run) { return (kLine - 1 + run - 1) / run; }

// Bytes from column to column in shared memory: room for the lines around it, and an odd number of lines,
// so that columns lie in different banks.
__device__ __forceinline__ u32 tile_pitch(u32 rows, u32 run) { return (rows * run + 2 * (kLine - 1)) / kLine * kLine | kLine; }

// Cuts a box that transposes into tiles which a warp's `room` bytes hold; leaves others as they are.
template <int kUnit, int kSteps>
__device__ __noinline__ void cut_tiles(Box<kSteps>& box, u32 room) {
  const int last = box.num_steps - 1;
  if (kUnit == kLine || last < 1 || last < box.num_outer || box.run_bytes >= kLongRun) return;
  const Step& columns = box.step[last];
  const Step& rows = box.step[last - 1];
  const u32 run = u32(box.run_bytes), num_columns = columns.count.by, num_rows = rows.count.by;
  const i64 row = box.run_bytes * num_columns;
  // Rows follow each other, or each is a range of its own.
  const bool apart = last == box.num_outer;
  if (columns.to != run || rows.from != run || magnitude(columns.from) < run || (!apart && rows.to != row)) return;

  u32 best = 0, most = 0, best_rows = 0;
  for (u32 width = 1, wide = 0; !wide; width *= 2) {
    wide = width >= num_columns;
    if (wide) width = num_columns;
    const u32 held = width + (wide ? 0 : columns_before(run));
    if (held * tile_pitch(1, run) > room) break;
    const u32 height = min(((room / held - kLine) / kLine * kLine - 2 * (kLine - 1)) / run, num_rows);
    const u32 gain = min(width * run, kMostOfTile) * min(height * run, kMostOfTile);
    if (room / held >= 4 * kLine && height > 0 && gain > most) most = gain, best = width, best_rows = height;
  }
  if (best == 0) return;
  const u32 bands = (num_rows + best_rows - 1) / best_rows, chunks = (num_columns + best - 1) / best;
  best_rows = (num_rows + bands - 1) / bands;  // all alike
  best = (num_columns + chunks - 1) / chunks;
  const u32 in_range = apart ? 1 : u32(box.range_bytes / (row * num_rows)), pitch = tile_pitch(best_rows, run);
  const u32 ranges = box.num_lines / box.range_lines.by;
  const i64 items = i64(apart ? ranges / num_rows : ranges * in_range) * bands * chunks;
  if (items > kMostTiles * ceil_div(box.num_lines, kItemLines)) return;
  box.tiling = {best_rows, best, num_rows, num_columns, run, pitch, apart,
                Divisor::of(u32(row)), Divisor::of(bands), Divisor::of(chunks), Divisor::of(pitch / kLine)};
  box.num_items = u32(items);
}
// Copies the tiles of a box.
template <int kUnit, Reading kHow, int kSteps>
struct TileCopy {
  using Lines = BoxCopy<kUnit, kHow, kSteps>;
  using Unit = typename Lines::Unit;
  using Word = typename UnitOf<kUnit == 8 ? 8 : 4>::type;
  static constexpr int kWord = sizeof(Word), kEdge = (kLine - 1 + 2 * kWord - 2) / kWord;  // words that tiles share, at most
  static constexpr int kUnits = int(sizeof(Word) / sizeof(Unit)), kInFlight = 8, kRows = 4;
  const Lines lines;
  char* const staged;  // memory of this warp

  // Rows [row, end_row) and columns [column, end) of a matrix that begins at `from`, as they are staged; where it
  // goes to, it begins at `to`, with `step` bytes from row to row.
  struct Tile {
    const char* from;
    char* to;
    i64 step;
    u32 row, end_row, column, end;
  };

  // Where the part of a row from some column on begins, or that of the columns before ends: at a multiple of 16.
  __device__ __forceinline__ u32 cut(const char* row_to, u32 column) const {
    const Tiling& tiling = lines.box.tiling;
    const u32 at = column * tiling.run, over = u32(reinterpret_cast<u64>(row_to) + at) % kLine;
    return column == tiling.num_columns ? at : at - min(over, at);
  }

  // Brings lines that have any byte of a tile into shared memory, a column behind the other.
  __device__ __forceinline__ void stage(const Tile& tile, int lane) const {
    const Box<kSteps>& box = lines.box;
    const Divisor pieces = box.tiling.pitch_lines;
    const i64 step = box.step[box.num_steps - 1].from;
    const char* const begin = tile.from + i64(tile.column) * step + tile.row * box.run.by;
    const u32 bytes = (tile.end_row - tile.row) * box.run.by, num = (tile.end - tile.column) * pieces.by;
    for (u32 first = lane; first < num; first += kWarp * kInFlight) {
      uint4 value[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const u32 number = min(first + i * kWarp, num - 1), column = pieces.quotient(number);
        const char* const at = begin + column * step;
        const u32 odd = u32(reinterpret_cast<u64>(at)) % kLine;
        const u32 inside = min((number - column * pieces.by) * kLine, (odd + bytes - 1) / kLine * kLine);
        value[i] = read<uint4, kHow>(at - odd + inside);
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i)
        if (first + i * kWarp < num) *reinterpret_cast<uint4*>(staged + (first + i * kWarp) * kLine) = value[i];
    }
  }

  // Where a byte of the tile's first row is staged.
  __device__ __forceinline__ const char* place(const Tile& tile, int byte) const {
    const Box<kSteps>& box = lines.box;
    const u32 inside = u32(max(byte, 0)), which = box.run.quotient(inside);
    const u32 odd = (u32(reinterpret_cast<u64>(tile.from)) + tile.row * box.run.by + which * u32(box.step[box.num_steps - 1].from)) % kLine;
    return staged + (which - tile.column) * box.tiling.pitch + odd + (inside - which * box.run.by);
  }

  // Writes the columns from `column` on. Words that are of them in every row come first: a lane has the same one
  // of many rows, and computes once where its units are staged. What is left are a few words at both ends.
  __device__ __forceinline__ void write(const Tile& tile, u32 column, int lane) const {
    const Box<kSteps>& box = lines.box;
    const Tiling& tiling = box.tiling;
    const u32 odd_step = u32(tile.step) % kWord;
    const u32 period = odd_step == 0 ? 1 : kWord / (odd_step & -odd_step);  // rows that lie alike to words
    const int most_low = int(column * tiling.run);
    const int least_high = int(tile.end * tiling.run) - (tile.end == tiling.num_columns ? 0 : kLine - 1);
    for (u32 first = 0; first < min(period, tile.end_row - tile.row); ++first) {
      const int begin = first_word(tile, tile.row + first, most_low);
      const i64 to_step = tile.step * period;
      const u32 staged_step = box.run.by * period;
      for (int at = begin + lane * kWord; at + kWord <= least_high; at += kWarp * kWord) {
        const char* from[kUnits];
#pragma unroll
        for (int i = 0; i < kUnits; ++i) from[i] = place(tile, at + i * int(sizeof(Unit))) + first * box.run.by;
        char* to = tile.to + (tile.row + first) * tile.step + at;
        for (u32 row = tile.row + first; row < tile.end_row; row += period * kRows) {
          Word word[kRows];
#pragma unroll
          for (int j = 0; j < kRows; ++j) {
            const u32 down = row + j * period < tile.end_row ? j * staged_step : 0;
#pragma unroll
            for (int i = 0; i < kUnits; ++i)
              reinterpret_cast<Unit*>(&word[j])[i] = *reinterpret_cast<const Unit*>(from[i] + down);
          }
#pragma unroll
          for (int j = 0; j < kRows; ++j) {
            if (row + j * period < tile.end_row) *reinterpret_cast<Word*>(to) = word[j];
            to += to_step;
          }
#pragma unroll
          for (int i = 0; i < kUnits; ++i) from[i] += kRows * staged_step;
        }
      }
    }
    if (tiling.chunks.by == 1 && (odd_step | tiling.row.by | u32(reinterpret_cast<u64>(tile.to))) % kWord == 0) return;
    for (u32 number = lane; number < (tile.end_row - tile.row) * 2 * kEdge; number += kWarp) {
      const u32 row = tile.row + number / (2 * kEdge), word = number % (2 * kEdge);
      char* const to = tile.to + row * tile.step;
      const int begin = first_word(tile, row, most_low), end = begin + max(least_high - begin, 0) / kWord * kWord;
      const int at = word < kEdge ? begin - int(kEdge - word) * kWord : end + int(word - kEdge) * kWord;
      const int low = int(cut(to, column)), high = int(cut(to, tile.end));
#pragma unroll
      for (int byte = at; byte < at + kWord; byte += int(sizeof(Unit)))
        if (byte >= low && byte < high)
          *reinterpret_cast<Unit*>(to + byte) = *reinterpret_cast<const Unit*>(place(tile, byte) + (row - tile.row) * box.run.by);
    }
  }
  // The first word of a row from byte `low` on.
  __device__ __forceinline__ static int first_word(const Tile& tile, u32 row, int low) {
    const u32 over = u32(reinterpret_cast<u64>(tile.to) + row * u32(tile.step) + u32(low)) % kWord;
    return low + int((kWord - over) % kWord);
  }

  __device__ __forceinline__ void item(u32 number, int lane) const {
    const Box<kSteps>& box = lines.box;
    const Tiling& tiling = box.tiling;
    const u32 strip = tiling.chunks.quotient(number), chunk = number - strip * tiling.chunks.by;
    const u32 matrix = tiling.bands.quotient(strip), band = strip - matrix * tiling.bands.by;
    const u32 row = band * tiling.rows, end_row = min(row + tiling.rows, tiling.num_rows);
    const u32 column = chunk * tiling.columns, end = min(column + tiling.columns, tiling.num_columns);
    Tile tile{lines.from, lines.to, tiling.apart ? box.step[box.num_steps - 2].to : i64(tiling.row.by), row, end_row,
              column - min(column, columns_before(tiling.run)), end};
    lines.walk(matrix, 0, box.num_steps - 2, [&](i64 index, const Step& step) {
      tile.from += index * step.from;
      tile.to += index * step.to;
    });
    __syncwarp();
    stage(tile, lane);
    __syncwarp();
    write(tile, column, lane);
  }
};

// Copies an item of a box: a tile, or lines.
template <int kUnit, Reading kHow, int kSteps, class Meanwhile = Nothing>
__device__ __forceinline__ void copy_item(const Box<kSteps>& box, const char* from, char* to, Places& places, char* staged,
                                          u32 number, int lane, Meanwhile meanwhile = {}) {
  const BoxCopy<kUnit, kHow, kSteps> lines{box, from, to, places};
  if constexpr (kUnit != kLine)
    if (box.tiling.rows) {
      meanwhile();
      TileCopy<kUnit, kHow, kSteps>{lines, staged}.item(number, lane);
      return;
    }
  lines.item(number, lane, meanwhile);
}

}  // namespace fuscoc
