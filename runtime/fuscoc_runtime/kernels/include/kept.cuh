// What boxes of one call have in common with those of the next: all but places and ranks, where entries are alike.
//
// To make a box takes a thread some 20 us, which dispatch waits for. But pages are of one size, and pictures often
// are: what follows from loops and strides is kept, with these, for one entry, and who has an entry with the same
// ones copies it.
#pragma once
#include "piece.cuh"
#include "tile.cuh"

namespace fuscoc {

// The slots of a cell: ranges of some, loops apart.
template <int kLoops>
struct Marks {
  i64 first, range, num_ranges;
  i64 num_loops;
  i64 count[kLoops + 1], step[kLoops + 1];
};

// What a box follows from, but for places and ranks. One of zeros is no piece's.
template <class Shape>
struct Form {
  static constexpr int kWords = 1 + 4 * Shape::num_loops + Shape::num_strides;
  i64 word[kWords];

  // By its number, of a piece whose items have so many lines.
  __device__ static __forceinline__ i64 word_of(const PieceOf<Shape>& piece, u32 item_lines, int i) {
    if (i == 0) return i64(item_lines) << 32 | piece.num_loops;
    if (i > 4 * Shape::num_loops) return piece.strides[i - 1 - 4 * Shape::num_loops];
    const int loop = (i - 1) / 4, which = (i - 1) % 4;
    if (loop >= piece.num_loops) return 0;
    return which == 0   ? piece.count[loop]
           : which == 1 ? piece.src_step[loop]
           : which == 2 ? piece.slot_step[loop]
                        : piece.rank_step[loop];
  }
  __device__ __forceinline__ bool is_of(const PieceOf<Shape>& piece, u32 lines) const {
    bool same = true;
#pragma unroll
    for (int i = 0; i < kWords; ++i) same = same && word[i] == word_of(piece, lines, i);
    return same;
  }
  __device__ __forceinline__ void set(const PieceOf<Shape>& piece, u32 lines) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) word[i] = word_of(piece, lines, i);
  }
};

// How far the slots of a cell go below and above the first one, and its points; 0 where a piece has several cells.
struct Reach {
  i64 below, above, points;
};

// Of one piece, by what a warp makes: marks, the boxes of each field, those that come back.
template <class Shape, class Own>
struct Kept {
  Form<Shape> form[2 + Shape::num_fields];
  Marks<Shape::num_loops> slots, cells;
  Own forth[Shape::num_fields];
  Own home, told, mine;
  i64 packed;  // bytes of a cell that comes back,
  Reach reach; // and its slots, if a piece has one rank
};
// Pieces of which something is kept: where inputs say what moves in whole words, unless that is more than there is
// memory for.
constexpr int kKeptBytes = 4096;  // of a piece, beside boxes
template <class Shape, class Relation, class Own>
constexpr bool kKeeps = Shape::looks_up && Relation::num_pieces * sizeof(Kept<Shape, Own>) <= (24 << 10) &&
                        sizeof(Kept<Shape, Own>) <= (Shape::num_fields + 3) * sizeof(Own) + kKeptBytes;

}  // namespace fuscoc
