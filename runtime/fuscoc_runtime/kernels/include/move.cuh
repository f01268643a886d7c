// Dispatch kernel where slots follow from pieces: copies the boxes that `pieces.cuh` has made, straight to
// their slots. A warp takes the next item of all, with the cells of a box in turn, so that no two ranks
// store to the same one for long, and own rows go with the others. Of many boxes, whose ranks inputs say, it
// takes items from several places of the list in turn, since boxes of a rank may follow each other.
//
// The last warp of every CTA first marks its share of the slots that all ranks fill here: where two points
// have one, it is filled twice, by either, and counted. The last CTA tells the peers that everything has
// come, and waits until they have told it.
#pragma once
#include "pieces.cuh"

namespace fuscoc {

constexpr u32 kPlacesOfList = 16;  // that items of many boxes are taken from

template <class Shape, class Relation>
struct Move {
  using Own = BoxOf<Shape>;
  struct Shared {
    Items items;
    Own box[kWarp];
    Places places[kWarp];
  };
  const Call& call;
  const u32 epoch;
  const int lane;
  Shared& shared;
  char* const staged;  // memory of this warp for tiles

  __device__ Move(const Call& call, char* dynamic, u64*, u32 epoch)
      : call(call), epoch(epoch), lane(threadIdx.x % kWarp), shared(memory()),
        staged(dynamic + threadIdx.x / kWarp * Shape::tile_bytes) {}
  __device__ static __forceinline__ Shared& memory() {
    __shared__ Shared shared;
    return shared;
  }
  __device__ void before_plan(int, int) {}

  __device__ __forceinline__ u32* flag(int window, int from) const {
    return reinterpret_cast<u32*>(call.window[window] + call.dispatch_flags_at) + from * call.max_sources;
  }
  // Items of a box of any field, in all its cells.
  __device__ __forceinline__ u32 items_of(u32 box) const {
    const Own& of = boxes_forth<Shape>(call)[box];
    const u32 items = __ldcg(&of.num_items);
    return items ? items * u32(__ldcg(&of.num_cells)) : 0;
  }

  template <int kField = 0>
  __device__ __forceinline__ void copy(const Own& box, int field, u32 item) const {
    if constexpr (kField + 1 < Shape::num_fields) {
      if (field != kField) {
        copy<kField + 1>(box, field, item);
        return;
      }
    }
    // Cells in turn, that of the next rank first: ranks begin with different ones.
    const int turned = (int(item % box.num_cells) + call.rank + 1) % box.num_cells;
    const int rank = box.rank + turned * box.rank_step;
    if (call.routing->refusing >> rank & 1) return;
    copy_item<Shape::unit_bytes(kField), kSettled>(
        box, call.source[kField] + box.from + turned * box.cell_from,
        call.window[rank] + call.rows_at[kField] + box.to + turned * box.cell_to,
        shared.places[threadIdx.x / kWarp], staged, item / box.num_cells, lane);
  }

  __device__ void run(int warp, int num_warps) {
    const u32 num_boxes = *(volatile u32*)call.num_boxes * Shape::num_fields;
    const auto count = [&](u32 box) { return items_of(box); };
    shared.items.count_all(num_boxes, count);
    const u32 num_items = shared.items.total(), first = gridDim.x * num_warps;
    u32* const next = &call.state->next_send[epoch & 1];
    const u32 places = num_boxes > 1 ? kPlacesOfList : 1, part = (num_items + places - 1) / places;
    u32 turn = warp * gridDim.x + blockIdx.x, held = ~0u;
    if (warp == num_warps - 1) mark_all();  // it has no item in small calls
    while (turn < places * part) {
      const u32 after = lane == 0 ? first + atomicAdd(next, 1u) : 0;
      u32 inside = turn % places * part + turn / places;
      if (inside < num_items) {
        const u32 box = shared.items.find(inside, count);
        if (box != held) keep_box(shared.box[warp], boxes_forth<Shape>(call)[box], lane), held = box;
        copy(shared.box[warp], int(box % Shape::num_fields), inside);
      }
      turn = __shfl_sync(kAllLanes, after, 0);
    }
    finish();
  }

  __device__ void finish() {
    __syncthreads();
    if (threadIdx.x != 0) return;
    fence_system();
    if (atomicAdd(&call.state->sent[epoch & 1], 1u) != gridDim.x - 1) return;
    fence_system();
    const auto is_open = [&](int peer) { return peer != call.rank && !(call.routing->refusing >> peer & 1); };
    for (int peer = 0; peer < call.num_ranks; ++peer)
      if (is_open(peer)) store_relaxed(flag(peer, call.rank), epoch);
    for (int peer = 0; peer < call.num_ranks; ++peer)
      if (is_open(peer))
        wait_until(call, kDispatchGroup, peer, 0, [&] { return reached(load_acquire(flag(call.rank, peer)), epoch); });
  }

  __device__ void mark_all() {
    for (int from = 0; from < call.num_ranks; ++from) {
      if (call.routing->refusing >> from & 1) continue;
      u64 ready = 0;
      if (lane == 0) {
        const u64* const word = ready_word(call, call.rank, from, 0);
        wait_until(call, kStagedSlots, from, 0, [&] { return u32((ready = load_acquire(word)) >> 32) == epoch; });
        if (u32(ready >> 32) != epoch) ready = 0;
      }
      const u32 num_boxes = __shfl_sync(kAllLanes, u32(ready), 0);
      // All warps that mark share a box of few; of many, each has one.
      const auto* const marks = marks_told<Shape>(call, call.rank, from);
      if constexpr (Shape::looks_up)
        for (u32 box = blockIdx.x; box < num_boxes; box += gridDim.x) mark(marks[box], lane, kWarp);
      else
        for (u32 box = 0; box < num_boxes; ++box) mark(marks[box], blockIdx.x * kWarp + lane, gridDim.x * kWarp);
    }
  }
  // A lane takes a word of a range.
  __device__ void mark(const Marks<Shape::num_loops>& marks, int lane, int num_lanes) {
    const i64 range = __ldcg(&marks.range), words = (range + 62) / 32;  // of a range, wherever it begins
    const i64 num = words * __ldcg(&marks.num_ranges);
    for (i64 i = lane; i < num; i += num_lanes) {
      i64 slot = __ldcg(&marks.first), number = i / words;
      for (int j = int(__ldcg(&marks.num_loops)) - 1; j >= 0; --j) {
        const i64 count = __ldcg(&marks.count[j]);
        slot += number % count * __ldcg(&marks.step[j]);
        number /= count;
      }
      const i64 word = slot / 32 + i % words;
      const i64 low = max(slot - word * 32, i64(0)), high = min(slot + range - word * 32, i64(32));
      if (low >= high) continue;
      const u32 bits = (high == 32 ? ~0u : (1u << high) - 1) & ~((1u << low) - 1);
      const u32 twice = atomicOr(&call.filled[word], bits) & bits;
      if (twice) note(call, call.state->clashed, u32(__popc(twice)));
    }
  }
};

}  // namespace fuscoc
