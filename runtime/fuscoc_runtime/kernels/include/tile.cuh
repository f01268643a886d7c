// Tiles: boxes of short runs that are turned in shared memory, so that both ends see long ranges.
//
// The innermost steps of a box, a tile, are contiguous where they go, or a range a row; and read in another
// order, segments of many runs. Segments are brought by bulk copies, a CTA's warps put the units of each
// word of the target together, and rows leave as they lie, from the same places modulo 128, in whole lines.
// A patch of a picture is such a row, or a line of the picture on the way back, or one of a transpose. Here they are cut, brought
// and stored.
#pragma once
#include "boxes.cuh"
#include "gate.cuh"

namespace fuscoc {

constexpr u32 kShortSegment = 64;   // segments of so few bytes are not read better than short runs
constexpr u32 kMostOfTile = 512;    // bytes of a segment or a row that a tile gains from

// Whether a shuffle has fields of short runs: its CTAs turn tiles, each of two buffers with so many bytes.
template <class Shape>
constexpr bool kTurns = Shape::tile_bytes > 0;
constexpr u32 kPartsOfTile = 4;     // in small calls, so that more CTAs have some
constexpr u32 kTurnedLines = 4096, kFewTurnedLines = 1024;  // that such a CTA takes at once where it turns nothing, but
                                                          // fewer in small calls

// Segments that are long lie in shared memory as in the source modulo 128: bulk copies are cut up that do not. Others
// lie in lines as there, and an odd number of lines apart, for the banks' sake.
__device__ __forceinline__ u32 alike(u32 bytes) { return bytes >= kMostOfTile ? kBulkLine : kLine; }
__device__ __forceinline__ u32 segment_pitch(u32 bytes) {
  return bytes >= kMostOfTile ? u32(round_up(bytes + kBulkLine - 1, kBulkLine)) : (bytes + 2 * (kLine - 1)) / kLine * kLine | kLine;
}
// The same of a tile's rows where they go.
__device__ __forceinline__ u32 range_pitch(u32 bytes) { return u32(round_up(bytes + kBulkLine - 1, kBulkLine)); }

// Cuts boxes into tiles of two buffers with `room` bytes each.
template <int kUnit, int kSteps>
struct Cutter {
  Box<kSteps>& box;
  const u32 room;

