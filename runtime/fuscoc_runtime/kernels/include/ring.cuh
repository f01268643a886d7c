// How a CTA turns tiles: some warps take items and bring what they are read from, most turn it, and some store it, all
// at once, for items that follow each other. There are buffers of shared memory for what came, and others for what
// is stored, each in turn. Items of boxes that are no tiles are copied by the warps in lines.
//
// Whoever brings an item has waited for peers before it has a place in the ring, so what is in there is stored,
// whatever the next items wait for.
#pragma once
#include "box_copy.cuh"
#include "turn.cuh"

namespace fuscoc {

constexpr u32 kSlots = 3, kTurnedSlots = 2;  // buffers for what came, and for what it is turned into
constexpr u32 kSlips = 2 * kSlots;  // items that are known: one may come while an earlier one is stored
// Warps that bring: each takes a microsecond or two for an item. A patch has fewer words than a line of a picture, and on the
// way there more warps have none of them.
constexpr int kBringersForth = 4, kBringersBack = 2;
constexpr int kStorers = int(kSlots);  // and those that store, one for a buffer
// Lanes of a warp that arrive and wait at gates: one, for `__syncwarp` orders what the others do. Tools that do not see that see
// all of them.
constexpr u32 kGateLanes = 1;

enum Kind : u32 {
  kTurned,    // a tile
  kStraight,  // one that is written as it is read
  kLines,
  kEnded,     // none, nor any more
};

template <class Own>
struct Slip {
  Own box;
  Tile tile;
  Split split;
  const char* from;
  char* to;
  u64* flag;
  u32 kind, field, item, fresh;
  u32 which;  // of the buffers for what is turned
};
template <class Own>
struct Ring {
  Slip<Own> slip[kSlips];
  Gate full[kSlips], done[kSlips], free[kSlips];  // it has come; is turned, or copied; has left shared memory
  u32 turn;      // items that have a place,
  u32 finished;  // and warps that bring no more
  u64 key[kSlips];  // by which tiles are dealt out alike
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

// If `kKeeps`, what is known of how tiles are dealt out is taken over where they have the same key, of runs of a word and more.
// `kWide` as in `Turn`.
template <class Shape, class Own, int kBringers, bool kKeeps, int kWide>
struct Turning {
  Ring<Own>& ring;
  const u32 num_workers;  // warps that turn
  const int lane;
  const u64 keep;      // L2 policy

  __device__ __forceinline__ Turning(Ring<Own>& ring, int num_workers)
      : ring(ring), num_workers(u32(num_workers)), lane(int(threadIdx.x) % kWarp),
        keep(evict_normal_policy()) {}

  __device__ static constexpr u32 word_bytes(int field) { return Shape::unit_bytes(field) == 8 ? 8 : 4; }
  __device__ static constexpr bool keeps(int field) { return kKeeps && Shape::run_bytes(field) >= word_bytes(field); }
  // Where in the CTA's memory is what came, and what it is turned into.
  __device__ static __forceinline__ u32 staged(u32 turn) { return turn % kSlots * Shape::tile_bytes; }
  __device__ static __forceinline__ u32 turned(u32 which) { return (kSlots + which) * Shape::tile_bytes; }
  // By one thread, before all others go on.
  __device__ void open() const {
    for (u32 i = 0; i < kSlips; ++i) {
      open_gate(&ring.full[i], kGateLanes);
      open_gate(&ring.done[i], num_workers * kGateLanes);
      open_gate(&ring.free[i], kGateLanes);
      if (kKeeps) ring.key[i] = 0;
    }
    ring.turn = ring.finished = 0;
    gates_open();
  }
  __device__ __forceinline__ bool at_gates() const { return lane < kGateLanes; }
  // Waits until item `turn` has passed a gate.
  __device__ __forceinline__ void pass(Gate (&gates)[kSlips], u32 turn) const {
    if (at_gates()) wait_at(&gates[turn % kSlips], turn / kSlips & 1);
    __syncwarp();
  }

