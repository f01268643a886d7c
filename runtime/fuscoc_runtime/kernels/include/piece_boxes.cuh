// Boxes of pieces: those that this rank's dispatch copies, and the slots that every rank is told of.
//
// An entry, an image or a page, is what inputs say of the outer indices; a shuffle without such has one.
// A piece is dropped whole where a rank or a slot of it does not exist, and its points are counted.
#pragma once
#include "carry.cuh"
#include "kept.cuh"
#include "meet.cuh"
#include "staged.cuh"
#include "tile.cuh"

namespace fuscoc {

template <class Shape>
using BoxOf = Box<Shape::num_loops + Shape::num_run_loops>;

// Boxes of a rank's own dispatch, [entries][pieces][fields].
template <class Shape>
__device__ __forceinline__ BoxOf<Shape>* boxes_forth(const Call& call) {
  return reinterpret_cast<BoxOf<Shape>*>(call.boxes_forth);
}

// Slots that a rank has told another one, [entries][pieces], in the window of that.
template <class Shape>
__device__ __forceinline__ Marks<Shape::num_loops>* marks_told(const Call& call, int window, int from) {
  return reinterpret_cast<Marks<Shape::num_loops>*>(call.window[window] + call.marks_at) + from * call.max_boxes;
}

// Source cells that the segments of this rank's pieces begin with, [entries][pieces].
template <class Shape>
__device__ __forceinline__ Marks<Shape::num_loops>* marks_of_cells(const Call& call) {
  return reinterpret_cast<Marks<Shape::num_loops>*>(call.cell_marks);
}

// Words that boxes follow from where inputs say nothing of what moves: extents, slots of ranks; and one that is 0 if they
// have to be made again in any case.
constexpr int kMadeOf = kMaxInputs + kMaxRanks;

// Tells dispatch that its boxes are there, by one thread. Where inputs say nothing they often were, and dispatch has not waited for that:
// so the number of the call is told, and nobody has to take it back.
template <class Shape>
__device__ __forceinline__ void tell_boxes(const Call& call, u32 epoch, u32 made = 0) {
  if constexpr (Shape::looks_up) {
    tell_planned(call, made);
  } else {
    __threadfence();
    *(volatile u32*)&call.state->planned = epoch;
  }
}

template <class Shape, class Relation>
struct PieceBoxes {
  // Warps make different things of the same pieces: marks, the boxes of each field, and those back.
  static constexpr int kMarks = 0, kBack = 1 + Shape::num_fields, kKinds = kBack + Shape::comes_back;
  static constexpr int num_steps = Shape::num_loops + Shape::num_run_loops;
  using Own = BoxOf<Shape>;
  using KeptOf = Kept<Shape, Own>;
  static constexpr int kKept = kKeeps<Shape, Relation, Own> ? Relation::num_pieces : 0;
  struct Shared {
    Meeting meeting;
    KeptOf kept[kKept > 0 ? kKept : 1];  // as of the call before
    u32 renewed[kKept > 0 ? kKept : 1];  // kinds, a bit each, of which this call keeps another
    u64 staging;        // bytes that boxes have taken,
    u32 flags;          // and flags
    u64 points_to[kMaxRanks];
    i64 points, cells;  // of entries so far
    u32 bad;            // sizes are none
    u32 dropped;        // points are
    u32 stale;          // boxes are to be made
    u32 made;           // warps that have made all theirs for dispatch,
    u32 remade;         // others than what was there before the ranks met
    i64 told_ahead;     // entries whose boxes were, -1: not all
    i64 of_warp[2][kWarp];
  };
  const Call& call;
  Shared& shared;
  const Relation relation;
  const u32 epoch;
  const int dropped;
  const int kind;   // what this warp makes

  __device__ __forceinline__ void drop(u32& word, i64 points) const {
    if (points <= 0) return;
    shared.dropped = 1;
    const u32 times = u32(min(points, i64(1) << 30));
    note(call, word, times);
    atomicAdd(&call.routing->dropped[dropped], times);
  }

