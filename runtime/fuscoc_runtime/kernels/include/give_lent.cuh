// Combine kernel of pieces whose results are lent: rows go straight to where their segments lie, as by a dispatch turned around.
//
// A rank lends its result for a call if that lies in memory that peers have mapped, and says so first. If all ranks do, warps take what is
// sent and what stays in turn; the last CTA of a rank tells the peers that all has arrived, and waits for theirs. If one does not, or
// does not join, nobody stores anything here, and `give_back`, which is launched behind, makes the combine instead: a call of its own for
// those who count them. A rank that does not lend knows that before it hears of the others.
//
// Of a result that rows do not fill, the rest is 0. Where parts that are cleared have bytes of rows, too, they are cleared
// before this rank lets its peers store.
#pragma once
#include "give_back.cuh"

namespace fuscoc {

template <class Shape>
struct LentWords {
  char* to[kMaxRanks];  // the results, as mapped here
  u32 lost;             // peers whose rows have not come, a bit each
  bool keeps;           // some rank does not lend its result
  bool is_last;         // of this rank's CTAs
  CarrierWords carrier[kCarries<Shape> ? kCarriers<Shape> : 1];
};

template <class Shape>
struct GiveLent : GiveBack<Shape> {
  using Base = GiveBack<Shape>;
  using typename Base::Own;
  using Base::call, Base::clear, Base::held, Base::items_of, Base::joins, Base::lane, Base::lose, Base::num_workers;
  using Base::shared, Base::taker, Base::tell, Base::warp, Base::words;
  using Turns = Turning<Shape, Own, kBringersBack, true, 4>;
  LentWords<Shape>& lent;

  __device__ __forceinline__ const Own& told(int from, u32 box) const {
    return boxes_lent<Shape>(call, call.rank, from)[box];
  }
  __device__ __forceinline__ bool asks() const { return int(threadIdx.x) < call.num_ranks && joins(threadIdx.x); }
  __device__ __forceinline__ u64* word_of(i64 section, int peer) const {
    return reinterpret_cast<u64*>(call.window[call.rank] + section) + peer;
  }
  // By all threads: whether all CTAs have come by now, and what they have stored is there.
  __device__ __forceinline__ bool come_last() const {
    u32& come = call.state->sent[0];
    __syncthreads();
    if (threadIdx.x == 0) {
      fence_system();
      lent.is_last = atomicAdd(&come, 1u) == gridDim.x - 1;
      if (lent.is_last) come = 0, fence_system();
    }
    __syncthreads();
    if (lent.is_last) fence_system();
    return lent.is_last;
  }
  __device__ __forceinline__ bool clears_first(u32 num_cleared) const {
    return num_cleared > 0 && (!kCovers<Shape> || __ldcg(&covered(call).edges) > 0);
  }
  // Parts are taken, not dealt: CTAs that run clear all of them, and wait for none that has no SM yet.
  __device__ __noinline__ void clear_all(u32 num_cleared) const {
    constexpr u32 together = 4;
    const u32 num = u32(ceil_div(num_cleared, together));
    this->take(call.state->next_finalise + shared.parity, num, [&](u32 group) {
      const u32 end = min((group + 1) * together, num_cleared) - 1;
      for (u32 item = group * together; item < end; ++item) clear(call, item, nullptr, lane);
      clear(call, end, this->cleared(), lane);
    });
    if (blockIdx.x != 0 || warp != 0) return;
    this->wait_for_cleared(num);
    fence_system();
  }
  // Tells the peers whether they may store into this rank's result, and where that lies. What they tell is waited for while
  // items are counted. Nobody's word is replaced before it is read: the next one is told behind a call in which all have met.
  __device__ void enter(bool lends) const {
    const u32 num_cleared = this->num_cleared();
    if (lends && clears_first(num_cleared)) clear_all(num_cleared);
    if (blockIdx.x != 0 || !asks()) return;
    u64* const words = reinterpret_cast<u64*>(call.window[threadIdx.x] + call.lent_at);
    store_relaxed(words + call.rank, lends ? u64(call.result_at) + 1 : u64(0));
    fence_system();
    tell(call.barrier_at, threadIdx.x);
  }
  __device__ __forceinline__ void wait_for_peers() const {
    if (asks()) {
      const int peer = threadIdx.x;
      const u64* const told = word_of(call.barrier_at, peer);
      const Outcome outcome = wait_until(
          call, kCombineEnter, peer, 0, [&] { return reached(load_relaxed(told), shared.tag); }, [&] { return this->has_left(peer); });
      if (outcome == kAborted) shared.aborted = true;
      fence_system();
      const u64 at = outcome == kReady ? load_relaxed(word_of(call.lent_at, peer)) : 0;
      if (at == 0) lent.keeps = true;
      lent.to[peer] = peer == call.rank ? call.result : call.results[peer] + (at - 1);
      if (kTurns<Shape> || kCarries<Shape>) fence_bulk_proxy();
    }
    __syncthreads();
  }

