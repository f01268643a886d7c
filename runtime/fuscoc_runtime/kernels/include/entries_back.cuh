// Combine kernel of short entries: where rows lie, warps copy chains into the staging memory of the source, which
// has the bytes of entries in their order, and flag the group when all is there that this rank has of it; at
// the source they copy what has come to the result, and this rank's own rows straight. Half of the warps begin
// with what goes to peers, the others with what is for this rank; sending never waits, so every flag comes.
#pragma once
#include "back.cuh"
#include "entries.cuh"
#include "vector.cuh"

namespace fuscoc {

template <class Shape>
struct GiveEntriesWords : BackWords {
  u32 num_told[kMaxRanks];  // entries that each rank has told this one
  typename Entries<Shape>::Copier copier[kWarp];
};

template <class Shape>
struct GiveEntries : Back<GiveEntriesWords<Shape>> {
  using Base = Back<GiveEntriesWords<Shape>>;
  using Base::call, Base::shared;
  using All = Entries<Shape>;
  static constexpr int kUnit = All::kUnit;
  using Unit = typename UnitOf<kUnit>::type;
  const int warp, lane;
  const i64 step;  // slots from an entry of a chain to the next

  __device__ __forceinline__ typename All::Copier& copier() const {
    return const_cast<GiveEntriesWords<Shape>&>(shared).copier[warp];
  }
  __device__ __forceinline__ u64* flag(int window, int from, u32 group) const {
    return reinterpret_cast<u64*>(call.window[window] + call.combine_flags_at) +
           from * i64(All::num_groups(call.max_entries)) + group;
  }
  __device__ __forceinline__ void signal(int source, u32 group) const {
    __syncwarp();
    if (lane != 0) return;
    fence_system();
    store_relaxed(flag(source, call.rank, group), shared.tag);
  }
  // The ranks that a group's rows do not come from; `ranks` are those that a lane's rows are on, a bit each.
  __device__ __forceinline__ u32 absent(u32 group, u32 ranks) const {
    const u32 senders = __reduce_or_sync(kAllLanes, ranks) & ~(1u << call.rank);
    bool there = true;
    if ((senders & ~shared.refusing) >> lane & 1) there = this->wait_for(lane, group, flag(call.rank, lane, group));
    return lanes_without(there) | shared.refusing;
  }
  // Where what comes back of an entry lies, by one of its words.
  __device__ __forceinline__ char* staging(int window, int word, i64 entry) const {
    return call.window[window] + call.staging_at + (word * call.max_sources + entry) * All::entry_bytes;
  }
  __device__ void send(int source, u32 group) const {
    const i64 first = i64(group) * All::kGroup, num = shared.num_told[source];
    if constexpr (All::kAreRows) {
      const int num_words = All::num_words(call);
      bool any = false;
      for (int turn = 0; turn < num_words; ++turn) {
        const Rows<Shape> rows(All::told(call, call.rank, source), first, num, turn, num_words, lane);
        if (!rows.any()) continue;
        any = true;
        char* const to = staging(source, turn, first);
        rows.copy([&](i64 slot, i64 at, i64 inside) -> RowWord {
          if (slot < 0) return {};
          return {call.rows + slot * Shape::row_bytes(0) + inside, to + at};
        });
      }
      if (any) signal(source, group);
      return;
    }
    const i64 slot = lane < All::kGroup ? All::word(All::told(call, call.rank, source), first + lane, num) : -1;
    if (!__ballot_sync(kAllLanes, slot >= 0)) return;
    All::each(slot >= 0, All::begins(slot, step, lane), [&](int head, int count) {
      const i64 from = __shfl_sync(kAllLanes, slot, head) * Shape::row_bytes(0);
      char* const to = call.window[source] + call.staging_at + (first + head) * All::entry_bytes;
      All::template copy<kSource>(copier(), count, call.rows + from, to, lane);
    });
    signal(source, group);
  }
  // What peers have written here, as far from a multiple of 16 as where it goes.
  __device__ void take_over(const char* from, char* to, i64 bytes) const {
    const i64 head = min(i64(floor_mod(-i64(reinterpret_cast<u64>(to)), kLine)), bytes), wide = (bytes - head) / kLine;
    constexpr int batch = kLinesInFlight;
    for (i64 at = lane; at < wide; at += kWarp * batch) {
      uint4 value[batch];
#pragma unroll
      for (int i = 0; i < batch; ++i)
        if (at + i * kWarp < wide) value[i] = __ldcg(reinterpret_cast<const uint4*>(from + head) + at + i * kWarp);
#pragma unroll
      for (int i = 0; i < batch; ++i)
        if (at + i * kWarp < wide) reinterpret_cast<uint4*>(to + head)[at + i * kWarp] = value[i];
    }
    const i64 edges = (bytes - wide * kLine) / kUnit;
    for (i64 i = lane; i < edges; i += kWarp) {
      const i64 at = i * kUnit < head ? i * kUnit : i * kUnit + wide * kLine;
      *reinterpret_cast<Unit*>(to + at) = __ldcg(reinterpret_cast<const Unit*>(from + at));
    }
  }
  __device__ void clear(char* to, i64 bytes) const {
    for (i64 at = lane * kUnit; at < bytes; at += kWarp * kUnit) *reinterpret_cast<Unit*>(to + at) = {};
  }
  // The sums of a group's rows, those of lower ranks first.
  __device__ void add_up(i64 first, i64 num, int num_words, i64 end, u32 absent, char* to) const {
    if constexpr (Shape::every_rank) {
      using Terms = Vector<typename Shape::Element, kLine>;
      constexpr int row = int(All::entry_bytes / kLine), words = All::kGroup * row;
      constexpr int turns = 2, batch = 3;  // ranks, and lines of each, whose terms a lane has under way
      // A lane has a code of the group, if there are no more.
      const i64* const codes = All::codes(call) + first * num_words;
      const int num_codes = int(min(num - first, i64(All::kGroup))) * num_words;
      const bool few = num_codes <= kWarp;
      const i64 mine = few && lane < num_codes ? __ldcg(codes + lane) : -1;
#pragma unroll 1
      for (int begin = 0; begin < words; begin += batch * kWarp) {
        typename Terms::Sum sum[batch];
        bool lost[batch];
#pragma unroll
        for (int i = 0; i < batch; ++i) Terms::begin(sum[i], false), lost[i] = false;
        for (int turn = 0; turn < num_words; turn += turns) {
          Terms terms[turns][batch];
          bool there[turns][batch];
#pragma unroll
          for (int t = 0; t < turns; ++t) {
#pragma unroll
            for (int i = 0; i < batch; ++i) {
              const int index = begin + i * kWarp + lane, which = index / row * num_words + turn + t;
              i64 code = __shfl_sync(kAllLanes, mine, which % kWarp);
              if (!few && which < num_codes) code = __ldcg(codes + which);
              there[t][i] = turn + t < num_words && which < num_codes && code >= 0;
              if (!there[t][i]) continue;
              const int rank = entry_rank(code);
              lost[i] |= absent >> rank & 1;
              there[t][i] = !(absent >> rank & 1);
              const char* const own = call.rows + entry_slot(code) * Shape::row_bytes(0);
              const i64 inside = i64(index % row) * kLine;
              if (there[t][i])
                terms[t][i].load((rank == call.rank ? own : staging(call.rank, turn + t, first + index / row)) + inside);
            }
          }
#pragma unroll
          for (int t = 0; t < turns; ++t)
#pragma unroll
            for (int i = 0; i < batch; ++i)
              if (there[t][i]) terms[t][i].add_to(sum[i], 1.f);
        }
#pragma unroll
        for (int i = 0; i < batch; ++i) {
          const int index = begin + i * kWarp + lane;
          const i64 at = i64(index) * kLine;
          if (index >= words || at >= end) continue;
          Terms made;
          made.from(sum[i]);
          if (lost[i]) made.fill(~0u);
          made.store(to + at);
        }
      }
    }
  }
  // A group of this rank, to its place.
  __device__ void receive(u32 group, i64 num, i64 num_here) const {
    const i64 first = i64(group) * All::kGroup;
    if constexpr (All::kAreRows) {
      const int num_words = All::num_words(call);
      const i64 end = (num_here - first) * All::entry_bytes;
      char* const to = call.result + first * All::entry_bytes;
      // One of the words of every row, that of the rank itself if there are more, and the ranks in all others.
      const int word = Shape::every_rank ? call.rank : 0;
      const Rows<Shape> rows(All::codes(call), first, num, word, num_words, lane);
      u32 ranks = 0;
      if constexpr (Shape::every_rank) {
#pragma unroll
        for (int turn = 1; turn < kMaxRanks; ++turn) {
          const bool there = turn < num_words;
          for (const i64 code : Rows<Shape>(All::codes(call), first, there ? num : 0, there ? (word + turn) % num_words : 0,
                                            num_words, lane).code)
            ranks |= code < 0 ? 0 : 1u << entry_rank(code);
        }
      }
      for (const i64 code : rows.code) ranks |= code < 0 ? 0 : 1u << entry_rank(code);
      if (__reduce_or_sync(kAllLanes, ranks & ~(1u << call.rank)) == 0) {  // a sum of one row is that row
        rows.copy([&](i64 code, i64 at, i64 inside) -> RowWord {
          if (at >= end) return {};
          return {code < 0 ? nullptr : call.rows + entry_slot(code) * Shape::row_bytes(0) + inside, to + at};
        });
        return;
      }
      const u32 absent = this->absent(group, ranks);
      if constexpr (Shape::every_rank) {
        add_up(first, num, num_words, end, absent, to);
        return;
      }
      const char* const came = staging(call.rank, word, first);
      rows.copy([&](i64 code, i64 at, i64 inside) -> RowWord {
        if (at >= end) return {};
        if (code < 0) return {nullptr, to + at};
        if (absent >> entry_rank(code) & 1) return {lost_word(), to + at};
        if (entry_rank(code) != call.rank) return {came + at, to + at};
        return {call.rows + entry_slot(code) * Shape::row_bytes(0) + inside, to + at};
      });
      return;
    }
    const i64 code = lane < All::kGroup ? All::word(All::codes(call), first + lane, num) : -1;
    const bool here = lane < All::kGroup && first + lane < num_here;
    const int rank = code < 0 ? -1 : entry_rank(code);
    const u32 absent = this->absent(group, rank < 0 ? 0 : 1u << rank);
    const bool lost = rank >= 0 && absent >> rank & 1, own = rank == call.rank && !lost, came = rank >= 0 && !own && !lost;
    char* const to = call.result + first * All::entry_bytes;
    All::each(own, All::begins(own ? code : -1, step, lane), [&](int head, int count) {
      const i64 slot = entry_slot(__shfl_sync(kAllLanes, code, head));
      All::template copy<kSource>(copier(), count, call.rows + slot * Shape::row_bytes(0), to + head * All::entry_bytes, lane);
    });
    const auto goes_on = [&](bool of) { return __shfl_up_sync(kAllLanes, u32(of), 1) && lane > 0; };
    All::each(came, !goes_on(came), [&](int head, int count) {
      const char* const from = call.window[call.rank] + call.staging_at + (first + head) * All::entry_bytes;
      take_over(from, to + head * All::entry_bytes, count * All::entry_bytes);
    });
    All::each(lost, !goes_on(lost), [&](int head, int count) {
      poison(to + head * All::entry_bytes, count * All::entry_bytes, lane, kWarp);
    });
    const bool nothing = here && rank < 0;
    All::each(nothing, !goes_on(nothing), [&](int head, int count) {
      clear(to + head * All::entry_bytes, count * All::entry_bytes);
    });
  }

