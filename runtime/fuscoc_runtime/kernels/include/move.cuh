// Dispatch kernel where slots follow from pieces: copies the boxes that `pieces.cuh` has made, straight to
// their slots. A warp takes the next item of all, with the cells of a box in turn, so that no two ranks
// store to the same one for long, and own rows go with the others. Of many boxes, whose ranks inputs say, it
// takes items from several places of the list in turn, since boxes of a rank may follow each other.
//
// The last warp of every CTA first marks its share of the slots that all ranks fill here: where two points
// have one, it is filled twice, by either, and counted. Every CTA tells the peers when its copies have arrived,
// by its share of a flag. The last one to begin waits for the flags of the peers: all others go on without it.
#pragma once
#include "pieces.cuh"
#include "ring.cuh"

namespace fuscoc {

constexpr u32 kPlacesOfList = 16;  // that items of many boxes are taken from

// The flag in a window of what a rank has moved there.
__device__ __forceinline__ u32* moved_flag(const Call& call, int window, int from) {
  return reinterpret_cast<u32*>(call.window[window] + call.dispatch_flags_at) + from * call.max_sources;
}
// By a warp, when all of its CTA have copied: tells the peers. One that refused has a flag, too, which later calls go on from.
__device__ __forceinline__ void tell_moved(const Call& call, int lane) {
  if (lane >= call.num_ranks || lane == call.rank) return;
  fence_system();
  add_relaxed(moved_flag(call, lane, call.rank),
              kWholeFlag * (blockIdx.x + 1) / gridDim.x - kWholeFlag * blockIdx.x / gridDim.x);
}
// By a warp, of which a lane waits for a peer: until all of what that moves here has come.
__device__ __forceinline__ void wait_for_moved(const Call& call, u32 epoch, u32 refusing, int lane) {
  if (lane >= call.num_ranks || lane == call.rank || refusing >> lane & 1) return;
  const u32* const told = moved_flag(call, call.rank, lane);
  wait_until(call, kDispatchGroup, lane, 0, [&] { return reached(load_acquire(told), epoch * kWholeFlag); });
}

// How many boxes a rank has told this one, once it has; none if that is not to be waited for any more.
__device__ __forceinline__ u32 told_boxes(const Call& call, int from, u32 epoch) {
  u64 ready = 0;
  const u64* const word = ready_word(call, call.rank, from, 0);
  wait_until(call, kStagedSlots, from, 0, [&] { return u32((ready = load_acquire(word)) >> 32) == epoch; });
  return u32(ready >> 32) == epoch ? u32(ready) : 0;
}

// Marks the slots of a range, or source cells, that are in its word of that number, counting from the one that
// it begins in. How many are marked already, which is counted.
__device__ __forceinline__ u32 mark_word(const Call& call, u32* filled, u32& trouble, i64 slot, i64 range, i64 number) {
  const i64 word = slot / 32 + number;
  const i64 low = max(slot - word * 32, i64(0)), high = min(slot + range - word * 32, i64(32));
  if (low >= high) return 0;
  const u32 bits = (high == 32 ? ~0u : (1u << high) - 1) & ~((1u << low) - 1);
  const u32 twice = atomicOr(&filled[word], bits) & bits;
  if (twice) note(call, trouble, u32(__popc(twice)));
  return __popc(twice);
}

template <bool kThere>
struct OwnItems {
  Items own;
};
template <>
struct OwnItems<false> {};

template <class Shape, class Relation>
struct Move {
  using Own = BoxOf<Shape>;
  using Turns = Turning<Shape, Own, kBringersForth, true, 8>;
  static constexpr int kMostShared = Relation::num_pieces * Shape::num_fields;
  // All warps share few boxes; of many, each has the one that it works on.
  static constexpr bool kShares = !Shape::looks_up && kMostShared <= kWarp && !kTurns<Shape>;
  // Few CTAs turn tiles hardly faster than NVLink takes those of peers, which is busy all the time if own ones are taken in turn with them.
  static constexpr bool kApart = Shape::looks_up && kTurns<Shape>;
  static constexpr int kNumLists = kApart ? 2 : 1;  // of items: those that go to others, and own ones
  struct Shared : OwnItems<kApart> {
    Items items;
    Own box[kTurns<Shape> ? kBringersForth : kWarp];
    Places places[kTurns<Shape> ? 1 : kWarp];
    RingOf<Shape, Own> ring;
    CarrierWords carrier[kCarries<Shape> ? kCarriers<Shape> : 1];
  };
  const Call& call;
  const u32 epoch;
  const int lane;
  Shared& shared;
  u32 num_boxes;
  u32 refusing;  // ranks, a bit each

