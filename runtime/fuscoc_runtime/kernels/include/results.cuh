// Where the rows of a combine go, and which of several fields they are.
#pragma once
#include "places.cuh"

namespace fuscoc {

// Where the result rows are put: one behind the other. One without terms is zero.
template <class Shape>
struct InOrder {
  static constexpr bool leaves_out = false;
  char* const row;
  __device__ __forceinline__ InOrder(const Call& call, i64 source) : row(call.result + source * Shape::row_bytes(0)) {}
  __device__ __forceinline__ char* operator()(i64 byte) const { return row + byte; }
  __device__ __forceinline__ void poison_row(i64 thread, i64 num_threads) const {
    poison(row, Shape::row_bytes(0), thread, num_threads);
  }
  // Where word `i` is put of some rows, the first one's words first.
  __device__ static __forceinline__ char* word(const Call& call, i64 first, int i) {
    return call.result + first * Shape::row_bytes(0) + i * Shape::unit_bytes(0);
  }
  __device__ static __forceinline__ i64 result_bytes(const Call& call) { return call.num_sources * Shape::row_bytes(0); }
};

// Where combine puts result rows: to their segments' places. A row without terms is left out, because
// its segment may have no place, or another one's; the host has made the result zero.
template <class Shape>
struct InPlace {
  static constexpr bool leaves_out = true;
  char* const result;
  const Place<Shape> place;
  __device__ __forceinline__ InPlace(const Call& call, i64 source) : result(call.result), place(call, source) {}
  __device__ __forceinline__ char* operator()(i64 byte) const { return result + place.offset(0, int(byte)); }
  __device__ __forceinline__ void poison_row(i64 thread, i64 num_threads) const {
    constexpr int row = int(Shape::row_bytes(0)), unit = Shape::unit_bytes(0);
    for (int byte = int(thread) * unit; byte < row; byte += int(num_threads) * unit) poison((*this)(byte), unit, 0, 1);
  }
  __device__ static __forceinline__ char* word(const Call& call, i64 first, int i) {
    constexpr int unit = Shape::unit_bytes(0), words = int(Shape::row_bytes(0)) / unit;
    return InPlace(call, first + i / words)(i % words * unit);
  }
  __device__ static __forceinline__ i64 result_bytes(const Call& call) { return call.result_bytes; }
};

// One of several fields of a row, which come back one after the other, each by a combine of its own: to
// these it is a row of one field.
template <class Shape, class FieldElement, int kField>
struct OfField : Shape {
  using Element = FieldElement;
  __device__ static constexpr i64 row_bytes(int) { return Shape::row_bytes(kField); }
  __device__ static constexpr i64 cell_bytes(int) { return Shape::cell_bytes(kField); }
  __device__ static constexpr int unit_bytes(int) { return Shape::unit_bytes(kField); }
  __device__ static constexpr int run_bytes(int) { return Shape::run_bytes(kField); }
  __device__ static i64 run_offset(int, int run, const i64* strides) { return Shape::run_offset(kField, run, strides); }
};

}  // namespace fuscoc
