// Tiles: boxes of short runs that are turned in shared memory, so that both ends see long ranges.
//
// The innermost steps of a box, a tile, are contiguous where they go, or a range a row; and read in another
// order, segments of many runs. Segments are brought by bulk copies, a CTA's threads put the units of each
// word of the target together, in registers, until all have and the words can be put back into the same memory,
// and rows leave as they lie, from the same places modulo 128, in whole lines.
// A patch of a picture is such a row, or a line of the picture on the way back, or one of a transpose.
#pragma once
#include "boxes.cuh"
#include "gate.cuh"

namespace fuscoc {

constexpr u32 kLongRun = 128;       // runs of so many bytes are read well one by one,
constexpr u32 kShortSegment = 64;   // and segments of so few not better than they are
constexpr u32 kMostOfTile = 256;    // bytes of a segment or a row that a tile gains from
constexpr u32 kTurners = 640;       // threads that turn a tile, at least; each has two strands of words,
constexpr u32 kStrand = 16;         // so many at most, one of every row

// Whether a shuffle has fields of short runs: its CTAs turn tiles, in buffers of so many bytes.
template <class Shape>
constexpr bool kTurns = Shape::tile_bytes > 0;
constexpr u32 kTurnedLines = 4096, kFewTurnedLines = 1024;  // that such a CTA takes at once where it turns nothing, but
                                                          // fewer in small calls

// Segments lie in shared memory in lines as in the source, and an odd number of lines apart, for the banks' sake.
__device__ __forceinline__ u32 segment_pitch(u32 bytes) { return (bytes + 2 * (kLine - 1)) / kLine * kLine | kLine; }
// A tile's rows lie as where they go modulo 128: bulk copies are cut up that do not.
__device__ __forceinline__ u32 range_pitch(u32 bytes) { return u32(round_up(bytes + kBulkLine - 1, kBulkLine)); }

// How the words of a tile are dealt out: those of one column in rows that lie alike to words are strands, of the next
// column for the next thread.
template <int kUnit>
struct Strands {
  using Unit = typename UnitOf<kUnit == kLine ? 8 : kUnit>::type;
  using Word = typename UnitOf<kUnit == kLine || kUnit == 8 ? 8 : 4>::type;
  u32 width, row_step, rows;  // bytes of a row, and modulo words from row to row
  u32 period;                 // rows from one to the next that lies alike,
  u32 words, columns;         // words that a row may have a part of, and those of all rows that do not lie alike
  __device__ __forceinline__ Strands(u32 width, u32 row_step, u32 rows) : width(width), row_step(row_step), rows(rows) {
    constexpr u32 word = sizeof(Word);
    const u32 odd = row_step % word;
    period = odd == 0 ? 1 : word / (odd & -odd);
    words = (width + 2 * (word - 1)) / word;
    columns = words * period;
  }
  // Words of each, if so many groups of strands have the rows.
  __device__ __forceinline__ u32 share(u32 groups) const { return ((rows + period - 1) / period + groups - 1) / groups; }
  __device__ __forceinline__ bool fit(u32 num_threads) const {
    const u32 groups = 2 * num_threads / columns;
    return groups > 0 && share(groups) <= kStrand;
  }
};

// Cuts boxes into tiles of a buffer with `room` bytes.
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
    if (!Strands<kUnit>(cut.width, whole(cut) ? cut.width : u32(box.step[first].to), rows).fit(kTurners)) return cut;
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
      for (u32 parts = 1; parts <= num_columns && best.gain < most; parts += max(parts / 2, 1u)) {
        const u32 columns = (num_columns + parts - 1) / parts;
        if (parts > 1 && columns < 8) break;
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
  for (u32 segment = kBulkCopies ? lane : 0; segment < tiling.segments; segment += kLanesBring) {
    const char* from = tile.from;
    u32 number = segment;
    bool there = true;
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
    all += bring(staged + segment * tiling.pitch, from, bytes, gate, lane, keep);
  }
  return all;
}
// The same of one that is not turned: each range as it is where it goes.
template <int kSteps>
__device__ __forceinline__ u32 bring_ranges(const Box<kSteps>& box, const Tile& tile, char* staged, Gate* gate, int lane, u64 keep) {
  const Ranges ranges(box, tile);
  const i64 step = box.step[box.tiling.first].from;
  u32 all = 0;
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
  for (u32 i = lane; i < 2 * ranges.num; i += kWarp) {  // a lane has an end of a range
    const u32 range = i / 2;
    char* const to = tile.to + range * step;
    const char* const from = staged + ranges.place(range);
    const u32 before = head(to), behind = before + (ranges.bytes - before) / kLine * kLine, end = i % 2 ? ranges.bytes : before;
    for (u32 at = i % 2 ? behind : 0; at < end; at += sizeof(Unit))
      *reinterpret_cast<Unit*>(to + at) = *reinterpret_cast<const Unit*>(from + at);
  }
}

// Turns a tile in place.
template <int kUnit, int kSteps>
struct Turn {
  using Sizes = Strands<kUnit>;
  using Unit = typename Sizes::Unit;
  using Word = typename Sizes::Word;
  static constexpr int kUnits = int(sizeof(Word) / sizeof(Unit));
  const Box<kSteps>& box;
  const Tile& tile;
  char* const buffer;

