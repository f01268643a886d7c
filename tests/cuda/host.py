"""Printed CUDA text as functions of the host, where nothing of a GPU is needed to evaluate it."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

from fuscoc_runtime.kernels.cuda import INCLUDE
from tests.native import cxx

# What the headers take for granted, of which nothing is called here.
PRELUDE = """
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__
struct Dim { unsigned x, y, z; };
static Dim threadIdx, blockIdx, blockDim, gridDim;
inline void __syncthreads() {}
inline void __syncwarp() {}
inline bool __shfl_sync(unsigned, bool of, int) { return of; }
inline unsigned __ballot_sync(unsigned, bool of) { return of; }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __nanosleep(unsigned) {}
inline int __clz(int of) { return __builtin_clz(of); }
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
template <class T> T min(T a, T b) { return a < b ? a : b; }
template <class T> T max(T a, T b) { return a < b ? b : a; }
template <class T> T atomicAdd(T* at, T by) { T old = *at; *at += by; return old; }
template <class T> T atomicExch(T* at, T to) { T old = *at; *at = to; return old; }
template <class T> T atomicCAS(T* at, T from, T to) {
  T old = *at;
  if (old == from) *at = to;
  return old;
}
"""
# What kernels alone do with rows.
KERNELS_OWN = """
namespace fuscoc {
struct Raw {};
struct Bf16 {};
struct F16 {};
struct F32 {};
struct E4m3 {};
struct E5m2 {};
template <class Int> struct Integer {};
template <class Element> struct Largest {};
template <class From, class To, int elements, int block> void cast_elements(char*, float*, int) {}
template <class From, class To, int, class Line> void normalise(const char*, char*, int) {}
}
"""
# Of pieces: every point, by enumerating the numbers of its loops.
OF_PIECES = """
template <int kPiece>
long long* emit(const fuscoc::Call& call, long long entry, long long* to) {
  fuscoc::PieceOf<Shape> piece;
  Relation{call}.template piece<kPiece>(entry, piece);
  long long num = 1;
  for (int i = 0; i < piece.num_loops; ++i) num *= piece.count[i] < 0 ? 0 : piece.count[i];
  for (long long n = 0; n < num; ++n) {
    long long rank = piece.rank, slot = piece.slot, src = piece.src, rest = n;
    for (int i = piece.num_loops - 1; i >= 0; --i) {
      const long long index = rest % piece.count[i];
      rest /= piece.count[i];
      rank += index * piece.rank_step[i];
      slot += index * piece.slot_step[i];
      src += index * piece.src_step[i];
    }
    *to++ = rank;
    *to++ = slot;
    *to++ = src;
    for (int i = 0; i < Shape::num_strides; ++i) *to++ = piece.strides[i];
  }
  if constexpr (kPiece + 1 < Relation::num_pieces) return emit<kPiece + 1>(call, entry, to);
  else return to;
}
extern "C" long long destinations(const fuscoc::Call* call, long long* to) {
  long long* end = to;
  const long long times = Shape::every_rank ? call->num_ranks : 1;
  const long long num_entries = Relation{*call}.num_entries() * times;
  for (long long entry = 0; entry < num_entries; ++entry) end = emit<0>(*call, entry, end);
  return end - to;
}
extern "C" int num_words() { return 1 + Shape::num_strides; }
extern "C" void offsets(const long long* place, int field, long long* to) {
  long long num = 1;
  for (int i = 0; i < Shape::num_runs(field); ++i) num *= Shape::run_count(field, i);
  for (long long n = 0; n < num; ++n) {
    long long at = place[0] * Shape::cell_bytes(field), rest = n;
    for (int i = Shape::num_runs(field) - 1; i >= 0; --i) {
      at += rest % Shape::run_count(field, i) * Shape::run_stride(field, i, place + 1);
      rest /= Shape::run_count(field, i);
    }
    for (long long byte = 0; byte < Shape::run_bytes(field); ++byte) *to++ = at + byte;
  }
}
"""
FUNCTIONS = """
extern "C" void destinations(const fuscoc::Call* call, long long num_points, long long* to) {
  for (long long point = 0; point < num_points; ++point) {
    const auto at = Relation{*call}.destination(point);
    *to++ = at.rank;
    *to++ = at.slot;
    for (long long word : at.place) *to++ = word;
  }
}
extern "C" int num_words() { return fuscoc::Place<Shape::Source>::num_words; }
extern "C" void offsets(const fuscoc::Call* call, long long source, int field, long long* to) {
  const fuscoc::Place<Shape::Source> place(*call, source);
  const int row_bytes = int(Shape::Source::row_bytes(field));
  for (int byte = 0; byte < row_bytes; ++byte) *to++ = place.offset(field, byte);
}
"""


def host_library(text: str, folder: Path) -> ctypes.CDLL:
    """``Relation`` and ``Shape`` of a shuffle with given slots; skips without a compiler."""
    _, body = text.split("using namespace fuscoc;\n")
    body, _ = body.split("}  // namespace\n")
    printed = f"namespace {{\nusing namespace fuscoc;\n{body}}}\n"
    source, library = folder / "host.cpp", folder / "host.so"
    header, functions = "places.cuh", FUNCTIONS
    if "num_pieces" in printed:
        header, functions = "piece.cuh", OF_PIECES
        printed = re.sub(r"static_assert.*\n", "", printed)
    source.write_text(f'{PRELUDE}#include "{header}"\n{KERNELS_OWN}{printed}{functions}')
    command = [cxx(), "-std=c++17", "-O1", "-w", "-shared", "-fPIC", f"-I{INCLUDE}", str(source)]
    subprocess.run([*command, "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))
