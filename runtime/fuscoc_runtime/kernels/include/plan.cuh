// Plan kernel: from the relation to one slot code per point, the same on every run.
//
// A slot is  start of its key at the destination
//          + rows of that key sent by lower ranks
//          + rows of that key in lower CTAs of this rank
//          + rows of that key at lower points of this CTA,
// all prefix sums, so the order in which threads run cannot matter. CTAs and ranks tell each other
// their counts through 8-byte {count, epoch} words that the reader polls: no flag, fence or grid
// barrier. Having a peer's counts also means that the peer has finished everything before this
// call, so its windows may be written.
//
// A compact target has one row for a segment and a rank. Its rows are counted like those of further
// keys, one for each rank, by the first point that a segment has there.
#pragma once
#include "places.cuh"
#include "tables.cuh"

namespace fuscoc {

constexpr int kPlanThreads = 1024;
constexpr int kPlanWarps = kPlanThreads / kWarp;

// Where slots are given, ranks tell each other how many they have.
template <class Shape>
constexpr int kPlanColumns = kGivenSlots<Shape> ? 1 : Shape::num_keys + (Shape::compact ? kMaxRanks : 0);
// All that they tell, as words: these, the number of a table that places keys, and their segments.
template <class Shape>
constexpr int kPlanWords = kPlanColumns<Shape> + kTableWords<Shape> + 1;

// What a CTA that plans learns of the ranks.
struct Peers {
  int num_sources_of[kMaxRanks];
  u32 refusing;                        // ranks, a bit each
  int failed;
};
// The count that a rank has told, once it has: where `word` does not have the epoch yet, the plan waits.
__device__ __forceinline__ bool poll_count(const Call& call, Peers& peers, u32 epoch, const u64* word, Stage stage,
                                           int peer, int& value) {
  u64 seen = load_relaxed(word);
  const bool ok = wait_until(call, stage, peer, 0, [&] {
    if (u32(seen >> 32) == epoch) return true;
    seen = load_relaxed(word);
    return u32(seen >> 32) == epoch;
  });
  value = int(u32(seen));
  if (!ok) peers.failed = 1;
  return ok;
}
// A rank's number of segments, -1 where it has refused the call.
__device__ __forceinline__ void note_peer(Peers& peers, int peer, int value) {
  peers.num_sources_of[peer] = max(value, 0);
  if (value < 0) atomicOr(&peers.refusing, 1u << peer);
}
// By one thread of the rank, when all have told theirs.
__device__ __forceinline__ void keep_peers(const Call& call, const Peers& peers) {
  Routing& routing = *call.routing;
  int most = 0;
  for (int r = 0; r < call.num_ranks; ++r) {
    routing.num_sources_of[r] = peers.failed ? 0 : peers.num_sources_of[r];
    most = max(most, routing.num_sources_of[r]);
    if (peers.refusing >> r & 1) note(call, call.state->refusals[r]);
  }
  routing.most_sources = most;
  routing.refusing = peers.refusing;
}

// The same where they count rows.
template <class Shape>
struct CountingPeers : Peers, Tables<kByTable<Shape>> {
  // Whether all have told, and different tables: nothing is moved.
  __device__ __forceinline__ bool differ() const { return !failed && Tables<kByTable<Shape>>::differ(refusing); }
};

template <class Shape>
struct PlanShared {
  static constexpr int columns = kPlanColumns<Shape>;  // the keys, then the ranks
  u16 chunk[kPlanWarps][columns];      // rows of a key in each warp's points, then their prefix
  int next[columns];                   // rows of a key in this CTA so far, then its next slot
  int total[columns];                  // rows of a key from all ranks
  int local[columns];                  // this rank's rows in all its CTAs (last CTA only)
  signed char owner[Shape::num_keys];  // rank of a key, -1: none
  CountingPeers<Shape> peers;
};

template <class Shape, class Relation>
struct Plan {
  using Shared = PlanShared<Shape>;
  using Layout = typename Shape::Source;
  static constexpr int num_keys = Shape::num_keys, columns = kPlanColumns<Shape>, words = kPlanWords<Shape>;
  // A warp looks at whole segments if it has to find their first points.
  static constexpr int warp_points = Shape::compact ? kWarp / Shape::fanout * Shape::fanout : kWarp;
  static constexpr int tile_points = kPlanWarps * warp_points;
  const Call& call;
  Shared& shared;
  const Relation relation;
  const u32 epoch;
  const int dropped;  // parity of this use of the handle's memory
  const int cta, num_ctas;
  const i64 num_points;
  const i64 first_tile, end_tile;

