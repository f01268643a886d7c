// Combine kernel where slots follow from pieces: rows go back to where their segments lie.
//
// Where rows lie, warps copy the boxes that their sources have told this rank, item by item into the
// staging memory of the source, and flag every item there. At the source warps copy flagged items to the
// result, line by line, and this rank's own rows straight. Half of the warps begin with what goes to peers,
// the others with what is for this rank; sending never waits, so every flag comes.
//
// Of a result that rows do not fill, the rest is 0: all of it is cleared before anything is for this rank, or, where
// dispatch has marked the parts that rows fill, the others, and first only if rows have bytes of these.
#pragma once
#include "back.cuh"
#include "flags.cuh"
#include "pieces.cuh"
#include "ring.cuh"

namespace fuscoc {

// What is needed where rows are carried.
template <class Shape, bool = kCarries<Shape>>
struct CarriedBack {};
template <class Shape>
struct CarriedBack<Shape, true> {
  CarrierWords carrier[kCarriersBack<Shape>];
  FlagWords flags;
};

template <class Shape>
struct GiveBackWords : BackWords {
  u64 moved;                 // bytes that the dispatch has moved
  u32 num_boxes[kMaxRanks];  // that each rank has told this one
  u64* pending[kWarp];       // flags of warps that have sent all that they will
  Items sent, own, arriving;
  BoxOf<Shape> box[kTurns<Shape> ? kBringersBack : kWarp];  // of a warp that takes items; or, of few, all
  Places places[kTurns<Shape> ? kBringersBack : kWarp];
  RingOf<Shape, BoxOf<Shape>> ring;
  CarriedBack<Shape> carried;
};

template <class Shape>
struct GiveBack : Back<GiveBackWords<Shape>> {
  using Base = Back<GiveBackWords<Shape>>;
  using Own = BoxOf<Shape>;
  using Base::call, Base::shared;
  using Turns = Turning<Shape, Own, kBringersBack, false, 4>;
  static constexpr int kPartsAtOnce = kCovers<Shape> ? 32 : 1;  // of a result, that a warp clears: a word of bits
  const int warp, lane;

  __device__ __forceinline__ GiveBackWords<Shape>& words() const { return const_cast<GiveBackWords<Shape>&>(shared); }
  __device__ __forceinline__ int num_workers() const { return kTurns<Shape> ? int(blockDim.x) / kWarp - kBringersBack - kStorers : 0; }
  __device__ __forceinline__ int taker() const { return warp - num_workers(); }  // of the warps that take items
  __device__ __forceinline__ u32 epoch() const { return u32(shared.tag >> 32); }
  __device__ __forceinline__ u64* flag(int window, u32 item) const {
    return reinterpret_cast<u64*>(call.window[window] + call.combine_flags_at) + item;
  }
  // As `enter`, where a plan has said that this rank's staging may be written.
  __device__ __forceinline__ void say_begun() const {
    const int peer = threadIdx.x;
    if (call.num_ranks > 1 && blockIdx.x == 0 && peer < call.num_ranks && this->joins(peer)) this->tell(call.barrier_at, peer);
  }
  // Boxes that this rank was told: the first of all other ranks, the first of the next one first, and so on. A box is also
  // looked up where there is none, as `count_few` does, and no other rank.
  __device__ __forceinline__ u32 num_others() const { return u32(max(call.num_ranks - 1, 1)); }
  __device__ __forceinline__ int source_of(u32 index) const {
    const int next = call.rank + 1 + int(index % num_others());
    return next < call.num_ranks ? next : next - call.num_ranks;
  }
  __device__ __forceinline__ const Own& told(int from, u32 box) const {
    return boxes_told<Shape>(call, call.rank, from)[box];
  }
  __device__ __forceinline__ u32 items_of(const Own& box) const { return __ldcg(&box.num_items); }
  // Few boxes all warps share, and they are brought before the call is known: what ranks have told this one, a rank after the
  // other, and those that come back.
  static constexpr bool kShares = !kTurns<Shape> && Shape::num_boxes > 0 && (kMaxRanks + 1) * Shape::num_boxes <= kWarp;
  __device__ __forceinline__ void keep_all() const {
    constexpr u32 most = kShares ? Shape::num_boxes : 1;
    for (u32 i = warp; i < most * u32(call.num_ranks + 1); i += blockDim.x / kWarp) {
      const u32 from = i / most, box = i % most;
      keep_box(words().box[i], int(from) < call.num_ranks ? told(int(from), box) : boxes_back<Shape>(call)[box], lane);
    }
  }
  __device__ __forceinline__ const Own& box_of(int from, u32 box) const { return words().box[from * Shape::num_boxes + box]; }
  __device__ __forceinline__ u32 told_items(int from, u32 box) const {
    if constexpr (kShares) return box_of(from, box).num_items;
    return items_of(told(from, box));
  }
  // That this warp works on now, which it may have already.
  __device__ __forceinline__ const Own& told_box(int from, u32 box, const Own*& last) const {
    if constexpr (kShares) return box_of(from, box);
    return held(told(from, box), last);
  }
  __device__ __forceinline__ u32 sent_items(u32 index) const {
    const int from = source_of(index);
    const u32 box = index / num_others();
    return box < words().num_boxes[from] ? told_items(from, box) : 0;
  }
  __device__ __forceinline__ u32 own_items(u32 box) const { return told_items(call.rank, box); }
  __device__ __forceinline__ u32 arriving_items(u32 box) const {
    if constexpr (kShares) {
      const Own& of = box_of(call.num_ranks, box);
      return arriving_items(of.num_items, of.num_cells, of.rank);
    }
    const Own& of = boxes_back<Shape>(call)[box];
    return arriving_items(items_of(of), __ldcg(&of.num_cells), __ldcg(&of.rank));
  }
  __device__ __forceinline__ u32 arriving_items(u32 items, int cells, int rank) const {
    return cells == 1 && rank == call.rank ? 0 : items * u32(cells);  // this rank's are `keep`'s
  }
  // Items of the result to be cleared: none where no two segments have a byte in common and all are moved.
  __device__ __forceinline__ u32 num_cleared(u64 moved) const {
    if (Shape::disjoint && i64(moved) == call.result_bytes) return 0;
    return u32(ceil_div(call.result_bytes, kPart * kPartsAtOnce));
  }
  __device__ __forceinline__ u32 num_cleared() const { return num_cleared(*call.moved); }