  // Items of a box of any field, in all its cells.
  __device__ __forceinline__ u32 items_of(u32 box) const {
    if constexpr (kShares) return shared.box[box].num_items * u32(shared.box[box].num_cells);
    const Own& of = boxes_forth<Shape>(call)[box];
    return __ldcg(&of.num_items) * u32(__ldcg(&of.num_cells));
  }
  // Those of boxes that stay on this rank, or of all others.
  __device__ __forceinline__ u32 items_of(u32 box, bool stay) const {
    const Own& of = boxes_forth<Shape>(call)[box];
    const u32 num_items = __ldcg(&of.num_items), num_cells = u32(__ldcg(&of.num_cells));
    const bool stays = __ldcg(&of.rank) == call.rank && num_cells == 1;
    return stays == stay ? num_items * num_cells : 0;
  }

  // Cells in turn, that of the next rank first: ranks begin with different ones.
  __device__ __forceinline__ int cell_of(const Own& box, u32 item) const {
    return box.num_cells == 1 ? 0 : (int(item % box.num_cells) + call.rank + 1) % box.num_cells;
  }
  template <int kField = 0>
  __device__ __forceinline__ void copy(const Own& box, int field, const char* from, char* to, u32 item) const {
    if constexpr (kField + 1 < Shape::num_fields) {
      if (field != kField) {
        copy<kField + 1>(box, field, from, to, item);
        return;
      }
    }
    BoxCopy<Shape::unit_bytes(kField), kSettled, Own::num_all_steps, Shape::run_bytes(kField)>{
        box, from, to, shared.places[threadIdx.x / kWarp]}.item(item, lane, Nothing{});
  }

