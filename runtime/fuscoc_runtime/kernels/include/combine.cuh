// Combine kernel: the transpose of dispatch, with a weighted sum in f32.
//
// Where rows lie, a team of warps sums the rows of a remote segment and pushes one partial row to
// the segment's source; after a group of segments it sets the group's flag there. At the source
// teams add the partials to the rank's own rows as they are flagged. A team that would have to
// wait for a flag reduces meanwhile; reducing never waits, so every flag comes. A lane holds one term of a group (a row address and its
// weight); terms are added in lane order, so results do not depend on timing.
#pragma once
#include "call.cuh"
#include "vector.cuh"

namespace fuscoc {

template <class Shape>
struct Combine {
  using Vec = Vector<typename Shape::Element, Shape::unit_bytes(0)>;
  static constexpr i64 row_bytes = Shape::row_bytes(0);
  static constexpr int row_vectors = int(row_bytes / Shape::unit_bytes(0));
  static constexpr int team_threads = Shape::team_warps * kWarp;
  static constexpr int columns = team_threads * Shape::team_vectors;  // vectors a team holds at once

  // Words every thread may look up again rather than keep in a register.
  struct Shared {
    u32 epoch;
    int group;               // segments per group
    u32 item[Shape::teams][2];
  };

  // An item: none, or a group to finalise, or (marked) one to reduce, or one to wait for first.
  static constexpr u32 kNone = ~0u, kReduce = 1u << 31, kUnflagged = 1u << 30;

  const Call& call;
  volatile Shared& shared;
  const int team, thread, lane;

  struct Term {
    const char* row;       // null: no term
    float weight;
  };

  __device__ __forceinline__ u32* flag(int window, int from, int index) const {
    return reinterpret_cast<u32*>(call.window[window] + call.combine_flags_at) + from * call.max_sources + index;
  }
  __device__ __forceinline__ char* staging(int window, int from, int source) const {
    return call.window[window] + call.staging_at + (from * call.max_sources + source) * row_bytes;
  }
  __device__ static __forceinline__ u32 segment_lanes(int i) {
    return (Shape::fanout == kWarp ? kAllLanes : (1u << Shape::fanout % kWarp) - 1) << (i * Shape::fanout);
  }
  __device__ __forceinline__ void team_barrier() const {
    __syncwarp();  // a split warp would be counted twice by the barrier
    asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(team_threads) : "memory");
  }

  __device__ static __forceinline__ bool in_row(int column) {
    return row_vectors % columns == 0 || column < row_vectors;
  }

