// Boxes: many bytes that move at once, whose places at both ends are sums of strides.
//
// What is copied lies in contiguous ranges where it goes to. A range is written in lines, 16 bytes at a
// multiple of 16, so that whatever the units of a row are, the wire sees whole words; a line is put
// together from the runs that it is read from (`box_copy.cuh`). Nothing is looked up: a line's number says where it is.
#pragma once
#include "call.cuh"

namespace fuscoc {

constexpr int kLine = 16;
constexpr u32 kLongRun = 128;      // runs of so many bytes are read well one by one
constexpr u32 kItemLines = 512;    // lines that a warp takes at once, but fewer of small calls, so that more
constexpr u32 kFewItemLines = 256; // warps have some,
constexpr u32 kLongItemLines = 1024;  // and more where rows are carried, or by fewer CTAs than so many
constexpr int kFewForth = 24, kFewBack = 33;
constexpr i64 kSmallCall = 8 << 20;  // bytes

// Division of numbers below 2^31 by one that a call brings (Granlund and Montgomery, PLDI 1994).
struct Divisor {
  u32 by, factor, shift;
  __device__ static Divisor of(u32 by) {
    const u32 shift = by > 1 ? 32 - __clz(int(by - 1)) : 0;
    const u64 above = u64((1u << shift) - by) << 32;
    u64 factor = u64(double(above) / double(by));  // off by one at most, and faster than to divide integers
    factor -= factor * by > above;
    factor += above - factor * by >= by;
    return {by, u32(factor + 1), shift};
  }
  __device__ __forceinline__ u32 quotient(u32 n) const { return (__umulhi(n, factor) + n) >> shift; }
};

// So many steps, each so many bytes further at both ends.
struct Step {
  Divisor count;
  i64 from, to;
};

// How a box that turns short runs is cut into tiles; see `tile.cuh`.
template <int kSteps>
struct Tiling {
  u32 rows, columns;         // of a tile, steps `first` and the next one; 0: the box is copied in lines
  Divisor bands, chunks;     // tiles that make up all rows, and all columns
  int first;                 // the slowest step of a tile; all behind the next one are whole
  u32 whole;                 // rows of a tile are contiguous where they go,
  u32 straight;              // and it is read as it is written: nothing is turned
  u32 row_bytes, column_bytes;
  u32 segments, bytes;       // contiguous ranges that a tile is read in, and bytes of one,
  u32 alike;                 // which lie in shared memory as they do in the source modulo so many bytes
  u32 of_row, of_column;     // fewer where it has a row or a column less;
  u32 pitch, row_pitch;      // from segment to segment, and from row to row in shared memory
  u32 merged;                // steps within a segment, a bit each
  Divisor of_columns;        // columns of a tile
  u32 staged[kSteps + 1];    // bytes in shared memory from step to step
};

// A box of one field. Its cells, one after the other in `rank`, are alike; ranges of `range_bytes` are
// contiguous where they go, and read in runs. `step` has those from range to range, `num_outer`, and then
// those from run to run of a range, the slowest first.
template <int kSteps>
struct Box {
  static constexpr int num_all_steps = kSteps;
  i64 from, to;              // bytes to the first cell
  i64 cell_from, cell_to;    // and from cell to cell
  i64 range_bytes, run_bytes;
  Divisor range_lines, run, run_lines;
  u32 num_lines;             // of a cell
  u32 item_lines;            // that a warp takes at once,
  u32 num_items;             // and how often, 0: nothing to copy
  u32 flag;                  // of the first item of the first cell
  int num_cells, rank, rank_step;
  int num_outer, num_steps;
  Tiling<kSteps> tiling;
  Step step[kSteps + 1];
};
constexpr i64 kMostNumbers = i64(1) << 31;  // that a `Divisor` divides

// A loop over segments or over the runs of one: bytes in the source, in the target, and in memory that
// holds the results of a combine in the order of the source.
struct Loop {
  i64 count, src, dst, packed;
  __device__ __forceinline__ i64 at(int end) const { return end == 0 ? src : end == 1 ? dst : packed; }
};
enum End { kSource = 0, kTarget = 1, kPacked = 2 };

__device__ __forceinline__ i64 magnitude(i64 value) { return value < 0 ? -value : value; }

// The slowest loop first, as one end has them, those of one number left out. How many are left.
__device__ __noinline__ inline int sort_loops(Loop* loop, int num, End end) {
  int kept = 0;
  for (int i = 0; i < num; ++i) {
    if (loop[i].count == 1) continue;
    const Loop one = loop[i];
    int at = kept++;
    for (; at > 0 && magnitude(loop[at - 1].at(end)) < magnitude(one.at(end)); --at) loop[at] = loop[at - 1];
    loop[at] = one;
  }
  return kept;
}
// How many of them step from one contiguous range to the next; the others and runs of `bytes` make up one,
// and `bytes` is what it holds afterwards.
__device__ inline int count_outer(const Loop* loop, int num, End end, i64& bytes) {
  while (num > 0 && loop[num - 1].at(end) == bytes) bytes *= loop[--num].count;
  return num;
}
// The same number of bytes further on at both ends: one loop instead of two.
__device__ __forceinline__ bool merges(const Loop& slow, const Loop& fast, End from, End to) {
  return slow.at(from) == fast.at(from) * fast.count && slow.at(to) == fast.at(to) * fast.count;
}

// Makes the loops of a cell a box; false if it has too many bytes for the numbers of a kernel. Its steps are also
// steps of a third end, those in `third`.
template <int kUnit, int kSteps>
__device__ __noinline__ bool make_box(Box<kSteps>& box, const Loop* loop, int num, int num_outer, i64 range_bytes, i64 run_bytes,
                         End from, End to, u32 item_lines, End also, i64* third) {
  i64 ranges = 1;
  Loop kept[kSteps + 1];
  int made = 0;
  for (int i = 0; i < num; ++i) {
    if (i < num_outer) ranges *= loop[i].count;
    const bool same_kind = made > 0 && (i != num_outer);
    if (same_kind && merges(kept[made - 1], loop[i], from, to) && merges(kept[made - 1], loop[i], from, also)) {
      const i64 count = kept[made - 1].count * loop[i].count;
      kept[made - 1] = loop[i];
      kept[made - 1].count = count;
    } else {
      kept[made++] = loop[i];
    }
    if (i + 1 == num_outer) box.num_outer = made;
  }
  if (num_outer == 0) box.num_outer = 0;
  if (made > box.num_outer && kept[made - 1].at(from) == run_bytes && kept[made - 1].at(to) == run_bytes)
    run_bytes *= kept[--made].count;
  const i64 lines = kUnit == kLine ? range_bytes / kLine : (range_bytes + kLine - 1) / kLine + 1;
  if (range_bytes >= kMostNumbers || lines * ranges >= kMostNumbers) return false;
  box.range_bytes = range_bytes;
  box.run_bytes = run_bytes;
  box.range_lines = Divisor::of(u32(lines));
  box.run = Divisor::of(u32(run_bytes));
  box.run_lines = Divisor::of(u32(max(run_bytes / kLine, i64(1))));
  box.num_lines = u32(lines * ranges);
  box.item_lines = item_lines;
  box.num_items = (box.num_lines + item_lines - 1) / item_lines;
  box.tiling.rows = 0;
  box.num_steps = made;
  for (int i = 0; i < made; ++i) {
    box.step[i] = {Divisor::of(u32(kept[i].count)), kept[i].at(from), kept[i].at(to)};
    if (third) third[i] = kept[i].at(also);
  }
  return true;
}
template <int kUnit, int kSteps>
__device__ __forceinline__ bool make_box(Box<kSteps>& box, const Loop* loop, int num, int num_outer, i64 range_bytes,
                                         i64 run_bytes, End from, End to, u32 item_lines) {
  return make_box<kUnit>(box, loop, num, num_outer, range_bytes, run_bytes, from, to, item_lines, to, nullptr);
}

// Items of several boxes, in the order of the boxes: a CTA that has counted them finds the one with a
// number in shared memory.
struct Items {
  static constexpr u32 kGroups = 512, kFew = 8 * kWarp;
  u32 before[kGroups + 1];   // items of the boxes before a group of boxes, and of all
  alignas(16) u32 of_warp[kWarp];  // read in words of 16 bytes, none of which is to hold what others write
  u32 group, num_groups;     // boxes of a group, and how many there are

