// The copy of a box: a warp's lines, put together from runs and stored whole.
#pragma once
#include "boxes.cuh"

namespace fuscoc {

constexpr int kLinesInFlight = 8;  // of a lane,
constexpr int kLinesTogether = 4;  // so many of which are stored before the next ones are brought

// How memory is read: as earlier kernels have left it, or past caches, as peers write it now; or not at
// all, since what should be there has not come.
enum Reading { kSettled, kFresh, kLost };

template <class T, Reading kHow>
__device__ __forceinline__ T read(const char* at) {
  if constexpr (kHow == kFresh) return __ldcg(reinterpret_cast<const T*>(at));
  else return *reinterpret_cast<const T*>(at);
}

// Where runs are, of those that a warp looks at together: computed once, and looked up by every lane.
struct Places {
  static constexpr int kPairs = 36, kReads = 2 * kPairs;
  struct Pair {
    const char* from;
    char* to;
  };
  union {
    Pair pair[kPairs];
    const char* from[kReads];
  };
};

struct Nothing {
  __device__ __forceinline__ void operator()() const {}
};
struct Ready {
  __device__ __forceinline__ bool operator()() const { return true; }
};

// Copies lines of a box, whose ends for a cell are `from` and `to`: its warp the next ones together. All runs are known to
// be whole multiples of `kRun` bytes. If `kRoomy`, the kernel has registers for all units at the end of a range at once.
template <int kUnit, Reading kHow, int kSteps, i64 kRun = kUnit, bool kRoomy = false>
struct BoxCopy {
  const Box<kSteps>& box;
  const char* const from;
  char* const to;
  Places& places;   // of this warp

  // Goes so many of the steps [first, end) further, the last one being the fastest.
  template <class Move>
  __device__ __forceinline__ void walk(u32 number, int first, int end, Move move) const {
#pragma unroll
    for (int i = kSteps - 1; i >= 0; --i) {
      if (i >= end || i < first) continue;
      const Step& step = box.step[i];
      const u32 rest = step.count.quotient(number);
      move(i64(number - rest * step.count.by), step);
      number = rest;
    }
  }
  __device__ __forceinline__ Places::Pair pair(u32 run) const {
    Places::Pair at{from, to};
    walk(run, 0, box.num_steps, [&](i64 index, const Step& step) {
      at.from += index * step.from;
      at.to += index * step.to;
    });
    return at;
  }

