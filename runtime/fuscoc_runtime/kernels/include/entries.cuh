// Kernels where slots follow from pieces and entries are short: each is one piece that lies together in the
// source, one entry behind the other, and all have the same loops. So of an entry a word is enough, the rank and
// the slot of its first point; no box is kept for any.
//
// A warp takes a group of entries, a lane an entry. Those that go on where the one before ends, at both ends, are
// a chain, and a chain is a box, as `box_copy.cuh` copies it: patches side by side become lines of a picture.
//
// An entry that is one row of whole words needs no box: lanes take the words of a group, and neighbours those that
// lie together (`entry_rows.cuh`). Such a row may go to every rank: then it has a word for each.
#pragma once
#include "entry_rows.cuh"
#include "move.cuh"

namespace fuscoc {

template <class Shape>
struct Entries {
  static constexpr int kGroup = Shape::entry_group, kLoops = Shape::num_loops + 1, kUnit = Shape::unit_bytes(0);
  static constexpr i64 entry_points = Shape::entry_points, entry_bytes = entry_points * Shape::row_bytes(0);
  using Own = Box<kLoops>;
  static constexpr bool kAreRows = Shape::num_loops == 0 && kUnit == kLine;
  static_assert((kAreRows || kGroup <= kWarp) && Shape::num_fields == 1 && Shape::num_runs(0) == 0);

  // Numbers of this rank that its words follow from, where no input is looked up; behind them is whether the words
  // are there, and all have slots of their own.
  static constexpr int kMadeOf = kMaxInputs + 1;
  __device__ static __forceinline__ i64 follows_from(const Call& call, int i) {
    return i < kMaxInputs ? call.extents[i] : call.num_slots;
  }
  // Whether one of these is as it was when the words were made: if all are, those that say where rows of this rank
  // lie here are right, whatever the peers have. They are there for who has seen it.
  __device__ static __forceinline__ bool is_same(const Call& call, int i) {
    const i64 made_of = i64(load_acquire(reinterpret_cast<const u64*>(call.made_of + i)));
    return i == kMadeOf ? made_of != 0 : made_of == follows_from(call, i);
  }

  // Where this rank's entries go, and the slots here of those of a rank; -1: nowhere, and none.
  __device__ static __forceinline__ i64* codes(const Call& call) { return static_cast<i64*>(call.boxes_back); }
  __device__ static __forceinline__ int* told(const Call& call, int window, int from) {
    return reinterpret_cast<int*>(call.window[window] + call.marks_at) + from * call.max_boxes;
  }
  // Words of an entry.
  __device__ static __forceinline__ int num_words(const Call& call) { return Shape::every_rank ? call.num_ranks : 1; }
  __device__ static __forceinline__ u32 num_groups(i64 num_entries) { return u32(ceil_div(num_entries, kGroup)); }
  __device__ static __forceinline__ u32 num_entries(const Call& call) { return __ldcg(call.num_boxes); }
  // The word of one of `num` entries; -1 where there is none.
  template <class Word>
  __device__ static __forceinline__ i64 word(const Word* words, i64 entry, i64 num) {
    return entry < num ? __ldcg(words + entry) : -1;
  }

  // The slots of an entry: ranges of some, `of` loops from one to the next. Slots from one entry of a chain to the next.
  __device__ static i64 slots(Loop* loop, int& num) {
    for (int i = 0; i < Shape::num_loops; ++i) loop[i] = {Shape::entry_count(i), 0, Shape::entry_slot_step(i), 0};
    i64 range = 1;
    num = count_outer(loop, sort_loops(loop, Shape::num_loops, kTarget), kTarget, range);
    return range;
  }