  // Apart from the rest, whose code then lies closer together: all CTAs fetch it at once when they begin.
  template <class Of>
  __device__ static __noinline__ void count_many(Items& items, u32 num, Of of, u32 who) { items.count_all(num, of, who); }
  // Counts the items of the boxes that there are.
  __device__ __forceinline__ void look(int warp, int num_warps) {
    num_boxes = __ldcg(call.num_boxes) * Shape::num_fields;
    if constexpr (kShares) {
      for (int box = warp; box < kMostShared; box += num_warps) keep_box(shared.box[box], boxes_forth<Shape>(call)[box], lane);
      __syncthreads();
      shared.items.count_lanes(num_boxes, [&](u32 box) { return items_of(box); }, 0);
    } else {
      // A list by a warp each, and one text for all.
      const i64 most = call.max_boxes * Shape::num_fields;
      const auto of = [state = *this](u32 stay) {
        return [state, stay](u32 box) { return kApart ? state.items_of(box, stay) : state.items_of(box); };
      };
      if (num_boxes > Items::kFew) {
#pragma unroll 1
        for (u32 stay = 0; stay < kNumLists; ++stay) count_many(list(stay), num_boxes, of(stay), stay);
      } else if (warp < kNumLists) {
        list(warp).count_few(num_boxes, most > Items::kFew ? num_boxes : u32(most), of(warp));
      }
    }
    __syncthreads();
  }
  // Once more, which is rare.
  __device__ static __noinline__ u32 look_again(const Call& call, Shared& shared, int warp, int num_warps) {
    Move again{call, 0, int(threadIdx.x) % kWarp, shared, 0, 0};
    again.look(warp, num_warps);
    return again.num_boxes;
  }
  __device__ __forceinline__ u32 num_places() const { return num_boxes > 1 ? kPlacesOfList : 1; }
  // Whether the warp that marks copies items, too: not in small calls.
  __device__ __forceinline__ bool marker_copies(int num_warps) const {
    if (kTurns<Shape> || (kCarries<Shape> && !Shape::few)) return false;
    return u32(round_up(shared.items.total(), num_places())) > gridDim.x * u32(num_warps - 1);
  }
  __device__ __forceinline__ Items& list(bool stays) const {
    if constexpr (kApart)
      if (stays) return shared.own;
    return shared.items;
  }
  // Takes items from number `turn` on, `first` being the next that nobody has; copy(box, field, from, to, item).
  template <class Copy>
  __device__ __forceinline__ void take(u32 turn, u32 first, Own& kept, Copy copy) const {
    const u32 num_items = list(false).total(), num_own = kApart ? list(true).total() : 0;
    u32* const next = &call.state->next_send[epoch & 1];
    const u32 places = num_places(), part = (num_items + places - 1) / places;
    const InTurn turns(places * part, num_own);
    u32 held = ~0u;
    while (turn < turns.total) {
      const u32 after = lane == 0 ? first + atomicAdd(next, 1u) : 0;
      bool stays = false;
      if constexpr (kApart) stays = turns.is_second(turn);
      u32 item = stays ? turn : turn % places * part + turn / places;
      if (item < (stays ? num_own : num_items)) {
        const u32 number = kShares ? shared.items.find_lane(item)
                                   : list(stays).find(item, [&](u32 box) { return kApart ? items_of(box, stays) : items_of(box); });
        if constexpr (!kShares)
          if (number != held) keep_box(kept, boxes_forth<Shape>(call)[number], lane), held = number;
        const Own& box = kShares ? shared.box[number] : kept;
        const int field = int(number % Shape::num_fields), cell = cell_of(box, item), rank = box.rank + cell * box.rank_step;
        if (!(refusing >> rank & 1))
          copy(box, field, call.source[field] + box.from + cell * box.cell_from,
               call.window[rank] + call.rows_at[field] + box.to + cell * box.cell_to, box.num_cells == 1 ? item : item / box.num_cells);
      }
      turn = __shfl_sync(kAllLanes, after, 0);
    }
  }
  __device__ __forceinline__ auto carrier(int warp) const {
    return Carrier<Own::num_all_steps, least_run<Shape>()>(shared.carrier[warp], reinterpret_cast<unsigned char*>(cta_memory()), warp);
  }
  __device__ void run(int warp, int num_warps) {
    if (warp == num_warps - 1) mark_all();  // it has no item in small calls
    const int num_carry = kCarries<Shape> ? num_carriers(kCarriers<Shape>) : 0;
    const int num = kCarries<Shape> && !Shape::few ? num_carry : num_warps;
    const u32 turn = warp * gridDim.x + blockIdx.x, next = gridDim.x * num;
    if constexpr (kCarries<Shape>) {
      if (warp < num_carry) {
        auto carrier = this->carrier(warp);
        take(turn, next, shared.box[warp],
             [&](const Own& box, int, const char* from, char* to, u32 item) { carrier.carry(box, from, to, item, nullptr, [](u64*) {}); });
        return carrier.finish([](u64*) {});
      }
    }
    if constexpr (!kCarries<Shape> || Shape::few)
      take(turn, next, shared.box[warp],
           [&](const Own& box, int field, const char* from, char* to, u32 item) { copy(box, field, from, to, item); });
  }
  // Of a CTA that turns tiles, most of whose warps do that, and one marks.
  __device__ void run(int warp, const Turns& turning) {
    const int bringer = warp - int(turning.num_workers), storer = bringer - kBringersForth;
    if (bringer < 0) {
      turning.work(warp);
    } else if (storer < 0) {
      take(bringer * gridDim.x + blockIdx.x, gridDim.x * kBringersForth, shared.box[bringer],
           [&](const Own& box, int field, const char* from, char* to, u32 item) {
             turning.give(box, from, to, item, field, false, nullptr);
           });
      turning.end();
    } else if (storer < kStorers) {
      turning.store(storer, 0);
    } else {
      mark_all();
    }
  }