  // Whole words at both ends. A range is a whole number of runs, which all are one after the other.
  template <class Meanwhile, class There>
  __device__ __forceinline__ void copy_words(u32 first, u32 end, int lane, Meanwhile meanwhile, There there) const {
    constexpr u32 known = u32(kRun / kLine & -(kRun / kLine));  // lines that all runs are whole parts of
    const u32 least = known >= 8 ? known : box.run_lines.by;
    // What comes back is rather looked up while lines come: its items are shorter than 32 parts of most runs.
    if constexpr (kHow == kSettled) {
      const u32 part = least & -least;
      if (part >= 32) return copy_parts<32>(first, end, lane, meanwhile);
      if (part >= 16) return copy_parts<16>(first, end, lane, meanwhile);
      if (part >= 8) return copy_parts<8>(first, end, lane, meanwhile);
    }
    if (least >= 16) copy_runs<kLinesInFlight>(first, end, lane, meanwhile, there);
    else if (least >= 8) copy_runs<kLinesInFlight / 2>(first, end, lane, meanwhile, there);
    else if (there()) copy_short_runs(first, end, lane, meanwhile);
  }
  __device__ static __forceinline__ uint4 read_word(const char* at) {
    if constexpr (kHow == kLost) return {~0u, ~0u, ~0u, ~0u};
    else return __ldcg(reinterpret_cast<const uint4*>(at));  // read once: it need not stay in L1
  }
  // Runs that are whole parts of so many lines: places of 32 parts are computed at once, one a lane, and to a lane nothing
  // is left but to add the same number of bytes to each. While some lines are stored, others come.
  template <int kPart, class Meanwhile>
  __device__ __forceinline__ void copy_parts(u32 first, u32 end, int lane, Meanwhile meanwhile) const {
    constexpr int kParts = kWarp / kPart;  // of a row of lines, one a lane
    const u32 inside = (lane % kPart) * kLine;
    for (u32 begin = first; begin < end; begin += kWarp * kPart) {
      __syncwarp();
      const u32 line = begin + lane * kPart, number = box.run_lines.quotient(line), before = line - number * box.run_lines.by;
      if (line < end) {
        const Places::Pair run = pair(number);
        places.pair[lane] = {run.from + before * kLine, run.to + before * kLine};
      }
      __syncwarp();
      const Places::Pair* const at = places.pair + lane / kPart;
      const int left = int(min(begin + kWarp * kPart, end) - begin) - lane;
      uint4 value[kLinesInFlight];
      const auto load = [&](int row) {
        if (row < kPart && row * kWarp < left) value[row % kLinesInFlight] = read_word(at[row * kParts].from + inside);
      };
      const auto store = [&](int row) {
        if (row * kWarp < left) *reinterpret_cast<uint4*>(at[row * kParts].to + inside) = value[row % kLinesInFlight];
      };
#pragma unroll
      for (int row = 0; row < kLinesInFlight; ++row) load(row);
      if (begin == first) meanwhile();
#pragma unroll
      for (int row = 0; row < kPart; row += kLinesTogether) {
#pragma unroll
        for (int i = row; i < row + kLinesTogether; ++i) store(i);
#pragma unroll
        for (int i = row; i < row + kLinesTogether; ++i) load(i + kLinesInFlight);
      }
    }
  }
  // A lane has kLines in flight, and while they come, places of the next ones are computed.
  template <int kLines, class Meanwhile, class There>
  __device__ __forceinline__ void copy_runs(u32 first, u32 end, int lane, Meanwhile meanwhile, There there) const {
    const u32 last = end - 1;
    Places::Pair* here = places.pair;
    Places::Pair* next = here + Places::kPairs / 2;
    const auto look_up = [&](Places::Pair* into, u32 begin) {
      const u32 lowest = box.run_lines.quotient(begin);
      const u32 highest = box.run_lines.quotient(min(begin + kWarp * kLines - 1, last));
      if (lowest + lane <= highest) into[lane] = pair(lowest + lane);
      return lowest;
    };
    __syncwarp();
    u32 lowest = look_up(here, first);
    if (!there()) return;
    for (u32 begin = first; begin < end; begin += kWarp * kLines) {
      __syncwarp();
      uint4 value[kLines];
#pragma unroll
      for (int i = 0; i < kLines; ++i) {
        const u32 line = min(begin + i * kWarp + lane, last), run = box.run_lines.quotient(line);
        value[i] = read_word(here[run - lowest].from + (line - run * box.run_lines.by) * kLine);
      }
      if (begin == first) meanwhile();
      const u32 before = lowest;
      if (begin + kWarp * kLines < end) lowest = look_up(next, begin + kWarp * kLines);
#pragma unroll
      for (int i = 0; i < kLines; ++i) {
        const u32 line = begin + i * kWarp + lane, run = box.run_lines.quotient(line);
        if (line < end)
          *reinterpret_cast<uint4*>(here[run - before].to + (line - run * box.run_lines.by) * kLine) = value[i];
      }
      Places::Pair* const looked_up = next;
      next = here;
      here = looked_up;
    }
  }
  // Of few lines: their places are looked up if those of the lines that are under way fit into memory, else each by itself.
  template <class Meanwhile>
  __device__ __forceinline__ void copy_short_runs(u32 first, u32 end, int lane, Meanwhile meanwhile) const {
    constexpr u32 lines = kLinesInFlight / 2, batch = lines * kWarp;
    meanwhile();
    const bool looks_up = batch / box.run_lines.by + 2 <= u32(Places::kPairs);
    for (u32 begin = first; begin < end; begin += batch) {
      const u32 last = min(begin + batch, end) - 1, lowest = box.run_lines.quotient(begin);
      if (looks_up) {
        const u32 highest = box.run_lines.quotient(last);
        __syncwarp();
        for (u32 run = lowest + lane; run <= highest; run += kWarp) places.pair[run - lowest] = pair(run);
        __syncwarp();
      }
      uint4 value[lines];
      char* at[lines];
#pragma unroll
      for (int i = 0; i < int(lines); ++i) {
        const u32 line = min(begin + i * kWarp + lane, last);
        const u32 run = box.run_lines.quotient(line), inside = (line - run * box.run_lines.by) * kLine;
        const Places::Pair here = looks_up ? places.pair[run - lowest] : pair(run);
        at[i] = here.to + inside;
        value[i] = read_word(here.from + inside);
      }
#pragma unroll
      for (int i = 0; i < int(lines); ++i)
        if (begin + i * kWarp + lane <= last) *reinterpret_cast<uint4*>(at[i]) = value[i];
    }
  }