  // A box of `num` entries; `to` is kTarget on the way there, kSource on the way back.
  __device__ static __noinline__ void make(Own& box, int num, End to) {
    Loop loop[kLoops + 1], of_slots[kLoops + 1];
    int ignored;
    loop[0] = {num, entry_bytes, slots(of_slots, ignored) * Shape::row_bytes(0), 0};
    for (int i = 0; i < Shape::num_loops; ++i)
      loop[i + 1] = {Shape::entry_count(i), Shape::entry_src_step(i) * Shape::cell_bytes(0),
                     Shape::entry_slot_step(i) * Shape::row_bytes(0), 0};
    const int sorted = sort_loops(loop, kLoops, to);
    i64 range = Shape::run_bytes(0);
    const int outer = count_outer(loop, sorted, to, range);
    make_box<kUnit>(box, loop, sorted, outer, range, Shape::run_bytes(0), to == kTarget ? kSource : kTarget, to, kItemLines);
  }

  // What a warp keeps to copy chains: the box of the last one, which the next one often is alike to.
  struct Copier {
    Own box;
    Places places;
    int num;  // of entries, 0: none yet
  };
  template <End to>
  __device__ static __noinline__ void copy(Copier& mine, int num, const char* from_at, char* to_at, int lane) {
    __syncwarp();
    if (mine.num != num) {
      __syncwarp();
      if (lane == 0) make(mine.box, num, to), mine.num = num;
      __syncwarp();
    }
    const BoxCopy<kUnit, kSettled, kLoops, kUnit, to == kTarget> lines{mine.box, from_at, to_at, mine.places};
    for (u32 item = 0; item < mine.box.num_items; ++item) lines.item(item, lane, Nothing{});
  }

  // The lanes of chains, those that `begins` says of them: for each, `work(first lane, entries)`.
  template <class Work>
  __device__ static __forceinline__ void each(bool there, bool begins, Work work) {
    const u32 valid = __ballot_sync(kAllLanes, there);
    for (u32 first = __ballot_sync(kAllLanes, there && begins); first; first &= first - 1) {
      const int lane = __ffs(first) - 1;
      const u32 rest = first & (first - 1), ends = (rest | ~valid) & ~((2u << lane) - 1);
      work(lane, (ends ? __ffs(ends) - 1 : kWarp) - lane);
    }
  }
  // Whether a lane's word does not go on where that of the lane before ends.
  __device__ static __forceinline__ bool begins(i64 word, i64 step, int lane) {
    const i64 before = __shfl_up_sync(kAllLanes, word, 1);
    return lane == 0 || before < 0 || word != before + step;
  }
};

// Plan kernel, of several CTAs: the words of all entries. CTA 0 meets the ranks, the others begin when it has. Where
// no input is looked up, the words and the bits of filled slots are there already if nothing that they follow from
// has changed on any rank since the handle's memory was last used, and no entry was dropped then.
template <class Shape, class Relation>
struct PlaceEntries {
  using All = Entries<Shape>;
  static constexpr int kAtOnce = 4;  // entries of a thread, which look up or divide at the same time
  static constexpr int kMadeOf = All::kMadeOf;
  struct Shared {
    Meeting meeting;
    u64 points_to[kMaxRanks];
    u32 stale;
  };
  const Call& call;
  Shared& shared;
  const Relation relation;
  const u32 epoch;
  const int dropped;

  // Points to each rank, while they are counted.
  __device__ __forceinline__ u64* counted() const { return reinterpret_cast<u64*>(call.made_of + kMadeOf + 1); }
  // By all threads of every CTA, before the last of them says anew what words follow from.
  __device__ bool is_stale() const {
    if (threadIdx.x == 0) shared.stale = Shape::looks_up;
    __syncthreads();
    if (!Shape::looks_up && threadIdx.x <= kMadeOf && !All::is_same(call, threadIdx.x)) shared.stale = 1;
    __syncthreads();
    return shared.stale;
  }

