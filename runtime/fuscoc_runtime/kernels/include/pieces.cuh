// Plan kernel where slots follow from a few pieces (fsc.node_pieces): it makes boxes of them. One CTA does
// it, a thread a piece at a time.
#pragma once
#include "piece_boxes_back.cuh"

namespace fuscoc {

template <class Shape, class Relation>
struct Pieces : PieceBoxesBack<Shape, Relation> {
  using Base = PieceBoxesBack<Shape, Relation>;
  using Base::call, Base::epoch, Base::kBack, Base::kind, Base::kKept, Base::kKinds, Base::kMarks, Base::relation, Base::shared;
  using typename Base::Cells, typename Base::KeptOf;

  __device__ i64 scan(i64 value, i64* of_warp, i64 before, i64& total) const {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const i64 sum = sum_to_lane(value);
    if (lane == kWarp - 1) of_warp[warp] = sum;
    __syncthreads();
    i64 base = before;
    total = before;
    for (int w = 0; w < int(blockDim.x) / kWarp; ++w) {
      if (w < warp) base += of_warp[w];
      total += of_warp[w];
    }
    return base + sum - value;
  }
  // What comes from memory before the call has a number: what is kept, and what inputs say of entries.
  struct Begun {
    PieceOf<Shape> piece;  // of this thread's first entry, unless it follows from sizes
    Sizes sizes;           // of the entry with this thread's number
  };
  __device__ static __forceinline__ void begin(const Call& call, typename Base::Shared& shared, Begun& begun) {
    if constexpr (kKept > 0) {
      const u64* const kept = reinterpret_cast<const u64*>(call.kept);
      for (int i = threadIdx.x; i < kKept * int(sizeof(KeptOf) / sizeof(u64)); i += blockDim.x)
        reinterpret_cast<u64*>(shared.kept)[i] = __ldcg(kept + i);
      if (threadIdx.x < kKept) shared.renewed[threadIdx.x] = 0;
    }
    if (threadIdx.x == 0) {
      shared.staging = 0;
      for (int rank = 0; rank < kMaxRanks; ++rank) shared.points_to[rank] = 0;
      shared.flags = shared.bad = shared.dropped = shared.stale = shared.made = shared.remade = 0;
      shared.points = shared.cells = 0;
      shared.told_ahead = -1;
    }
    const Relation relation{call};
    const i64 num_entries = relation.num_entries(), first = first_entry(num_entries) + threadIdx.x % kWarp;
    begun.sizes = {0, 0, true};
    if constexpr (Shape::ragged) {
      if (threadIdx.x < num_entries) begun.sizes = relation.sizes(threadIdx.x);
    } else if constexpr (Shape::looks_up) {
      if (first < num_entries) relation.template piece<0>(first, begun.piece);
    }
  }
  // Points and cells before every entry. Of sizes that cannot be nothing is left.
  __device__ i64 measure(i64 num_entries, const Sizes& own) {
    double most = 0;
    for (i64 first = 0; first < num_entries; first += blockDim.x) {
      const i64 entry = first + threadIdx.x;
      Sizes sizes{0, 0, true};
      if (first == 0) sizes = own;
      else if (entry < num_entries) sizes = relation.sizes(entry);
      if (!sizes.ok) shared.bad = 1, sizes = {0, 0, true};
      most += double(sizes.points) + double(sizes.cells);
      i64 points, cells;
      const i64 points_before = scan(sizes.points, shared.of_warp[0], shared.points, points);
      const i64 cells_before = scan(sizes.cells, shared.of_warp[1], shared.cells, cells);
      if (entry < num_entries) {
        call.points_before[entry] = points_before;
        call.cells_before[entry] = cells_before;
      }
      __syncthreads();
      if (threadIdx.x == 0) shared.points = points, shared.cells = cells;
      __syncthreads();
    }
    if (most > 4e18) shared.bad = 1;
    __syncthreads();
    if (call.num_cells >= 0 && shared.cells != call.num_cells && threadIdx.x == 0) shared.bad = 1;
    __syncthreads();
    return shared.bad ? 0 : num_entries;
  }

  // What boxes follow from where no input is looked up: the same ones are there already if nothing of it
  // has changed since the handle's memory was last used, and no point was dropped then. Dispatch finds that by itself
  // (`Made`), so words are changed when there are other boxes, and not before.
  __device__ __forceinline__ i64 follows_from(int i) const {
    if (i < kMaxInputs) return call.extents[i];
    return i - kMaxInputs < call.num_ranks ? i64(shared.meeting.num_slots_of[i - kMaxInputs]) : 0;
  }
  __device__ bool is_stale(i64 made_of) {
    const int i = threadIdx.x;
    if (i < kMadeOf && made_of != follows_from(i)) shared.stale = 1;
    if (i == kMadeOf && (made_of == 0 || shared.meeting.peers.refusing)) shared.stale = 1;
    __syncthreads();
    return shared.stale;
  }

