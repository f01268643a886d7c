// Ranks with given slots meet before any stores into another one's window: they tell each other, in
// `counts`, how many slots they have. Having a peer's word means that the peer has finished everything
// before this call. CTA 0 tells it, as early as it can, before it waits, and no CTA waits for another one of
// its rank. A rank that refuses the call has told no number.
#pragma once
#include "plan.cuh"

namespace fuscoc {

struct Meeting {
  Peers peers;
  int num_slots_of[kMaxRanks];
  u32 changed;  // whether any rank has said so
};

constexpr int kToldWords = 2;  // the number of slots and that of segments
__device__ __forceinline__ int told_word(const Call& call, int word) { return int(word == 0 ? call.num_slots : call.num_sources); }

constexpr int kChanged = 1 << 30;  // beside a number of slots

// Tells all ranks, and whether something that they keep from call to call has `changed` here.
__device__ inline void greet(const Call& call, u32 epoch, bool changed = false) {
  const int peer = threadIdx.x / kToldWords, word = threadIdx.x % kToldWords;
  if (blockIdx.x != 0 || peer >= call.num_ranks) return;
  store_relaxed(counts_of(call, epoch, peer, call.rank) + word,
                tagged(u32(told_word(call, word) | (changed && word == 0 ? kChanged : 0)), epoch));
}
// Waits until all have told, behind `greet`.
__device__ inline void meet(const Call& call, Meeting& shared, u32 epoch) {
  const int peer = threadIdx.x / kToldWords, word = threadIdx.x % kToldWords;
  if (threadIdx.x == 0) shared.peers.refusing = shared.peers.failed = shared.changed = 0;
  __syncthreads();
  if (peer < call.num_ranks) {
    int value = told_word(call, word);
    if (peer != call.rank) {
      const u64* const theirs = counts_of(call, epoch, call.rank, peer) + word;
      if (!poll_count(call, shared.peers, epoch, theirs, kPlanPeers, peer, value)) value = 0;
    }
    if (word == 0 && value & kChanged) shared.changed = 1;
    if (word == 0) shared.num_slots_of[peer] = value & ~kChanged;
    else note_peer(shared.peers, peer, value);
  }
  __syncthreads();
}

}  // namespace fuscoc