  // Boxes that all ranks have told this one: the first of each, that of the next rank first and the own one last, and so on.
  __device__ __forceinline__ int rank_of(u32 index) const {
    const int next = call.rank + 1 + int(index % u32(call.num_ranks));
    return next < call.num_ranks ? next : next - call.num_ranks;
  }
  // Whether the results are made: if not, the other kernel makes them, also where nobody waits any more.
  template <class Leave>
  __device__ bool run(Leave leave) const {
    GiveBackWords<Shape>& all = words();
    const u32 num_ranks = u32(call.num_ranks), num_cleared = this->num_cleared();
    const bool carries = kCarries<Shape> && warp < num_carriers(kCarriers<Shape>);
    const bool takes = kTurns<Shape> ? taker() >= 0 && taker() < kBringersBack : carries || !kCarries<Shape> || Shape::few;
    const auto counter = [&](u32* counters) { return counters + shared.parity; };
    const u32 ticket = takes ? this->ticket(counter(call.state->next_reduce)) : 0;  // which comes while items are counted
    u32 most = 0;
    for (u32 rank = 0; rank < num_ranks; ++rank) most = max(most, all.num_boxes[rank]);
    // All warps share few boxes; of many, each has the one that it works on.
    const bool shares = !kTurns<Shape> && most * num_ranks <= kWarp;
    if (shares) {
      for (u32 index = warp; index < most * num_ranks; index += blockDim.x / kWarp) {
        const int from = rank_of(index);
        if (index / num_ranks < all.num_boxes[from]) keep_box(all.box[index], told(from, index / num_ranks), lane);
        else if (lane == 0) all.box[index].num_items = 0;
      }
      __syncthreads();
    }
    const auto items = [state = *this, shares](u32 index) {
      const u32 num_ranks = u32(state.call.num_ranks), box = index / num_ranks;
      if (shares) return state.words().box[index].num_items;
      const int from = state.rank_of(index);
      return box < state.words().num_boxes[from] ? state.items_of(state.told(from, box)) : 0u;
    };
    const auto sent = [num_ranks](u32 number) { return number + number / (num_ranks - 1); };
    const auto own = [num_ranks](u32 number) { return number * num_ranks + num_ranks - 1; };
    const auto of_sent = [=](u32 number) { return items(sent(number)); };
    const auto of_own = [=](u32 number) { return items(own(number)); };
    this->count(all.sent, most * (num_ranks - 1), of_sent, 0);
    this->count(all.own, most, of_own, 1);
    __syncthreads();
    leave();
    wait_for_peers();
    if (shared.aborted || lent.keeps) return false;
    if constexpr (kTurns<Shape>) {
      const Turns turning{all.ring, num_workers()};
      if (taker() < 0) turning.work(warp);
      else if (!takes) turning.store(taker() - kBringersBack, shared.tag);
      if (!takes) return true;
    }
    const InTurn turns(all.sent.total(), all.own.total());
    const Own* last = nullptr;
    const auto next = [&](u32 item) -> typename Base::Next {
      const bool stays = turns.is_second(item);
      const u32 index = stays ? own(all.own.find(item, of_own)) : sent(all.sent.find(item, of_sent));
      const int to = rank_of(index);
      const Own& box = shares ? all.box[index] : held(told(to, index / num_ranks), last);
      return {&box, call.rows + box.from, lent.to[to] + box.to, item, false, nullptr};
    };
    u32* const taken = counter(call.state->next_reduce);
    if constexpr (kCarries<Shape>) {
      if (carries) {
        Carrier<Own::num_all_steps, least_run<Shape>()> carrier(lent.carrier[warp], reinterpret_cast<unsigned char*>(cta_memory()), warp);
        carrier.open();
        this->take(ticket, taken, turns.total, [&](u32 number) {
          const typename Base::Next item = next(number);
          if (item.box) carrier.carry(*item.box, item.from, item.to, item.item, nullptr, [](u64*) {});
        });
        carrier.finish([](u64*) {});
        return true;
      }
    }
    if constexpr (!kCarries<Shape> || Shape::few) {
      this->take(ticket, taken, turns.total, [&](u32 number) {
        const typename Base::Next item = next(number);
        if (!item.box) return;
        if constexpr (kTurns<Shape>)
          Turns{all.ring, num_workers()}.give(*item.box, item.from, item.to, item.item, 0, false, nullptr);
        else
          BoxCopy<Shape::unit_bytes(0), kSettled, Own::num_all_steps, Shape::run_bytes(0)>{
              *item.box, item.from, item.to, all.places[warp]}.item(item.item, lane, Nothing{});
      });
    }
    if (!clears_first(num_cleared))
      this->take(counter(call.state->next_finalise), num_cleared, [&](u32 item) { clear(call, item, nullptr, lane); });
    if constexpr (kTurns<Shape>) Turns{all.ring, num_workers()}.end();
    return true;
  }