  // This warp's copy of a box, which it may have already.
  __device__ __forceinline__ Own& held(const Own& box, const Own*& last) const {
    Own& mine = words().box[taker()];
    if (&box != last) keep_box(mine, box, lane), last = &box;
    return mine;
  }

  __device__ __forceinline__ u32* cleared() const { return &call.state->cleared[shared.parity]; }
  // Counted in `cleared`, if that is waited for.
  __device__ static __noinline__ void clear(const Call& call, u32 item, u32* cleared, int lane) {
    const i64 first = i64(item) * kPartsAtOnce;
    const u32 there = kCovers<Shape> ? __ldcg(&covered(call).bits[item]) : 0;
    for (u32 left = ~there & (~0u >> (32 - kPartsAtOnce)); left; left &= left - 1) {
      const i64 begin = min((first + __ffs(int(left)) - 1) * kPart, call.result_bytes), end = min(begin + kPart, call.result_bytes);
      const i64 wide = begin + (end - begin) / kLine * kLine;
      for (i64 at = begin + lane * kLine; at < wide; at += kWarp * kLine) *reinterpret_cast<uint4*>(call.result + at) = {};
      for (i64 at = wide + lane; at < end; at += kWarp) call.result[at] = 0;
    }
    if (!cleared) return;
    __syncwarp();
    if (lane != 0) return;
    fence_gpu();
    atomicAdd(cleared, 1u);
  }
  // Warps that run have all of them by now, and clear them without waiting.
  __device__ __forceinline__ void wait_for_cleared(u32 items) const {
    if (lane == 0)
      while (load_acquire(cleared()) != items) __nanosleep(32);
    __syncwarp();
  }

  // Flags what this warp has sent before: it waits until that has arrived, hence while it loads.
  __device__ __forceinline__ void signal(u64*& pending) const {
    __syncwarp();
    if (lane == 0 && pending) {
      fence_system();
      store_relaxed(pending, shared.tag);
    }
    pending = nullptr;
  }
  __device__ __forceinline__ Flags flags() const { return {words().carried.flags, shared.tag, lane}; }
  __device__ static __forceinline__ u32 num_givers() { return (blockDim.x / kWarp + 1) / 2; }  // warps that send first
  // The same of all of these, in calls so small that each has sent hardly more than one item: one fence for all.
  __device__ __forceinline__ void signal_all(u64* pending) const {
    const int num_warps = int(num_givers());
    u64** const flags = words().pending;
    if (lane == 0) flags[warp / 2] = pending;
    __syncwarp();
    asm volatile("bar.sync 1, %0;" ::"r"(num_warps * kWarp) : "memory");
    if (warp != 0 || lane >= num_warps || !flags[lane]) return;
    fence_system();
    store_relaxed(flags[lane], shared.tag);
  }

