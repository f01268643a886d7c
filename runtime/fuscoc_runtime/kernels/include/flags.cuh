// Flags of what a CTA sends: its warps hand them over when they have stored what they are of, and one warp fences for
// all and sets them. So no sender waits until its stores have arrived.
#pragma once
#include "call.cuh"

namespace fuscoc {

constexpr u32 kHandedOver = 8;  // flags of a warp that wait, at most

struct FlagWords {
  u64* flag[kWarp][kHandedOver];
  u32 handed[kWarp], set[kWarp];  // of each warp, so far
  u32 ended;                      // warps that hand over no more
};

struct Flags {
  FlagWords& words;
  const u64 tag;  // what they are set to
  const int lane;

  // By all threads, with `__syncthreads` behind it.
  __device__ __forceinline__ void open() const {
    if (threadIdx.x < kWarp) words.handed[threadIdx.x] = words.set[threadIdx.x] = 0;
    if (threadIdx.x == 0) words.ended = 0;
  }
  // By a warp: what it has stored before is flagged in time; at once if too much waits already.
  __device__ __forceinline__ void hand_over(u64* flag) const {
    __syncwarp();
    if (lane != 0) return;
    const int warp = int(threadIdx.x) / kWarp;
    const u32 number = words.handed[warp];
    if (number - *(volatile u32*)&words.set[warp] == kHandedOver) {
      fence_system();
      store_relaxed(flag, tag);
      return;
    }
    words.flag[warp][number % kHandedOver] = flag;
    __threadfence_block();
    *(volatile u32*)&words.handed[warp] = number + 1;
  }
  __device__ __forceinline__ void end() const {
    __syncwarp();
    if (lane == 0) atomicAdd(&words.ended, 1u);
  }
  // By another warp, until so many have ended: a lane sets the flags of each.
  __device__ void run(u32 num_warps) const {
    for (u32 set = 0;;) {
      const bool ended = *(volatile u32*)&words.ended == num_warps;
      const u32 handed = *(volatile u32*)&words.handed[lane];
      if (__any_sync(kAllLanes, handed != set)) {
        fence_system();
        for (; set != handed; ++set) store_relaxed(words.flag[lane][set % kHandedOver], tag);
        *(volatile u32*)&words.set[lane] = set;
      } else if (__all_sync(kAllLanes, ended)) {
        return;
      } else {
        __nanosleep(64);
      }
    }
  }
};

}  // namespace fuscoc
