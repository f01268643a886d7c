// Rows of a line and more, which need not be sorted to be stored: a lane moves one, as in `scatter.cuh`. They are
// counted and told tile by tile like those that are sorted, for what comes back, and since a run says more
// than a point does in as many bytes.
//
// A CTA gives a thousand of its rows their slots at once, whole tiles. Then some of its warps move a few of them, which
// are under way while the others get theirs; at last they move all, first those of this CTA, then whatever is left
// of any.
#pragma once
#include "scatter.cuh"
#include "sort.cuh"

namespace fuscoc {

template <class Shape>
struct SortRowsShared : SortShared<Shape> {
  // By tile: what makes a row's number in its run its place among those of the tile that go to its rank.
  short back[kPlanThreads / kWarp][Shape::num_keys];
  u64 barriers[kPlanWarps];
  alignas(kBulkLine) char rows[Shape::dispatch_warps * kWarp * Shape::buffer_bytes];
};

template <class Shape, class Relation>
struct SortRows : Sort<Shape, Relation> {
  using Base = Sort<Shape, Relation>;
  using Shared = SortRowsShared<Shape>;
  static constexpr bool alike = Scatter<Shape, Relation>::lies_alike();
  using Base::call, Base::numbers, Base::plan, Base::tile, Base::warp, Base::lane, Base::num_keys;
  static_assert(Base::steps == 1 && Shape::sorted_rows % kWarp == 0);
  Shared& shared;

  __device__ SortRows(const Call& call, unsigned char* memory, const Numbers& numbers)
      : Base(call, memory, numbers), shared(*reinterpret_cast<Shared*>(memory)) {}

  __device__ __forceinline__ int num_rows(int from) const { return max(0, min(kPlanThreads, shared.end - from)); }
  // Rows of a run that have slots before a tile.
  __device__ __forceinline__ int rows_before(int key, int tile) const {
    const int first = tile * (this->tile / kWarp), rows = shared.run[key].rows;
    return first < kPlanWarps ? min(rows, int(shared.plan.chunk[first][key])) : rows;
  }
  // Tells the peers the runs of all tiles, a warp a tile and rank.
  __device__ __forceinline__ void tell(int from) const {
    const int tiles = int(ceil_div(num_rows(from), tile));
    for (int i = warp; i < tiles * call.num_ranks; i += kPlanWarps) {
      const int rank = i % call.num_ranks, number = i / call.num_ranks, first = from + number * tile;
      this->tell_runs(
          rank, first, min(tile, shared.end - first),
          [&](int key) {
            const int before = rows_before(key, number);
            return Part{rows_before(key, number + 1) - before, int(code_slot(shared.run[key].code)) + before};
          },
          [&](int key, int place) { shared.back[number][key] = short(place - rows_before(key, number)); });
    }
  }
  // Gives all rows of this CTA their slots; calls early() while it waits for counts, and first(code of a thread's row)
  // as soon as the first thousand have them.
  template <class Early, class First>
  __device__ __forceinline__ void give_slots(Early early, First first) {
    int before[1];
    u32 keys = this->begin(before, num_rows(shared.begin), early);
    for (int from = shared.begin; from < shared.end; from += kPlanThreads) {
      const int behind = from + kPlanThreads;
      const u32 next_keys = this->load_keys(behind, num_rows(behind));
      this->find_runs();
      __syncthreads();
      Run run;
      const int row = from + int(threadIdx.x), n = this->find(int(keys), before[0], run), code = n < 0 ? -1 : run.code + n;
      if (row < shared.end) call.slots[row] = code;
      if (from == shared.begin) first(code);
      if constexpr (kCopiedRows<Shape> > 1) {
        tell(from);
        __syncthreads();
        if (n >= 0) run.back = shared.back[warp / (tile / kWarp)][int(keys)];
      }
      if (row < shared.end) this->keep_code(row, run, n);
      __syncthreads();
      this->advance();
      keys = next_keys;
      this->rank(keys, before, num_rows(behind));
      __syncthreads();
    }
  }

  // Bytes under way that keep NVLink full: what queues up beyond them drains unevenly in the end.
  __device__ __forceinline__ int moving_warps() const {
    constexpr i64 under_way = 8 << 20, of_warp = kWarp * Shape::buffer_bytes;
    return int(min(i64(Shape::dispatch_warps), max(i64(4), ceil_div(under_way, gridDim.x * of_warp))));
  }
  // An item are 32 rows, a warpful: the n-th ones of all CTAs follow each other.
  __device__ __forceinline__ int row_of(u32 item) const {
    const int cta = int(item % gridDim.x), row = this->first_row(cta) + int(item / gridDim.x) * kWarp + lane;
    return row < this->first_row(cta + 1) ? row : -1;
  }
  // Moves rows of all CTAs, but the first `num_warps` items of each, which are under way.
  __device__ __forceinline__ void move(Scatter<Shape, Relation>& rows, int num_warps) const {
    const u32 parity = numbers.epoch & 1, ctas = gridDim.x, own = 2 * u32(num_warps) * ctas;
    const u32* const plans = &call.state->next_expand[parity];  // CTAs whose rows have their slots
    const i64 most_tiles = ceil_div(ceil_div(call.num_sources, tile), ctas);
    const u32 num_items = u32(most_tiles * (tile / kWarp)) * ctas;
    bool planned = false;
    rows.take((num_warps + warp) * ctas + blockIdx.x, num_items, &call.state->next_send[parity], own, [&](u32 item) {
      if (item >= own && !planned) {
        if (lane == 0) planned = wait_until(call, kPlanLocal, call.rank, 0, [&] { return load_acquire(plans) == ctas; });
        planned = told_by(0, planned);
        if (!planned) return;
      }
      const int row = row_of(item);
      rows.send_row(row, row < 0 ? -1 : __ldcg(call.slots + row));
    });
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    bulk_arrived();
#endif
  }

  __device__ void run() {
    Scatter<Shape, Relation> rows(call, shared.rows, shared.barriers, numbers.epoch);
    const bool moves = warp < moving_warps();
    const int row = shared.begin + int(threadIdx.x);
    const bool there = moves && row < shared.end;
    bool loads = false;
    give_slots(
        [&] {
          if constexpr (alike)
            if (moves) loads = rows.load_row(row, there, [](int) { return static_cast<char*>(nullptr); });
        },
        [&](int code) {
          if (loads) rows.store_row(code >= 0, rows.target_row(code_rank(code), code_slot(code)));
          else if (!alike && moves) rows.send_row(row, code);
        });
    if (threadIdx.x == 0) {
      fence_gpu();
      atomicAdd(&call.state->next_expand[numbers.epoch & 1], 1u);
    }
    if (moves) move(rows, moving_warps());
  }
};

}  // namespace fuscoc