  __device__ __forceinline__ void drop(u32& word) const {
    note(call, word, u32(All::entry_points));
    atomicAdd(&call.routing->dropped[dropped], u32(All::entry_points));
  }
  // The code of an entry; of a rank that refused, whose slots nobody knows, one whose results are lost.
  __device__ __forceinline__ i64 code(i64 entry, i64 lowest, i64 highest) const {
    PieceOf<Shape> piece;
    relation.template piece<0>(entry, piece);
    const i64 rank = piece.rank, slot = piece.slot;
    if (rank == -1) return -1;
    const bool known = rank >= 0 && rank < call.num_ranks;
    if (known && shared.meeting.peers.refusing >> rank & 1) return entry_code(int(rank), 0);
    if (known && slot + lowest >= 0 && slot + highest < shared.meeting.num_slots_of[rank]) return entry_code(int(rank), slot);
    drop(call.state->bad_keys);
    return -1;
  }
  // Whether it has made them.
  __device__ bool run() {
    const i64 thread = i64(blockIdx.x) * blockDim.x + threadIdx.x, step = i64(gridDim.x) * blockDim.x;
    if (threadIdx.x < kMaxRanks) shared.points_to[threadIdx.x] = 0;
    const bool is_stale = this->is_stale();
    if (blockIdx.x == 0 && threadIdx.x < 2 * kMaxRanks) fence_system();  // who tells the others below
    greet(call, epoch, is_stale);
    meet(call, shared.meeting, epoch);
    const Peers& peers = shared.meeting.peers;
    if (blockIdx.x == 0 && threadIdx.x == 0) keep_peers(call, peers);
    if (threadIdx.x == 0) {
      const u64* const mine = counts_of(call, epoch, call.rank, call.rank) + 1;
      wait_until(call, kPlanLocal, 0, 0, [&] { return u32(load_acquire(mine) >> 32) == epoch; });
    }
    __syncthreads();
    i64 num = relation.num_entries();
    const int num_words = All::num_words(call);
    if (num * num_words > call.max_entries) {
      if (thread == 0) note(call, call.state->excess, u32(min(num - call.max_entries / num_words, i64(1) << 30)));
      num = 0;
    }
    if (peers.failed) num = 0;
    const bool makes = is_stale || shared.meeting.changed || peers.refusing || peers.failed;
    if (!makes) {
      if (thread < call.num_ranks) store_relaxed(ready_word(call, int(thread), call.rank, 0), tagged(u32(num), epoch));
      return false;
    }
    for (i64 word = thread; word < ceil_div(call.num_slots, 32); word += step) call.filled[word] = 0;
    make(num * num_words, thread, step);
    if (threadIdx.x != 0) return true;
    fence_system();
    if (atomicAdd(&call.state->sent[epoch & 1], 1u) != gridDim.x - 1) return true;
    fence_system();
    u64 points = 0;
    for (int rank = 0; rank < kMaxRanks; ++rank) {
      call.moved[2 + rank] = atomicExch(counted() + rank, u64(0));
      points += call.moved[2 + rank];
    }
    call.moved[0] = points * Shape::row_bytes(0);
    call.moved[1] = u64(call.num_sources * num_words);
    *call.num_boxes = u32(num);
    fence_gpu();  // whoever sees what words follow from has them, and their number
    for (int i = 0; i < kMadeOf; ++i) call.made_of[i] = All::follows_from(call, i);
    call.made_of[kMadeOf] = atomicAdd(&call.routing->dropped[dropped], 0u) == 0 && !peers.refusing && !peers.failed;
    fence_system();
    for (int rank = 0; rank < call.num_ranks; ++rank)
      store_relaxed(ready_word(call, rank, call.rank, 0), tagged(u32(num), epoch));
    return true;
  }
  // The `num` words of all entries.
  __device__ void make(i64 num, i64 thread, i64 step) {
    const u32 refusing = shared.meeting.peers.refusing;
    i64 lowest = 0, highest = 0;
    for (int i = 0; i < Shape::num_loops; ++i) {
      const i64 reach = Shape::entry_slot_step(i) * (Shape::entry_count(i) - 1);
      lowest += min(reach, i64(0));
      highest += max(reach, i64(0));
    }
    u32 told[kMaxRanks] = {};  // entries of this thread that go to each
    for (i64 first = thread; first < num; first += kAtOnce * step) {
      i64 made[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const i64 entry = first + i * step;
        made[i] = entry < num ? code(entry, lowest, highest) : -1;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const i64 entry = first + i * step;
        if (entry >= num) break;
        All::codes(call)[entry] = made[i];
#pragma unroll
        for (int rank = 0; rank < kMaxRanks; ++rank) {
          if (rank >= call.num_ranks) break;
          if (refusing >> rank & 1) continue;
          const bool there = made[i] >= 0 && entry_rank(made[i]) == rank;
          All::told(call, rank, call.rank)[entry] = there ? int(entry_slot(made[i])) : -1;
          told[rank] += there;
        }
      }
    }
#pragma unroll
    for (int rank = 0; rank < kMaxRanks; ++rank)
      if (told[rank]) atomicAdd(&shared.points_to[rank], told[rank] * u64(All::entry_points));
    __syncthreads();
    if (int(threadIdx.x) < call.num_ranks) atomicAdd(counted() + threadIdx.x, shared.points_to[threadIdx.x]);
    __syncthreads();
  }
};

template <class Shape, class Relation>
__device__ __forceinline__ void place_entries(const Call& call) {
  __shared__ Numbers numbers;
  __shared__ typename PlaceEntries<Shape, Relation>::Shared shared;
  const u32 turn = begin_plan(call, numbers);
  let_next_start();
  bool made = false;
  if (numbers.aborted) {
    plan_nothing<Shape>(call);
    if (blockIdx.x == 0 && threadIdx.x == 0) *call.num_boxes = 0;
  } else {
    made = PlaceEntries<Shape, Relation>{call, shared, Relation{call}, numbers.epoch, int(numbers.use & 1)}.run();
  }
  finish_plan(call, numbers, turn, made ? kMade : 0);
}

// Dispatch kernel. Items are groups of this rank, from several places of the list in turn, since entries of a rank
// may follow each other; then groups of all ranks, whose slots here are marked as filled, if words are new.
//
// Where rows go to every rank, items of those that stay are others than of those that leave, and half of the warps
// begin with each. If words are kept, what stays is moved before the ranks have met: nobody else writes there.
template <class Shape>
struct MoveEntries {
  using All = Entries<Shape>;
  static constexpr int kChunks = All::kAreRows ? 8 : 1;  // words of rows that a lane looks at together,
  static constexpr i64 kMarked = All::kAreRows ? kChunks * kWarp : All::kGroup;  // and entries of a warp
  static constexpr bool kParts = Shape::every_rank;
  enum Part { kAll, kStay, kLeave };
  struct Shared {
    typename All::Copier copier[kWarp];
    u32 epoch;
    bool aborted, changed;
    volatile bool planned;  // a warp has seen it
  };
  const Call& call;
  Shared& shared;
  const int warp, num_warps, lane;
  const i64 step;  // slots from an entry of a chain to the next