  // The cells of a piece whose rank exists: those of one number, or all. What has no place is dropped.
  struct Cells {
    i64 first, num;      // numbers of the loop over ranks
    i64 step;            // of the rank
    int loop;            // which one that is, -1: none
    i64 points;          // of a cell
  };
  __device__ __noinline__ Cells cells(const PieceOf<Shape>& piece) const {
    Cells found{0, 1, 0, -1, 1};
    for (int i = 0; i < piece.num_loops; ++i) {
      if (piece.rank_step[i] != 0 && found.loop < 0) found.loop = i;
      else found.points *= max(piece.count[i], i64(0));
    }
    if (found.loop >= 0) {
      found.num = max(piece.count[found.loop], i64(0));
      found.step = piece.rank_step[found.loop];
    }
    if (found.points == 0) found.num = 0;
    if (found.num == 0) return found;
    i64 begin = found.num, end = 0, nowhere = 0;
    if (found.step == 0) {
      nowhere = piece.rank == -1;
      if (exists(piece, piece.rank, piece.slot)) begin = 0, end = 1;
    } else {
      // Ranks are few: those that exist are looked for among the cells.
      for (int rank = 0; rank < call.num_ranks; ++rank) {
        const i64 away = rank - piece.rank, number = away / found.step;
        if (away % found.step || number < 0 || number >= found.num) continue;
        begin = min(begin, number);
        end = max(end, number + 1);
      }
      const i64 away = -1 - piece.rank, number = away / found.step;
      nowhere = away % found.step == 0 && number >= 0 && number < found.num;
      bool all = true;  // slots of all cells that have a rank, or none is copied
      for (i64 c = begin; c < end; ++c)
        all = all && exists(piece, piece.rank + c * found.step, piece.slot + c * piece.slot_step[found.loop]);
      if (!all) begin = end = 0;
    }
    const i64 num = max(end - begin, i64(0));
    if (kind == kMarks) drop(call.state->bad_keys, (found.num - num - nowhere) * found.points);
    found.first = begin;
    found.num = num;
    return found;
  }
  // Whether a rank and all slots of a cell there exist. One that refused has told no length.
  __device__ bool exists(const PieceOf<Shape>& piece, i64 rank, i64 slot) const {
    if (rank < 0 || rank >= call.num_ranks) return false;
    return shared.meeting.peers.refusing >> rank & 1 || has_slots(rank, slot, reach(piece));
  }
  __device__ __forceinline__ bool has_slots(i64 rank, i64 slot, const Reach& reach) const {
    return slot + reach.below >= 0 && slot + reach.above < shared.meeting.num_slots_of[rank];
  }
  __device__ Reach reach(const PieceOf<Shape>& piece) const {
    Reach all{0, 0, 0};
    for (int i = 0; i < piece.num_loops; ++i) {
      if (piece.rank_step[i] != 0) continue;
      const i64 further = piece.slot_step[i] * (piece.count[i] - 1);
      all.below += min(further, i64(0));
      all.above += max(further, i64(0));
    }
    return all;
  }

  // The loops of a cell's field, over its segments and then over the runs of one. How many.
  template <int kField>
  __device__ int loops(const PieceOf<Shape>& piece, const Cells& of, Loop* loop) const {
    int num = 0;
    for (int i = 0; i < piece.num_loops; ++i)
      if (i != of.loop)
        loop[num++] = {piece.count[i], piece.src_step[i] * Shape::cell_bytes(kField),
                       piece.slot_step[i] * Shape::row_bytes(kField), 0};
    i64 bytes = Shape::row_bytes(kField);
    for (int i = 0; i < Shape::num_runs(kField); ++i) {
      bytes /= Shape::run_count(kField, i);
      loop[num++] = {Shape::run_count(kField, i), Shape::run_stride(kField, i, piece.strides), bytes, 0};
    }
    return num;
  }

  __device__ __forceinline__ bool small() const { return call.num_sources * Shape::fanout * Shape::row_bytes(0) <= kSmallCall; }
  __device__ __forceinline__ u32 item_lines(int few) const {
    if (kTurns<Shape>) return small() ? kFewTurnedLines : kTurnedLines;
    return small() ? kFewItemLines : kCarries<Shape> || call.send_ctas < few ? kLongItemLines : kItemLines;
  }
  __device__ __forceinline__ u32 lines_forth() const { return item_lines(kFewForth); }
  // Of what is staged on the way back, at both ends.
  __device__ __forceinline__ u32 lines_back() const { return item_lines(kFewBack); }
  template <int kField>
  __device__ __forceinline__ void cut(Own& box) const {
    Cutter<Shape::unit_bytes(kField), num_steps>{box, u32(Shape::tile_bytes) / (small() ? kPartsOfTile : 1)}.cut();
  }