  // By all threads, with `__syncthreads` behind it; count(box) are the items of a box. Few are counted by one
  // warp, `who`, so that several lists are counted at once.
  template <class Count>
  __device__ void count_all(u32 num_boxes, Count count, u32 who = 0) {
    const u32 thread = threadIdx.x, lane = thread % kWarp;
    const u32 size = max((num_boxes + kGroups - 1) / kGroups, 1u);
    if (num_boxes <= kWarp) return count_lanes(num_boxes, count, who);
    for (u32 first = 0; first < kGroups; first += blockDim.x) {
      const u32 mine = first + thread;
      u32 sum = 0;
      for (u32 box = mine * size; mine < kGroups && box < min((mine + 1) * size, num_boxes); ++box) sum += count(box);
      const u32 total = sum_to_lane(sum);
      if (lane == kWarp - 1) of_warp[thread / kWarp] = total;
      __syncthreads();
      u32 base = first ? before[first] : 0;
      for (u32 warp = 0; warp < thread / kWarp; ++warp) base += of_warp[warp];
      if (mine < kGroups) before[mine + 1] = base + total;
      if (thread == 0 && first == 0) before[0] = 0, group = size, num_groups = kGroups;
      __syncthreads();
    }
  }
  // Of no more boxes than a warp has lanes.
  template <class Count>
  __device__ __forceinline__ void count_lanes(u32 num_boxes, Count count, u32 who) {
    const u32 lane = threadIdx.x % kWarp;
    if (threadIdx.x / kWarp != who) return;
    before[lane + 1] = sum_to_lane(lane < num_boxes ? count(lane) : 0u);
    if (lane == 0) before[0] = 0, group = 1, num_groups = kWarp;
  }
  // By a warp. There is memory of `most` boxes, a few, and of one: so they are looked up while their number comes, and two
  // of a lane at once.
  template <class Count>
  __device__ __forceinline__ void count_few(u32 num_boxes, u32 most, Count count) {
    constexpr u32 together = 2;
    const u32 lane = threadIdx.x % kWarp, of_lane = max((most + kWarp - 1) / kWarp, 1u), first = lane * of_lane;
    u32 sum = 0;
#pragma unroll 1
    for (u32 box = first; box < first + of_lane; box += together) {
      u32 items[together];
#pragma unroll
      for (u32 i = 0; i < together; ++i) items[i] = count(min(box + i, max(most, 1u) - 1));
#pragma unroll
      for (u32 i = 0; i < together; ++i) {
        if (box + i >= first + of_lane) continue;
        const u32 here = box + i < num_boxes ? items[i] : 0;
        before[box + i + 1] = here;
        sum += here;
      }
    }
    u32 end = sum_to_lane(sum) - sum;
#pragma unroll 1
    for (u32 box = first; box < first + of_lane; ++box) before[box + 1] = end += before[box + 1];
    if (lane == 0) before[0] = 0, group = 1, num_groups = of_lane * kWarp;
  }
  __device__ __forceinline__ u32 total() const { return before[num_groups]; }
  // By a warp: the box of an item of those that `count_lanes` has counted; the item becomes its number in that.
  __device__ __forceinline__ u32 find_lane(u32& item) const {
    const u32 box = u32(__popc(__ballot_sync(kAllLanes, before[threadIdx.x % kWarp] <= item))) - 1;
    item -= before[box];
    return box;
  }
  // By a warp: the box of an item; the item becomes its number in that. All lanes look at a place each.
  template <class Count>
  __device__ __forceinline__ u32 find(u32& item, Count count) const {
    const u32 lane = threadIdx.x % kWarp, apart = num_groups / kWarp;
    const auto last = [&](u32 place) { return u32(__popc(__ballot_sync(kAllLanes, before[place] <= item))) - 1; };
    u32 low = last(lane * apart) * apart;
    if (apart > 1) low += last(low + min(lane, apart - 1)) - (before[low + apart - 1] <= item ? kWarp - apart : 0);
    item -= before[low];
    u32 box = low * group;
    if (group == 1) return box;
    for (u32 here = count(box); item >= here; here = count(box)) item -= here, ++box;
    return box;
  }
};

// Items of two lists in turn, the second one's as evenly among the first one's as there are of each: so neither is left for the
// end, while what the other needs, a link or memory, has nothing to do. They are fewer than 2^30.
struct InTurn {
  u32 total, share;  // items of both; those of the second list, as a part of 2^32, 0 if there are no others