  template <Part kPart>
  __device__ void send(u32 group, i64 num) const {
    const i64 first = i64(group) * All::kGroup;
    if constexpr (All::kAreRows) {
      const char* const from = call.source[0] + first * All::entry_bytes;
      const int num_words = All::num_words(call);
      const auto look = [&](int turn) {  // that of the next rank first, or of this one
        const int word = (call.rank + turn + (kPart != kStay)) % num_words;
        return Rows<Shape>(All::codes(call), first, turn < num_words ? num : 0, word, num_words, lane);
      };
      Rows<Shape> rows = look(0);
      for (int turn = 1; turn <= num_words; ++turn) {
        const Rows<Shape> next = kParts ? look(turn) : rows;  // while these are copied
        rows.keep([&](i64 code) { return kPart == kAll || (entry_rank(code) == call.rank) == (kPart == kStay); });
        if (rows.any())
          rows.copy([&](i64 code, i64 at, i64 inside) -> RowWord {
            if (code < 0 || (kPart != kStay && call.routing->refusing >> entry_rank(code) & 1)) return {};
            char* const to = call.window[entry_rank(code)] + call.rows_at[0] + entry_slot(code) * Shape::row_bytes(0);
            return {from + at, to + inside};
          });
        rows = next;
      }
      return;
    }
    const i64 code = lane < All::kGroup ? All::word(All::codes(call), first + lane, num) : -1;
    const bool there = code >= 0 && !(call.routing->refusing >> entry_rank(code) & 1);
    All::each(there, All::begins(code, step, lane), [&](int head, int count) {
      const i64 to = __shfl_sync(kAllLanes, code, head);
      const int rank = entry_rank(to);
      All::template copy<kTarget>(shared.copier[warp], count, call.source[0] + (first + head) * All::entry_bytes,
                call.window[rank] + call.rows_at[0] + entry_slot(to) * Shape::row_bytes(0), lane);
    });
  }
  // Clashes are counted in every call, so they are not kept.
  __device__ __forceinline__ void mark_word(i64 slot, i64 range, i64 number) const {
    if (fuscoc::mark_word(call, call.filled, call.state->clashed, slot, range, number)) call.made_of[All::kMadeOf] = 0;
  }
  // The slots of rows; lanes with those that are one behind the other mark them together.
  __device__ __forceinline__ void mark_rows(i64 slot) const {
    const bool begins = All::begins(slot, step, lane);
    const u32 heads = __ballot_sync(kAllLanes, slot < 0 || begins);
    if (slot < 0 || !(heads >> lane & 1)) return;
    const u32 behind = heads & ~((2u << lane) - 1);
    const int count = (behind ? __ffs(behind) - 1 : kWarp) - lane;
    mark_word(slot, count, 0);
    mark_word(slot, count, 1);
  }
  __device__ void mark(int from, u32 group, i64 num) const {
    if constexpr (All::kAreRows) {
      const int* const told = All::told(call, call.rank, from);
      const int num_words = All::num_words(call);
      for (int turn = 0; turn < num_words; ++turn) {
        i64 slot[kChunks];
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
          const i64 entry = i64(group) * kMarked + c * kWarp + lane;
          slot[c] = entry < num ? __ldcg(told + entry * num_words + turn) : -1;
        }
#pragma unroll
        for (int c = 0; c < kChunks; ++c) mark_rows(slot[c]);
      }
      return;
    }
    const i64 entry = i64(group) * All::kGroup + lane;
    const i64 slot = lane < All::kGroup ? All::word(All::told(call, call.rank, from), entry, num) : -1;
    Loop loop[All::kLoops + 1];
    int num_loops;
    const i64 range = All::slots(loop, num_loops);
    i64 ranges = 1;
    for (int i = 0; i < num_loops; ++i) ranges *= loop[i].count;
    All::each(slot >= 0, All::begins(slot, step, lane), [&](int head, int count) {
      const i64 begin = __shfl_sync(kAllLanes, slot, head), length = range * count, words = (length + 62) / 32;
      for (i64 i = lane; i < words * ranges; i += kWarp) {
        i64 at = begin, number = i / words;
        for (int j = num_loops - 1; j >= 0; --j) {
          at += number % loop[j].count * loop[j].dst;
          number /= loop[j].count;
        }
        mark_word(at, length, i % words);
      }
    });
  }

