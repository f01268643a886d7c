// Combine kernel where slots follow from pieces: rows go back to where their segments lie.
//
// Where rows lie, warps copy the boxes that their sources have told this rank, item by item into the
// staging memory of the source, and flag every item there. At the source warps copy flagged items to the
// result, line by line, and this rank's own rows straight. Half of the warps begin with what goes to peers,
// the others with what is for this rank; sending never waits, so every flag comes.
#pragma once
#include "back.cuh"
#include "pieces.cuh"

namespace fuscoc {

template <class Shape>
struct GiveBackWords : BackWords {
  Items sent, own, arriving;
  BoxOf<Shape> box[kWarp];
  Places places[kWarp];
};

template <class Shape>
struct GiveBack : Back<GiveBackWords<Shape>> {
  using Base = Back<GiveBackWords<Shape>>;
  using Own = BoxOf<Shape>;
  using Base::call, Base::shared;
  const int warp, lane;
  char* const staged;  // memory of this warp for tiles

  template <Reading kHow, class Meanwhile = Nothing>
  __device__ __forceinline__ void copy(const Own& box, const char* from, char* to, u32 item, Meanwhile meanwhile = {}) const {
    copy_item<Shape::unit_bytes(0), kHow>(box, from, to, words().places[warp], staged, item, lane, meanwhile);
  }

  __device__ __forceinline__ GiveBackWords<Shape>& words() const { return const_cast<GiveBackWords<Shape>&>(shared); }
  __device__ __forceinline__ u32 epoch() const { return u32(shared.tag >> 32); }
  __device__ __forceinline__ u64* flag(int window, u32 item) const {
    return reinterpret_cast<u64*>(call.window[window] + call.combine_flags_at) + item;
  }
  // Boxes that this rank was told: the first of all other ranks, the first of the next one first, and so on.
  __device__ __forceinline__ int source_of(u32 index) const {
    return int((call.rank + 1 + index % (call.num_ranks - 1)) % call.num_ranks);
  }
  __device__ __forceinline__ const Own& told(int from, u32 box) const {
    return boxes_told<Shape>(call, call.rank, from)[box];
  }
  __device__ __forceinline__ u32 num_boxes(int from) const {
    const u64 word = __ldcg(num_told(call, call.rank, from));
    return u32(word >> 32) == epoch() && this->joins(from) ? u32(word) : 0;
  }
  __device__ __forceinline__ u32 items_of(const Own& box) const { return __ldcg(&box.num_items); }
  __device__ __forceinline__ u32 sent_items(u32 index) const {
    const int from = source_of(index);
    const u32 box = index / (call.num_ranks - 1);
    return box < num_boxes(from) ? items_of(told(from, box)) : 0;
  }
  __device__ __forceinline__ u32 own_items(u32 box) const { return items_of(told(call.rank, box)); }
  __device__ __forceinline__ u32 arriving_items(u32 box) const {
    const Own& of = boxes_back<Shape>(call)[box];
    const u32 items = items_of(of);
    return items ? items * u32(__ldcg(&of.num_cells)) : 0;
  }