  // By a warp that brings: the place of its next item, number `turn`. Four such warps never see a gate two passings
  // behind: of items that wait for their place, no more than three are behind the first of them.
  __device__ __forceinline__ Slip<Own>& next(u32& turn) const {
    static_assert(kBringers <= kSlots + 1);
    turn = __shfl_sync(kAllLanes, lane == 0 ? atomicAdd(&ring.turn, 1u) : 0, 0);
    if (turn >= kSlips) pass(ring.free, turn - kSlips);
    if (turn >= kSlots) {
      const u32 before = turn - kSlots;
      pass(ring.done, before);
      if (ring.slip[before % kSlips].kind == kStraight) pass(ring.free, before);
    }
    return ring.slip[turn % kSlips];
  }
  // A box that this warp has in shared memory.
  __device__ __forceinline__ void give(const Own& box, const char* from, char* to, u32 item, int field, bool fresh, u64* flag) const {
    const bool tiled = box.tiling.rows, straight = box.tiling.straight;
    Tile tile{};
    Split dealt{};
    if (tiled) tile = tile_of(box, from, to, item);
    u32 turn;
    Slip<Own>& slip = next(turn);
    Gate* const gate = &ring.full[turn % kSlips];
    u32 bytes = 0;
    if (tiled) {
      char* const to = cta_memory() + staged(turn);
      if (fresh) fence_bulk_proxy();  // a peer's flag has been seen
      bytes = straight ? bring_ranges(box, tile, to, gate, lane, keep) : bring_segments(box, tile, to, gate, lane, keep);
    }
    // While that comes:
    const u32 word = word_bytes(field), run_bytes = u32(Shape::run_bytes(field));
    const bool turns = tiled && !straight;
    const u64 key = keeps(field) && turns ? key_of(box, tile, field, word, run_bytes) : 0;
    const bool same = key && ring.key[turn % kSlips] == key;  // what was last in this place
    if (turns && !same) dealt = split(box, tile, word, run_bytes, num_workers * kWarp);
    for (int i = lane; i < int(sizeof(Own) / sizeof(u64)); i += kWarp)
      reinterpret_cast<u64*>(&slip.box)[i] = reinterpret_cast<const u64*>(&box)[i];
    __syncwarp();  // all lanes have read the key
    if (lane == 0) {
      slip.tile = tile;
      if (!same) slip.split = dealt;
      if (kKeeps) ring.key[turn % kSlips] = key;  // 0 where a field that keeps nothing is dealt out here
      if (keeps(field)) {
        slip.split.low = u32(reinterpret_cast<u64>(tile.to)) % kBulkLine;
        slip.split.from = u32(reinterpret_cast<u64>(tile.from));
      }
      slip.from = from;
      slip.to = to;
      slip.flag = flag;
      slip.kind = tiled ? straight ? kStraight : kTurned : kLines;
      slip.field = field;
      slip.item = item;
      slip.fresh = fresh;
    }
    bytes = __reduce_add_sync(kAllLanes, bytes);
    __syncwarp();
    if (lane == 0) arrive_with(gate, bytes);
    else if (at_gates()) arrive(gate);
  }
  // By a warp that brings no more. The last one tells all who store.
  __device__ __forceinline__ void end() const {
    const u32 others = __shfl_sync(kAllLanes, lane == 0 ? atomicAdd(&ring.finished, 1u) : 0, 0);
    for (u32 i = 0; others == kBringers - 1 && i < kSlots; ++i) {
      u32 turn;
      Slip<Own>& slip = next(turn);
      if (lane == 0) slip.kind = kEnded;
      if (at_gates()) arrive(&ring.full[turn % kSlips]);
    }
  }

