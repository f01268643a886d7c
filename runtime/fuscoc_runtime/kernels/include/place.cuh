// Plan kernel where the relation gives every point its slot: nothing is counted and nothing assigned, but
// slots are checked. It stores what the dispatch and combines of the call need: slot codes, and where
// segments lie in the source.
//
// The ranks meet first. One that refuses the call joins no combine either: points that go there keep a code,
// so that their results are lost, and claim no slot.
//
// Segments that must lie apart mark the source cells that they begin with; who finds a mark is dropped.
//
// Two points of one slot would be one row, of either. So the sender of a point claims its slot in the
// window of the destination, by exchanging this dispatch's epoch for what is there: who finds the epoch
// is not the first one. The exchange is relaxed: it carries only itself. A claim of an earlier
// dispatch cannot come later, since its kernel has ended before its rank told its number; and one of a
// later dispatch cannot come earlier, since this rank tells that number later. Epochs differ until
// they wrap. When `dispatch` ends on a rank, so have all claims there: they are before `planned`, that
// is before the flags of their rank, all of which it has waited for.
#pragma once
#include "meet.cuh"
#include "places.cuh"

namespace fuscoc {

template <class Shape, class Relation>
struct Placing {
  using Layout = typename Shape::Source;
  const Call& call;
  Meeting& shared;
  const Relation relation;
  const u32 epoch;
  const int dropped;  // parity of this use of the handle's memory

  // The code of a point, whose slot is its own from now on; -1 if it has none.
  __device__ __forceinline__ int claim(i64 rank, i64 slot, i64 cell) const {
    if (rank == -1) return -1;
    // One that refused has told no length: whatever comes back for such a point is lost, and said to be.
    const bool known = rank >= 0 && rank < call.num_ranks, refuses = known && shared.peers.refusing >> rank & 1;
    if (!refuses && (!known || slot < 0 || slot >= shared.num_slots_of[rank])) {
      note_dropped(call, call.state->bad_keys, dropped);
      return -1;
    }
    if constexpr (Layout::apart) {  // each segment has one point
      const u32 bit = 1u << cell % 32;
      if (atomicOr(&call.begun[cell / 32], bit) & bit) {
        note_dropped(call, call.state->shared, dropped);
        return -1;
      }
    }
    if (refuses) return code_of(int(rank), min(max(slot, i64(0)), call.capacity - 1));
    const int code = code_of(int(rank), slot);
    if (exchange_relaxed(claim_of(call, code), epoch) != epoch) return code;
    note_dropped(call, call.state->clashed, dropped);
    return -1;
  }

  __device__ void run() {
    greet(call, epoch);
    meet(call, shared, epoch);
    if (blockIdx.x == 0 && threadIdx.x == 0) keep_peers(call, shared.peers);
    const i64 num_points = call.num_sources * Shape::fanout, step = i64(gridDim.x) * blockDim.x;
    const i64 there = shared.peers.failed ? 0 : call.num_points ? min(*call.num_points, num_points) : num_points;
    for (i64 point = i64(blockIdx.x) * blockDim.x + threadIdx.x; point < num_points; point += step) {
      int code = -1;
      if (point < there) {
        const auto to = relation.destination(point);
        code = claim(to.rank, to.slot, to.place[0]);
        if (point % Shape::fanout == 0)
          for (int i = 0; i < Place<Layout>::num_words; ++i)
            Place<Layout>::stored(call, point / Shape::fanout)[i] = to.place[i];
      }
      call.codes[point] = code;
    }
  }
};

template <class Shape, class Relation>
__device__ __forceinline__ void place(const Call& call) {
  __shared__ Numbers numbers;
  __shared__ Meeting shared;
  const u32 turn = begin_plan(call, numbers);
  let_next_start();
  if (numbers.aborted) plan_nothing<Shape>(call);
  else Placing<Shape, Relation>{call, shared, Relation{call}, numbers.epoch, int(numbers.use & 1)}.run();
  finish_plan(call, numbers, turn);
}

}  // namespace fuscoc
