// What a relation says of the pieces of an entry (fsc.node_pieces).
#pragma once
#include "call.cuh"

namespace fuscoc {

// Points of an entry: one for all numbers below the counts, steps in cells, ranks and slots.
template <int kLoops, int kStrides>
struct Piece {
  i64 src, rank, slot;
  int num_loops;
  i64 count[kLoops + 1], src_step[kLoops + 1], rank_step[kLoops + 1], slot_step[kLoops + 1];
  i64 strides[kStrides + 1];
};

// Of an entry with sizes of its own.
struct Sizes {
  i64 points, cells;
  bool ok;
};

template <class Shape>
using PieceOf = Piece<Shape::num_loops, Shape::num_strides>;

}  // namespace fuscoc