  // Few marks are brought at once, when all ranks have told theirs, into what is left of the memory of boxes.
  using Told = Marks<Shape::num_loops>;
  static constexpr int kMostMarks = kMaxRanks * Relation::num_pieces;
  static constexpr bool kKeepsMarks = kShares && kMostMarks * sizeof(Told) <= (kWarp - kMostShared) * sizeof(Own);
  __device__ __forceinline__ Told* kept_marks() const { return reinterpret_cast<Told*>(shared.box + kMostShared); }
  __device__ __forceinline__ void keep_marks() const {
    constexpr int words = int(sizeof(Told) / sizeof(u64)), together = 4;
    const u64* const from = reinterpret_cast<const u64*>(marks_told<Shape>(call, call.rank, 0));
    u64* const to = reinterpret_cast<u64*>(kept_marks());
    const int num = call.num_ranks * Relation::num_pieces * words;
    for (int first = lane; first < num; first += kWarp * together) {
      u64 word[together];
#pragma unroll
      for (int i = 0; i < together; ++i) word[i] = __ldcg(from + min(first + i * kWarp, num - 1));
#pragma unroll
      for (int i = 0; i < together; ++i)
        if (first + i * kWarp < num) to[first + i * kWarp] = word[i];
    }
    __syncwarp();
  }
  __device__ void mark_all() {
    const bool told = lane < call.num_ranks && !(refusing >> lane & 1);
    const u32 boxes_of_lane = told ? told_boxes(call, lane, epoch) : 0;
    if (told && blockIdx.x == 0) *num_told(call, call.rank, lane) = tagged(boxes_of_lane, epoch);
    // What a lane has waited for is there for all; and this rank's plan has cleared the bits, which nobody else's word tells.
    __syncwarp();
    if constexpr (kKeepsMarks) keep_marks();
    for (int from = 0; from < call.num_ranks; ++from) {
      if (refusing >> from & 1) continue;
      const u32 num_boxes = __shfl_sync(kAllLanes, boxes_of_lane, from);
      // All warps that mark share a box of few, and begin with one CTA or another; of many, each has one.
      const auto* const marks = marks_told<Shape>(call, call.rank, from);
      if constexpr (Shape::looks_up)
        for (u32 box = blockIdx.x; box < num_boxes; box += gridDim.x)
          mark<true>(marks[box], call.filled, call.state->clashed, lane, kWarp);
      else
        for (u32 box = 0; box < num_boxes; ++box) {
          const u32 cta = (blockIdx.x + from * num_boxes + box) % gridDim.x;
          const Told& of = kKeepsMarks ? kept_marks()[from * Relation::num_pieces + box] : marks[box];
          mark<!kKeepsMarks>(of, call.filled, call.state->clashed, cta * kWarp + lane, gridDim.x * kWarp);
        }
      if constexpr (Shape::apart)
        if (from == call.rank)
          for (u32 box = blockIdx.x; box < num_boxes; box += gridDim.x)
            if (const u32 again = mark<true>(marks_of_cells<Shape>(call)[box], call.begun, call.state->shared, lane, kWarp))
              atomicAdd(&call.moved[0], -(u64(again) * u64(Shape::row_bytes(0))));  // not to come back once more
      if constexpr (kCovers<Shape>)
        if (from == call.rank)
          for (u32 box = blockIdx.x; box < num_boxes; box += gridDim.x) cover(boxes_back<Shape>(call)[box]);
    }
  }
  // Sets bits, a lane those of a word of a range, and counts those that are set already: for this lane, too.
  template <bool kIsTold>
  __device__ __forceinline__ static i64 word_of(const i64& at) {
    if constexpr (kIsTold) return __ldcg(&at);
    return at;
  }
  template <bool kIsTold>
  __device__ u32 mark(const Told& marks, u32* filled, u32& trouble, int lane, int num_lanes) {
    const i64 range = word_of<kIsTold>(marks.range), words = (range + 62) / 32;  // of a range, wherever it begins
    const i64 num = words * word_of<kIsTold>(marks.num_ranges);
    u32 again = 0;
    for (i64 i = lane; i < num; i += num_lanes) {
      i64 slot = word_of<kIsTold>(marks.first), number = i / words;
      for (int j = int(word_of<kIsTold>(marks.num_loops)) - 1; j >= 0; --j) {
        const i64 count = word_of<kIsTold>(marks.count[j]);
        slot += number % count * word_of<kIsTold>(marks.step[j]);
        number /= count;
      }
      again += mark_word(call, filled, trouble, slot, range, i % words);
    }
    return again;
  }
  // Marks what comes back of a box.
  __device__ void cover(const Own& box) const {
    if (__ldcg(&box.num_items) == 0) return;
    const i64 bytes = __ldcg(&box.range_bytes);
    const u32 ranges = __ldcg(&box.num_lines) / __ldcg(&box.range_lines.by);
    bool edge = bytes < kPart;
    for (i64 i = lane; bytes >= kPart && i < i64(ranges) * __ldcg(&box.num_cells); i += kWarp) {
      i64 at = __ldcg(&box.to) + i / ranges * __ldcg(&box.cell_to);
      u32 number = u32(i % ranges);
      for (int j = __ldcg(&box.num_outer) - 1; j >= 0; --j) {
        const u32 count = __ldcg(&box.step[j].count.by);
        at += number % count * __ldcg(&box.step[j].to);
        number /= count;
      }
      const i64 first = ceil_div(at, kPart), end = (at + bytes) / kPart;
      edge |= at % kPart || (at + bytes) % kPart;
      for (i64 word = first / 32; word * 32 < end; ++word) {
        const i64 low = max(first - word * 32, i64(0)), high = min(end - word * 32, i64(32));
        if (low < high) atomicOr(&covered(call).bits[word], (high == 32 ? ~0u : (1u << high) - 1) & ~((1u << low) - 1));
      }
    }
    if (__any_sync(kAllLanes, edge) && lane == 0) atomicAdd(&covered(call).edges, 1u);
  }
};

// Whether the boxes of an earlier call are those of this one, where inputs say nothing of what moves: each CTA sees that for
// itself, as soon as the ranks have met, and need not wait until the plan has seen the same. By a warp: a lane has a word that
// boxes follow from, and what a rank tells, if anything.
struct Made {
  int index, peer, word;  // of what was made, and of what is told; -1: nothing
  i64 made;