  __device__ __forceinline__ InTurn(u32 first, u32 second) : total(first + second), share(0) {
    // One or two more than a quotient, so that all of them come; faster than to divide integers.
    if (first) share = u32(double(second) * 4294967296.0 / double(total)) + 1;
  }
  // Whether item `number` is of the second list; it becomes its number in its list.
  __device__ __forceinline__ bool is_second(u32& number) const {
    if (share == 0) return true;
    const u32 before = __umulhi(number, share);
    const bool second = __umulhi(number + 1, share) != before;
    number = second ? before : number - before;
    return second;
  }
};

// A warp's own copy of the box that it works on.
template <class T>
__device__ __forceinline__ void keep_box(T& mine, const T& box, int lane) {
  constexpr int words = int(sizeof(T) / sizeof(u64)), rounds = (words + kWarp - 1) / kWarp;
  u64 word[rounds];  // all of which come at once
#pragma unroll
  for (int i = 0; i < rounds; ++i) word[i] = __ldcg(reinterpret_cast<const u64*>(&box) + min(lane + i * kWarp, words - 1));
  __syncwarp();
#pragma unroll
  for (int i = 0; i < rounds; ++i)
    if (lane + i * kWarp < words) reinterpret_cast<u64*>(&mine)[lane + i * kWarp] = word[i];
  __syncwarp();
}

}  // namespace fuscoc