  // Whether what is kept is of this piece, too: of the kind of boxes that this warp makes, or of a given one.
  template <int kPiece>
  __device__ __forceinline__ bool is_kept(const PieceOf<Shape>& piece) const { return is_kept<kPiece>(piece, kind); }
  template <int kPiece>
  __device__ __forceinline__ bool is_kept(const PieceOf<Shape>& piece, int kind) const {
    if constexpr (kPiece < kKept) return shared.kept[kPiece].form[kind].is_of(piece, lines_forth() + lines_back());
    return false;
  }
  // Keeps what this thread has made, if it is the first one: store(kept).
  template <int kPiece, class Store>
  __device__ __forceinline__ void keep(const PieceOf<Shape>& piece, Store store) const {
    if constexpr (kPiece < kKept) {
      if (atomicOr(&shared.renewed[kPiece], 1u << kind) >> kind & 1) return;
      KeptOf& kept = reinterpret_cast<KeptOf*>(call.kept)[kPiece];
      kept.form[kind].set(piece, lines_forth() + lines_back());
      store(kept);
    }
  }

  template <int kPiece, int kField>
  __device__ __noinline__ void make_forth(const PieceOf<Shape>& piece, const Cells& of, Own& to) const {
    Loop loop[num_steps + 1];
    Own made;
    const int num = sort_loops(loop, loops<kField>(piece, of, loop), kTarget);
    i64 range = Shape::run_bytes(kField);
    const int outer = count_outer(loop, num, kTarget, range);
    if (make_box<Shape::unit_bytes(kField)>(made, loop, num, outer, range, Shape::run_bytes(kField), kSource, kTarget, lines_forth())) {
      cut<kField>(made);
      keep<kPiece>(piece, [&](KeptOf& kept) {
        kept.forth[kField] = made;
        if (kField > 0) return;
        kept.reach = reach(piece);
        kept.reach.points = of.loop < 0 ? of.points : 0;
      });
    } else {
      made.num_items = 0;
      drop(call.state->overflowed, of.num * of.points);
    }
    to = made;
  }
  // Copies a box to where each lane has a place for it, if it has one. Of one box for all lanes the warp has words
  // side by side.
  __device__ __forceinline__ void spread(Own* to, const Own& box) const {
    constexpr int words = int(sizeof(Own) / sizeof(u64)), rounds = (words + kWarp - 1) / kWarp;
    const int lane = int(threadIdx.x) % kWarp;
    u64 word[rounds];
#pragma unroll
    for (int i = 0; i < rounds; ++i) word[i] = reinterpret_cast<const u64*>(&box)[min(lane + i * kWarp, words - 1)];
#pragma unroll 4
    for (u32 left = __ballot_sync(kAllLanes, to != nullptr); left; left &= left - 1) {
      u64* const at = reinterpret_cast<u64*>(__shfl_sync(kAllLanes, reinterpret_cast<u64>(to), __ffs(int(left)) - 1));
#pragma unroll
      for (int i = 0; i < rounds; ++i)
        if (lane + i * kWarp < words) at[lane + i * kWarp] = word[i];
    }
    __syncwarp();
  }

  // By a warp, some of whose lanes have an entry, while ranks meet: the boxes of those that are like one of the call before
  // and have one rank. Warps that make different things of the same entries have some lanes each. Whatever slots there will
  // be, the cells of such an entry; -1 where it is another one.
  __device__ __forceinline__ Cells forth_ahead(bool there, const PieceOf<Shape>& piece, i64 entry) const {
    Cells of{0, -1, 0, -1, 0};
    if constexpr (kKept == 1) {
      of.points = shared.kept[0].reach.points;
      bool known = there && of.points > 0;
      for (int field = 0; field < Shape::num_fields; ++field) known = known && is_kept<0>(piece, 1 + field);
      if (known) of.num = piece.rank >= 0 && piece.rank < call.num_ranks;
      fields_ahead(known && int(threadIdx.x) % kWarp % kKinds == kind, piece, of, entry);
    }
    return of;
  }
  template <int kField = 0>
  __device__ __forceinline__ void fields_ahead(bool there, const PieceOf<Shape>& piece, const Cells& of, i64 entry) const {
    forth<0, kField, true>(there, piece, of, entry);
    if constexpr (kField + 1 < Shape::num_fields) fields_ahead<kField + 1>(there, piece, of, entry);
  }
  // Whether these are its cells, now that the ranks have met.
  __device__ __forceinline__ bool is_as_ahead(const PieceOf<Shape>& piece, const Cells& ahead) const {
    return ahead.num == 0 || (ahead.num == 1 && has_slots(piece.rank, piece.slot, shared.kept[0].reach));
  }