  using Unit = typename UnitOf<kUnit == kLine ? 8 : kUnit>::type;
  // Where runs of a range are read: looked up, or computed.
  struct Range {
    const char* from;
    u32 lowest;       // run that is looked up, and the end of them
    u32 end;
  };
  __device__ __forceinline__ const char* run(const Range& range, u32 number) const {
    if (number - range.lowest < range.end - range.lowest) return places.from[number - range.lowest];
    const char* at = range.from;
    walk(number, box.num_outer, box.num_steps, [&](i64 index, const Step& step) { at += index * step.from; });
    return at;
  }
  // The runs of a range one after the other: steps of the two fastest loops are counted, where a run by itself is
  // divided for.
  struct Runs {
    const char* at;
    u32 number, left, left_of_next;  // steps that each of them has left,
    u32 count, count_of_next;        // of so many
    i64 step, step_of_next;          // bytes

    __device__ __forceinline__ Runs(const BoxCopy& copy, u32 first, const char* begin) : at(begin), number(first) {
      const int last = copy.box.num_steps - 1, inside = copy.box.num_steps - copy.box.num_outer;
      left = left_of_next = count = count_of_next = 1;
      step = step_of_next = 0;
      if (inside < 1) return;
      const Step& fast = copy.box.step[last];
      const u32 before = fast.count.quotient(first);
      count = fast.count.by;
      left = count - (first - before * count);
      step = fast.from;
      if (inside < 2) return;
      const Step& next = copy.box.step[last - 1];
      count_of_next = next.count.by;
      left_of_next = count_of_next - (before - next.count.quotient(before) * count_of_next);
      step_of_next = next.from - (count - 1) * step;
    }
    __device__ __forceinline__ void go_on(const BoxCopy& copy, const Range& range) {
      ++number;
      if (--left > 0) {
        at += step;
        return;
      }
      left = count;
      if (--left_of_next > 0) {
        at += step_of_next;
      } else {
        left_of_next = count_of_next;
        at = copy.run(range, number);
      }
    }
  };
  // 16 bytes that one run has, in the widest words that they lie at a multiple of.
  template <class T>
  __device__ static __forceinline__ uint4 read_whole(const char* at) {
    uint4 line;
    T* const words = reinterpret_cast<T*>(&line);
#pragma unroll
    for (int i = 0; i < int(kLine / sizeof(T)); ++i) words[i] = read<T, kHow>(at + i * sizeof(T));
    return line;
  }
  // A line from byte `byte` of a range on.
  __device__ __forceinline__ uint4 read_line(const Range& range, u32 byte) const {
    const u32 number = box.run.quotient(byte);
    u32 inside = byte - number * box.run.by;
    const char* const at = run(range, number) + inside;
    const u32 left = box.run.by - inside;
    // Of short runs a warp has lines that lie in every way, and would go every way, one after the other.
    if (left >= kLine && box.run.by >= kLongRun) {
      const u32 odd = u32(reinterpret_cast<u64>(at)) % kLine;
      if (odd == 0) return read<uint4, kHow>(at);
      if (odd % 8 == 0) return read_whole<uint2>(at);
      if (odd % 4 == 0) return read_whole<u32>(at);
      return read_whole<Unit>(at);
    }
    uint4 line;
    Unit* const units = reinterpret_cast<Unit*>(&line);
    if (box.run.by >= kLine) {  // it may end in the next run
      const char* const next = left < kLine ? run(range, number + 1) - left : at;
#pragma unroll
      for (int i = 0; i < int(kLine / sizeof(Unit)); ++i)
        units[i] = read<Unit, kHow>((i * int(sizeof(Unit)) < int(left) ? at : next) + i * sizeof(Unit));
      return line;
    }
    Runs runs(*this, number, at - inside);
#pragma unroll
    for (int i = 0; i < int(kLine / sizeof(Unit)); ++i) {
      if (inside == box.run.by) runs.go_on(*this, range), inside = 0;
      units[i] = read<Unit, kHow>(runs.at + inside);
      inside += sizeof(Unit);
    }
    return line;
  }
  // The ends of a range.
  __device__ __forceinline__ void copy_units(const Range& range, char* at, u32 byte, u32 end) const {
    u32 number = box.run.quotient(byte), inside = byte - number * box.run.by;
    const char* begin = kHow == kLost ? nullptr : run(range, number);
    if (kRoomy && kHow != kLost && box.run.by >= kLine) {  // in two runs at most
      const int left = int(box.run.by - inside), num = int(end - byte);
      const char* const here = begin + inside;
      const char* const next = left < num ? run(range, number + 1) - left : here;
      Unit units[kLine / sizeof(Unit)];
#pragma unroll
      for (int i = 0; i < int(kLine / sizeof(Unit)); ++i) {
        const int further = i * int(sizeof(Unit));
        if (further < num) units[i] = read<Unit, kHow>((further < left ? here : next) + further);
      }
#pragma unroll
      for (int i = 0; i < int(kLine / sizeof(Unit)); ++i)
        if (i * int(sizeof(Unit)) < num) *reinterpret_cast<Unit*>(at + i * sizeof(Unit)) = units[i];
      return;
    }
    for (; byte < end; byte += sizeof(Unit), at += sizeof(Unit), inside += sizeof(Unit)) {
      if constexpr (kHow == kLost) {
        poison(at, sizeof(Unit), 0, 1);
      } else {
        if (inside == box.run.by) begin = run(range, ++number), inside = 0;
        *reinterpret_cast<Unit*>(at) = read<Unit, kHow>(begin + inside);
      }
    }
  }
  // Words at a multiple of 16 where they go, from whatever units.
  __device__ __forceinline__ void copy_lines(u32 first, u32 end, int lane) const {
    constexpr u32 batch = kWarp * kLinesInFlight / 2;
    for (u32 begin = first; begin < end; begin += batch) {
      const u32 last = min(begin + batch, end) - 1, number = box.range_lines.quotient(begin);
      const bool one = box.range_lines.quotient(last) == number;  // range has all of them
      Range range{from, 0, 0};
      u32 odd = 0;
      char* range_to = to;
      const auto enter = [&](u32 which) {
        range.from = from;
        range_to = to;
        walk(which, 0, box.num_outer, [&](i64 index, const Step& step) {
          range.from += index * step.from;
          range_to += index * step.to;
        });
        odd = u32(reinterpret_cast<u64>(range_to)) % kLine;
      };
      if (one) {
        enter(number);
        const u32 place = begin - number * box.range_lines.by, bytes = u32(box.range_bytes);
        const u32 low = place * kLine > odd ? place * kLine - odd : 0;
        const u32 high = min((last - number * box.range_lines.by + 1) * kLine - odd, bytes);
        if (low < high) {
          const u32 lowest = box.run.quotient(low), end_run = box.run.quotient(high - 1) + 1;
          if (end_run - lowest <= Places::kReads) {
            __syncwarp();
            for (u32 i = lowest + lane; i < end_run; i += kWarp) places.from[i - lowest] = run(range, i);
            __syncwarp();
            range.lowest = lowest;
            range.end = end_run;
          }
        }
      }
#pragma unroll 2
      for (u32 line = begin + lane; line <= last; line += kWarp) {
        const u32 which = one ? number : box.range_lines.quotient(line);
        if (!one) enter(which);
        copy_line(range, range_to, i64(line - which * box.range_lines.by) * kLine - odd);
      }
    }
  }
  // The bytes of a range in a line that begins at its byte `at`.
  __device__ __forceinline__ void copy_line(const Range& range, char* range_to, i64 at) const {
    const i64 high = box.range_bytes;
    if (at >= 0 && at + kLine <= high) {
      uint4 value = {~0u, ~0u, ~0u, ~0u};
      if constexpr (kHow != kLost) value = read_line(range, u32(at));
      *reinterpret_cast<uint4*>(range_to + at) = value;
    } else {
      const i64 low = max(at, i64(0));
      copy_units(range, range_to + low, u32(low), u32(max(min(at + kLine, high), low)));
    }
  }

  // meanwhile() is run once, while the first lines come where that is easy. What is read is there when there() returns true,
  // which is asked as late as is easy; otherwise nothing is copied.
  template <class Meanwhile, class There = Ready>
  __device__ __forceinline__ void item(u32 number, int lane, Meanwhile meanwhile, There there = {}) const {
    const u32 first = number * box.item_lines;
    copy(first, min(first + box.item_lines, box.num_lines), lane, meanwhile, there);
  }
  template <class Meanwhile = Nothing, class There = Ready>
  __device__ __forceinline__ void copy(u32 first, u32 end, int lane, Meanwhile meanwhile = {}, There there = {}) const {
    if constexpr (kUnit == kLine) {
      copy_words(first, end, lane, meanwhile, there);
    } else if (there()) {
      meanwhile();
      copy_lines(first, end, lane);
    }
  }
};

}  // namespace fuscoc
