// How a warp carries items of runs through shared memory: it brings the next ones by bulk copies while those
// before leave by others. So what is under way needs no registers, and few warps move what NVLink takes.
//
// What is stored lies in shared memory as in the target modulo 128: others are cut up.
#pragma once
#include "box_copy.cuh"
#include "gate.cuh"

namespace fuscoc {

constexpr u32 kCarried = 3;          // buffers of a warp,
constexpr u32 kCarriedLines = 512;   // and lines that fit into one, wherever they lie modulo 128 bytes
constexpr u32 kCarriedBytes = kCarriedLines * kLine + kBulkLine;
constexpr u32 kUnderWay = 8 << 20;   // bytes of all CTAs: what queues up beyond that drains unevenly in the end,
constexpr u32 kUnderWayBack = 6 << 20;  // the same where others copy what arrives meanwhile
constexpr u32 kLate = 3;             // buffers that may still be on their way when those before are flagged,
constexpr u32 kFlags = 8;            // and flags that are known: two buffers more may be brought

// Whether runs of all fields are long enough, and begin and end with lines of bulk copies, which the GPU has; and the
// warps of a CTA that have buffers.
template <class Shape>
constexpr bool kCarries = kBulkCopies && (Shape::carried_bytes > 0);
template <class Shape>
constexpr int kCarriers = kCarries<Shape> ? Shape::carried_bytes / int(kCarried * kCarriedBytes) : 1;
template <class Shape>
__device__ constexpr i64 least_run() {
  i64 least = Shape::run_bytes(0);
  for (int field = 1; field < Shape::num_fields; ++field) least = Shape::run_bytes(field) < least ? Shape::run_bytes(field) : least;
  return least;
}
// Fewer on the way back, where the other warps copy what arrives, and L1 is what buffers leave of an SM's memory.
template <class Shape>
constexpr int kCarriersBack = kCarriers<Shape> < 5 ? kCarriers<Shape> : 5;
constexpr u32 kStoredLines = 128;  // shorter runs are stored together
// Warps that carry, of those that have buffers.
__device__ __forceinline__ int num_carriers(int most, u32 under_way = kUnderWay) {
  const u32 bytes = gridDim.x * kCarried * kCarriedLines * kLine;
  return min(int((under_way + bytes - 1) / bytes), most);
}

struct CarrierWords {
  u64* flag[kFlags];
  Gate gate[kCarried];
};

// A lane brings and stores one run of a buffer, so there may be no more: ``kRun`` is the least bytes of one. Runs are
// stored together if they are short.
template <int kSteps, i64 kRun>
struct Carrier {
  static_assert(kRun * kWarp >= i64(kCarriedLines) * kLine);
  static constexpr bool kTogether = kRun < kStoredLines * kLine;
  // What a lane stores of a buffer: bytes of one range.
  struct Part {
    char* to;
    u32 at, bytes;  // in the buffer; 0: nothing
  };
  CarrierWords& words;
  char* const memory;  // of this warp
  const int lane;
  const u64 keep;      // L2 policy
  u32 brought, stored;
  Part next, latest;   // of the buffers that have been brought and not stored, two at most
  bool flags;

  __device__ __forceinline__ Carrier(CarrierWords& words, unsigned char* memory, int warp)
      : words(words), memory(reinterpret_cast<char*>(memory) + warp * kCarried * kCarriedBytes),
        lane(int(threadIdx.x) % kWarp), keep(evict_normal_policy()), brought(0), stored(0), next{}, latest{}, flags(false) {}
  // Once, before all else.
  __device__ __forceinline__ void open() const {
    if (lane == 0) {
      for (u32 i = 0; i < kCarried; ++i) open_gate(&words.gate[i], 1);
      gates_open();
    }
    __syncwarp();
  }