  // By a warp, some of whose lanes have an entry; what is made of it may be known to be kept.
  template <int kPiece, int kField, bool kIsKept = false>
  __device__ __forceinline__ void forth(bool there, const PieceOf<Shape>& piece, const Cells& of, i64 box) const {
    Own* to = there ? &boxes_forth<Shape>(call)[box * Shape::num_fields + kField] : nullptr;
    if (to && of.num == 0) to->num_items = 0, to = nullptr;
    if constexpr (kIsKept) {
      spread(to, shared.kept[kPiece].forth[kField]);
    } else if constexpr (kPiece < kKept) {
      const bool kept = to && is_kept<kPiece>(piece);
      spread(kept ? to : nullptr, shared.kept[kPiece].forth[kField]);
      if (to && !kept) make_forth<kPiece, kField>(piece, of, *to);
    } else if (to) {
      make_forth<kPiece, kField>(piece, of, *to);
    }
    if (!to) return;
    Own& made = *to;
    const i64 src_step = of.loop < 0 ? 0 : piece.src_step[of.loop], slot_step = of.loop < 0 ? 0 : piece.slot_step[of.loop];
    const i64 cell_from = src_step * Shape::cell_bytes(kField), cell_to = slot_step * Shape::row_bytes(kField);
    made.cell_from = cell_from;
    made.cell_to = cell_to;
    made.from = piece.src * Shape::cell_bytes(kField) + of.first * cell_from;
    made.to = piece.slot * Shape::row_bytes(kField) + of.first * cell_to;
    made.num_cells = int(of.num);
    made.rank = int(piece.rank + of.first * of.step);
    made.rank_step = int(of.step);
  }

  template <int kPiece, int kField = 0>
  __device__ __forceinline__ void make_field(bool there, const PieceOf<Shape>& piece, const Cells& of, i64 box) {
    if (kind == 1 + kField) forth<kPiece, kField>(there, piece, of, box);
    else if constexpr (kField + 1 < Shape::num_fields) make_field<kPiece, kField + 1>(there, piece, of, box);
  }

  // Slots, or source cells, of segments that some steps lead through.
  __device__ __noinline__ Marks<Shape::num_loops> make_marks(const PieceOf<Shape>& piece, const Cells& of, const i64* step) const {
    Loop loop[Shape::num_loops + 1];
    int num = 0;
    for (int i = 0; i < piece.num_loops; ++i)
      if (i != of.loop) loop[num++] = {piece.count[i], 0, step[i], 0};
    num = sort_loops(loop, num, kTarget);
    Marks<Shape::num_loops> marks;
    marks.range = marks.num_ranges = 1;
    marks.num_loops = count_outer(loop, num, kTarget, marks.range);
    for (int i = 0; i < marks.num_loops; ++i) {
      marks.count[i] = loop[i].count;
      marks.step[i] = loop[i].dst;
      marks.num_ranges *= loop[i].count;
    }
    return marks;
  }
  // Tells every rank the slots of its cell. Where segments must lie apart, the source cells that they begin with are
  // marked, too: of the whole piece, as the rank of one that inputs place does not move.
  template <int kPiece>
  __device__ __forceinline__ void tell_slots(const PieceOf<Shape>& piece, const Cells& of, i64 box) const {
    Marks<Shape::num_loops> marks, cells;
    if (is_kept<kPiece>(piece)) {
      marks = shared.kept[kPiece].slots;
      if constexpr (Shape::apart) cells = shared.kept[kPiece].cells;
    } else {
      marks = make_marks(piece, of, piece.slot_step);
      if constexpr (Shape::apart) cells = make_marks(piece, of, piece.src_step);
      if (of.num) keep<kPiece>(piece, [&](KeptOf& kept) {
        kept.slots = marks;
        if constexpr (Shape::apart) kept.cells = cells;
      });
    }
    if constexpr (Shape::apart) {
      cells.first = piece.src;
      if (of.num == 0) cells.num_ranges = 0;
      marks_of_cells<Shape>(call)[box] = cells;
    }
    for (int rank = 0; rank < call.num_ranks; ++rank) {
      if (shared.meeting.peers.refusing >> rank & 1) continue;
      auto& told = marks_told<Shape>(call, rank, call.rank)[box];
      const i64 c = cell_of(piece, of, rank);
      if (c < 0) {
        told.num_ranges = 0;
        continue;
      }
      marks.first = piece.slot + (of.loop < 0 ? 0 : c * piece.slot_step[of.loop]);
      told = marks;
      atomicAdd(&shared.points_to[rank], u64(of.points));
    }
  }
  // The number of the cell for a rank, -1: none.
  __device__ __forceinline__ i64 cell_of(const PieceOf<Shape>& piece, const Cells& of, int rank) const {
    const i64 away = rank - piece.rank;
    if (of.num == 0 || (of.step == 0 ? away != 0 : away % of.step != 0)) return -1;
    const i64 c = of.step == 0 ? 0 : away / of.step;
    return c >= of.first && c < of.first + of.num ? c : -1;
  }
};

}  // namespace fuscoc
