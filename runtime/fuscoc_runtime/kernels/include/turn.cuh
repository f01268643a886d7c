// Turns tiles: of every word where it goes, a thread puts the units together that lie apart where they are read.
#pragma once
#include "deal.cuh"

namespace fuscoc {

// Turns a tile: of every word where it goes, a thread puts the units together. Where rows are read from runs that follow
// each other, of `kRun` bytes, the rows of a thread are at constant distances, and words of many units are made for `kWide`
// rows at once.
template <int kUnit, u32 kRun, int kSteps, int kWide>
struct Turn {
  using Unit = typename UnitOf<kUnit == kLine ? 8 : kUnit>::type;
  using Word = typename UnitOf<kUnit == kLine || kUnit == 8 ? 8 : 4>::type;
  static constexpr u32 kWord = sizeof(Word);
  static constexpr int kUnits = int(sizeof(Word) / sizeof(Unit)), kRows = 4;  // rows under way
  static constexpr bool kPairs = kUnits == 2 && kRun % kWord != 0 && kRun >= kWord && kRun <= 64;  // as registers hold
  const Box<kSteps>& box;
  const Tile& tile;
  const Split& split;
  const u32 staged, turned;  // bytes from the beginning of the CTA's memory

  __device__ __forceinline__ void run(u32 thread, u32 num_threads, u64 key, Share& share) const {
    if (kPairs || !key || split.num > Share::kTurns * num_threads) return run(thread, num_threads);
    if (key != share.key) look(thread, num_threads, share), share.key = key;
    const u32 at = staged + (split.from & split.line), to = turned + split.low;
#pragma unroll
    for (int i = 0; i < Share::kTurns; ++i) {
      const Share::Word& mine = share.word[i];
      const u32 all[4] = {mine.from_to, mine.from_num, mine.others, mine.others >> 16};
      u32 from[kUnits];
#pragma unroll
      for (int k = 0; k < kUnits; ++k) from[k] = at + (all[k] & 0xFFFF);
      turn_runs<kRun>(from, to + (mine.from_to >> 16), int(mine.from_num >> 16), split.pitch);
    }
  }
  __device__ __forceinline__ void look(u32 thread, u32 num_threads, Share& share) const {
    const Split& all = split;
#pragma unroll
    for (int i = 0; i < Share::kTurns; ++i) {
      const u32 before = i * num_threads, num = all.num - all.full;
      const bool left = before == all.full;
      const u32 part = left && num ? thread / num : 0, column = before + thread - part * num;
      const u32 begin = part * all.of_part, end = left ? min(begin + all.of_part, all.rows) : all.rows;
      const u32 num_rows = before < all.num && part < all.parts && begin < end ? end - begin : 0;
      u32 from[4] = {};
#pragma unroll
      for (int k = 0; k < kUnits; ++k) {
        const u32 byte = column * kWord + k * u32(sizeof(Unit));
        from[k] = begin * kRun + byte + byte / kRun * (all.apart - kRun) & 0xFFFF;
      }
      share.word[i] = {from[0] | (begin * all.pitch + column * kWord) << 16, from[1] | num_rows << 16, from[2] | from[3] << 16};
    }
  }
  __device__ __forceinline__ void run(u32 thread, u32 num_threads) const {
    const Split& all = split;
    if constexpr (kPairs)
      if (all.runs == 1 && all.low % kWord == 0 && all.width % (2 * kRun) == 0) {
        turn_pairs(thread, num_threads);
        return;
      }
    for (u32 before = 0; before < all.num; before += num_threads) {
      const bool left = before == all.full;
      const u32 num = all.num - all.full, part = left ? thread / num : 0;
      if (part >= all.parts) break;
      u32 column = before + thread - part * num, first = 0;
#pragma unroll 1
      for (; column >= all.words; column -= all.words) ++first;
      const int at = int(column * kWord) - int((all.low + first * all.row_step) % kWord);
      const u32 begin = first + part * all.of_part * all.period, end = left ? min(begin + all.of_part * all.period, all.rows) : all.rows;
      if (at >= int(all.width) || begin >= end) continue;
      if (!all.runs || at < 0 || at + kWord > all.width) {
        turn_others(box, tile, split, staged, turned, at, begin, end);
        continue;
      }
      u32 from[kUnits];
#pragma unroll
      for (int k = 0; k < kUnits; ++k) {
        const u32 byte = u32(at) + k * u32(sizeof(Unit)), number = byte / kRun;
        from[k] = staged + begin * kRun + byte + number * (all.apart - kRun) + (all.from + number * all.from_step & all.line);
      }
      const u32 to = turned + all.low + begin * all.pitch + u32(at);
      if (all.runs == 1) turn_runs<kRun>(from, to, int(end - begin), all.pitch);
      else turn_runs<2 * kRun>(from, to, int(end - begin + 1) / 2, 2 * all.pitch);
    }
  }
  // Runs of whole words and half a one: two that follow each other are whole words where they go. A thread loads the whole words
  // of both and the halves that are left, and shifts those that lie half a word apart.
  __device__ __forceinline__ void turn_pairs(u32 thread, u32 num_threads) const {
    constexpr int num_words = kRun / kWord;
    const Split& all = split;
    const u32 num = all.width / (2 * kRun) * all.rows;
#pragma unroll 1
    for (u32 i = thread; i < num; i += num_threads) {
      const u32 pair = small_quotient(i, all.rows), row = i - pair * all.rows;
      u32 word[2][num_words + 1], half[2], odd[2];  // bytes in front of the first whole word: 0 or 2
#pragma unroll
      for (u32 k = 0; k < 2; ++k) {
        const u32 number = 2 * pair + k;
        const u32 at = staged + row * kRun + number * all.apart + (all.from + number * all.from_step & all.line);
        odd[k] = at % kWord;
#pragma unroll
        for (int j = 0; j < num_words; ++j) word[k][j] = *reinterpret_cast<const u32*>(cta_memory() + at + odd[k] + j * kWord);
        half[k] = *reinterpret_cast<const Unit*>(cta_memory() + at + (odd[k] ? 0 : num_words * kWord));
      }
      u32* const to = reinterpret_cast<u32*>(cta_memory() + turned + all.low + row * all.pitch + 2 * pair * kRun);
      u32 before = half[0] << 16;
#pragma unroll
      for (int j = 0; j < num_words; before = word[0][j++]) to[j] = __funnelshift_l(before, word[0][j], 8 * odd[0]);
      to[num_words] = (odd[0] ? before >> 16 : half[0]) | (odd[1] ? half[1] : word[1][0]) << 16;
      word[1][num_words] = half[1];
#pragma unroll
      for (int j = 0; j < num_words; ++j) to[num_words + 1 + j] = __funnelshift_r(word[1][j], word[1][j + 1], 16 - 8 * odd[1]);
    }
  }
  // A word of a row, its units so far behind those of another row.
  __device__ __forceinline__ static Word read(const u32 (&places)[kUnits], u32 further) {
    const char* from[kUnits];
#pragma unroll
    for (int i = 0; i < kUnits; ++i) from[i] = cta_memory() + places[i];
    return read(from, further);
  }
  __device__ __forceinline__ static Word read(const char* const (&from)[kUnits], u32 further) {
    if constexpr (kUnits == 1) {
      return *reinterpret_cast<const Word*>(from[0] + further);
    } else {
      Word word = 0;
#pragma unroll
      for (int i = 0; i < kUnits; ++i) word |= Word(*reinterpret_cast<const Unit*>(from[i] + further)) << 8 * sizeof(Unit) * i;
      return word;
    }
  }
  // Some rows at once, of which there are `num` if not all.
  template <u32 kStep, int kNum, bool kAll>
  __device__ __forceinline__ static void turn_some(const char* const (&from)[kUnits], char* to, int num, u32 pitch) {
    Word word[kNum];
#pragma unroll
    for (int j = 0; j < kNum; ++j)
      if (kAll || j < num) word[j] = read(from, j * kStep);
#pragma unroll
    for (int j = 0; j < kNum; ++j, to += pitch)
      if (kAll || j < num) *reinterpret_cast<Word*>(to) = word[j];
  }
  // So many rows that follow each other at both ends, most of them in groups without conditions.
  template <u32 kStep>
  __device__ __forceinline__ static void turn_runs(const u32 (&places)[kUnits], u32 place, int num, u32 pitch) {
    constexpr int most = kUnits > 2 ? kWide : kRows;
    const char* from[kUnits];
#pragma unroll
    for (int i = 0; i < kUnits; ++i) from[i] = cta_memory() + places[i];
    char* to = cta_memory() + place;
#pragma unroll 1
    for (; num >= most; num -= most, to += most * pitch) {
      turn_some<kStep, most, true>(from, to, num, pitch);
#pragma unroll
      for (int i = 0; i < kUnits; ++i) from[i] += most * kStep;
    }
    if (most > kRows && num >= kRows) {
      turn_some<kStep, kRows, true>(from, to, num, pitch);
#pragma unroll
      for (int i = 0; i < kUnits; ++i) from[i] += kRows * kStep;
      to += kRows * pitch;
      num -= kRows;
    }
    turn_some<kStep, kRows - 1, false>(from, to, num, pitch);
  }

