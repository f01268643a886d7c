// How ranks begin the way back of a dispatch, whatever then moves: they number it, see whether its handle and
// rows are still those of the dispatch, and that what the peers store into is free.
#pragma once
#include "call.cuh"

namespace fuscoc {

// Words every thread may look up again rather than keep in a register.
struct BackWords {
  u64 tag;                 // {epoch of the handle's dispatch, number of this combine with it}
  u32 parity;
  u32 plan_epoch;          // of the latest dispatch, which the handle may be older than
  u32 number;              // of this combine, of all
  u32 refusing;            // ranks that refused the dispatch: they are not in this call
  int group;               // segments per group
  bool planned;            // a plan has begun since the last combine
  bool outdated, refuses;  // nothing can be summed: the handle is another dispatch's, the rows are gone,
  bool aborted;            // or nobody waits any more
};

template <class Words>
struct Back {
  const Call& call;
  volatile Words& shared;

  // Writes the call into a peer's window: this rank has got there.
  __device__ __forceinline__ void tell(i64 section, int peer) const {
    store_relaxed(reinterpret_cast<u64*>(call.window[peer] + section) + call.rank, shared.tag);
  }
  __device__ __forceinline__ bool joins(int rank) const { return !(shared.refusing >> rank & 1); }
  // Whether a rank has begun a dispatch since: what it has not sent for this call will not come.
  __device__ __forceinline__ bool has_left(int rank) const {
    const u64* word = counts_of(call, shared.plan_epoch + 1, call.rank, rank) + call.columns;
    return u32(load_acquire(word) >> 32) == shared.plan_epoch + 1;
  }
  // Waits for a flag of a peer. If it has refused the call instead, that is counted once.
  __device__ __forceinline__ bool wait_for(int peer, u32 item, const u64* flag) const {
    const u64* refused = reinterpret_cast<u64*>(call.window[call.rank] + call.refused_at) + peer;
    // A rank that has refused this call, or a later one with the handle, has sent all that it ever will.
    const Outcome outcome = wait_until(
        call, kCombineGroup, peer, item, [&] { return load_acquire(flag) == shared.tag; },
        [&] { return reached(load_acquire(refused), shared.tag) || has_left(peer); });
    if (outcome == kNever && atomicExch(&call.state->noted[peer], shared.number) != shared.number)
      note(call, call.state->refusals[peer]);
    return outcome == kReady;
  }

  // Tells the peers that this rank has begun the call, hence finished all before it. Without a plan
  // since then, which has said so already, their staging may be written when they have told it, too. If
  // they do not, it may not.
  __device__ void enter() const {
    const int peer = threadIdx.x;
    const bool asks = peer < call.num_ranks && joins(peer);
    if (asks && blockIdx.x == 0) tell(call.barrier_at, peer);
    if (shared.planned) return;
    if (asks) {
      const u64* told = reinterpret_cast<u64*>(call.window[call.rank] + call.barrier_at) + peer;
      const Outcome outcome = wait_until(
          call, kCombineEnter, peer, 0, [&] { return reached(load_relaxed(told), shared.tag); }, [&] { return has_left(peer); });
      if (outcome == kAborted) shared.aborted = true;
      fence_system();
    }
    __syncthreads();
  }

  // A warp takes items from a counter, one ahead. Lane 0 has the first one, which may be on its way.
  __device__ __forceinline__ u32 ticket(u32* counter) const {
    return threadIdx.x % kWarp == 0 ? atomicAdd(counter, 1u) : 0;
  }
  template <class Work>
  __device__ __forceinline__ void take(u32* counter, u32 num_items, Work work) const {
    take(ticket(counter), counter, num_items, work);
  }
  template <class Work>
  __device__ __forceinline__ void take(u32 first, u32* counter, u32 num_items, Work work) const {
    const int lane = int(threadIdx.x) % kWarp;
    u32 item = __shfl_sync(kAllLanes, first, 0);
    while (item < num_items) {
      const u32 next = lane == 0 ? atomicAdd(counter, 1u) : 0;
      work(item);
      item = __shfl_sync(kAllLanes, next, 0);
    }
  }

  // Instead of joining the call.
  __device__ void refuse() const {
    if (blockIdx.x != 0 || threadIdx.x >= call.num_ranks || !joins(threadIdx.x)) return;
    tell(call.barrier_at, threadIdx.x);
    tell(call.refused_at, threadIdx.x);
  }
};

// Numbers the call, whose groups are of `most` segments at most.
template <class Words>
__device__ __forceinline__ void number_back(const Call& call, Words& shared, int most) {
  if (threadIdx.x != 0) return;
  // All are loaded before any is used: each takes half a microsecond.
  const volatile State& words = *call.state;
  const volatile Routing& routing = *call.routing;
  const u32 combines = routing.combines, epoch = routing.epoch, refusing = routing.refusing;
  const u32 ticket = routing.ticket, num_combines = words.num_combines, plan_epoch = words.plan_epoch;
  const u32 saw_plan = words.combine_saw_plan, rows_ticket = words.rows_ticket, abort = words.abort;
  const int group = group_size(call, most);
  shared.tag = tagged(combines + 1, epoch);
  shared.number = num_combines + 1;
  shared.parity = (num_combines + 1) & 1;
  shared.refusing = refusing;
  shared.group = group;
  shared.plan_epoch = plan_epoch;
  shared.planned = plan_epoch != saw_plan;
  shared.outdated = ticket != call.ticket;
  shared.refuses = call.refuses || (call.rows_ticket && call.rows_ticket != rows_ticket);
  shared.aborted = abort;
}
// What the next call has to know, when all CTAs have numbered this one.
template <class Words>
__device__ __forceinline__ void advance_back(const Call& call, const Words& shared) {
  State& state = *call.state;
  const u32 other = shared.parity ^ 1;
  ++state.num_combines;
  state.combine_saw_plan = state.plan_epoch;
  state.next_reduce[other] = state.next_finalise[other] = state.cleared[other] = 0;
  tell_troubles(call);
  if (shared.outdated) {
    note(call, state.outdated);
    return;
  }
  ++call.routing->combines;
  if (shared.refuses && !call.refuses) note(call, state.overwritten);
}
template <class Words>
__device__ __forceinline__ void begin_back(const Call& call, Words& shared, int most) {
  number_back(call, shared, most);
  entered(call, [&](State&) { advance_back(call, shared); });
}

// Whether there is something to be made. If not, the result of `bytes` is lost. A rank that refuses waits for nobody, but
// where results may be lent: a CTA of a peer that begins late could take where this rank lends the next one for what it
// said of this one.
template <class Kind>
__device__ __forceinline__ bool goes_on(const Call& call, const Kind& state, i64 bytes) {
  auto& shared = state.shared;
  const bool meets = !shared.refuses || call.arrived_at;
  if (call.num_ranks > 1 && !shared.outdated && meets && !shared.aborted) state.enter();
  if (!shared.outdated && !shared.refuses && !shared.aborted) return true;
  if (!shared.outdated && shared.refuses) state.refuse();
  if (call.result)
    poison(call.result, bytes, i64(blockIdx.x) * blockDim.x + threadIdx.x, i64(gridDim.x) * blockDim.x);
  return false;
}

}  // namespace fuscoc
