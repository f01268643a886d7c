// A dispatch that this rank has an error for instead of joining it. Its peers see a rank without
// segments, know that it refused, and go on; so does this rank, in step with them, at its next call.
#pragma once
#include "staged.cuh"

namespace fuscoc {

// One CTA. It waits until the peers have begun the call, as a plan does, whose counts say that they
// have finished everything before.
template <class Shape>
__device__ __forceinline__ void refuse(const Call& call) {
  constexpr int words = kPlanWords<Shape>;
  __shared__ Numbers numbers;
  end_plan(call, numbers, begin_plan(call, numbers));
  if (numbers.aborted) return;
  const u32 epoch = numbers.epoch;
  for (int i = threadIdx.x; i < call.num_ranks * words; i += blockDim.x) {
    const u32 value = i % words < words - 1 ? 0u : ~0u;
    store_relaxed(counts_of(call, epoch, i / words, call.rank) + i % words, tagged(value, epoch));
  }
  if (const int peer = threadIdx.x; peer < call.num_ranks) {
    const u64* theirs = counts_of(call, epoch, call.rank, peer) + words - 1;
    wait_until(call, kPlanPeers, peer, 0, [&] { return u32(load_relaxed(theirs) >> 32) == epoch; });
    // Until then a peer may still look at those of the call before.
    store_relaxed(ready_word(call, peer, call.rank, 0), tagged(0, epoch));
    u32* const flags = reinterpret_cast<u32*>(call.window[peer] + call.dispatch_flags_at);
    store_relaxed(flags + call.rank * call.max_sources, epoch * kFlagStep<Shape>);  // some targets wait for it
  }
  if (threadIdx.x == 0) {
    State& state = *call.state;
    const u32 other = ~epoch & 1;
    state.dispatch_epoch = epoch;
    state.next_send[other] = state.next_expand[other] = state.sent[other] = 0;
  }
}

}  // namespace fuscoc
