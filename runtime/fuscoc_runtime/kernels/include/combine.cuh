// Combine kernel: the transpose of dispatch, with a weighted sum in f32; a maximum and, where segments
// have one destination, a copy are "sums" too.
//
// Where rows lie, a team of warps sums the rows of a remote segment and pushes one partial row to
// the segment's source; after a group with such rows it sets the group's flag there. At the source
// teams add the partials to the rank's own rows as they are flagged. A team that would have to
// wait for a flag reduces meanwhile; reducing never waits, so every flag comes. A lane holds one
// term of a group (a row address and its weight); terms are added in lane order, so results do not
// depend on timing.
#pragma once
#include "back.cuh"
#include "results.cuh"
#include "vector.cuh"

namespace fuscoc {

// Where a partial row is put.
struct InStaging {
  static constexpr bool leaves_out = false;
  char* const row;
  __device__ __forceinline__ char* operator()(i64 byte) const { return row + byte; }
};

template <class Shape>
struct CombineWords : BackWords {
  u32 absent[Shape::teams];             // ranks that a team found not to send what it waited for
  u32 item[Shape::teams][2];            // what each team does now, and next
  u64 point[Shape::teams][2][kWarp];    // the points of its group
};

template <class Shape, template <class> class Result>
struct Combine : Back<CombineWords<Shape>> {
  using Base = Back<CombineWords<Shape>>;
  using Base::call, Base::shared;
  using Vec = Vector<typename Shape::Element, Shape::unit_bytes(0)>;
  using Partial = typename Shape::Element::Partial;
  static constexpr int widening = Partial::bytes / Shape::Element::bytes;
  using PartialVec = Vector<Partial, Vec::bytes * widening>;
  static constexpr i64 row_bytes = Shape::row_bytes(0);
  static constexpr int row_vectors = int(row_bytes / Shape::unit_bytes(0));
  static constexpr int team_threads = Shape::team_warps * kWarp;
  static constexpr int columns = team_threads * Shape::team_vectors;  // vectors a team holds at once
  static_assert(Shape::team_vectors == 1 || row_vectors % columns == 0);

  // An item: none, or a group to finalise, or (marked) one to reduce, or one to wait for first.
  static constexpr u32 kNone = ~0u, kReduce = 1u << 31, kUnflagged = 1u << 30;
  static constexpr u64 kNoPoint = 0xffffffffu;

  const int team, thread, lane;

  struct Term {
    const char* row;       // null: no term
    float weight;
  };
  using Sum = typename Vec::Sum[Shape::team_vectors];

  __device__ __forceinline__ u64* flag(int window, int from, int index) const {
    return reinterpret_cast<u64*>(call.window[window] + call.combine_flags_at) + from * call.max_sources + index;
  }
  __device__ __forceinline__ char* staging(int window, int from, int source) const {
    return call.window[window] + call.staging_at + (from * call.max_sources + source) * row_bytes * widening;
  }
  __device__ static __forceinline__ u32 segment_lanes(int i) {
    return (Shape::fanout == kWarp ? kAllLanes : (1u << Shape::fanout % kWarp) - 1) << (i * Shape::fanout);
  }
  __device__ __forceinline__ void team_barrier() const {
    __syncwarp();  // a split warp would be counted twice by the barrier
    asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(team_threads) : "memory");
  }