  __device__ Plan(const Call& call, unsigned char* memory, u32 epoch, u32 use, int num_ctas)
      : call(call),
        shared(*reinterpret_cast<Shared*>(memory)),
        relation{call},
        epoch(epoch),
        dropped(use & 1),
        cta(blockIdx.x),
        num_ctas(num_ctas),
        num_points(call.num_sources * Shape::fanout),
        first_tile(ceil_div(num_points, tile_points) * cta / num_ctas),
        end_tile(ceil_div(num_points, tile_points) * (cta + 1) / num_ctas) {}

  // The point of a tile that this thread looks at; not below num_points: none.
  __device__ __forceinline__ i64 point_of(i64 tile) const {
    if constexpr (warp_points == kWarp) {
      return tile * kPlanThreads + threadIdx.x;
    } else {
      const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
      return lane < warp_points ? tile * tile_points + warp * warp_points + lane : num_points;
    }
  }
  __device__ __forceinline__ i64 load_key(i64 tile) const {
    const i64 point = point_of(tile);
    return point < there() ? relation.key(point) : -1;
  }
  // The points that there are: of a ragged domain the call has room for more.
  __device__ __forceinline__ i64 there() const {
    if constexpr (kPlaced<Layout>)
      if (call.num_points) return min(*call.num_points, num_points);
    return num_points;
  }

  // A key, or -1 where it is none. Without branches, so that several may be looked at together.
  __device__ __forceinline__ int known(i64 key) const {
    const bool is_one = u64(key) < u64(num_keys);
    const int at = is_one ? int(key) : 0;
    return is_one & (shared.owner[at] >= 0) ? at : -1;
  }
  // The same; mistakes are counted.
  __device__ __forceinline__ int known(i64 key, bool count_errors) const {
    const int found = known(key);
    if (count_errors && found < 0 && key != -1) note_dropped(call, call.state->bad_keys, dropped);
    return found;
  }

  // One tile of keys. Leaves in `chunk` the rows of every key in each warp; returns the point's key
  // (-1: none), its rank in the warp and, in a compact target, that of its segment's row.
  struct Point {
    int key;
    int rank_in_warp;
    int row_in_warp;
  };
  __device__ Point tile(i64 key, bool count_errors) {
    const int warp = threadIdx.x / kWarp;
    uint4* const chunks = reinterpret_cast<uint4*>(&shared.chunk[0][0]);
    for (int i = threadIdx.x; i < int(sizeof(shared.chunk) / sizeof(uint4)); i += kPlanThreads) chunks[i] = {};
    const int found = known(key, count_errors);
    __syncthreads();
    const u32 same = __match_any_sync(kAllLanes, found);
    const int rank_in_warp = __popc(same & lanes_below());
    if (found >= 0 && rank_in_warp == 0) shared.chunk[warp][found] = u16(__popc(same));
    int row_in_warp = 0;
    if constexpr (Shape::compact) row_in_warp = count_rows(found);
    __syncthreads();
    return {found, rank_in_warp, row_in_warp};
  }
  __device__ int count_rows(int key) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const int rank = key < 0 ? -1 : shared.owner[key];
    const u32 pair = __match_any_sync(kAllLanes, rank < 0 ? -1 - lane : lane / Shape::fanout * kMaxRanks + rank);
    const bool leads = rank >= 0 && (pair & lanes_below()) == 0;
    const u32 there = __match_any_sync(kAllLanes, rank) & __ballot_sync(kAllLanes, leads);
    if (leads && (there & lanes_below()) == 0) shared.chunk[warp][num_keys + rank] = u16(__popc(there));
    return __popc(there & ((1u << (__ffs(pair) - 1)) - 1));
  }
  // `chunk` becomes its exclusive prefix over warps, `total` is `next` and the tile. A thread adds up that of a
  // column.
  __device__ void prefix_over_warps() {
    for (int key = threadIdx.x; key < columns; key += kPlanThreads) add_warps(key);
    __syncthreads();
  }
  __device__ __forceinline__ void add_warps(int key) {
    constexpr int batch = 8;
    const int before = shared.next[key];
    int sum = before;
    for (int first = 0; first < kPlanWarps; first += batch) {
      int here[batch];
#pragma unroll
      for (int b = 0; b < batch; ++b) here[b] = shared.chunk[first + b][key];
#pragma unroll
      for (int b = 0; b < batch; ++b) {
        shared.chunk[first + b][key] = u16(sum - before);
        sum += here[b];
      }
    }
    shared.total[key] = sum;  // becomes `next` once every point of the tile has its slot
  }
  __device__ void advance() {
    for (int key = threadIdx.x; key < columns; key += kPlanThreads) shared.next[key] = shared.total[key];
    __syncthreads();
  }

