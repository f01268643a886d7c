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
#pragma once
#include "call.cuh"

namespace fuscoc {

constexpr int kPlanThreads = 1024;
constexpr int kPlanWarps = kPlanThreads / kWarp;

template <class Shape>
struct PlanShared {
  u16 chunk[kPlanWarps][Shape::num_keys];  // rows of a key in each warp's points, then their prefix
  int next[Shape::num_keys];               // rows of a key in this CTA so far, then its next slot
  int total[Shape::num_keys];              // rows of a key from all ranks
  int local[Shape::num_keys];              // this rank's rows in all its CTAs (last CTA only)
  int num_sources_of[kMaxRanks];
  int failed;
};

template <class Shape, class Relation>
struct Plan {
  using Shared = PlanShared<Shape>;
  static constexpr int num_keys = Shape::num_keys;
  const Call& call;
  Shared& shared;
  const Relation relation;
  u32 epoch;
  i64 num_points;
  i64 first_tile, end_tile;

  // One tile: thread i looks at point tile * 1024 + i. Leaves in `chunk` the exclusive prefix over
  // warps, adds the tile to `next`; returns the point's key (-1: none) and its rank in the warp.
  struct Point {
    int key;
    int rank_in_warp;
  };
  __device__ Point tile(i64 index, bool count_errors) {
    const int warp = threadIdx.x / kWarp;
    for (int i = threadIdx.x; i < kPlanWarps * num_keys; i += kPlanThreads) (&shared.chunk[0][0])[i] = 0;
    const i64 point = index * kPlanThreads + threadIdx.x;
    i64 key = point < num_points ? relation.key(point) : -1;
    const bool known = key >= -1 && key < num_keys;
    const bool owned = known && (key < 0 || u32(relation.place(int(key))) < u32(call.num_ranks));
    if (!owned) {
      if (count_errors) atomicAdd(&call.state->bad_keys, 1u);
      key = -1;
    }
    __syncthreads();
    const u32 same = __match_any_sync(kAllLanes, int(key));
    const int rank_in_warp = __popc(same & lanes_below());
    if (key >= 0 && rank_in_warp == 0) shared.chunk[warp][key] = u16(__popc(same));
    __syncthreads();
    return {int(key), rank_in_warp};
  }
  __device__ void prefix_over_warps() {
    for (int key = threadIdx.x; key < num_keys; key += kPlanThreads) {
      int sum = shared.next[key];
#pragma unroll 8
      for (int w = 0; w < kPlanWarps; ++w) {
        const int here = shared.chunk[w][key];
        shared.chunk[w][key] = u16(sum - shared.next[key]);
        sum += here;
      }
      shared.total[key] = sum;  // becomes `next` once every point of the tile has its slot
    }
    __syncthreads();
  }
  __device__ void advance() {
    for (int key = threadIdx.x; key < num_keys; key += kPlanThreads) shared.next[key] = shared.total[key];
    __syncthreads();
  }

  __device__ bool poll(const u64* word, Stage stage, int peer, int& value) {
    u64 seen = load_relaxed(word);
    const bool ok = wait_until(call, stage, peer, 0, [&] {
      if (u32(seen >> 32) == epoch) return true;
      seen = load_relaxed(word);
      return u32(seen >> 32) == epoch;
    });
    value = int(u32(seen));
    if (!ok) shared.failed = 1;
    return ok;
  }

  // Adds to into[key] the counts of CTAs [0, end) of this rank.
  __device__ void add_lower_ctas(int* into, int end) {
    constexpr int parts = kPlanThreads / num_keys > 0 ? kPlanThreads / num_keys : 1;
    constexpr int batch = 8;
    for (int i = threadIdx.x; i < parts * num_keys; i += kPlanThreads) {
      const int key = i % num_keys;
      int sum = 0;
      for (int first = i / num_keys; first < end; first += parts * batch) {
        u64 word[batch];  // in flight together; nearly always already there
#pragma unroll
        for (int b = 0; b < batch; ++b)
          if (first + b * parts < end)
            word[b] = load_relaxed(&call.cta_counts[i64(first + b * parts) * num_keys + key]);
#pragma unroll
        for (int b = 0; b < batch; ++b) {
          const int cta = first + b * parts;
          if (cta >= end) continue;
          int value = int(u32(word[b]));
          if (u32(word[b] >> 32) != epoch) {
            if (!poll(&call.cta_counts[i64(cta) * num_keys + key], kPlanLocal, call.rank, value)) value = 0;
          }
          sum += value;
        }
      }
      if (sum) atomicAdd(&into[key], sum);
    }
    __syncthreads();
  }

  __device__ u64* counts(int window, int from) const {
    const i64 words = num_keys + 1;
    return reinterpret_cast<u64*>(call.window[window] + call.counts_at) +
           (i64(epoch & 1) * call.num_ranks + from) * words;
  }

