// How a CTA turns tiles: a warp takes items and brings what they are read from, its other warps turn it, and another
// one stores it, all at once, for items that follow each other. An item has a slot, two buffers of shared memory:
// what came, and what is stored. Items of boxes that are no tiles are copied by the warps in lines.
//
// Whoever brings never waits for who stores an item but that whose slot it needs, so what has been taken is stored,
// whatever the next item waits for. Flags of items are set behind them, when they have arrived.
#pragma once
#include "turn.cuh"

namespace fuscoc {

constexpr u32 kSlots = 3;
constexpr int kTurnHelpers = 2;  // warps of a CTA that turn nothing: one brings, one stores

enum Kind : u32 {
  kTurned,    // a tile
  kStraight,  // one that is written as it is read
  kLines,
  kFlushed,   // no item: flags of all before it are set
  kEnded,     // nor any more
};

template <class Own>
struct Slot {
  Own box;
  Tile tile;
  const char* from;
  char* to;
  u64* flag;
  u32 kind, field, item, fresh;
};
template <class Own>
struct Ring {
  Slot<Own> slot[kSlots];
  Gate full[kSlots], done[kSlots], free[kSlots];
};

template <class Shape, class Own, bool = kTurns<Shape>>
struct RingKind {
  using type = Nothing;
};
template <class Shape, class Own>
struct RingKind<Shape, Own, true> {
  using type = Ring<Own>;
};
template <class Shape, class Own>
using RingOf = typename RingKind<Shape, Own>::type;

template <class Shape, class Own>
struct Turning {
  Ring<Own>& ring;
  char* const memory;  // of the CTA
  const int lane;
  const u64 keep;      // L2 policy

  __device__ __forceinline__ Turning(Ring<Own>& ring, unsigned char* memory)
      : ring(ring), memory(reinterpret_cast<char*>(memory)), lane(int(threadIdx.x) % kWarp), keep(evict_normal_policy()) {}

  // What came, and what it is turned into.
  __device__ __forceinline__ char* staged(u32 slot) const { return memory + 2 * slot * Shape::tile_bytes; }
  __device__ __forceinline__ char* turned(u32 slot) const { return staged(slot) + Shape::tile_bytes; }
  // By one thread, before all others go on.
  __device__ void open(u32 num_workers) const {
    for (u32 slot = 0; slot < kSlots; ++slot) {
      open_gate(&ring.full[slot], kWarp);
      open_gate(&ring.done[slot], num_workers);
      open_gate(&ring.free[slot], 1);
    }
    gates_open();
  }
  __device__ __forceinline__ void pass(Gate* gate, u32 parity) const {
    if (lane == 0) wait_at(gate, parity);
    __syncwarp();
  }

  // By the warp that brings, for its next item, number `turn`.
  __device__ __forceinline__ Slot<Own>& next(u32 turn) const {
    pass(&ring.free[turn % kSlots], (turn / kSlots & 1) ^ 1);
    return ring.slot[turn % kSlots];
  }
  __device__ __forceinline__ void say(u32& turn, Kind kind) const {
    Slot<Own>& slot = next(turn);
    if (lane == 0) slot.kind = kind;
    __syncwarp();
    arrive(&ring.full[turn++ % kSlots]);
  }
  // A box that this warp has in shared memory.
  __device__ __forceinline__ void give(u32& turn, const Own& box, const char* from, char* to, u32 item, int field, bool fresh,
                                       u64* flag) const {
    Slot<Own>& slot = next(turn);
    Gate* const gate = &ring.full[turn % kSlots];
    for (int i = lane; i < int(sizeof(Own) / sizeof(u64)); i += kWarp)
      reinterpret_cast<u64*>(&slot.box)[i] = reinterpret_cast<const u64*>(&box)[i];
    const bool tiled = box.tiling.rows, straight = box.tiling.straight;
    Tile tile{};
    if (tiled) tile = tile_of(box, from, to, item);
    if (lane == 0) {
      slot.tile = tile;
      slot.from = from;
      slot.to = to;
      slot.flag = flag;
      slot.kind = tiled ? straight ? kStraight : kTurned : kLines;
      slot.field = field;
      slot.item = item;
      slot.fresh = fresh;
    }
    u32 bytes = 0;
    if (tiled) {
      char* const to = staged(turn % kSlots);
      fence_bulk_proxy();  // which reads what a flag has told, and writes what has been cleared
      bytes = straight ? bring_ranges(box, tile, to, gate, lane, keep) : bring_segments(box, tile, to, gate, lane, keep);
    }
    __syncwarp();
    arrive_with(gate, bytes);
    ++turn;
  }