  __device__ bool poll(const u64* word, Stage stage, int peer, int& value) {
    return poll_count(call, shared.peers, epoch, word, stage, peer, value);
  }

  // Adds to into[key] the counts of CTAs [0, end) of this rank.
  __device__ void add_lower_ctas(int* into, int end) {
    constexpr int parts = kPlanThreads / columns > 0 ? kPlanThreads / columns : 1;
    constexpr int batch = 8;
    for (int i = threadIdx.x; i < parts * columns; i += kPlanThreads) {
      const int key = i % columns;
      int sum = 0;
      for (int first = i / columns; first < end; first += parts * batch) {
        u64 word[batch];  // in flight together; nearly always already there
#pragma unroll
        for (int b = 0; b < batch; ++b)
          if (first + b * parts < end)
            word[b] = load_relaxed(&call.cta_counts[i64(first + b * parts) * columns + key]);
#pragma unroll
        for (int b = 0; b < batch; ++b) {
          const int cta = first + b * parts;
          if (cta >= end) continue;
          int value = int(u32(word[b]));
          if (u32(word[b] >> 32) != epoch) {
            if (!poll(&call.cta_counts[i64(cta) * columns + key], kPlanLocal, call.rank, value)) value = 0;
          }
          sum += value;
        }
      }
      if (sum) atomicAdd(&into[key], sum);
    }
    __syncthreads();
  }

  __device__ u64* counts(int window, int from) const { return counts_of(call, epoch, window, from); }

  // Adds to `total` the rows of every key from all ranks, to `next` those from lower ranks.
  __device__ void add_peers() {
    constexpr int batch = 4;
    for (int first = threadIdx.x; first < call.num_ranks * words; first += batch * kPlanThreads) {
      u64 seen[batch];  // in flight together
#pragma unroll
      for (int b = 0; b < batch; ++b) {
        const int i = first + b * kPlanThreads;
        if (i < call.num_ranks * words) seen[b] = load_relaxed(counts(call.rank, i / words) + i % words);
      }
#pragma unroll
      for (int b = 0; b < batch; ++b) {
        const int i = first + b * kPlanThreads, peer = i / words, key = i % words;
        if (i >= call.num_ranks * words) continue;
        int value = int(u32(seen[b]));
        if (u32(seen[b] >> 32) != epoch && !poll(counts(call.rank, peer) + key, kPlanPeers, peer, value)) value = 0;
        if (key == words - 1) {
          note_peer(shared.peers, peer, value);
        } else if (kByTable<Shape> && key >= columns) {
          shared.peers.compare(peer, key - columns, u32(value));
        } else {
          atomicAdd(&shared.total[key], value);
          if (peer < call.rank) atomicAdd(&shared.next[key], value);
        }
      }
    }
    __syncthreads();
  }