  // This warp's copy of a box, which it may have already.
  __device__ __forceinline__ Own& held(const Own& box, const Own*& last) const {
    Own& mine = words().box[warp];
    if (&box != last) keep_box(mine, box, lane), last = &box;
    return mine;
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
  __device__ void send(u32 index, u32 item, const Own*& last, u64*& pending) const {
    const int to = source_of(index);
    const Own& box = held(told(to, index / (call.num_ranks - 1)), last);
    copy<kSettled>(box, call.rows + box.from, call.window[to] + call.staging_at + box.to, item, [&] { signal(pending); });
    pending = flag(to, box.flag + item);
  }
  __device__ void keep(u32 number, u32 item, const Own*& last) const {
    const Own& box = held(told(call.rank, number), last);
    copy<kSettled>(box, call.rows + box.from, call.result + box.to, item);
  }
  __device__ void receive(u32 number, u32 item, const Own*& last) const {
    const Own& box = held(boxes_back<Shape>(call)[number], last);
    const int cell = int(item / box.num_items), rank = box.rank + cell * box.rank_step;
    if (rank == call.rank) return;  // which `keep` copies
    const u32 inside = item % box.num_items;
    bool there = this->joins(rank);
    if (there && lane == 0) there = this->wait_for(rank, inside, flag(call.rank, box.flag + item));
    there = __shfl_sync(kAllLanes, there, 0);
    const char* const from = call.window[call.rank] + call.staging_at + box.from + cell * box.cell_from;
    char* const to = call.result + box.to + cell * box.cell_to;
    if (there) copy<kFresh>(box, from, to, inside);
    else lose(box, to, inside);
  }
  // Which is rare, and need not be fast.
  __device__ __noinline__ void lose(const Own& box, char* to, u32 item) const {
    copy<kLost>(box, nullptr, to, item);
  }

  __device__ void run() const {
    GiveBackWords<Shape>& all = words();
    const auto of_sent = [&](u32 box) { return sent_items(box); };
    const auto of_own = [&](u32 box) { return own_items(box); };
    const auto of_arriving = [&](u32 box) { return arriving_items(box); };
    u32 most = 0;
    for (int from = 0; from < call.num_ranks; ++from)
      if (from != call.rank) most = max(most, num_boxes(from));
    const u32 own = num_boxes(call.rank);
    all.sent.count_all(most * u32(call.num_ranks - 1), of_sent);
    all.own.count_all(own, of_own);
    all.arriving.count_all(call.num_ranks > 1 ? own : 0, of_arriving);
    const u32 num_sent = all.sent.total(), num_own = all.own.total(), num_arriving = all.arriving.total();
    u32* const next_sent = &call.state->next_reduce[shared.parity];
    u32* const next_own = &call.state->next_finalise[shared.parity];
    const Own* last = nullptr;
    const auto give = [&] {
      u64* pending = nullptr;
      this->take(next_sent, num_sent, [&](u32 item) {
        const u32 index = all.sent.find(item, of_sent);
        send(index, item, last, pending);
      });
      signal(pending);
    };
    const auto get = [&] {
      this->take(next_own, num_own + num_arriving, [&](u32 item) {
        if (item < num_own) {
          const u32 box = all.own.find(item, of_own);
          keep(box, item, last);
        } else {
          item -= num_own;
          const u32 box = all.arriving.find(item, of_arriving);
          receive(box, item, last);
        }
      });
    };
    if (warp % 2 == 0) give();
    get();
    give();
  }
};

template <class Shape>
__device__ __forceinline__ void give_back(const Call& call) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ GiveBackWords<Shape> shared;
  begin_back(call, shared, call.combine_group);
  const int warp = int(threadIdx.x) / kWarp;
  char* const staged = reinterpret_cast<char*>(memory) + warp * Shape::tile_bytes;
  const GiveBack<Shape> state{{call, shared}, warp, int(threadIdx.x) % kWarp, staged};
  if (goes_on(call, state, call.result_bytes)) state.run();
}

// Before it: of a result that rows do not fill, the rest is 0. Rows fill it if no two segments have a byte in
// common and all bytes are moved.
template <class Shape>
__device__ __forceinline__ void clear(const Call& call) {
  if (Shape::disjoint && i64(*call.moved) == call.result_bytes) return;
  const i64 thread = i64(blockIdx.x) * blockDim.x + threadIdx.x, num_threads = i64(gridDim.x) * blockDim.x;
  const i64 wide = call.result_bytes / kLine;
  for (i64 i = thread; i < wide; i += num_threads) reinterpret_cast<uint4*>(call.result)[i] = {};
  for (i64 i = wide * kLine + thread; i < call.result_bytes; i += num_threads) call.result[i] = 0;
}

}  // namespace fuscoc
