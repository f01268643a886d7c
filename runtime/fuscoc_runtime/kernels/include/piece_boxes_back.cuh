// Boxes of pieces that come back: those that bring this rank's results to their places, and in the window of every
// rank that slots are on those which that one's combine copies.
//
// Results come back by way of this rank's staging memory, where each box has a part: the bytes of a cell in
// the order of the source, each range as far from a multiple of 16 as in the result. So a peer puts lines
// together from its rows, what is left is to copy them, and both cut ranges into the same lines: an item
// that is sent is an item that is received. Every item of a box has a flag there. Where results may be lent, peers
// are told a second box each time: the one that goes to its place in the result at once, as this rank's own does.
#pragma once
#include "piece_boxes.cuh"

namespace fuscoc {

// Where a rank's own results come from, [entries][pieces].
template <class Shape>
__device__ __forceinline__ BoxOf<Shape>* boxes_back(const Call& call) {
  return reinterpret_cast<BoxOf<Shape>*>(call.boxes_back);
}
// Boxes that a rank has told another one, [entries][pieces], in the window of that.
template <class Shape>
__device__ __forceinline__ BoxOf<Shape>* boxes_told(const Call& call, int window, int from) {
  return reinterpret_cast<BoxOf<Shape>*>(call.window[window] + call.boxes_at) + from * call.max_boxes;
}
// The same, for results that are lent.
template <class Shape>
__device__ __forceinline__ BoxOf<Shape>* boxes_lent(const Call& call, int window, int from) {
  return reinterpret_cast<BoxOf<Shape>*>(call.window[window] + call.boxes_lent_at) + from * call.max_boxes;
}
// How many of them there are, {number, epoch}: the word by which that rank has said so to dispatch.
__device__ __forceinline__ u64* num_told(const Call& call, int window, int from) {
  return reinterpret_cast<u64*>(call.window[window] + call.told_at) + from;
}

// Where inputs say what moves, in whole words, dispatch marks the parts of its source that a range of a box covers, so that the way
// back clears only the others. `edges` counts boxes that have bytes of some of these, too: these come behind.
template <class Shape>
constexpr bool kCovers = Shape::looks_up && Shape::comes_back && !kTurns<Shape>;
constexpr i64 kPart = i64(kItemLines) * kLine;  // bytes that are cleared at once
struct Covered {
  u32 edges;
  u32 bits[1];  // a part each
};
__device__ __forceinline__ Covered& covered(const Call& call) { return *reinterpret_cast<Covered*>(call.covered); }

template <class Shape, class Relation>
struct PieceBoxesBack : PieceBoxes<Shape, Relation> {
  using Base = PieceBoxes<Shape, Relation>;
  using Base::call, Base::cell_of, Base::drop, Base::item_lines, Base::kKept, Base::num_steps, Base::shared, Base::spread;
  using typename Base::Cells, typename Base::KeptOf, typename Base::Own;