  // Adds to `next` the first slot of every key: one warp a destination rank scans the keys it owns,
  // a lane some consecutive ones.
  __device__ void add_starts() {
    constexpr int lane_keys = num_keys < 8 * kWarp ? int(ceil_div(num_keys, kWarp)) : 8;
    const int lane = threadIdx.x % kWarp, destination = threadIdx.x / kWarp;
    int start = 0, owned_before = 0;
    for (int first = 0; destination < call.num_ranks && first < num_keys; first += lane_keys * kWarp) {
      int slots[lane_keys], end = 0, owned = 0;
#pragma unroll
      for (int j = 0; j < lane_keys; ++j) {
        const int key = first + lane * lane_keys + j;
        slots[j] = -1;
        if (key >= num_keys || shared.owner[key] != destination) continue;
        slots[j] = int(round_up(shared.total[key], Shape::align));
        end += slots[j];
        ++owned;
      }
      int at = -end, local = -owned;
#pragma unroll
      for (int offset = 1; offset < kWarp; offset *= 2) {
        const int end_below = __shfl_up_sync(kAllLanes, end, offset);
        const int owned_below = __shfl_up_sync(kAllLanes, owned, offset);
        if (lane >= offset) end += end_below, owned += owned_below;
      }
      at += start + end;
      local += owned_before + owned;
#pragma unroll
      for (int j = 0; j < lane_keys; ++j) {
        const int key = first + lane * lane_keys + j;
        if (slots[j] < 0) continue;
        shared.next[key] += at;
        if (cta == 0 && destination == call.rank) {
          const bool none = shared.peers.failed || shared.peers.differ();
          call.key_counts[local] = none ? 0 : int(max(i64(0), min(call.capacity - at, i64(shared.total[key]))));
          call.key_starts[local] = at;
        }
        at += slots[j];
        ++local;
      }
      start += __shfl_sync(kAllLanes, end, kWarp - 1);
      owned_before += __shfl_sync(kAllLanes, owned, kWarp - 1);
    }
    __syncthreads();
  }

  // Nothing is counted yet.
  __device__ __forceinline__ void begin() {
    u64 number = 0;
    for (int k = threadIdx.x; k < columns; k += kPlanThreads) {
      shared.next[k] = shared.local[k] = shared.total[k] = 0;
      if (k >= num_keys) continue;
      const auto owner = relation.place(k);
      shared.owner[k] = is_below(owner, call.num_ranks) ? int(owner) : -1;
      number += number_of(k, owner);
    }
    if (threadIdx.x == 0) {
      shared.peers.refusing = shared.peers.failed = 0;
      shared.peers.begin();
    }
    __syncthreads();
    shared.peers.add(number);
  }

  // `total` holds this CTA's counts (zero when it had no tile). All ranks get the counts of all, and `next`
  // becomes the first slot of every key that this CTA fills. While the other ranks' come, it does `meanwhile()`.
  template <class Meanwhile>
  __device__ __forceinline__ void exchange(Meanwhile meanwhile) {
    for (int k = threadIdx.x; k < columns; k += kPlanThreads) {
      const int mine = shared.total[k];
      store_relaxed(&call.cta_counts[i64(cta) * columns + k], tagged(mine, epoch));
      shared.local[k] = mine;
      shared.next[k] = 0;
      shared.total[k] = 0;
    }
    __syncthreads();
    add_lower_ctas(shared.next, cta);

    if (cta == num_ctas - 1) {
      for (int i = threadIdx.x; i < call.num_ranks * words; i += kPlanThreads) {
        const int peer = i / words, k = i % words;
        u32 value = k < columns ? shared.local[k] + shared.next[k] : int(call.num_sources);
        if (kByTable<Shape> && k >= columns && k < words - 1) value = shared.peers.word(k - columns);
        store_relaxed(counts(peer, call.rank) + k, tagged(value, epoch));
      }
      __syncthreads();
    }
    meanwhile();
    add_peers();
    if (cta == 0 && threadIdx.x == 0) {
      keep_peers(call, shared.peers);
      if (shared.peers.differ()) note(call, call.state->misplaced);
    }
    add_starts();
  }

  // Counts a point without a slot: none is left, or ranks have given different tables.
  __device__ __forceinline__ void drop() const {
    if (shared.peers.differ()) atomicAdd(&call.routing->dropped[dropped], 1u);
    else note_dropped(call, call.state->overflowed, dropped);
  }