  template <int kField = 0>
  __device__ __forceinline__ void work_on(const Slot<Own>& slot, u32 s, u32 warp, u32 num_workers) const {
    if constexpr (kField + 1 < Shape::num_fields)
      if (slot.field != kField) {
        work_on<kField + 1>(slot, s, warp, num_workers);
        return;
      }
    constexpr int unit = Shape::unit_bytes(kField);
    if (slot.kind == kTurned)
      Turn<unit, Own::num_all_steps>{slot.box, slot.tile, staged(s), turned(s)}.run(warp * kWarp + lane, num_workers * kWarp);
    else if (slot.fresh) lines<unit, kFresh>(slot, s, warp, num_workers);
    else lines<unit, kSettled>(slot, s, warp, num_workers);
    leave_to_bulk_copies();
  }
  // By all other warps.
  __device__ void work(u32 warp, u32 num_workers) const {
    for (u32 turn = 0;; ++turn) {
      const u32 s = turn % kSlots;
      pass(&ring.full[s], turn / kSlots & 1);
      const Slot<Own>& slot = ring.slot[s];
      const u32 kind = slot.kind;
      if (kind == kTurned || kind == kLines) work_on(slot, s, warp, num_workers);
      __syncwarp();
      if (lane == 0) arrive(&ring.done[s]);
      if (kind == kEnded) return;
    }
  }
  // A share of an item.
  template <int kUnit, Reading kHow>
  __device__ __noinline__ void lines(const Slot<Own>& slot, u32 s, u32 warp, u32 num_workers) const {
    const u32 begin = slot.item * slot.box.item_lines, end = min(begin + slot.box.item_lines, slot.box.num_lines);
    const u32 share = u32(round_up(ceil_div(end - begin, num_workers), kWarp));
    const u32 first = min(begin + warp * share, end), last = min(first + share, end);
    static_assert(kWarp * sizeof(Places) <= Shape::tile_bytes, "a warp has places of its own");
    Places& places = reinterpret_cast<Places*>(staged(s))[warp];
    if (first < last) BoxCopy<kUnit, kHow, Own::num_all_steps>{slot.box, slot.from, slot.to, places}.copy(first, last, lane);
  }

  template <int kField = 0>
  __device__ __forceinline__ void store_from(const Slot<Own>& slot, const char* from) const {
    if constexpr (kField + 1 < Shape::num_fields)
      if (slot.field != kField) {
        store_from<kField + 1>(slot, from);
        return;
      }
    store_ranges<Shape::unit_bytes(kField)>(slot.box, slot.tile, from, lane, keep);
  }
  // By the warp that stores.
  __device__ void store(u64 tag) const {
    u64* pending[2] = {nullptr, nullptr};  // of the last items
    for (u32 turn = 0;; ++turn) {
      const u32 s = turn % kSlots;
      pass(&ring.done[s], turn / kSlots & 1);
      const Slot<Own>& slot = ring.slot[s];
      const u32 kind = slot.kind;
      u64* const flag = kind < kFlushed ? slot.flag : nullptr;
      if (kind == kTurned || kind == kStraight) store_from(slot, kind == kTurned ? turned(s) : staged(s));
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
      bulk_commit();
      bulk_read_but_latest();
#endif
      __syncwarp();
      if (lane == 0 && turn > 0) arrive(&ring.free[(turn - 1) % kSlots]);
      if (pending[1]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        bulk_arrived_but_two();
#endif
        signal(pending[1], tag);
      }
      pending[1] = pending[0];
      pending[0] = flag;
      if (kind < kFlushed) continue;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
      bulk_arrived();
#endif
      signal(pending[1], tag);
      pending[1] = nullptr;
      if (kind == kEnded) return;
    }
  }
  __device__ __forceinline__ void signal(u64* flag, u64 tag) const {
    __syncwarp();
    if (lane != 0 || !flag) return;
    fence_system();
    store_relaxed(flag, tag);
  }
};

}  // namespace fuscoc