  // Behind all that is stored, by all threads of every CTA.
  __device__ void end() const {
    if (!come_last()) return;
    if (threadIdx.x == 0) call.state->lent = shared.number;
    const int peer = int(threadIdx.x);
    if (peer < call.num_ranks && peer != call.rank) {
      if (asks()) tell(call.arrived_at, peer);
      if (!asks() || !this->wait_for(peer, 0, word_of(call.arrived_at, peer))) atomicOr(&lent.lost, 1u << peer);
    }
    __syncthreads();
    if (lent.lost) lose_all();
  }
  // What has not come of those who are lost.
  __device__ __noinline__ void lose_all() const {
    const int num = kTurns<Shape> ? kBringersBack : int(blockDim.x) / kWarp;
    if (taker() < 0 || taker() >= num) return;
    const Own* last = nullptr;
    for (u32 number = 0; number < words().num_boxes[call.rank]; ++number) {
      if (items_of(boxes_back<Shape>(call)[number]) == 0) continue;
      const Own& box = held(boxes_back<Shape>(call)[number], last);
      for (int cell = 0; cell < box.num_cells; ++cell) {
        if (!(lent.lost >> (box.rank + cell * box.rank_step) & 1)) continue;
        for (u32 item = taker(); item < box.num_items; item += num)
          lose(box, call.result + box.to + cell * box.cell_to, item, words().places[taker()], lane);
      }
    }
  }
};

template <class Shape>
__device__ __forceinline__ void give_lent(const Call& call) {
  __shared__ GiveBackWords<Shape> shared;
  __shared__ LentWords<Shape> lent;
  const int thread = threadIdx.x, warp = thread / kWarp;
  const u64 told = thread < call.num_ranks ? __ldcg(num_told(call, call.rank, thread)) : 0;
  number_back(call, shared, call.combine_group);
  const u32 place = enter(call);
  const GiveLent<Shape> state{{{call, shared}, warp, thread % kWarp}, lent};
  if constexpr (kTurns<Shape>)
    if (thread == kWarp) typename GiveLent<Shape>::Turns{shared.ring, state.num_workers()}.open();
  if (thread == 0) lent.keeps = false, lent.lost = 0;
  const bool lends = call.result_at >= 0 && !shared.refuses;
  if (thread < call.num_ranks) shared.num_boxes[thread] = u32(told >> 32) == state.epoch() && state.joins(thread) ? u32(told) : 0;
  __syncthreads();
  const auto next = [&] { leave(call, place, [&](State&) { end_numbering(call, shared); }); };
  if (shared.outdated) return leave(call, place, [](State& words) { words.lent = 0; });
  if (shared.aborted) return next();
  state.enter(lends);
  if (!lends) {
    if (thread == blockDim.x - 1) shared.refuses = false;  // which the other kernel tells
    return next();
  }
  const bool made = state.run(next);
  let_next_start();
  if (made) state.end();
}

}  // namespace fuscoc