  __device__ void run() const {
    u32 most = 0;
    for (int from = 0; from < call.num_ranks; ++from)
      if (from != call.rank) most = max(most, shared.num_told[from]);
    const u32 others = u32(call.num_ranks - 1), num_sent = All::num_groups(most) * others;
    const i64 num_here = call.result_bytes / All::entry_bytes, num = All::num_entries(call);
    const bool gives = warp % 2 == 0;
#pragma unroll 1
    for (int turn = gives ? 0 : 1; turn < 3; ++turn) {
      if (turn == 1)
        this->take(&call.state->next_finalise[shared.parity], All::num_groups(num_here),
                   [&](u32 item) { receive(item, num, num_here); });
      else
        this->take(&call.state->next_reduce[shared.parity], num_sent, [&](u32 item) {
          send(int((call.rank + 1 + item % others) % call.num_ranks), item / others);
        });
    }
  }
};

template <class Shape>
__device__ __forceinline__ void give_entries(const Call& call) {
  __shared__ GiveEntriesWords<Shape> shared;
  const int thread = threadIdx.x, warp = thread / kWarp;
  const u64 told = thread < call.num_ranks ? __ldcg(num_told(call, call.rank, thread)) : 0;
  if (thread < kWarp) shared.copier[thread].num = 0;
  begin_back(call, shared, call.combine_group);
  Loop loop[Entries<Shape>::kLoops + 1];
  int ignored;
  const GiveEntries<Shape> state{{call, shared}, warp, thread % kWarp, Entries<Shape>::slots(loop, ignored)};
  if (thread < call.num_ranks)
    shared.num_told[thread] = u32(told >> 32) == u32(shared.tag >> 32) && state.joins(thread) ? u32(told) : 0;
  __syncthreads();
  if (goes_on(call, state, call.result_bytes)) state.run();
}

}  // namespace fuscoc