  // Words of a column, in some of the rows that lie alike to words.
  struct Strand {
    int at;           // byte of a row that the word begins at, which is not whole at both ends
    u32 row, num;     // the first row, and words
    u32 from[kUnits]; // where the units of the first word are staged
  };
  // Where a byte of the first row is staged.
  __device__ __forceinline__ u32 place(u32 byte) const {
    const Tiling<kSteps>& tiling = box.tiling;
    u32 number = box.run.quotient(byte), low = u32(reinterpret_cast<u64>(tile.from)), at = byte - number * box.run.by;
#pragma unroll
    for (int i = kSteps - 1; i > 0; --i) {
      if (i >= box.num_steps || i <= tiling.first) continue;
      const u32 rest = i == tiling.first + 1 ? 0 : box.step[i].count.quotient(number);
      const u32 index = number - rest * box.step[i].count.by;
      at += index * tiling.staged[i];
      if (!(tiling.merged >> i & 1)) low += index * u32(box.step[i].from);
      number = rest;
    }
    return at + low % kLine;
  }
  __device__ static __forceinline__ bool is_inside(int at, int unit, u32 width) {
    const int byte = at + unit * int(sizeof(Unit));
    return byte >= 0 && byte < int(width);
  }
  // The strand of a number, as if there were a thread for each. Units that are not of the row are read where others are.
  __device__ __noinline__ Strand strand(const Sizes& sizes, u32 number, u32 num_strands, u32 low) const {
    Strand made{0, 0, 0, {}};
    const u32 groups = num_strands / sizes.columns, group = number / sizes.columns, column = number - group * sizes.columns;
    const u32 first = sizes.period == 1 ? 0 : column / sizes.words;
    made.at = int((column - first * sizes.words) * sizeof(Word)) - int((low + first * sizes.row_step) % sizeof(Word));
    if (group >= groups || first >= tile.rows || made.at >= int(sizes.width)) return made;
    const u32 alike = (tile.rows - first + sizes.period - 1) / sizes.period, share = sizes.share(groups);
    const u32 begin = min(group * share, alike);
    made.row = first + begin * sizes.period;
    made.num = min(share, alike - begin);
    const u32 down = made.row * box.tiling.staged[box.tiling.first];
#pragma unroll
    for (int i = 0; i < kUnits; ++i)
      made.from[i] = place(u32(min(max(made.at + i * int(sizeof(Unit)), 0), int(sizes.width - sizeof(Unit))))) + down;
    return made;
  }
  __device__ __forceinline__ void read(const Strand& strand, u32 step, Word (&word)[kStrand]) const {
    const char* from[kUnits];
#pragma unroll
    for (int i = 0; i < kUnits; ++i) from[i] = buffer + strand.from[i];
#pragma unroll
    for (int k = 0; k < int(kStrand); ++k) {
      if (k % 4 == 0 && k >= int(strand.num)) break;  // others of the four are read again
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        reinterpret_cast<Unit*>(&word[k])[i] = *reinterpret_cast<const Unit*>(from[i]);
        if (k + 1 < int(strand.num)) from[i] += step;
      }
    }
  }
  template <bool kAligned>
  __device__ __forceinline__ void write(const Strand& strand, const Sizes& sizes, const Ranges& ranges, const Word (&word)[kStrand]) const {
    const bool is_whole = kAligned || strand.at >= 0 && strand.at + int(sizeof(Word)) <= int(sizes.width);
    char* row = buffer + strand.row * ranges.pitch + strand.at;
    u32 low = ranges.low + strand.row * ranges.odd_step;
#pragma unroll
    for (int k = 0; k < int(kStrand); ++k) {
      if (k >= int(strand.num)) break;
      char* const to = row + low % kBulkLine;
      if (is_whole) {
        *reinterpret_cast<Word*>(to) = word[k];
      } else {
#pragma unroll
        for (int i = 0; i < kUnits; ++i)
          if (is_inside(strand.at, i, sizes.width))
            *reinterpret_cast<Unit*>(to + i * sizeof(Unit)) = reinterpret_cast<const Unit*>(&word[k])[i];
      }
      row += ranges.pitch * sizes.period;
      low += ranges.odd_step * sizes.period;
    }
  }
  // sync() is passed by all threads that turn.
  template <class Sync>
  __device__ __forceinline__ void run(u32 thread, u32 num_threads, Sync sync) const {
    const Ranges ranges(box, tile);
    const u32 width = tile.columns * box.tiling.column_bytes;
    const Sizes sizes(width, box.tiling.whole ? width : ranges.odd_step, tile.rows);
    const bool aligned = (ranges.low | sizes.row_step | width) % sizeof(Word) == 0;
    if (aligned) turn<true>(thread, num_threads, ranges, sizes, sync);
    else turn_units(thread, num_threads, ranges, sizes, sync);
  }
  // Where words are not all whole.
  template <class Sync>
  __device__ __noinline__ void turn_units(u32 thread, u32 num_threads, const Ranges& ranges, const Sizes& sizes, Sync sync) const {
    turn<false>(thread, num_threads, ranges, sizes, sync);
  }
  template <bool kAligned, class Sync>
  __device__ __forceinline__ void turn(u32 thread, u32 num_threads, const Ranges& ranges, const Sizes& sizes, Sync sync) const {
    const u32 step = box.tiling.staged[box.tiling.first] * sizes.period;
    const Strand one = strand(sizes, thread, 2 * num_threads, ranges.low);
    const Strand other = strand(sizes, thread + num_threads, 2 * num_threads, ranges.low);
    Word of_one[kStrand], of_other[kStrand];
    read(one, step, of_one);
    read(other, step, of_other);
    sync();
    write<kAligned>(one, sizes, ranges, of_one);
    write<kAligned>(other, sizes, ranges, of_other);
  }
};

}  // namespace fuscoc