  __device__ __forceinline__ static Made of(const Call& call, int lane) {
    Made of{-1, -1, lane % kToldWords, 1};
    if (lane < call.num_ranks * kToldWords) of.peer = lane / kToldWords, of.index = of.word == 0 ? kMaxInputs + of.peer : kMadeOf;
    else if (lane >= kMaxRanks * kToldWords && lane < kMaxRanks * kToldWords + kMaxInputs) of.index = lane - kMaxRanks * kToldWords;
    if (of.index >= 0) of.made = i64(load_acquire(reinterpret_cast<const u64*>(call.made_of) + of.index));
    if (of.peer < 0 && of.index >= 0) of.made = of.made == call.extents[of.index];
    return of;
  }
  // When the ranks have met; `aborted` if that is not to be waited for any more.
  __device__ __forceinline__ bool is_same(const Call& call, u32 epoch, volatile bool& aborted) const {
    int told = told_word(call, word);
    if (peer >= 0 && peer != call.rank) {
      const u64* const at = counts_of(call, epoch, call.rank, peer) + word;
      u64 seen = 0;
      if (!wait_until(call, kPlanPeers, peer, 0, [&] { return u32((seen = load_acquire(at)) >> 32) == epoch; })) aborted = true;
      told = int(u32(seen));
    }
    return !lanes_without(peer >= 0 && word == 0 ? made == told : made != 0 && (peer < 0 || told >= 0));
  }
};

template <class Shape, class Relation>
__device__ __forceinline__ void move(const Call& call) {
  using Kind = Move<Shape, Relation>;
  using Own = typename Kind::Own;
  __shared__ typename Kind::Shared shared;
  __shared__ u32 epoch;
  __shared__ bool aborted;
  __shared__ u32 planned;
  const int warp = threadIdx.x / kWarp, num_warps = blockDim.x / kWarp, lane = threadIdx.x % kWarp;
  const int num_workers = num_warps - kBringersForth - kStorers - 1;  // that turn tiles
  if constexpr (kTurns<Shape>)
    if (threadIdx.x == kWarp) typename Kind::Turns{shared.ring, num_workers}.open();
  if (threadIdx.x == 0) begin_dispatch(call, epoch, aborted);
  Made made{};
  if (!Shape::looks_up && warp == 0) made = Made::of(call, lane);
  __syncthreads();  // what that has seen is older than the boxes that are looked at
  Kind kind{call, epoch, lane, shared, 0, 0};
  if constexpr (kCarries<Shape>)
    if (warp < kCarriers<Shape>) kind.carrier(warp).open();
  // While ranks meet, boxes of the call before are counted, which often are those of this one; or, where inputs say what
  // moves, those that are made meanwhile.
  bool looked = true;
  if constexpr (Shape::looks_up) {
    const auto wait = [&](u32 also) {  // or until this bit is set
      if (threadIdx.x == 0)
        while (!((planned = load_acquire(&call.state->planned)) & also) && planned % kMade != 1) __nanosleep(32);
    };
    wait(kAhead);
    __syncthreads();
    looked = planned & kAhead;
    if (looked) {
      kind.look(warp, num_warps);
      wait(0);
    }
  } else {
    kind.look(warp, num_warps);
    if (warp == 0) {
      const bool same = made.is_same(call, epoch, aborted);
      if (lane == 0) {
        planned = same ? 0 : kMade;
        while (!same && !aborted && load_acquire(&call.state->planned) != epoch) __nanosleep(32);
      }
    }
  }
  const u32 place = enter(call);
  const bool anew = planned & kMade;
  if (!looked || anew) kind.num_boxes = Kind::look_again(call, shared, warp, num_warps);
  // Boxes are made anew if a rank refuses.
  kind.refusing = Shape::looks_up || anew ? *(volatile u32*)&call.routing->refusing : 0;
  leave(call, place, [&](State& state) {
    const u32 other = ~epoch & 1;
    state.dispatch_epoch = epoch;
    if constexpr (Shape::looks_up) state.planned = 0;
    state.next_send[other] = 0;
  });
  if (!aborted) {
    if constexpr (kTurns<Shape>) kind.run(warp, typename Kind::Turns{shared.ring, num_workers});
    else kind.run(warp, num_warps);
    // Nobody who copies waits for the warp that marks.
    const bool all = kind.marker_copies(num_warps), marks = warp == num_warps - 1;
    const int threads = (num_warps - !all) * kWarp;
    if (all || !marks) asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory");
    if (warp == 0) tell_moved(call, lane);
    if (marks && __shfl_sync(kAllLanes, place, kWarp - 1) == gridDim.x - 1) wait_for_moved(call, epoch, kind.refusing, lane);
  }
  wait_for_previous();
}

}  // namespace fuscoc