  // Adds the first `kBatch` terms of `left` at a time while there are that many, then fewer: loads
  // of a batch are in flight together.
  template <class From, int kBatch>
  __device__ __forceinline__ void add_batches(u32& left, int& count, const Term& term, int column, Sum& sum) const {
#pragma unroll 1
    while (count >= kBatch) {
      From value[kBatch][Shape::team_vectors];
      float weight[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int from = __ffs(left) - 1;
        left &= left - 1;
        const char* row = reinterpret_cast<const char*>(__shfl_sync(kAllLanes, u64(term.row), from));
        weight[b] = __shfl_sync(kAllLanes, term.weight, from);
        const char* at = row + i64(column) * From::bytes;
#pragma unroll
        for (int v = 0; v < Shape::team_vectors; ++v) value[b][v].load(at + v * team_threads * From::bytes);
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
#pragma unroll
        for (int v = 0; v < Shape::team_vectors; ++v) value[b][v].add_to(sum[v], weight[b]);
      }
      count -= kBatch;
    }
    if constexpr (kBatch > 1) add_batches<From, kBatch / 2>(left, count, term, column, sum);
  }
  // Adds the terms of `lanes`, rows of `From`.
  template <class From>
  __device__ __forceinline__ void add(u32 lanes, const Term& term, int column, Sum& sum) const {
    // Half as many before sm_90: enough for such memory, and what is left of the registers is needed.
    constexpr int most = kBulkCopies ? Shape::team_batch : (Shape::team_batch + 1) / 2;
    constexpr int batch = most * Vec::bytes / From::bytes;
    int count = __popc(lanes);
    add_batches<From, batch ? batch : 1>(lanes, count, term, column, sum);
  }
  // Calls add(column, sum) for every part of a row that the team holds at once, and stores the sum where
  // `to` says.
  template <class To, class At, class Add>
  __device__ __forceinline__ void sum_row(const At& to, bool has_terms, Add add) const {
#pragma unroll 1
    for (int start = 0; start < row_vectors; start += columns) {
      const int column = min(start + thread, row_vectors - 1);  // idle lanes repeat the last vector
      Sum sum;
#pragma unroll
      for (int v = 0; v < Shape::team_vectors; ++v) Vec::begin(sum[v], has_terms);
      add(column, sum);
#pragma unroll
      for (int v = 0; v < Shape::team_vectors; ++v) {
        To result;
        result.from(sum[v]);
        if (has_terms || !At::leaves_out) result.store(to(i64(column + v * team_threads) * To::bytes));
      }
    }
  }

  __device__ __forceinline__ Term own_term(int code, float weight) const {
    const bool mine = code >= 0 && code_rank(code) == call.rank;
    return {mine ? call.rows + code_slot(code) * row_bytes : nullptr, weight};
  }

  // A group's points, a lane a point: slot code (-1: none) and weight bits.
  __device__ __forceinline__ u64 remote_point(const RemoteItem& at) const {
    const int first = at.index * shared.group;
    const int num_points = min(shared.group, call.routing->num_sources_of[at.source_rank] - first) * Shape::fanout;
    if (lane >= num_points) return kNoPoint;
    return __ldcg(reinterpret_cast<const u64*>(call.window[call.rank] + call.points_at) +
                  (at.source_rank * call.max_sources + first) * Shape::fanout + lane);
  }
  __device__ __forceinline__ u64 own_point(u32 item) const {
    const i64 point = i64(item) * shared.group * Shape::fanout + lane;
    if (lane >= shared.group * Shape::fanout || point >= call.num_sources * Shape::fanout) return kNoPoint;
    return tagged(u32(call.codes[point]), Shape::weighted ? __float_as_uint(call.weights[point]) : 0);
  }
  __device__ static __forceinline__ float weight_of(u64 point) {
    return Shape::weighted ? __uint_as_float(u32(point >> 32)) : 1.f;
  }

  // Partial rows of one remote group: one for every segment with rows here. Whether there are any.
  __device__ bool reduce(const RemoteItem& at, u64 point) const {
    const Term term = own_term(int(u32(point)), weight_of(point));
    const u32 mine = __ballot_sync(kAllLanes, term.row != nullptr);
#pragma unroll 1
    for (int i = 0; i < shared.group; ++i)
      if (mine & segment_lanes(i))
        sum_row<PartialVec>(
            InStaging{staging(at.source_rank, call.rank, at.index * shared.group + i)}, true,
            [&](int column, Sum& sum) { add<Vec>(mine & segment_lanes(i), term, column, sum); });
    return mine != 0;
  }
  // The partial rows of a group have been stored by the whole team.
  __device__ __forceinline__ void signal(const RemoteItem& at) const {
    fence_system();
    store_relaxed(flag(at.source_rank, call.rank, at.index), shared.tag);
  }