  __device__ __forceinline__ u32 ticket(u32* counter) const {
    return __shfl_sync(kAllLanes, lane == 0 ? atomicAdd(counter, 1u) : 0, 0);
  }
  // Takes groups, `turn` being the next one of this warp; until there is a plan, if this is `early`. How many turns
  // there are.
  template <Part kPart>
  __device__ __forceinline__ u32 take(u32& turn, u32* counter, bool early = false) const {
    const i64 num = All::num_entries(call);
    const u32 num_groups = All::num_groups(num), places = kPart == kAll ? kPlacesOfList : 1;
    const u32 part = (num_groups + places - 1) / places, num_turns = places * part;
    while (turn < num_turns) {
      if (early && __shfl_sync(kAllLanes, shared.planned, 0)) break;
      const u32 next = lane == 0 ? atomicAdd(counter, 1u) : 0;
      const u32 group = turn % places * part + turn / places;
      if (group < num_groups) send<kPart>(group, num);
      turn = __shfl_sync(kAllLanes, next, 0);
    }
    return num_turns;
  }
  // By one warp of the CTA, which tells the others.
  __device__ __forceinline__ void watch_plan() const {
    if (lane == 0) {
      while (load_acquire(&call.state->planned) % kMade != u32(call.plan_ctas)) __nanosleep(32);
      shared.planned = true;
    }
    __syncwarp();
  }
  // Waits for the plan: whether words are new.
  __device__ __forceinline__ bool is_made() const {
    while (!shared.planned) __nanosleep(32);
    __syncwarp();
    const u32 planned = __shfl_sync(kAllLanes, lane == 0 ? load_acquire(&call.state->planned) : 0, 0);
    __syncwarp();  // what a lane has waited for is there for all
    return planned >= kMade;
  }