  // First slot of every key: one warp per destination rank scans the keys it owns.
  __device__ void add_starts() {
    const int lane = threadIdx.x % kWarp, destination = threadIdx.x / kWarp;
    if (destination < call.num_ranks) {
      i64 start = 0;
      int owned_before = 0;
      for (int first = 0; first < num_keys; first += kWarp) {
        const int key = first + lane;
        const bool owned = key < num_keys && relation.place(key) == destination;
        const int rows = owned ? shared.total[key] : 0;
        i64 end = round_up(rows, Shape::align);
#pragma unroll
        for (int offset = 1; offset < kWarp; offset *= 2) {
          const i64 below = __shfl_up_sync(kAllLanes, end, offset);
          if (lane >= offset) end += below;
        }
        const i64 at = start + end - round_up(rows, Shape::align);
        const u32 owners = __ballot_sync(kAllLanes, owned);
        if (owned) {
          atomicAdd(&shared.next[key], int(at));
          if (blockIdx.x == 0 && destination == call.rank) {
            const int local = owned_before + __popc(owners & lanes_below());
            const i64 room = call.capacity - at;
            call.key_counts[local] = room < 0 ? 0 : int(room < rows ? room : rows);
            call.key_starts[local] = int(at);
          }
        }
        owned_before += __popc(owners);
        start += __shfl_sync(kAllLanes, end, kWarp - 1);
      }
    }
    __syncthreads();
  }

  __device__ void run() {
    const int cta = blockIdx.x, last = gridDim.x - 1;
    for (int key = threadIdx.x; key < num_keys; key += kPlanThreads) shared.next[key] = shared.local[key] = 0;
    if (threadIdx.x == 0) shared.failed = 0;
    __syncthreads();

    Point point{-1, 0};
    for (i64 t = first_tile; t < end_tile; ++t) {
      point = tile(t, true);
      prefix_over_warps();
      if (t + 1 < end_tile) advance();
    }
    // `total` now holds this CTA's counts (zero when it had no tile).
    for (int key = threadIdx.x; key < num_keys; key += kPlanThreads) {
      const int mine = first_tile < end_tile ? shared.total[key] : 0;
      store_relaxed(&call.cta_counts[i64(cta) * num_keys + key], tagged(mine, epoch));
      shared.local[key] = mine;
      shared.next[key] = 0;
      shared.total[key] = 0;
    }
    __syncthreads();
    add_lower_ctas(shared.next, cta);

    if (cta == last) {
      for (int i = threadIdx.x; i < call.num_ranks * (num_keys + 1); i += kPlanThreads) {
        const int peer = i / (num_keys + 1), key = i % (num_keys + 1);
        const u32 value = key < num_keys ? shared.local[key] + shared.next[key] : int(call.num_sources);
        store_relaxed(counts(peer, call.rank) + key, tagged(value, epoch));
      }
      __syncthreads();
    }
    for (int i = threadIdx.x; i < call.num_ranks * (num_keys + 1); i += kPlanThreads) {
      const int peer = i / (num_keys + 1), key = i % (num_keys + 1);
      int value = 0;
      poll(counts(call.rank, peer) + key, kPlanPeers, peer, value);
      if (key == num_keys) {
        shared.num_sources_of[peer] = value;
      } else {
        atomicAdd(&shared.total[key], value);
        if (peer < call.rank) atomicAdd(&shared.next[key], value);
      }
    }
    __syncthreads();
    if (cta == 0 && threadIdx.x == 0) {
      int most = 0;
      for (int r = 0; r < call.num_ranks; ++r) {
        call.num_sources_of[r] = shared.failed ? 0 : shared.num_sources_of[r];
        most = max(most, call.num_sources_of[r]);
      }
      call.num_sources_of[kMaxRanks] = most;
    }
    add_starts();

    for (i64 t = first_tile; t < end_tile; ++t) {
      if (first_tile + 1 < end_tile) {  // the chunks of a lone tile are still there
        point = tile(t, false);
        prefix_over_warps();
      }
      const i64 index = t * kPlanThreads + threadIdx.x;
      if (index < num_points) {
        int code = -1;
        if (point.key >= 0 && !shared.failed) {
          const i64 slot = i64(shared.next[point.key]) + shared.chunk[threadIdx.x / kWarp][point.key] +
                           point.rank_in_warp;
          if (slot < call.capacity) code = code_of(relation.place(point.key), slot);
          else atomicAdd(&call.state->overflowed, 1u);
        }
        call.codes[index] = code;
      }
      if (t + 1 < end_tile) {
        __syncthreads();
        advance();
      }
    }
  }
};

template <class Shape, class Relation>
__device__ __forceinline__ void plan(const Call& call) {
  extern __shared__ __align__(128) unsigned char memory[];
  const u32 epoch = *(volatile u32*)&call.state->plan_epoch + 1;
  const i64 num_points = call.num_sources * Shape::fanout;
  const i64 tiles = ceil_div(num_points, kPlanThreads);
  Plan<Shape, Relation> plan{call,       *reinterpret_cast<PlanShared<Shape>*>(memory),
                             Relation{call},  epoch,
                             num_points, tiles * blockIdx.x / gridDim.x,
                             tiles * (blockIdx.x + 1) / gridDim.x};
  plan.run();
  leave(call, [&](State& state) { state.plan_epoch = epoch; });
}

}  // namespace fuscoc
