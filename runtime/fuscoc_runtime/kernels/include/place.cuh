// Plan kernel where the relation gives every point its slot: nothing is counted and nothing assigned, but
// slots are checked. It stores what the dispatch and combines of the call need: slot codes, and where
// segments lie in the source.
//
// Ranks tell each other how many slots they have, in `counts` as in `plan.cuh`: having a peer's word
// means that the peer has finished everything before this call, so its window may be written. CTA 0 tells
// it before it waits, and no CTA waits for another one of its rank. A rank that refuses the call has told
// no number. It joins no combine either: its points keep a code, so that their results are lost, and claim
// no slot.
//
// Two points of one slot would be one row, of either. So the sender of a point claims its slot in the
// window of the destination, by exchanging this dispatch's epoch for what is there: who finds the epoch
// is not the first one. The exchange is relaxed: it carries only itself. A claim of an earlier
// dispatch cannot come later, since its kernel has ended before its rank told its number; and one of a
// later dispatch cannot come earlier, since this rank tells that number later. Epochs differ until
// they wrap. When `dispatch` ends on a rank, so have all claims there: they are before `planned`, that
// is before the flags of their rank, all of which it has waited for.
#pragma once
#include "places.cuh"
#include "plan.cuh"

namespace fuscoc {

template <class Shape, class Relation>
struct Placing {
  using Layout = typename Shape::Source;
  struct Shared {
    Peers peers;
    int num_slots_of[kMaxRanks];
  };
  const Call& call;
  Shared& shared;
  const Relation relation;
  const u32 epoch;
  const int dropped;  // parity of this use of the handle's memory

  // Tells the number of slots and of segments, and waits for those of all ranks.
  __device__ void meet() {
    constexpr int words = 2;
    const int peer = threadIdx.x / words, word = threadIdx.x % words;
    if (threadIdx.x == 0) shared.peers.refusing = shared.peers.failed = 0;
    __syncthreads();
    if (peer < call.num_ranks) {
      int value = int(word == 0 ? call.num_slots : call.num_sources);
      if (blockIdx.x == 0) store_relaxed(counts_of(call, epoch, peer, call.rank) + word, tagged(u32(value), epoch));
      if (peer != call.rank) {
        const u64* const theirs = counts_of(call, epoch, call.rank, peer) + word;
        if (!poll_count(call, shared.peers, epoch, theirs, kPlanPeers, peer, value)) value = 0;
      }
      if (word == 0) shared.num_slots_of[peer] = value;
      else note_peer(shared.peers, peer, value);
    }
    __syncthreads();
  }

  // The code of a point, whose slot is its own from now on; -1 if it has none.
  __device__ __forceinline__ int claim(i64 rank, i64 slot) const {
    if (rank == -1) return -1;
    // One that refused has told no length: whatever comes back for such a point is lost, and said to be.
    if (rank >= 0 && rank < call.num_ranks && shared.peers.refusing >> rank & 1)
      return code_of(int(rank), min(max(slot, i64(0)), call.capacity - 1));
    if (rank < 0 || rank >= call.num_ranks || slot < 0 || slot >= shared.num_slots_of[rank]) {
      note_dropped(call, call.state->bad_keys, dropped);
      return -1;
    }
    const int code = code_of(int(rank), slot);
    if (exchange_relaxed(claim_of(call, code), epoch) != epoch) return code;
    note_dropped(call, call.state->clashed, dropped);
    return -1;
  }

  __device__ void run() {
    meet();
    if (blockIdx.x == 0 && threadIdx.x == 0) keep_peers(call, shared.peers);
    const i64 num_points = call.num_sources * Shape::fanout, step = i64(gridDim.x) * blockDim.x;
    const i64 there = shared.peers.failed ? 0 : call.num_points ? min(*call.num_points, num_points) : num_points;
    for (i64 point = i64(blockIdx.x) * blockDim.x + threadIdx.x; point < num_points; point += step) {
      int code = -1;
      if (point < there) {
        const auto to = relation.destination(point);
        code = claim(to.rank, to.slot);
        if (point % Shape::fanout == 0)
          for (int i = 0; i < Place<Layout>::num_words; ++i)
            call.places[point / Shape::fanout * Place<Layout>::num_words + i] = to.place[i];
      }
      call.codes[point] = code;
    }
  }
};

template <class Shape, class Relation>
__device__ __forceinline__ void place(const Call& call) {
  __shared__ Numbers numbers;
  __shared__ typename Placing<Shape, Relation>::Shared shared;
  const u32 turn = begin_plan(call, numbers);
  let_next_start();
  if (numbers.aborted) plan_nothing<Shape>(call);
  else Placing<Shape, Relation>{call, shared, Relation{call}, numbers.epoch, int(numbers.use & 1)}.run();
  finish_plan(call, numbers, turn);
}

}  // namespace fuscoc