  __device__ __forceinline__ void clear_bits(u32* bits, i64 num) const {
    for (i64 word = threadIdx.x; word < ceil_div(num, 32); word += blockDim.x) bits[word] = 0;
  }
  // Behind `begin` and `__syncthreads`.
  __device__ void run(Begun& begun) {
    greet(call, epoch);
    clear_bits(call.filled, call.num_slots);
    if constexpr (kCovers<Shape>) clear_bits(call.covered, 32 + ceil_div(call.result_bytes, kPart));
    if constexpr (Shape::apart) clear_bits(call.begun, call.result_bytes / Shape::cell_bytes(0));
    i64 num_entries = relation.num_entries();
    if constexpr (Shape::ragged) num_entries = measure(num_entries, begun.sizes);
    if (num_entries > call.max_entries) {
      if (threadIdx.x == 0) note(call, call.state->excess, u32(min(num_entries - call.max_entries, i64(1) << 30)));
      num_entries = 0;
    }
    i64 made_of = 0;  // which comes while the ranks meet
    if (!Shape::looks_up && threadIdx.x <= kMadeOf) made_of = call.made_of[threadIdx.x];
    const i64 first = first_entry(num_entries) + threadIdx.x % kWarp;
    const bool there = Shape::looks_up && first < num_entries;
    PieceOf<Shape>& piece = begun.piece;
    if (Shape::ragged && there) relation.template piece<0>(first, piece);
    const Cells ahead = this->forth_ahead(there && fits(first, num_entries), piece, first);
    if constexpr (kKept == 1) tell_ahead(num_entries, there && ahead.num < 0);
    meet(call, shared.meeting, epoch);
    if (threadIdx.x == 0) {
      keep_peers(call, shared.meeting.peers);
      if (shared.bad) note(call, call.state->bad_sizes);
    }
    if (shared.meeting.peers.failed) num_entries = 0;
    const bool makes = Shape::looks_up || shared.meeting.peers.failed || is_stale(made_of);
    bool told = false;
    if constexpr (kKept == 1) told = tell_as_ahead(num_entries, there && !this->is_as_ahead(piece, ahead));
    if (makes) make_all(num_entries, piece, ahead, told);
    __syncthreads();
    if (!makes && threadIdx.x == kWarp) tell_boxes<Shape>(call, epoch);
    if (int(threadIdx.x) < call.num_ranks) {
      if (makes) fence_system();
      else if (int(threadIdx.x) == call.rank) fence_gpu();  // dispatch marks bits that have been cleared
      store_relaxed(ready_word(call, threadIdx.x, call.rank, 0), tagged(u32(num_entries * Relation::num_pieces), epoch));
    }
  }
  // Where all boxes for dispatch are there before the ranks have met, it counts their items meanwhile. `lacks`: this
  // thread's entry has none yet.
  __device__ __forceinline__ void tell_ahead(i64 num_entries, bool lacks) {
    if (lacks) shared.remade = 1;
    __syncthreads();
    if (threadIdx.x != blockDim.x - 1 || shared.remade || num_entries > num_groups() * kWarp) return;
    *call.num_boxes = u32(num_entries);
    shared.told_ahead = num_entries;
    __threadfence();
    atomicAdd(&call.state->planned, kAhead);
  }
  // When they have met: whether these are right, and it may begin. `differs`: that of this thread's entry is not.
  __device__ __forceinline__ bool tell_as_ahead(i64 num_entries, bool differs) {
    if (differs) shared.remade = 1;
    __syncthreads();  // what is kept of peers is there before dispatch begins
    const bool same = shared.told_ahead == num_entries && !shared.remade;
    if (same && threadIdx.x == blockDim.x - 1) tell_planned(call);
    return same;
  }
  // Warps that make the same take entries in turn, one a lane.
  __device__ static __forceinline__ int num_groups() { return int(blockDim.x) / kWarp / kKinds; }
  __device__ static __forceinline__ i64 first_entry(i64 num_entries) {
    const int group = int(threadIdx.x) / kWarp / kKinds;
    return group < num_groups() ? group * kWarp : num_entries;
  }
  // Whether there is room for the points of an entry.
  __device__ __forceinline__ bool fits(i64 entry, i64 num_entries) const {
    if constexpr (Shape::ragged)
      return (entry + 1 < num_entries ? call.points_before[entry + 1] : shared.points) <= call.max_sources * Shape::fanout;
    return true;
  }
  // By a warp, some of whose lanes have an entry; what its first piece is may be known, and which of its cells boxes
  // are of already.
  template <int kPiece = 0>
  __device__ void make(bool there, i64 entry, bool fits, const PieceOf<Shape>* known, const Cells* ahead) {
    const i64 box = entry * Relation::num_pieces + kPiece;
    PieceOf<Shape> piece;
    if (kPiece == 0 && known) piece = *known;
    else if (there) relation.template piece<kPiece>(entry, piece);
    Cells of{0, 0, 0, -1, 0};
    if (there && fits) of = this->cells(piece);
    if (kind == kMarks) {
      if (there) this->template tell_slots<kPiece>(piece, of, box);
    } else {
      const bool made = ahead && of.num > 0 && ahead->num == of.num && ahead->first == of.first;
      this->template make_field<kPiece>(there && !(made && kind < kBack), piece, of, box);
    }
    if constexpr (Shape::comes_back)
      if (kind == kBack) this->template back<kPiece>(there, piece, of, box);
    __syncwarp();
    if constexpr (kPiece + 1 < Relation::num_pieces) make<kPiece + 1>(there, entry, fits, nullptr, nullptr);
  }
  // Dispatch may have been told.
  __device__ void make_all(i64 num_entries, const PieceOf<Shape>& first_piece, const Cells& ahead, bool told) {
    __syncthreads();  // what is kept of peers is there before dispatch begins
    const i64 room = call.max_sources * Shape::fanout;
    if (Shape::ragged && num_entries && threadIdx.x == 0 && shared.points > room)
      this->drop(call.state->excess, (shared.points - room + Shape::fanout - 1) / Shape::fanout);
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, num_groups = this->num_groups();
    const i64 begin = first_entry(num_entries);
    for (i64 first = begin; first < num_entries; first += num_groups * kWarp) {
      const i64 entry = first + lane;
      const bool there = entry < num_entries;
      const bool known = Shape::looks_up && first == begin && there;
      make(there, entry, there && fits(entry, num_entries), known ? &first_piece : nullptr, known ? &ahead : nullptr);
    }
    // Dispatch begins when there are its boxes; what peers are told may take longer.
    if (!told && warp / kKinds < num_groups && kind >= 1 && kind < kBack) {
      __syncwarp();
      if (lane == 0) {
        fence_gpu();
        if (atomicAdd(&shared.made, 1u) == u32(num_groups * Shape::num_fields) - 1) {
          *call.num_boxes = u32(num_entries * Relation::num_pieces);
          tell_boxes<Shape>(call, epoch, kMade);
        }
      }
    }
    __syncthreads();
    if (threadIdx.x <= kMadeOf) {
      fence_gpu();  // whoever sees one of these words has the boxes
      if (threadIdx.x < kMadeOf) call.made_of[threadIdx.x] = follows_from(threadIdx.x);
      else call.made_of[kMadeOf] = !shared.dropped && !shared.meeting.peers.refusing && !shared.meeting.peers.failed;
    }
    if (threadIdx.x == 0) {
      u64 points = 0;
      for (int rank = 0; rank < kMaxRanks; ++rank) {
        points += shared.points_to[rank];
        call.moved[2 + rank] = shared.points_to[rank];
      }
      call.moved[0] = points * Shape::row_bytes(0);
      call.moved[1] = u64(Shape::ragged ? min(shared.points, room) : call.num_sources * Shape::fanout);
    }
  }
};

template <class Shape, class Relation>
__device__ __forceinline__ void place_pieces(const Call& call) {
  __shared__ Numbers numbers;
  __shared__ typename Pieces<Shape, Relation>::Shared shared;
  using Kind = Pieces<Shape, Relation>;
  typename Kind::Begun begun;
  read_numbers(call, numbers);
  Kind::begin(call, shared, begun);
  __syncthreads();
  let_next_start();
  if (numbers.aborted) {
    plan_nothing<Shape>(call);
    __syncthreads();
    if (threadIdx.x == 0) {
      *call.num_boxes = 0;
      tell_boxes<Shape>(call, numbers.epoch, kMade);
    }
  } else {
    Kind{{{call, shared, Relation{call}, numbers.epoch, int(numbers.use & 1), int(threadIdx.x / kWarp) % Kind::kKinds}}}.run(begun);
  }
  // The next kernel may be under way, but of these words it takes none.
  if (threadIdx.x == blockDim.x - 1) advance_numbers(call, numbers);
}

}  // namespace fuscoc