  // Calls emit(point, code, row) for every point of this CTA; only compact targets tell the row.
  template <class Emit>
  __device__ void run(Emit emit) {
    i64 key = load_key(first_tile);
    begin();
    Point point{-1, 0, 0};
    for (i64 t = first_tile; t < end_tile; ++t) {
      point = tile(key, true);
      if (t + 1 < end_tile) key = load_key(t + 1);
      prefix_over_warps();
      if (t + 1 < end_tile) advance();
    }
    exchange([] {});

    const bool again = first_tile + 1 < end_tile;  // the chunks of a lone tile are still there
    if (again) key = load_key(first_tile);
    for (i64 t = first_tile; t < end_tile; ++t) {
      if (again) {
        point = tile(key, false);
        if (t + 1 < end_tile) key = load_key(t + 1);
        prefix_over_warps();
      }
      const i64 index = point_of(t);
      if constexpr (kPlaced<Layout>)
        if (index < there() && index % Shape::fanout == 0)
          relation.source_place(index, Place<Layout>::stored(call, index / Shape::fanout));
      if (index < num_points) {
        int code = -1, row = -1;
        if (point.key >= 0 && !shared.peers.failed) {
          const u16* const before = shared.chunk[threadIdx.x / kWarp];
          const int rank = shared.owner[point.key];
          const i64 slot = i64(shared.next[point.key]) + before[point.key] + point.rank_in_warp;
          bool fits = slot < call.capacity;
          if constexpr (Shape::compact) {
            row = shared.next[num_keys + rank] + before[num_keys + rank] + point.row_in_warp;
            fits = fits && row < row_capacity(call);
          }
          if (shared.peers.differ()) fits = false;
          if (fits) code = code_of(rank, slot);
          else drop();
        }
        emit(index, code, row);
      }
      if (t + 1 < end_tile) {
        __syncthreads();
        advance();
      }
    }
  }
};

// What a kernel that plans does first: reads the numbers of its dispatch, which all its threads may use
// afterwards. At the end the last CTA to have done so makes them those of the next one.
struct Numbers {
  u32 epoch;     // of the dispatch
  u32 use;       // of the handle's memory
  bool aborted;  // nobody waits any more, and what is sent now could be taken for an earlier call's
};
__device__ __forceinline__ void read_numbers(const Call& call, Numbers& numbers) {
  if (threadIdx.x != 0) return;
  const u32 before = *(volatile u32*)&call.state->plan_epoch, uses = *(volatile u32*)&call.routing->uses;
  const u32 abort = *(volatile u32*)&call.state->abort;
  numbers.epoch = before + 1;
  numbers.use = uses + 1;
  numbers.aborted = abort;
}
__device__ __forceinline__ void advance_numbers(const Call& call, const Numbers& numbers) {
  State& state = *call.state;
  Routing& routing = *call.routing;
  state.plan_epoch = routing.epoch = numbers.epoch;
  state.rows_ticket = routing.ticket = call.ticket;
  routing.combines = 0;
  routing.uses = numbers.use;
  routing.dropped[~numbers.use & 1] = 0;
  tell_troubles(call);
}
__device__ __forceinline__ u32 begin_plan(const Call& call, Numbers& numbers) {
  read_numbers(call, numbers);
  return enter(call);
}
__device__ __forceinline__ void end_plan(const Call& call, const Numbers& numbers, u32 place) {
  leave(call, place, [&](State&) { advance_numbers(call, numbers); });
}

// What the next kernel waits for, which may have started, is there: it waits for all CTAs to say so. By one
// thread, behind `__syncthreads`.
constexpr u32 kMade = 1 << 16;   // boxes were made anew: who has counted their items counts again
constexpr u32 kAhead = 1 << 17;  // boxes are there to be counted, and the ranks have not met yet
__device__ __forceinline__ void tell_planned(const Call& call, u32 made = 0) {
  __threadfence();
  atomicAdd(&call.state->planned, 1u | made);
}
__device__ __forceinline__ void finish_plan(const Call& call, const Numbers& numbers, u32 place, u32 made = 0) {
  end_plan(call, numbers, place);
  __syncthreads();
  if (threadIdx.x == 0) tell_planned(call, made);
}

// What is left of a dispatch that is not made: nothing has come.
template <class Shape>
__device__ __forceinline__ void plan_nothing(const Call& call) {
  if (blockIdx.x != 0) return;
  for (int key = threadIdx.x; key < Shape::num_keys; key += blockDim.x) call.key_counts[key] = 0;
  if (threadIdx.x < kMaxRanks) call.routing->num_sources_of[threadIdx.x] = 0;
  if (threadIdx.x == 0) call.routing->most_sources = 0;
}

template <class Shape, class Relation>
__device__ __forceinline__ void plan(const Call& call) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ Numbers numbers;
  const u32 place = begin_plan(call, numbers);
  let_next_start();
  if (numbers.aborted) {
    plan_nothing<Shape>(call);
  } else {
    Plan<Shape, Relation>(call, memory, numbers.epoch, numbers.use, gridDim.x).run([&](i64 point, int code, int row) {
      call.codes[point] = code;
      if constexpr (Shape::compact) call.point_rows[point] = row;
    });
  }
  finish_plan(call, numbers, place);
}

}  // namespace fuscoc
