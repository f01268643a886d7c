"""Printed CUDA text as functions of the host, where nothing of a GPU is needed to evaluate it."""

from __future__ import annotations

import ctypes
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
inline void __threadfence() {}
inline void __nanosleep(unsigned) {}
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
template <class Element> struct Largest {};
template <class From, class To, int elements, int block> void cast_elements(char*, float*, int) {}
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
    source.write_text(f'{PRELUDE}#include "places.cuh"\n{KERNELS_OWN}{printed}{FUNCTIONS}')
    command = [cxx(), "-std=c++17", "-O1", "-w", "-shared", "-fPIC", f"-I{INCLUDE}", str(source)]
    subprocess.run([*command, "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))
