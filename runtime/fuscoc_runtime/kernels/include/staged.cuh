// Staged dispatch: plan and dispatch in one kernel, for calls so small that latency is all.
//
// Rows do not wait for their slots. Every CTA but those that plan sends rows at once to a staging
// area of the destination, by (source rank, segment), while the counts are still being exchanged;
// slot codes follow when they are known, and receivers copy staged rows to their slots. That takes
// one more local write a row than `dispatch.cuh`, and one round trip between the ranks less.
//
// Staging is used by epochs in turn: a rank that sends for epoch e + 2 has the counts of e + 1 from
// all peers, who therefore have finished epoch e.
#pragma once
#include "plan.cuh"
#include "segments.cuh"

namespace fuscoc {

__device__ __forceinline__ u64* ready_word(const Call& call, int window, int source_rank, int plan) {
  return reinterpret_cast<u64*>(call.window[window] + call.ready_at) + source_rank * kMaxStagedPlans + plan;
}

// What a planning CTA does: all ranks get the points, then the word that says so.
template <class Shape, class Relation>
__device__ void staged_plan(const Call& call, unsigned char* memory, u32 epoch, u32 use) {
  Plan<Shape, Relation> plan(call, memory, epoch, use, call.plan_ctas);
  const i64 own_point = plan.point_of(blockIdx.x);  // one tile a CTA
  const u32 weight = Shape::weighted && own_point < plan.num_points ? __float_as_uint(call.weights[own_point]) : 0;
  plan.run([&](i64 point, int code, int row) {
    for (int r = 0; r < call.num_ranks; ++r)
      (reinterpret_cast<u64*>(call.window[r] + call.points_at) + call.rank * call.max_sources * Shape::fanout)[point] =
          tagged(u32(code), weight);
    call.codes[point] = code;
    if (Shape::compact && code >= 0) *row_index(call, code) = row;
  });
  __syncthreads();
  if (int(threadIdx.x) < call.num_ranks) {
    fence_system();
    store_relaxed(ready_word(call, threadIdx.x, call.rank, plan.cta),
                  tagged(plan.shared.peers.failed ? 0 : u32(call.num_sources), epoch));
  }
}

template <class Shape, class Relation>
struct Staged : Segments<Shape, Relation> {
  using Base = Segments<Shape, Relation>;
  using Base::call, Base::relation, Base::row, Base::keep, Base::epoch, Base::lane;
  using Base::points, Base::flag, Base::source_row, Base::staged_row, Base::stage, Base::store_all;
  using Base::Base;

  __device__ void send(i64 source) {
    const int to = stage(source);
    row.arrived();
    if (to >= 0) {
      fence_system();
      store_relaxed(flag(to, call.rank, source), epoch);
    }
    __syncwarp();
  }

  // Whether the segment exists; waits for the codes of its points.
  __device__ __forceinline__ bool planned(int source_rank, i64 source) const {
    bool there = false;
    if (lane == 0) {
      constexpr int tile_points = Plan<Shape, Relation>::tile_points;
      const i64 first = source * Shape::fanout / tile_points;
      const i64 last = (source * Shape::fanout + Shape::fanout - 1) / tile_points;
      u64 word = 0;
      const auto wait = [&](i64 plan) {
        const u64* at = ready_word(call, call.rank, source_rank, int(plan));
        return wait_until(call, kStagedSlots, source_rank, u32(plan), [&] {
          word = load_acquire(at);
          return u32(word >> 32) == epoch;
        });
      };
      there = wait(0) && source < i64(u32(word)) && (first == 0 || wait(first)) && (last == first || wait(last));
    }
    return told_by(0, there);
  }
  __device__ __forceinline__ bool arrived(int source_rank, i64 source) const {
    bool there = true;
    if (lane == 0) {
      const u32* at = flag(call.rank, source_rank, source);
      there = wait_until(call, kDispatchGroup, source_rank, u32(source),
                         [&] { return reached(load_acquire(at), epoch); });
      fence_bulk_proxy();
    }
    return told_by(0, there);
  }

  // Copies a segment to its slots here, or to its row. An own row is in the buffer by the time its
  // slots are known.
  template <class From>
  __device__ void expand(int source_rank, i64 source, From from) {
    const bool own = source_rank == call.rank;
    row.reusable();
    if (own) row.load(0, from, keep);
    int code = -1;
    if (planned(source_rank, source) && lane < Shape::fanout)
      code = int(u32(__ldcg(points(call.rank, source_rank, source) + lane)));
    u32 mine = __ballot_sync(kAllLanes, code >= 0 && code_rank(code) == call.rank);
    if constexpr (Shape::compact) {
      mine &= 0u - mine;  // all its slots refer to one row
      if (mine >> lane & 1) code = code_of(call.rank, __ldcg(row_index(call, code)));
    }
    if (own) row.loaded(from);
    if (!mine || (!own && !arrived(source_rank, source))) return;
#pragma unroll 1
    for (int pass = 0; pass < Shape::num_passes; ++pass) {
      if (pass > 0 || !own) {
        row.reusable();
        row.load(pass, from, keep);
        row.loaded(from);
      }
      store_all(pass, mine, code, keep);
    }
  }

  // Items are dealt out in turn, sends first: they never wait.
  __device__ void run(int warp, int num_warps, int cta, int num_ctas) {
    const i64 own = call.num_sources, remote = call.max_sources * (call.num_ranks - 1);
    for (i64 item = warp * num_ctas + cta; item < 2 * own + remote; item += num_warps * num_ctas) {
      if (item < own) {
        if (call.num_ranks > 1) send(item);
      } else if (item < 2 * own) {
        expand(call.rank, item - own, source_row(item - own));
      } else {
        const RemoteItem at = remote_item(call, u32(item - 2 * own));
        expand(at.source_rank, at.index, staged_row(call.rank, at.source_rank, at.index));
      }
    }
    row.arrived();
  }
};

template <class Shape, class Relation>
__device__ __forceinline__ void staged(const Call& call) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ u64 barriers[kWarp];
  __shared__ Numbers numbers;
  const u32 place = begin_plan(call, numbers);
  const int warp = threadIdx.x / kWarp;
  if (numbers.aborted) {
    plan_nothing<Shape>(call);
  } else if (int(blockIdx.x) < call.plan_ctas) {
    staged_plan<Shape, Relation>(call, memory, numbers.epoch, numbers.use);
  } else if (warp < Shape::dispatch_warps) {
    Staged<Shape, Relation>(call, reinterpret_cast<char*>(memory), barriers, numbers.epoch)
        .run(warp, Shape::dispatch_warps, int(blockIdx.x) - call.plan_ctas, int(gridDim.x) - call.plan_ctas);
  }
  end_plan(call, numbers, place);
}

}  // namespace fuscoc