  // The other ranks, a bit each, that will flag a group: those with rows of it.
  __device__ __forceinline__ u32 senders(u64 point) const {
    const int code = int(u32(point));
    const u32 ranks = __reduce_or_sync(kAllLanes, code < 0 ? 0u : 1u << code_rank(code));
    return ranks & ~(1u << call.rank) & ~shared.refusing;
  }
  __device__ __forceinline__ bool flagged(u32 item, u64 point) const {
    const bool sends = senders(point) >> lane & 1;
    return __all_sync(kAllLanes, !sends || load_acquire(flag(call.rank, lane, item)) == shared.tag);
  }
  // Waits until they have. Those that have refused the call instead, or are waited for no more.
  __device__ __forceinline__ u32 wait_for_flags(u32 item, u64 point) const {
    bool there = true;
    if (senders(point) >> lane & 1) there = this->wait_for(lane, item, flag(call.rank, lane, item));
    return lanes_without(there);
  }
  // Result rows of one of this rank's groups. With `wait` its flags have not all been seen yet: own
  // rows are summed meanwhile.
  __device__ void finalise(u32 item, u64 point, bool wait) const {
    const int first = int(item) * shared.group, num_segments = min(shared.group, int(call.num_sources) - first);
    const int code = int(u32(point)), segment = lane / Shape::fanout;
    Term term = own_term(code, weight_of(point));
    const u32 own = __ballot_sync(kAllLanes, term.row != nullptr);
    const bool remote = code >= 0 && code_rank(code) != call.rank;
    const int pair = segment * kMaxRanks + (code_rank(code) & (kMaxRanks - 1));
    const u32 same = __match_any_sync(kAllLanes, remote ? pair : -1 - lane);
    const bool leads = remote && (same & lanes_below()) == 0;  // one partial for each remote rank
    if (leads) term = {staging(call.rank, code_rank(code), first + segment), 1.f};
    const u32 partial = __ballot_sync(kAllLanes, leads);
    const bool waits = wait;
#pragma unroll 1
    for (int i = 0; i < num_segments; ++i) {
      const bool has_terms = (own | partial) & segment_lanes(i);
      sum_row<Vec>(Result<Shape>(call, first + i), has_terms, [&](int column, Sum& sum) {
        add<Vec>(own & segment_lanes(i), term, column, sum);
        if (wait) {
          wait = false;
          if (thread < kWarp) {
            const u32 absent = wait_for_flags(item, point);
            if (thread == 0) shared.absent[team] = absent;
          }
          team_barrier();
        }
        add<PartialVec>(partial & segment_lanes(i), term, column, sum);
      });
    }
    const u32 absent = shared.refusing | (waits ? shared.absent[team] : 0);
    if (absent) poison_rows(item, absent);
  }
  // Result rows that some of these ranks have a part of. Nothing is kept for it while sums are made.
  __device__ void poison_rows(u32 item, u32 absent) const {
    const int first = int(item) * shared.group, num_segments = min(shared.group, int(call.num_sources) - first);
    const int code = int(u32(own_point(item)));
    const bool lacks = code >= 0 && code_rank(code) != call.rank && (absent >> code_rank(code) & 1);
    const u32 lanes = __ballot_sync(kAllLanes, lacks);
    team_barrier();  // the sums have been stored
    for (int i = 0; i < num_segments; ++i)
      if (lanes & segment_lanes(i)) Result<Shape>(call, first + i).poison_row(thread, team_threads);
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
  __device__ __forceinline__ u32 draw_reduce() const {
    const u32 first = call.reduce_teams * gridDim.x;
    return lane == 0 ? first + atomicAdd(&call.state->next_reduce[shared.parity], 1u) : 0;
  }
  __device__ __forceinline__ u32 draw_finalise() const {
    const u32 first = (Shape::teams - call.reduce_teams) * gridDim.x;
    return lane == 0 ? first + atomicAdd(&call.state->next_finalise[shared.parity], 1u) : 0;
  }
  __device__ __forceinline__ u32 choose(Draws& draws, u32 num_reduce, u32 num_finalise, u64& point) const {
    u32 group = __shfl_sync(kAllLanes, draws.finalise, 0);
    if (!draws.reducing && group < num_finalise) {
      point = own_point(group);
      if (flagged(group, point)) {
        draws.finalise = draw_finalise();
        return group;
      }
    }
    while (!draws.all_reduced) {
      const u32 item = __shfl_sync(kAllLanes, draws.reducing ? draws.reduce : draw_reduce(), 0);
      if (item >= num_reduce) {
        draws.all_reduced = true;
        break;
      }
      if (draws.reducing) draws.reduce = draw_reduce();
      point = remote_point(remote_item(call, item));
      const int code = int(u32(point));
      if (__any_sync(kAllLanes, code >= 0 && code_rank(code) == call.rank)) return item | kReduce;
    }
    if (draws.reducing) group = __shfl_sync(kAllLanes, draw_finalise(), 0);
    draws.reducing = false;
    if (group >= num_finalise) return kNone;
    point = own_point(group);
    draws.finalise = draw_finalise();
    return group | kUnflagged;
  }

  // Few items: every team knows its own, so nothing is drawn or told. It reduces before it waits.
  __device__ void run_few(u32 num_reduce, u32 num_finalise) const {
    const u32 num_teams = Shape::teams * gridDim.x;
    for (u32 item = team * gridDim.x + blockIdx.x; item < num_reduce + num_finalise; item += num_teams) {
      if (item < num_reduce) {
        const RemoteItem at = remote_item(call, item);
        if (!reduce(at, remote_point(at))) continue;
        team_barrier();
        if (thread == 0) signal(at);
      } else {
        finalise(item - num_reduce, own_point(item - num_reduce), true);
        team_barrier();  // all have seen who was absent
      }
    }
  }

  __device__ void run_many(u32 num_reduce, u32 num_finalise) const {
    const bool leads = thread < kWarp, reducing = team < call.reduce_teams;
    u32 turn = 0, done = kNone;
    Draws draws{reducing, false, 0, 0};  // every team starts on an item of its own, without a draw
    if (reducing) draws.reduce = team * gridDim.x + blockIdx.x;
    else draws.finalise = (team - call.reduce_teams) * gridDim.x + blockIdx.x;
    while (true) {
      if (leads) {
        u64 point = kNoPoint;
        const u32 next = choose(draws, num_reduce, num_finalise, point);
        shared.point[team][turn][lane] = point;
        if (thread == 0) shared.item[team][turn] = next;
      }
      team_barrier();  // the last item is finished, the next one is known
      if (thread == 0 && done != kNone && done & kReduce) signal(remote_item(call, done & ~kReduce));
      const u32 item = shared.item[team][turn];
      if (item == kNone) break;
      const u64 point = shared.point[team][turn][lane];
      if (item & kReduce) reduce(remote_item(call, item & ~kReduce), point);
      else finalise(item & ~kUnflagged, point, item & kUnflagged);
      done = item;
      turn ^= 1;
    }
  }

  __device__ void run() const {
    const u32 num_reduce = num_remote_items(call, shared.group);
    const u32 num_finalise = u32(ceil_div(call.num_sources, shared.group));
    if (num_reduce + num_finalise <= 2 * Shape::teams * gridDim.x) run_few(num_reduce, num_finalise);
    else run_many(num_reduce, num_finalise);
  }
};

template <class Shape, template <class> class Result = InOrder>
__device__ __forceinline__ void combine(const Call& call) {
  using Kind = Combine<Shape, Result>;
  __shared__ CombineWords<Shape> shared;
  begin_back(call, shared, call.combine_group);
  constexpr int team_threads = Kind::team_threads;
  Kind state{{call, shared}, int(threadIdx.x) / team_threads, int(threadIdx.x) % team_threads,
             int(threadIdx.x) % kWarp};
  if (goes_on(call, state, Result<Shape>::result_bytes(call))) state.run();
}

}  // namespace fuscoc