  // An item of a box. Its flag, if any, is handed to signal(flag), by all lanes, some time after it has arrived.
  template <class Signal>
  __device__ __forceinline__ void carry(const Box<kSteps>& box, const char* from, char* to, u32 item, u64* flag, Signal signal) {
    flags = flags || flag != nullptr;
    const u32 begin = item * box.item_lines, end = min(begin + box.item_lines, box.num_lines);
#pragma unroll 1
    for (u32 first = begin; first < end; first += kCarriedLines) {
      if (brought - stored == kCarried - 1) store(signal);
      const u32 last = min(first + kCarriedLines, end);
      bring(box, from, to, first, last, last == end ? flag : nullptr);
    }
  }
  // All has arrived, and its flags are handed over.
  template <class Signal>
  __device__ __forceinline__ void finish(Signal signal) {
    while (stored < brought) store(signal);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    bulk_arrived();
#endif
    for (u32 i = stored - min(stored, kLate); i < stored; ++i) hand_over(i, signal);
  }

 private:
  template <class Signal>
  __device__ __forceinline__ void hand_over(u32 number, Signal signal) {
    __syncwarp();
    if (u64* const flag = words.flag[number % kFlags]) signal(flag);
  }
  template <class Move>
  __device__ __forceinline__ static void walk(const Box<kSteps>& box, u32 number, int end, Move move) {
#pragma unroll
    for (int i = kSteps - 1; i >= 0; --i) {
      if (i >= end) continue;
      const Step& step = box.step[i];
      const u32 before = step.count.quotient(number);
      move(i64(number - before * step.count.by), step);
      number = before;
    }
  }
  // What this lane stores of short runs: so many lines that are contiguous where they go.
  __device__ __forceinline__ static Part together(const Box<kSteps>& box, char* to, u32 first, u32 end, u32 low) {
    const bool even = box.range_lines.by % kStoredLines == 0;
    const u32 by = even ? kStoredLines : box.range_lines.by, lane = threadIdx.x % kWarp;
    const u32 number = (even ? first / kStoredLines : box.range_lines.quotient(first)) + lane;
    const u32 begin = max(number * by, first), last = min((number + 1) * by, end);
    if (begin >= last) return {nullptr, 0, 0};
    const u32 range = box.range_lines.quotient(begin);
    walk(box, range, box.num_outer, [&](i64 index, const Step& step) { to += index * step.to; });
    return {to + (begin - range * box.range_lines.by) * kLine, low + (begin - first) * kLine, (last - begin) * kLine};
  }
  __device__ __forceinline__ void bring(const Box<kSteps>& box, const char* from, char* to, u32 first, u32 end, u64* flag) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const u32 buffer = brought % kCarried;
    bulk_read_but_latest();  // the buffer is free
    __syncwarp();
    Gate* const gate = &words.gate[buffer];
    if (lane == 0) arrive_with(gate, (end - first) * kLine), words.flag[brought % kFlags] = flag;
    __syncwarp();
    // All runs and ranges begin a multiple of a line of bulk copies behind `to`.
    const u32 low = u32(reinterpret_cast<u64>(to)) % kBulkLine, by = box.run_lines.by;
    const u32 run = box.run_lines.quotient(first) + lane, begin = max(run * by, first), last = min((run + 1) * by, end);
    Part part{to, low + (begin - first) * kLine, begin < last ? (last - begin) * kLine : 0};
    if (part.bytes) {
      walk(box, run, box.num_steps, [&](i64 index, const Step& step) {
        from += index * step.from;
        part.to += index * step.to;
      });
      const u32 inside = (begin - run * by) * kLine;
      part.to += inside;
      bulk_load(shared_address(memory + buffer * kCarriedBytes + part.at), from + inside, part.bytes, shared_address(gate), keep);
    }
    if constexpr (kTogether) part = together(box, to, first, end, low);
    if (brought == stored) next = part;
    else latest = part;
    __syncwarp();
    ++brought;
#endif
  }
  template <class Signal>
  __device__ __forceinline__ void store(Signal signal) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const u32 buffer = stored % kCarried;
    if (lane == 0) wait_at(&words.gate[buffer], stored / kCarried & 1);
    __syncwarp();
    if (next.bytes) bulk_store(next.to, shared_address(memory + buffer * kCarriedBytes + next.at), next.bytes, keep);
    next = latest;
    bulk_commit();
    if (flags) {
      bulk_arrived_but<kLate>();
      if (stored >= kLate) hand_over(stored - kLate, signal);
    }
    ++stored;
#endif
  }
};

}  // namespace fuscoc
