// Where the segments of a source lie that need not lie one behind the other: each has a place, which
// planning has stored, and fields that may lie there in runs, some cells apart.
#pragma once
#include "call.cuh"

namespace fuscoc {

// The first cell of a segment, and the strides of its runs that only the call knows, in cells.
template <class Layout>
struct Place {
  static constexpr int num_words = 1 + Layout::num_strides;
  i64 word[num_words];

  __device__ __forceinline__ Place(const Call& call, i64 source) {
#pragma unroll
    for (int i = 0; i < num_words; ++i) word[i] = stored(call, source)[i];
  }
  // Where planning stores it.
  __device__ static __forceinline__ i64* stored(const Call& call, i64 source) { return call.places + source * num_words; }
  // Bytes from the begin of a field's tensor to that byte of the field.
  __device__ __forceinline__ i64 offset(int field, int byte) const {
    const i64 first = word[0] * Layout::cell_bytes(field);
    if constexpr (Layout::scattered) {
      const int run = byte / Layout::run_bytes(field);
      return first + Layout::run_offset(field, run, word + 1) + byte % Layout::run_bytes(field);
    } else {
      return first + byte;
    }
  }
};

// Where a point goes, rank -1: nowhere, other ranks that are none: a mistake. And its segment's place.
template <class Layout>
struct Destination {
  i64 rank;
  i64 slot;
  i64 place[Place<Layout>::num_words];
};

// A row that leaves the source; see `RowBuffer`.
template <class FieldLayout>
struct PlacedRow {
  using Layout = FieldLayout;
  static constexpr bool scattered = Layout::scattered;
  const Call& call;
  const Place<Layout> place;
  __device__ __forceinline__ const char* operator()(int field) const { return at(field, 0); }
  __device__ __forceinline__ const char* at(int field, int byte) const {
    return call.source[field] + place.offset(field, byte);
  }
};

}  // namespace fuscoc