  // What a warp copies next. Without a box it is nothing.
  struct Next {
    const Own* box;
    const char* from;
    char* to;
    u32 item;
    bool arrives;  // a peer writes it now
    u64* flag;     // of what is sent, or arrives
    int rank;      // of that peer
  };
  __device__ __forceinline__ Next send(u32 index, u32 item, const Own*& last) const {
    const int to = source_of(index);
    const Own& box = told_box(to, index / num_others(), last);
    return {&box, call.rows + box.from, call.window[to] + call.staging_at + box.to, item, false, flag(to, box.flag + item)};
  }
  __device__ __forceinline__ Next keep(u32 number, u32 item, const Own*& last) const {
    const Own& box = told_box(call.rank, number, last);
    return {&box, call.rows + box.from, call.result + box.to, item, false, nullptr};
  }
  __device__ __forceinline__ Next receive(u32 number, u32 item, const Own*& last) const {
    const Own& box = kShares ? box_of(call.num_ranks, number) : held(boxes_back<Shape>(call)[number], last);
    const int cell = int(item / box.num_items), rank = box.rank + cell * box.rank_step;
    if (rank == call.rank) return {};  // which `keep` copies
    const char* const from = call.window[call.rank] + call.staging_at + box.from + cell * box.cell_from;
    char* const to = call.result + box.to + cell * box.cell_to;
    return {&box, from, to, item % box.num_items, true, flag(call.rank, box.flag + item), rank};
  }
  // Whether what arrives has come. Apart from the rest, whose code then lies closer together: a call fetches it anew.
  __device__ __forceinline__ bool has_come(const Next& next) const { return has_come(call, words(), next.rank, next.item, next.flag); }
  __device__ static __noinline__ bool has_come(const Call& call, GiveBackWords<Shape>& words, int rank, u32 item, const u64* flag) {
    const Base state{call, words};
    bool there = state.joins(rank);
    if (there && threadIdx.x % kWarp == 0) there = state.wait_for(rank, item, flag);
    return told_by(0, there);
  }
  // Copies it, and flags what this warp has sent before.
  __device__ __forceinline__ void copy(const Next& next, u64*& pending) const {
    if (!next.box) return;
    bool lost = false;
    // One text for all, or the loops do not fit into a cache of instructions; whole lines are read past L1 anyway.
    BoxCopy<Shape::unit_bytes(0), kFresh, Own::num_all_steps, Shape::run_bytes(0)>{
        *next.box, next.from, next.to, words().places[warp]}
        .item(next.item, lane, [&] { signal(pending); }, [&] { return !(lost = next.arrives && !has_come(next)); });
    if (lost) lose(*next.box, next.to, next.item, words().places[warp], lane);
    if (!next.arrives) pending = next.flag;
  }
  // Which is rare, and need not be fast.
  __device__ static __noinline__ void lose(const Own& box, char* to, u32 item, Places& places, int lane) {
    if (!box.tiling.rows) {
      BoxCopy<Shape::unit_bytes(0), kLost, Own::num_all_steps, Shape::run_bytes(0)>{box, nullptr, to, places}.item(item, lane, Nothing{});
      return;
    }
    const Tile tile = tile_of(box, nullptr, to, item);
    const Ranges ranges(box, tile);
    for (u32 i = 0; i < ranges.num; ++i)
      poison(tile.to + i * box.step[box.tiling.first].to, ranges.bytes, lane, kWarp);
  }

  __device__ __forceinline__ void bring(const Next& next) const {
    if (next.arrives && !has_come(next)) return lose(*next.box, next.to, next.item, words().places[taker()], lane);
    Turns{words().ring, num_workers()}.give(*next.box, next.from, next.to, next.item, 0, next.arrives,
                                                          next.arrives ? nullptr : next.flag);
  }