  // Where a byte of the first row is staged.
  __device__ static __noinline__ u32 place(const Box<kSteps>& box, const Split& split, u32 byte) {
    const Tiling<kSteps>& tiling = box.tiling;
    u32 number = box.run.quotient(byte), low = split.from, at = byte - number * box.run.by;
    for (int i = box.num_steps - 1; i > tiling.first; --i) {
      const u32 rest = i == tiling.first + 1 ? 0 : box.step[i].count.quotient(number);
      const u32 index = number - rest * box.step[i].count.by;
      at += index * tiling.staged[i];
      if (!(tiling.merged >> i & 1)) low += index * u32(box.step[i].from);
      number = rest;
    }
    return at + (low & split.line);
  }
  // Where the units of a word are. If each is a run, inside few steps, one is found from the one before, as an odometer counts.
  __device__ static __forceinline__ void places(const Box<kSteps>& box, const Split& split, u32 byte, u32 (&found)[kUnits]) {
    constexpr int most = 3;
    const Tiling<kSteps>& tiling = box.tiling;
    const int last = box.num_steps - 1, num = last - tiling.first;
    if (kUnits == 1 || box.run.by != sizeof(Unit) || num > most) {
#pragma unroll
      for (int i = 0; i < kUnits; ++i) found[i] = place(box, split, byte + i * u32(sizeof(Unit)));
      return;
    }
    u32 index[most], count[most], staged[most], from[most], number = byte / u32(sizeof(Unit)), at = 0, low = split.from;
#pragma unroll
    for (int k = 0; k < most; ++k) {
      index[k] = staged[k] = from[k] = 0;
      count[k] = ~0u;  // of the slowest step, whose columns a tile has some of
      if (k >= num) continue;
      const Step& step = box.step[last - k];
      const u32 rest = k + 1 < num ? step.count.quotient(number) : 0;
      if (k + 1 < num) count[k] = step.count.by;
      index[k] = number - rest * step.count.by;
      staged[k] = tiling.staged[last - k];
      from[k] = tiling.merged >> (last - k) & 1 ? 0 : u32(step.from);
      at += index[k] * staged[k];
      low += index[k] * from[k];
      number = rest;
    }
    found[0] = at + (low & split.line);
#pragma unroll
    for (int i = 1; i < kUnits; ++i) {
      bool carried = true;
#pragma unroll
      for (int k = 0; k < most; ++k) {
        if (!carried) continue;
        carried = ++index[k] == count[k];
        at += staged[k] - (carried ? count[k] * staged[k] : 0);
        low += from[k] - (carried ? count[k] * from[k] : 0);
        if (carried) index[k] = 0;
      }
      found[i] = at + (low & split.line);
    }
  }
  // Rows of whatever boxes, and words that are not whole. Without an object, which would lie in local memory: little of
  // that is in L1, whose place tiles have.
  __device__ static __noinline__ void turn_others(const Box<kSteps>& box, const Tile& tile, const Split& split, u32 staged, u32 turned, int at,
                                                  u32 begin, u32 end) {
    const Ranges ranges(box, tile);
    const u32 width = split.width, period = split.period, row_step = box.tiling.staged[box.tiling.first];
    if (at >= 0 && at + kWord <= width) {
      u32 from[kUnits];
      places(box, split, u32(at), from);
      // Rows that lie alike, and columns of each.
      const u32 fold = split.fold;
      u32 row = fold > 1 ? small_quotient(begin, fold) : begin, column = fold > 1 ? begin - row * fold : 0;
#pragma unroll 1
      for (; begin < end; begin += kRows * period) {
        Word word[kRows];
        u32 here = row, inside = column;
#pragma unroll
        for (int j = 0; j < kRows; ++j) {
          if (begin + j * period < end) word[j] = read(from, staged + here * row_step + inside * split.fold_step);
          if (++inside == fold) inside = 0, here += period;
        }
#pragma unroll
        for (int j = 0; j < kRows; ++j) {
          if (begin + j * period < end)
            *reinterpret_cast<Word*>(cta_memory() + turned + ranges.place(row) + column * width + at) = word[j];
          if (++column == fold) column = 0, row += period;
        }
      }
      return;
    }
    const u32 step = row_step * period, first = staged + begin * row_step;
    for (int byte = max(at, 0); byte < min(at + int(kWord), int(width)); byte += sizeof(Unit)) {
      const char* from = cta_memory() + first + place(box, split, u32(byte));
      for (u32 row = begin; row < end; row += period, from += step)
        *reinterpret_cast<Unit*>(cta_memory() + turned + ranges.place(row) + byte) = *reinterpret_cast<const Unit*>(from);
    }
  }
};

}  // namespace fuscoc