  // How the first field comes back: the boxes for a peer that copies it, for this rank itself, and of what a peer
  // has copied. False if there are too many lines.
  template <int kPiece>
  __device__ __noinline__ bool make_back(const PieceOf<Shape>& piece, const Cells& of, Own& home, Own& told, Own& mine, i64& packed) const {
    constexpr int unit = Shape::unit_bytes(0);
    Loop loop[num_steps + 1];
    const int num = sort_loops(loop, this->template loops<0>(piece, of, loop), kSource);
    i64 range = Shape::run_bytes(0);
    int outer = count_outer(loop, num, kSource, range);
    i64 at_home[num_steps + 1];  // steps of what is told, where it comes back to
    const End also = kTurns<Shape> ? kSource : kPacked, also_mine = kTurns<Shape> ? kPacked : kSource;
    // Where no tile is found, as strips of all planes of a picture do not fit, planes and their strips become ranges, and
    // a tile has parts of several: the second loop is the slowest then. If that gives none either, it is as before.
    const int second = max(outer, 1), outer_before = outer;
    const i64 range_before = range;
    for (int attempt = 0;; ++attempt) {
      packed = Shape::run_bytes(0);
      for (int i = num - 1; i >= 0; --i) {
        if (i < outer && unit < kLine) packed += floor_mod(loop[i].src - packed, kLine);
        loop[i].packed = packed;
        packed *= loop[i].count;
      }
      if (!make_box<unit>(told, loop, num, outer, range, Shape::run_bytes(0), kTarget, kPacked, this->lines_back(), also, at_home) ||
          !make_box<unit>(mine, loop, num, outer, range, Shape::run_bytes(0), kTarget, kSource, this->lines_forth(), also_mine, nullptr) ||
          !make_box<unit>(home, loop, num, outer, range, Shape::run_bytes(0), kPacked, kSource, this->lines_back()))
        return false;
      this->template cut<0>(told);
      if (!kTurns<Shape> || told.tiling.rows || told.run_bytes >= kLongRun || second >= num || attempt == 2) break;
      const Loop moved = loop[attempt == 0 ? second : 0];
      if (attempt == 0) {
        for (int i = second; i > 0; --i) loop[i] = loop[i - 1];
        loop[0] = moved;
        outer = second + 1;
        range = Shape::run_bytes(0);
        for (int i = outer; i < num; ++i) range *= loop[i].count;
      } else {
        for (int i = 0; i < second; ++i) loop[i] = loop[i + 1];
        loop[second] = moved;
        outer = outer_before;
        range = range_before;
      }
    }
    if (told.tiling.rows) {  // what is sent as a tile is received as one
      home.num_steps = told.num_steps;
      home.num_outer = told.num_outer;
      for (int i = 0; i < told.num_steps; ++i) home.step[i] = {told.step[i].count, told.step[i].to, at_home[i]};
      home.tiling = told.tiling;
      home.tiling.straight = 1;
      home.num_items = told.num_items;
      mine.tiling = told.tiling;  // whose steps are the same ones
      mine.num_items = told.num_items;
    }
    told.num_cells = mine.num_cells = 1;
    told.cell_from = told.cell_to = mine.cell_from = mine.cell_to = 0;
    told.rank = told.rank_step = mine.rank = mine.rank_step = 0;
    this->template keep<kPiece>(piece, [&](KeptOf& kept) {
      kept.home = home;
      kept.told = told;
      kept.mine = mine;
      kept.packed = packed;
    });
    return true;
  }
  template <int kPiece>
  __device__ __forceinline__ void back(bool there, const PieceOf<Shape>& piece, const Cells& of, i64 box) {
    bool kept = false;
    if constexpr (kPiece < kKept) {
      kept = there && of.num > 0 && this->template is_kept<kPiece>(piece);
      const KeptOf& known = shared.kept[kPiece];
      tell_back<true>(kept, piece, of, box, known.home, known.told, known.mine, known.packed);
    }
    if (!there || kept) return;
    if (of.num == 0) {
      give_nothing(box);
    } else {
      Own home, told, mine;
      i64 packed;
      if (make_back<kPiece>(piece, of, home, told, mine, packed)) {
        tell_back<false>(true, piece, of, box, home, told, mine, packed);
      } else {
        give_nothing(box);
        drop(call.state->overflowed, of.num * of.points);
      }
    }
  }
  __device__ void give_nothing(i64 box) const {
    boxes_back<Shape>(call)[box].num_items = 0;
    for (int rank = 0; rank < call.num_ranks; ++rank) {
      if (shared.meeting.peers.refusing >> rank & 1) continue;
      boxes_told<Shape>(call, rank, call.rank)[box].num_items = 0;
      if (call.arrived_at) boxes_lent<Shape>(call, rank, call.rank)[box].num_items = 0;
    }
  }
  template <bool kSpread>
  __device__ __forceinline__ void put(Own* to, const Own& box) const {
    if constexpr (kSpread) spread(to, box);
    else if (to) *to = box;
  }
  // Of an entry that is there. With kSpread by a warp, whose lanes have the same boxes.
  template <bool kSpread>
  __device__ __noinline__ void tell_back(bool there, const PieceOf<Shape>& piece, const Cells& of, i64 box, const Own& home, const Own& told, const Own& mine, i64 packed) {
    const i64 src_step = of.loop < 0 ? 0 : piece.src_step[of.loop] * Shape::cell_bytes(0);
    const i64 slot_step = of.loop < 0 ? 0 : piece.slot_step[of.loop] * Shape::row_bytes(0);
    constexpr i64 line = kTurns<Shape> ? kBulkLine : kLine;
    const i64 pitch = packed + floor_mod(src_step - packed, line);  // of a cell
    const i64 src = piece.src * Shape::cell_bytes(0) + of.first * src_step;
    const i64 bytes = round_up(pitch * of.num + line, kBulkLine);
    i64 staging = 0;
    u32 flag = 0;
    if (there) {
      staging = i64(atomicAdd(&shared.staging, u64(bytes)));
      flag = atomicAdd(&shared.flags, home.num_items * u32(of.num));
      if (staging + bytes > call.staging_bytes || flag + home.num_items * u32(of.num) > call.max_flags) {
        drop(call.state->overflowed, of.num * of.points);
        give_nothing(box);
        there = false;
      }
    }
    Own* const comes = there ? &boxes_back<Shape>(call)[box] : nullptr;
    put<kSpread>(comes, home);
    if (comes) {
      comes->flag = flag;
      comes->from = staging + floor_mod(src, line);
      comes->to = src;
      comes->cell_from = pitch;
      comes->cell_to = src_step;
      comes->num_cells = int(of.num);
      comes->rank = int(piece.rank + of.first * of.step);
      comes->rank_step = int(of.step);
    }
    for (int rank = 0; rank < call.num_ranks; ++rank) {
      if (shared.meeting.peers.refusing >> rank & 1) continue;
      const i64 c = there ? cell_of(piece, of, rank) : 0, number = c - of.first;
      const i64 from = piece.slot * Shape::row_bytes(0) + c * slot_step, place = src + number * src_step;
      const auto tell = [&](Own* boxes, const Own& kind, i64 at) {
        Own* to = there ? &boxes[box] : nullptr;
        if (c < 0) to->num_items = 0, to = nullptr;
        put<kSpread>(to, kind);
        if (to) to->from = from, to->to = at, to->flag = flag + u32(number) * home.num_items;
      };
      const bool settled = rank == call.rank;  // goes to its place at once
      tell(boxes_told<Shape>(call, rank, call.rank), settled ? mine : told,
           settled ? place : staging + floor_mod(src, line) + number * pitch);
      if (call.arrived_at) tell(boxes_lent<Shape>(call, rank, call.rank), mine, place);
    }
  }
};

}  // namespace fuscoc