  // Apart from the rest: what all CTAs run at once when they begin comes from memory, line by line.
  template <class Of>
  __device__ static __noinline__ void count_many(Items& items, u32 num, Of of, int who) { items.count_all(num, of, who); }
  // Behind the count of items, `leave` is run by all threads.
  template <class Of>
  __device__ __forceinline__ void count(Items& items, u32 num, Of of, int who) const {
    if constexpr (kShares) items.count_lanes(num, of, who);
    else if constexpr (!Shape::looks_up) items.count_all(num, of, who);
    else if (num > Items::kFew) count_many(items, num, of, who);
    else if (warp == who) items.count_few(num, num, of);
  }
  template <class Of>
  __device__ __forceinline__ u32 find(const Items& items, u32& item, Of of) const {
    return kShares ? items.find_lane(item) : items.find(item, of);
  }
  template <class Leave>
  __device__ void run(Leave leave) const {
    GiveBackWords<Shape>& all = words();
    const bool takes = !kTurns<Shape> || (taker() >= 0 && taker() < kBringersBack);
    // Where rows are carried, some warps do all that is read here, and the others take what arrives.
    const bool gives = kCarries<Shape> ? warp < num_carriers(kCarriersBack<Shape>, kUnderWayBack) : (kTurns<Shape> ? blockIdx.x : u32(warp)) % 2 == 0;
    const auto counter = [&](bool here) {
      return (here ? call.state->next_finalise : call.state->next_reduce) + shared.parity;
    };
    const bool flags_all = kCarries<Shape> && warp == int(blockDim.x) / kWarp - 1;
    // Of a small call no more warps begin than there are items for in every CTA, or those that start first take all.
    const u32 items = u32(call.result_bytes / (kFewItemLines * kLine)) + 1, most_items = gives ? items - items / u32(call.num_ranks) : items;
    const bool begins = kTurns<Shape> || kCarries<Shape> || u32(warp) / 2 * gridDim.x < most_items;
    const u32 first = takes && !flags_all && begins ? this->ticket(counter(!gives)) : 0;  // which comes while items are counted
    const auto of_sent = [state = *this](u32 box) { return state.sent_items(box); };
    const auto of_own = [state = *this](u32 box) { return state.own_items(box); };
    const auto of_arriving = [state = *this](u32 box) { return state.arriving_items(box); };
    const u32 num_cleared = this->num_cleared(all.moved);
    u32 most = 0;
    for (int from = 0; from < call.num_ranks; ++from)
      if (from != call.rank) most = max(most, all.num_boxes[from]);
    const u32 own = all.num_boxes[call.rank];
    count(all.sent, most * u32(call.num_ranks - 1), of_sent, 0);
    count(all.own, own, of_own, 1);
    count(all.arriving, call.num_ranks > 1 ? own : 0, of_arriving, 2);
    __syncthreads();
    leave();
    if constexpr (kTurns<Shape>) {
      const Turns turning{all.ring, num_workers()};
      if (taker() < 0) turning.work(warp);
      else if (!takes) turning.store(taker() - kBringersBack, shared.tag);
      if (!takes) return;
    }
    if constexpr (kCarries<Shape>)
      if (flags_all) return flags().run(num_carriers(kCarriersBack<Shape>, kUnderWayBack));
    const Own* last = nullptr;
    const bool counts = num_cleared > 0 && (!kCovers<Shape> || __ldcg(&covered(call).edges) > 0);
    bool waits = counts;
    const auto wait = [&] {
      if (!waits) return;
      wait_for_cleared(num_cleared);
      if (kTurns<Shape> || kCarries<Shape>) fence_bulk_proxy();
      waits = false;
    };
    const auto next_here = [&](u32 item) -> Next {
      if (item < num_cleared) {
        clear(call, item, counts ? cleared() : nullptr, lane);
        return {};
      }
      wait();
      item -= num_cleared;
      const u32 num_own = kCarries<Shape> ? 0 : all.own.total();
      if (item < num_own) {
        const u32 box = this->find(all.own, item, of_own);
        return keep(box, item, last);
      }
      item -= num_own;
      const u32 box = this->find(all.arriving, item, of_arriving);
      return receive(box, item, last);
    };
    const InTurn turns(all.sent.total(), kCarries<Shape> ? all.own.total() : 0);
    const auto next_sent_of = [&](u32 item) -> Next {
      if constexpr (kCarries<Shape>) {
        if (turns.is_second(item)) {
          wait();
          const u32 box = this->find(all.own, item, of_own);
          return keep(box, item, last);
        }
      }
      const u32 index = this->find(all.sent, item, of_sent);
      return send(index, item, last);
    };
    if constexpr (kCarries<Shape>) {
      if (gives) {
        Carrier<Own::num_all_steps, least_run<Shape>()> carrier(all.carried.carrier[warp], reinterpret_cast<unsigned char*>(cta_memory()), warp);
        carrier.open();
        const auto hand_over = [&](u64* flag) { flags().hand_over(flag); };
        this->take(first, counter(false), turns.total, [&](u32 item) {
          const Next next = next_sent_of(item);
          carrier.carry(*next.box, next.from, next.to, next.item, next.flag, hand_over);
        });
        carrier.finish(hand_over);
        return flags().end();
      }
    }
    const bool small = !kTurns<Shape> && !kCarries<Shape> && all.sent.total() <= gridDim.x * num_givers();
#pragma unroll 1
    for (int turn = gives ? 0 : 1; turn < (kCarries<Shape> ? 2 : 3); ++turn) {
      const bool here = turn == 1;
      if (turn == 2 && small) break;  // those that began so take all of it, in any CTA
      const bool is_first = turn == (gives ? 0 : 1), skips = is_first && !begins;
      const u32 ticket = is_first ? first : this->ticket(counter(here));
      u64* pending = nullptr;
      const u32 num_items = skips ? 0 : here ? num_cleared + (kCarries<Shape> ? 0 : all.own.total()) + all.arriving.total() : all.sent.total();
      this->take(ticket, counter(here), num_items, [&](u32 item) {
        const Next next = here ? next_here(item) : next_sent_of(item);
        if constexpr (!kTurns<Shape>) copy(next, pending);
        else if (next.box) bring(next);
      });
      if constexpr (!kTurns<Shape> && !kCarries<Shape>) {
        if (turn == 0 && small) signal_all(pending);
        else signal(pending);
      }
    }
    if constexpr (kTurns<Shape>) Turns{all.ring, num_workers()}.end();
  }
};

// Done once in a call, and not fast.
template <class Words>
__device__ __noinline__ void end_numbering(const Call& call, const Words& shared) {
  advance_back(call, shared);
}
// The same by the last CTA that enters, behind a barrier of all its threads.
template <class Words>
__device__ __noinline__ void enter_and_number(const Call& call, const Words& shared) {
  entered_behind(call, [&](State&) { advance_back(call, shared); });
}
template <class Shape>
__device__ __noinline__ bool goes_on_otherwise(const Call& call, GiveBackWords<Shape>& shared) {
  return goes_on(call, Back<GiveBackWords<Shape>>{call, shared}, call.result_bytes);
}

// Whether the kernel before has brought it back, into results that are lent: see `give_lent`, beside whose end this one may
// start. Nobody changes that before all CTAs of this one have entered.
__device__ __forceinline__ bool is_back(const Call& call) {
  wait_for_previous();
  const volatile State& state = *call.state;
  const u32 lent = state.lent, number = state.num_combines, abort = state.abort;
  return lent != 0 && lent == number && !abort;
}

template <class Shape>
__device__ __forceinline__ void give_back(const Call& call) {
  if (call.arrived_at && is_back(call)) return;
  __shared__ GiveBackWords<Shape> shared;
  const int thread = threadIdx.x, warp = thread / kWarp;
  const GiveBack<Shape> state{{call, shared}, warp, thread % kWarp};
  // All that comes from memory is asked for before anything of it is used.
  u64 told = 0;
  if (thread <= call.num_ranks) told = __ldcg(thread < call.num_ranks ? num_told(call, call.rank, thread) : call.moved);
  number_back(call, shared, call.combine_group);
  if constexpr (state.kShares) state.keep_all();
  if (thread == call.num_ranks) shared.moved = told;
  __syncthreads();
  if constexpr (kTurns<Shape>)
    if (thread == kWarp) typename GiveBack<Shape>::Turns{shared.ring, state.num_workers()}.open();
  if constexpr (kCarries<Shape>) state.flags().open();
  if (thread < call.num_ranks) shared.num_boxes[thread] = u32(told >> 32) == state.epoch() && state.joins(thread) ? u32(told) : 0;
  __syncthreads();
  const auto next = [&] {
    if (thread == int(blockDim.x) - 1) enter_and_number(call, shared);
  };
  // In most calls nobody waits, and their code lies together.
  const bool usual = (call.num_ranks == 1 || shared.planned) && !shared.outdated && !shared.refuses && !shared.aborted;
  if (usual) state.say_begun();
  if (usual || goes_on_otherwise<Shape>(call, shared)) state.run(next);
  else next();
}

}  // namespace fuscoc