  // Of the steps from `first` on, so many of the first two at once.
  struct Cut {
    int first;
    u32 rows, columns;
    u32 column, width;           // bytes
    u32 segments, bytes, merged; // as in `Tiling`
    u32 gain;                    // 0: does not fit, or gains nothing
  };
  __device__ __forceinline__ u32 count(const Cut& cut, int i) const {
    return i == cut.first ? cut.rows : i == cut.first + 1 ? cut.columns : box.step[i].count.by;
  }
  // Rows are one range, at whatever end.
  __device__ __forceinline__ bool whole(const Cut& cut) const {
    return cut.rows == 1 || (cut.columns == box.step[cut.first + 1].count.by && cut.first >= box.num_outer);
  }
  __device__ __noinline__ Cut measure(int first, u32 rows, u32 columns) const {
    Cut cut{first, rows, columns, 0, 0, 1, u32(box.run_bytes), 0, 0};
    const int last = box.num_steps - 1;
    u64 column = u64(box.run_bytes);
    for (int i = last; i > first + 1; --i) column *= box.step[i].count.by;
    if (column * columns * rows > room) return cut;
    cut.column = u32(column);
    cut.width = cut.column * columns;
    for (int i = first; i <= last; ++i) {
      if (cut.merged >> i & 1 || box.step[i].from != cut.bytes || count(cut, i) == 1) continue;
      cut.bytes *= count(cut, i);
      cut.merged |= 1u << i;
      if (count(cut, i) != box.step[i].count.by) break;  // what would come next lies apart
      i = first - 1;
    }
    for (int i = first; i <= last; ++i) {
      if (count(cut, i) == 1) cut.merged |= 1u << i;
      if (!(cut.merged >> i & 1)) cut.segments *= count(cut, i);
    }
    if (!(cut.merged >> first & 1) || cut.bytes < kShortSegment) return cut;  // a word's place changes alike from row to row
    const u32 range = whole(cut) ? cut.width * rows : cut.width, num = whole(cut) ? 1 : rows;
    if (u64(cut.segments) * segment_pitch(cut.bytes) > room || u64(num) * range_pitch(range) > room) return cut;
    cut.gain = min(range, kMostOfTile) * min(cut.bytes, kMostOfTile);
    return cut;
  }
  // As many rows as fit, in bands that are alike.
  __device__ __noinline__ Cut most_rows(int first, u32 columns) const {
    const u32 num_rows = box.step[first].count.by;
    u64 row = u64(box.run_bytes) * columns;
    for (int i = box.num_steps - 1; i > first + 1; --i) row *= box.step[i].count.by;
    Cut made{};
    for (u32 rows = row > room ? 0 : min(num_rows, room / u32(row)); rows > 0 && !made.gain; rows -= (rows + 7) / 8) {
      const u32 bands = (num_rows + rows - 1) / rows;
      made = measure(first, (num_rows + bands - 1) / bands, columns);
    }
    return made;
  }
  // What gains most, with as many rows as there are: first of all columns, then of fewer.
  __device__ __noinline__ Cut find() const {
    constexpr u32 most = kMostOfTile * kMostOfTile;
    const int last = box.num_steps - 1;
    Cut best{};
    if (kUnit == kLine || last < 1 || last < box.num_outer || box.run_bytes >= kLongRun) return best;
    for (int first = last - 1; first >= max(box.num_outer - 1, 0) && best.gain < most; --first) {
      const u32 num_columns = box.step[first + 1].count.by;
      u64 column = u64(box.run_bytes);
      for (int i = last; i > first + 1; --i) column *= box.step[i].count.by;
      for (u32 parts = 1; parts <= num_columns && best.gain < most; parts += max(parts / 2, 1u)) {
        const u32 columns = (num_columns + parts - 1) / parts;
        if (parts > 1 && columns < 8 && columns * column < kLongRun) break;
        const Cut made = most_rows(first, columns);
        if (made.gain > best.gain) best = made;
      }
    }
    return best;
  }
  // Leaves boxes as they are that gain nothing.
  __device__ __noinline__ void cut() const {
    const Cut best = find();
    if (best.gain == 0) return;
    const int first = best.first;
    const u32 bands = (box.step[first].count.by + best.rows - 1) / best.rows;
    const u32 chunks = (box.step[first + 1].count.by + best.columns - 1) / best.columns;
    u64 tiles = u64(bands) * chunks;
    for (int i = 0; i < first; ++i) tiles *= box.step[i].count.by;
    if (tiles > box.num_lines / kFewItemLines + 1) return;  // there are no more flags
    Tiling<kSteps>& tiling = box.tiling;
    tiling.rows = best.rows;
    tiling.columns = best.columns;
    tiling.bands = Divisor::of(bands);
    tiling.chunks = Divisor::of(chunks);
    tiling.of_columns = Divisor::of(best.columns);
    tiling.first = first;
    tiling.whole = whole(best);
    tiling.straight = 0;
    tiling.row_bytes = best.width;
    tiling.column_bytes = best.column;
    tiling.segments = best.segments;
    tiling.bytes = best.bytes;
    tiling.alike = alike(best.bytes);
    tiling.of_row = bands > 1 && best.rows > 1 ? u32(box.step[first].from) : 0;
    tiling.of_column = chunks > 1 && best.columns > 1 && best.merged >> (first + 1) & 1 ? u32(box.step[first + 1].from) : 0;
    tiling.pitch = segment_pitch(best.bytes);
    tiling.row_pitch = whole(best) ? best.width : range_pitch(best.width);
    tiling.merged = best.merged;
    u32 apart = tiling.pitch;
    for (int i = box.num_steps - 1; i >= first; --i) {
      const bool inside = best.merged >> i & 1;
      tiling.staged[i] = inside ? u32(box.step[i].from) : apart;
      if (!inside) apart *= count(best, i);
    }
    box.num_items = u32(tiles);
  }
};

// A tile of a box, whose ends are `from` and `to`.
struct Tile {
  const char* from;
  char* to;
  u32 rows, columns;
};
template <int kSteps>
__device__ __forceinline__ Tile tile_of(const Box<kSteps>& box, const char* from, char* to, u32 item) {
  const Tiling<kSteps>& tiling = box.tiling;
  const u32 strip = tiling.chunks.quotient(item), chunk = item - strip * tiling.chunks.by;
  u32 number = tiling.bands.quotient(strip);
  const u32 row = (strip - number * tiling.bands.by) * tiling.rows, column = chunk * tiling.columns;
  const Step &rows = box.step[tiling.first], &columns = box.step[tiling.first + 1];
  Tile tile{from + row * rows.from + column * columns.from, to + row * rows.to + column * columns.to,
            min(tiling.rows, rows.count.by - row), min(tiling.columns, columns.count.by - column)};
#pragma unroll 1
  for (int i = tiling.first - 1; i >= 0; --i) {
    const Step& step = box.step[i];
    const u32 rest = step.count.quotient(number), index = number - rest * step.count.by;
    tile.from += index * step.from;
    tile.to += index * step.to;
    number = rest;
  }
  return tile;
}

// What a tile is where it goes: ranges, and where these lie in shared memory, each as there modulo 128.
struct Ranges {
  u32 num, bytes, pitch, low, odd_step;
  template <int kSteps>
  __device__ __forceinline__ Ranges(const Box<kSteps>& box, const Tile& tile) {
    const Tiling<kSteps>& tiling = box.tiling;
    const u32 width = tile.columns * tiling.column_bytes;
    num = tiling.whole ? 1 : tile.rows;
    bytes = tiling.whole ? width * tile.rows : width;
    pitch = tiling.row_pitch;
    low = u32(reinterpret_cast<u64>(tile.to));
    odd_step = tiling.whole ? 0 : u32(box.step[tiling.first].to);
  }
  // Of a row; those of one range follow each other.
  __device__ __forceinline__ u32 place(u32 row) const { return row * pitch + (low + row * odd_step) % kBulkLine; }
};

// By a warp: brings the lines of some bytes into shared memory, by one lane if it is a bulk copy. How many bytes
// these are.
__device__ __forceinline__ u32 bring(char* staged, const char* from, u32 bytes, Gate* gate, int lane, u64 keep) {
  const u32 odd = u32(reinterpret_cast<u64>(from)) % kLine, all = (odd + bytes + kLine - 1) / kLine * kLine;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  bulk_load(shared_address(staged), from - odd, all, shared_address(gate), keep);
#else
  for (u32 i = lane * kLine; i < all; i += kWarp * kLine)
    *reinterpret_cast<uint4*>(staged + i) = __ldcg(reinterpret_cast<const uint4*>(from - odd + i));
#endif
  return all;
}
constexpr int kLanesBring = kBulkCopies ? kWarp : 1;  // lanes that have a range of their own

// Brings a tile into shared memory. The bytes of bulk copies of this lane.
template <int kSteps>
__device__ __forceinline__ u32 bring_segments(const Box<kSteps>& box, const Tile& tile, char* staged, Gate* gate, int lane, u64 keep) {
  const Tiling<kSteps>& tiling = box.tiling;
  const u32 bytes = tiling.bytes - (tiling.rows - tile.rows) * tiling.of_row - (tiling.columns - tile.columns) * tiling.of_column;
  u32 all = 0;
#pragma unroll 1
  for (u32 segment = kBulkCopies ? lane : 0; segment < tiling.segments; segment += kLanesBring) {
    const char* from = tile.from;
    u32 number = segment;
    bool there = true;
#pragma unroll 1
    for (int i = box.num_steps - 1; i > tiling.first; --i) {
      if (tiling.merged >> i & 1) continue;
      const bool column = i == tiling.first + 1;
      const Divisor count = column ? tiling.of_columns : box.step[i].count;
      const u32 rest = count.quotient(number), index = number - rest * count.by;
      there &= !column || index < tile.columns;
      from += index * box.step[i].from;
      number = rest;
    }
    if (!there) continue;
    const u32 odd = u32(reinterpret_cast<u64>(from)) % tiling.alike / kLine * kLine;  // of the line that it begins in
    all += bring(staged + segment * tiling.pitch + odd, from, bytes, gate, lane, keep);
  }
  return all;
}
// The same of one that is not turned: each range as it is where it goes.
template <int kSteps>
__device__ __forceinline__ u32 bring_ranges(const Box<kSteps>& box, const Tile& tile, char* staged, Gate* gate, int lane, u64 keep) {
  const Ranges ranges(box, tile);
  const i64 step = box.step[box.tiling.first].from;
  u32 all = 0;
#pragma unroll 1
  for (u32 range = kBulkCopies ? lane : 0; range < ranges.num; range += kLanesBring) {
    const char* const from = tile.from + range * step;
    all += bring(staged + ranges.place(range) - u32(reinterpret_cast<u64>(from)) % kLine, from, ranges.bytes, gate, lane, keep);
  }
  return all;
}

// By a warp: stores the ranges of a tile, whole lines by bulk copies, and the units at their ends.
template <int kUnit, int kSteps>
__device__ __forceinline__ void store_ranges(const Box<kSteps>& box, const Tile& tile, const char* staged, int lane, u64 keep) {
  using Unit = typename UnitOf<kUnit == kLine ? 8 : kUnit>::type;
  const Ranges ranges(box, tile);
  const i64 step = box.step[box.tiling.first].to;
  const auto head = [&](const char* to) { return min((kLine - u32(reinterpret_cast<u64>(to)) % kLine) % kLine, ranges.bytes); };
#pragma unroll 1
  for (u32 range = kBulkCopies ? lane : 0; range < ranges.num; range += kLanesBring) {
    char* const to = tile.to + range * step;
    const u32 before = head(to), lines = (ranges.bytes - before) / kLine * kLine;
    const char* const from = staged + ranges.place(range) + before;
    if (lines == 0) continue;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    bulk_store(to + before, shared_address(from), lines, keep);
#else
    for (u32 i = lane * kLine; i < lines; i += kWarp * kLine)
      *reinterpret_cast<uint4*>(to + before + i) = *reinterpret_cast<const uint4*>(from + i);
#endif
  }
#pragma unroll 1
  for (u32 i = lane; i < 2 * ranges.num; i += kWarp) {  // a lane has an end of a range
    const u32 range = i / 2;
    char* const to = tile.to + range * step;
    const char* const from = staged + ranges.place(range);
    const u32 before = head(to), behind = before + (ranges.bytes - before) / kLine * kLine, end = i % 2 ? ranges.bytes : before;
#pragma unroll 1
    for (u32 at = i % 2 ? behind : 0; at < end; at += sizeof(Unit))
      *reinterpret_cast<Unit*>(to + at) = *reinterpret_cast<const Unit*>(from + at);
  }
}

// What a CTA was launched with, which all that turns knows by offsets: so the compiler sees that it is shared memory.
__device__ __forceinline__ char* cta_memory() {
  extern __shared__ __align__(128) unsigned char memory[];
  return reinterpret_cast<char*>(memory);
}

}  // namespace fuscoc