  // Asks L2 for the rows of the next terms: registers alone hold too few loads to keep HBM busy.
  // Every term is asked for once; a lane asks for its own.
  __device__ __forceinline__ void prefetch(u32 upcoming, u32& asked, const Term& term) const {
    if constexpr (kBulkCopies && Shape::unit_bytes(0) == 16 && Shape::team_ahead > 0) {
      u32 later = upcoming & ~asked;
#pragma unroll
      for (int i = 0; i < Shape::team_ahead; ++i) later &= later - 1;
      const u32 now = upcoming & ~asked & ~later;
      asked |= now;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
      if (thread < kWarp && now >> lane & 1)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(term.row), "r"(u32(row_bytes)) : "memory");
#endif
    }
  }

  // Adds the first `kBatch` terms of `left` at a time while there are that many, then fewer: loads
  // of a batch are in flight together.
  template <int kBatch>
  __device__ __forceinline__ void add_terms(u32& left, int& count, u32 rest, u32& asked, const Term& term, int column,
                                            float (&sum)[Shape::team_vectors][Vec::elements]) const {
#pragma unroll 1
    while (count >= kBatch) {
      Vec value[kBatch][Shape::team_vectors];
      float weight[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int from = __ffs(left) - 1;
        left &= left - 1;
        const char* row = reinterpret_cast<const char*>(__shfl_sync(kAllLanes, u64(term.row), from));
        weight[b] = __shfl_sync(kAllLanes, term.weight, from);
        const char* at = row + i64(column) * Shape::unit_bytes(0);
#pragma unroll
        for (int v = 0; v < Shape::team_vectors; ++v)
          if (in_row(column + v * team_threads)) value[b][v].load(at + v * team_threads * Shape::unit_bytes(0));
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
#pragma unroll
        for (int v = 0; v < Shape::team_vectors; ++v)
          if (in_row(column + v * team_threads)) value[b][v].add_to(sum[v], weight[b]);
      }
      count -= kBatch;
    }
    if constexpr (kBatch > 1) add_terms<kBatch / 2>(left, count, rest, asked, term, column, sum);
  }

  // Sums the terms of segment i, of all the group's `terms`, and stores the row.
  __device__ __forceinline__ void sum_row(int i, u32 terms, u32& asked, const Term& term, char* to) const {
    const u32 lanes = terms & segment_lanes(i), rest = terms & ~segment_lanes(i) & ~(segment_lanes(i) - 1);
#pragma unroll 1
    for (int first = 0; first < row_vectors; first += columns) {
      const int column = first + thread;
      float sum[Shape::team_vectors][Vec::elements] = {};
      u32 left = lanes;
      int count = __popc(lanes);
      add_terms<Shape::team_batch>(left, count, rest, asked, term, column, sum);
#pragma unroll
      for (int v = 0; v < Shape::team_vectors; ++v) {
        if (!in_row(column + v * team_threads)) continue;
        Vec result;
        result.from(sum[v]);
        result.store(to + i64(column + v * team_threads) * Shape::unit_bytes(0));
      }
    }
  }

  __device__ __forceinline__ Term own_term(int code, float weight) const {
    const bool mine = code >= 0 && code_rank(code) == call.rank;
    return {mine ? call.rows + code_slot(code) * row_bytes : nullptr, weight};
  }

  // Partial rows of one remote group: one for every segment with rows here, then the flag.
  __device__ void reduce(u32 item) {
    const RemoteItem at = remote_item(call, item);
    const int num_sources = call.num_sources_of[at.source_rank], first = at.index * shared.group;
    if (first >= num_sources) return;
    const int num_points = min(shared.group, num_sources - first) * Shape::fanout;
    int code = -1;
    float weight = 1.f;
    if (lane < num_points) {
      const u64 word = __ldcg(reinterpret_cast<const u64*>(call.window[call.rank] + call.points_at) +
                              (at.source_rank * call.max_sources + first) * Shape::fanout + lane);
      code = int(u32(word));
      if (Shape::weighted) weight = __uint_as_float(u32(word >> 32));
    }
    const Term term = own_term(code, weight);
    const u32 mine = __ballot_sync(kAllLanes, term.row != nullptr);
    u32 asked = 0;
#pragma unroll 1
    for (int i = 0; i * Shape::fanout < num_points; ++i)
      if (mine & segment_lanes(i)) sum_row(i, mine, asked, term, staging(at.source_rank, call.rank, first + i));
  }
  __device__ __forceinline__ void signal(u32 item) const {
    const RemoteItem at = remote_item(call, item);
    if (at.index * shared.group >= call.num_sources_of[at.source_rank]) return;
    fence_system();
    store_relaxed(flag(at.source_rank, call.rank, at.index), shared.epoch);
  }

  // Result rows of one of this rank's groups; its flags have been seen.
  __device__ void finalise(u32 item) {
    const int first = int(item) * shared.group;
    const int num_points = min(shared.group, int(call.num_sources) - first) * Shape::fanout;
    int code = -1;
    float weight = 1.f;
    if (lane < num_points) {
      const i64 point = i64(first) * Shape::fanout + lane;
      code = call.codes[point];
      if (Shape::weighted) weight = call.weights[point];
    }
    Term term = own_term(code, weight);
    const bool remote = code >= 0 && code_rank(code) != call.rank;
    const int segment = lane / Shape::fanout;
    const int pair = segment * kMaxRanks + (code_rank(code) & (kMaxRanks - 1));
    const u32 same = __match_any_sync(kAllLanes, remote ? pair : -1 - lane);
    if (remote && (same & lanes_below()) == 0)  // one partial for each remote rank
      term = {staging(call.rank, code_rank(code), first + segment), 1.f};
    const u32 terms = __ballot_sync(kAllLanes, term.row != nullptr);
    u32 asked = 0;
#pragma unroll 1
    for (int i = 0; i * Shape::fanout < num_points; ++i)
      sum_row(i, terms, asked, term, call.result + i64(first + i) * row_bytes);
  }
  // Whether all peers have flagged the group; with `wait`, as soon as they have (false: timeout).
  __device__ __forceinline__ bool flagged(u32 item, bool wait) const {
    bool there = true;
    if (lane < call.num_ranks && lane != call.rank) {
      const u32* at = flag(call.rank, lane, item);
      const auto ready = [&] { return reached(load_acquire(at), shared.epoch); };
      there = wait ? wait_until(call, kCombineGroup, lane, item, ready) : ready();
    }
    return __all_sync(kAllLanes, there);
  }

  // The next item of this team, decided by its first warp. Reducing teams reduce while anything is
  // left to reduce; the others finalise what is flagged and reduce meanwhile. Draws are made one
  // item ahead, so that their latency is hidden. Never waits: the team's last item is not flagged
  // yet, and a peer may be waiting for it.
  struct Draws {
    bool reducing;           // prefers to reduce
    bool all_reduced;        // nothing is left to reduce
    u32 reduce, finalise;    // lane 0's next draws; `reduce` only while reducing
  };
  __device__ __forceinline__ u32 draw(u32* counter) const { return lane == 0 ? atomicAdd(counter, 1u) : 0; }
  __device__ __forceinline__ u32 choose(Draws& draws, u32 num_reduce, u32 num_finalise) const {
    u32* const next_reduce = &call.state->next_reduce;
    u32* const next_finalise = &call.state->next_finalise;
    u32 group = __shfl_sync(kAllLanes, draws.finalise, 0);
    if (!draws.reducing && group < num_finalise && flagged(group, false)) {
      draws.finalise = draw(next_finalise);
      return group;
    }
    if (!draws.all_reduced) {
      const u32 item = __shfl_sync(kAllLanes, draws.reducing ? draws.reduce : draw(next_reduce), 0);
      if (item < num_reduce) {
        if (draws.reducing) draws.reduce = draw(next_reduce);
        return item | kReduce;
      }
      draws.all_reduced = true;
      if (draws.reducing) group = __shfl_sync(kAllLanes, draw(next_finalise), 0);
      draws.reducing = false;
    }
    if (group >= num_finalise) return kNone;
    draws.finalise = draw(next_finalise);
    return group | kUnflagged;
  }

  // Peers have finished their last combine, so their staging may be written. A plan since then has
  // already said so.
  __device__ void enter() const {
    u32* own = reinterpret_cast<u32*>(call.window[call.rank] + call.barrier_at);
    if (threadIdx.x < call.num_ranks) {
      u32* theirs = reinterpret_cast<u32*>(call.window[threadIdx.x] + call.barrier_at);
      if (blockIdx.x == 0) store_relaxed(theirs + call.rank, shared.epoch);
      wait_until(call, kCombineEnter, threadIdx.x, 0,
                 [&] { return reached(load_relaxed(own + threadIdx.x), shared.epoch); });
      fence_system();
    }
    __syncthreads();
  }

  __device__ void run() {
    const bool leads = thread < kWarp, reducing = team < call.reduce_teams;
    u32 turn = 0, done = kNone;
    Draws draws{reducing, false, 0, 0};
    if (leads) (reducing ? draws.reduce : draws.finalise) =
        draw(reducing ? &call.state->next_reduce : &call.state->next_finalise);
    while (true) {
      if (leads) {
        const u32 next =
            choose(draws, num_remote_items(call, shared.group), u32(ceil_div(call.num_sources, shared.group)));
        if (thread == 0) shared.item[team][turn] = next;
      }
      team_barrier();  // the last item is finished, the next one is known
      if (thread == 0 && done != kNone && done & kReduce) signal(done & ~kReduce);
      const u32 item = shared.item[team][turn];
      if (item == kNone) break;
      if (item & kReduce) {
        reduce(item & ~kReduce);
      } else {
        if (item & kUnflagged) {
          if (leads) flagged(item & ~kUnflagged, true);
          team_barrier();
        }
        finalise(item & ~kUnflagged);
      }
      done = item;
      turn ^= 1;
    }
  }
};

template <class Shape>
__device__ __forceinline__ void combine(const Call& call) {
  __shared__ typename Combine<Shape>::Shared shared;
  if (threadIdx.x == 0) {
    shared.epoch = *(volatile u32*)&call.state->combine_epoch + 1;
    shared.group = group_size(call, call.combine_group);
  }
  const bool planned = *(volatile u32*)&call.state->plan_epoch != *(volatile u32*)&call.state->combine_saw_plan;
  __syncthreads();
  constexpr int team_threads = Combine<Shape>::team_threads;
  Combine<Shape> state{call, shared, int(threadIdx.x) / team_threads, int(threadIdx.x) % team_threads,
                       int(threadIdx.x) % kWarp};
  if (!planned && call.num_ranks > 1) state.enter();
  state.run();
  leave(call, [&](State& words) {
    words.combine_epoch = shared.epoch;
    words.combine_saw_plan = words.plan_epoch;
    words.next_reduce = words.next_finalise = 0;
  });
}

}  // namespace fuscoc