  __device__ void run() const {
    const u32 epoch = shared.epoch;
    u32* const sends = &call.state->next_send[epoch & 1];
    u32* const stays = &call.state->next_expand[epoch & 1];
    const bool begins_here = kParts && warp % 2 == 0;
    u32 turn = 0, here = 0;
    if (!begins_here) turn = ticket(sends);
    if constexpr (kParts) here = ticket(stays);
    if (warp == num_warps - 1) watch_plan();
    else if (kParts && !shared.changed) take<kStay>(here, stays, !begins_here);
    const bool is_made = this->is_made();
    u32 num_turns = 0;
    if constexpr (!kParts) {
      num_turns = take<kAll>(turn, sends);
    } else {
#pragma unroll 1
      for (int i = 0; i < 2; ++i) {
        if ((i == 0) == begins_here) {
          take<kStay>(here, stays);
        } else {
          if (begins_here) turn = ticket(sends);
          num_turns = take<kLeave>(turn, sends);
        }
      }
    }
    if (!is_made && (blockIdx.x != 0 || warp != 0)) return;
    const u32 marked = lane < call.num_ranks && !(call.routing->refusing >> lane & 1) ? told_boxes(call, lane, epoch) : 0;
    __syncwarp();  // what a lane has waited for is there for all
    if (blockIdx.x == 0 && warp == 0 && lane < call.num_ranks) *num_told(call, call.rank, lane) = tagged(marked, epoch);
    if (!is_made) return;
    const u32 groups = u32(ceil_div(marked, kMarked)), before = sum_to_lane(groups);
    const u32 all = __shfl_sync(kAllLanes, before, kWarp - 1);
    for (u32 item = turn - num_turns; item < all;) {
      const u32 after = lane == 0 ? atomicAdd(sends, 1u) - num_turns : 0;
      const int from = __ffs(__ballot_sync(kAllLanes, item < before)) - 1;
      mark(from, item - __shfl_sync(kAllLanes, before - groups, from), __shfl_sync(kAllLanes, marked, from));
      item = __shfl_sync(kAllLanes, after, 0);
    }
  }
};

template <class Shape>
__device__ __forceinline__ void move_entries(const Call& call) {
  using Kind = MoveEntries<Shape>;
  using All = Entries<Shape>;
  __shared__ typename Kind::Shared shared;
  const int warp = threadIdx.x / kWarp, num_warps = blockDim.x / kWarp, lane = threadIdx.x % kWarp;
  if (threadIdx.x == 0) {
    begin_dispatch(call, shared.epoch, shared.aborted);
    shared.changed = Shape::looks_up || !Kind::kParts;
    shared.planned = false;
  }
  if (threadIdx.x < kWarp) shared.copier[threadIdx.x].num = 0;
  __syncthreads();
  if (Kind::kParts && threadIdx.x <= All::kMadeOf && !All::is_same(call, threadIdx.x)) shared.changed = 1;
  __syncthreads();
  Loop loop[All::kLoops + 1];
  int ignored;
  const Kind kind{call, shared, warp, num_warps, lane, All::slots(loop, ignored)};
  if (!shared.aborted) kind.run();
  else if (warp == num_warps - 1) kind.watch_plan();
  const u32 place = enter(call);
  leave(call, place, [&](State& state) {
    const u32 other = ~shared.epoch & 1;
    state.dispatch_epoch = shared.epoch;
    state.planned = state.next_send[other] = state.next_expand[other] = state.sent[other] = 0;
  });
  if (!shared.aborted && warp == num_warps - 1) {
    tell_moved(call, lane);
    if (__shfl_sync(kAllLanes, place, kWarp - 1) == gridDim.x - 1) wait_for_moved(call, shared.epoch, call.routing->refusing, lane);
  }
  wait_for_previous();
}

}  // namespace fuscoc