  template <int kField = 0>
  __device__ __forceinline__ void work_on(const Slip<Own>& slip, u32 turn, u32 which, u32 warp, Share& share) const {
    if constexpr (kField + 1 < Shape::num_fields)
      if (slip.field != kField) {
        work_on<kField + 1>(slip, turn, which, warp, share);
        return;
      }
    constexpr int unit = Shape::unit_bytes(kField);
    if (slip.kind == kTurned) {
      const Turn<unit, u32(Shape::run_bytes(kField)), Own::num_all_steps, kWide> by{slip.box, slip.tile, slip.split, staged(turn), turned(which)};
      const u32 thread = warp * kWarp + lane, num_threads = num_workers * kWarp;
      if constexpr (keeps(kField)) by.run(thread, num_threads, ring.key[turn % kSlips], share);
      else by.run(thread, num_threads);
    } else if (slip.fresh) lines<unit, kFresh>(slip, cta_memory() + staged(turn), warp);
    else lines<unit, kSettled>(slip, cta_memory() + staged(turn), warp);
    leave_to_bulk_copies();
  }
  // By all other warps. Tiles that are turned have the buffers for these in turn.
  __device__ void work(u32 warp) const {
    static_assert(kTurnedSlots == 2);
    u32 last = 0, before_last = 0, num_turned = 0;
    Share share;
    share.key = 0;
    for (u32 turn = 0, ended = 0; ended < kSlots; ++turn) {
      pass(ring.full, turn);
      Slip<Own>& slip = ring.slip[turn % kSlips];
      const u32 kind = slip.kind;
      if (kind == kTurned) {
        if (num_turned >= kTurnedSlots && turn - before_last < kSlips) pass(ring.free, before_last);
        if (warp == 0 && lane == 0) slip.which = num_turned % kTurnedSlots;
        before_last = last;
        last = turn;
      }
      if (kind == kTurned || kind == kLines) work_on(slip, turn, num_turned % kTurnedSlots, warp, share);
      num_turned += kind == kTurned;
      __syncwarp();
      if (at_gates()) arrive(&ring.done[turn % kSlips]);
      ended += kind == kEnded;
    }
  }
  // A share of an item.
  template <int kUnit, Reading kHow>
  __device__ __noinline__ void lines(const Slip<Own>& slip, char* memory, u32 warp) const {
    const u32 begin = slip.item * slip.box.item_lines, end = min(begin + slip.box.item_lines, slip.box.num_lines);
    const u32 share = u32(round_up(ceil_div(end - begin, num_workers), kWarp));
    const u32 first = min(begin + warp * share, end), last = min(first + share, end);
    static_assert(kWarp * sizeof(Places) <= Shape::tile_bytes, "a warp has places of its own");
    Places& places = reinterpret_cast<Places*>(memory)[warp];
    if (first < last) BoxCopy<kUnit, kHow, Own::num_all_steps>{slip.box, slip.from, slip.to, places}.copy(first, last, lane);
  }

  template <int kField = 0>
  __device__ __forceinline__ void store_from(const Slip<Own>& slip, const char* from) const {
    if constexpr (kField + 1 < Shape::num_fields)
      if (slip.field != kField) {
        store_from<kField + 1>(slip, from);
        return;
      }
    store_ranges<Shape::unit_bytes(kField)>(slip.box, slip.tile, from, lane, keep);
  }
  // By the warp that stores what is in buffer `which`. An item's flag is set when it has arrived.
  __device__ void store(u32 which, u64 tag) const {
    for (u32 turn = which;; turn += kSlots) {
      pass(ring.done, turn);
      const Slip<Own>& slip = ring.slip[turn % kSlips];
      const u32 kind = slip.kind;
      u64* const flag = slip.flag;
      if (kind == kEnded) break;
      if (kind != kLines) store_from(slip, cta_memory() + (kind == kTurned ? turned(slip.which) : staged(turn)));
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
      bulk_commit();
      bulk_read();
#endif
      __syncwarp();
      if (at_gates()) arrive(&ring.free[turn % kSlips]);
      if (!flag) continue;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
      bulk_arrived();
#endif
      signal(flag, tag);
    }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    bulk_arrived();
#endif
  }
  __device__ __forceinline__ void signal(u64* flag, u64 tag) const {
    __syncwarp();
    if (lane != 0) return;
    fence_system();
    store_relaxed(flag, tag);
  }
};

}  // namespace fuscoc
