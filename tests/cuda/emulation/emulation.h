// The words of CUDA that the device headers use, for a host: a CTA is a thread of the operating system,
// and its threads are fibers of that, which change where they wait. So shared memory is thread_local.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <cstdlib>
#include <cstring>

// Of <cmath>, which takes a compiler longer than all the rest.
extern "C" {
double fma(double, double, double) noexcept;
float fabsf(float) noexcept;
float fmaf(float, float, float) noexcept;
float fminf(float, float) noexcept;
float fmaxf(float, float) noexcept;
float frexpf(float, int*) noexcept;
float ldexpf(float, int) noexcept;
float nearbyintf(float) noexcept;
}

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __shared__ static thread_local
#define __launch_bounds__(...)
#define __grid_constant__

struct Dim {
  unsigned x, y, z;
};
struct uint2 {
  unsigned x, y;
};
struct uint4 {
  unsigned x, y, z, w;
};
struct float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

namespace emulation {

constexpr int kLanes = 32;

// A barrier of the lanes of a warp, which each bring a word: of the calls before and this one.
struct Warp {
  unsigned long long words[2][kLanes];
  int arrived = 0;
  unsigned generation = 0;
};
struct Barrier {
  int arrived = 0;
  unsigned generation = 0;
};
// It begins in a context and goes on where it has jumped from: a change of contexts calls the kernel of
// the operating system for its signals' sake, and there are millions.
struct Fiber {
  ucontext_t beginning;
  jmp_buf place;
  bool begun = false, done = false;
  const unsigned* generation = nullptr;  // of the barrier that it waits at, if it does
  unsigned joined = 0;                   // what that was when it came there
};
struct Cta {
  jmp_buf scheduler;
  Fiber* fibers;
  Warp* warps;
  Barrier barriers[16];
  int live;      // fibers that have not ended
  int current;   // the one that runs
  long long progress = 0;
  unsigned char* memory;  // dynamic shared memory
  Dim block, grid, threads;
};
extern thread_local Cta* cta;

inline void yield() {
  if (!_setjmp(cta->fibers[cta->current].place)) _longjmp(cta->scheduler, 1);
}
// Goes on when the barrier that has this generation has the next one.
inline void wait_at(const unsigned& generation, unsigned joined) {
  if (generation != joined) return;
  Fiber& fiber = cta->fibers[cta->current];
  fiber.generation = &generation;
  fiber.joined = joined;
  yield();
  fiber.generation = nullptr;
}
inline int lane() { return cta->current % kLanes; }

inline const unsigned long long* meet(unsigned long long word) {
  Warp& warp = cta->warps[cta->current / kLanes];
  const unsigned generation = warp.generation;
  unsigned long long* const words = warp.words[generation & 1];
  words[lane()] = word;
  if (++warp.arrived == kLanes) {
    warp.arrived = 0;
    ++warp.generation;
    ++cta->progress;
  }
  wait_at(warp.generation, generation);
  return words;
}
inline void wait_for(int number, int count) {
  Barrier& barrier = cta->barriers[number];
  const unsigned generation = barrier.generation;
  if (++barrier.arrived == count) {
    barrier.arrived = 0;
    ++barrier.generation;
    ++cta->progress;
  }
  wait_at(barrier.generation, generation);
}
template <class T>
unsigned long long word_of(T value) {
  static_assert(sizeof(T) <= 8);
  unsigned long long word = 0;
  memcpy(&word, &value, sizeof(T));
  return word;
}
template <class T>
T value_of(unsigned long long word) {
  T value;
  memcpy(&value, &word, sizeof(T));
  return value;
}
// What the hardware demands of an address.
inline void check_aligned(const void* at, int bytes) {
  if (reinterpret_cast<size_t>(at) % bytes) abort();
}
// A barrier in shared memory; bulk copies are made at once.
struct GateWord {
  unsigned short count, arrived;
  unsigned passed;
};
inline void open_gate(unsigned long long* gate, unsigned count) {
  *reinterpret_cast<GateWord*>(gate) = {static_cast<unsigned short>(count), 0, 0};
}
inline void arrive_at(unsigned long long* gate) {
  GateWord& word = *reinterpret_cast<GateWord*>(gate);
  if (++word.arrived < word.count) return;
  word.arrived = 0;
  ++word.passed;
  ++cta->progress;
}
inline unsigned has_passed(const unsigned long long* gate, unsigned parity) {
  const bool passed = (reinterpret_cast<const GateWord*>(gate)->passed & 1) != parity;
  if (!passed) yield();
  return passed;
}
inline unsigned char* shared(unsigned address) { return cta->memory + address; }
inline void copy_bulk(void* to, const void* from, unsigned bytes) {
  check_aligned(to, 16);
  check_aligned(from, 16);
  if (bytes == 0 || bytes % 16) abort();
  memcpy(to, from, bytes);
}

}  // namespace emulation

#define threadIdx (Dim{unsigned(emulation::cta->current), 0, 0})
#define blockIdx (emulation::cta->block)
#define gridDim (emulation::cta->grid)
#define blockDim (emulation::cta->threads)

inline void __syncthreads() { emulation::wait_for(0, emulation::cta->live); }
inline void __syncwarp() { emulation::meet(0); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __nanosleep(unsigned) { emulation::yield(); }

template <class T>
T __shfl_sync(unsigned, T value, int from) {
  return emulation::value_of<T>(emulation::meet(emulation::word_of(value))[from]);
}
template <class T>
T __shfl_up_sync(unsigned, T value, int by) {
  const auto* words = emulation::meet(emulation::word_of(value));
  return emulation::lane() < by ? value : emulation::value_of<T>(words[emulation::lane() - by]);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int by) {
  return emulation::value_of<T>(emulation::meet(emulation::word_of(value))[emulation::lane() ^ by]);
}
inline unsigned __ballot_sync(unsigned, bool vote) {
  const auto* words = emulation::meet(vote);
  unsigned lanes = 0;
  for (int i = 0; i < emulation::kLanes; ++i) lanes |= unsigned(words[i]) << i;
  return lanes;
}
inline bool __all_sync(unsigned mask, bool vote) { return __ballot_sync(mask, vote) == ~0u; }
inline bool __any_sync(unsigned mask, bool vote) { return __ballot_sync(mask, vote) != 0; }
inline unsigned __match_any_sync(unsigned, int value) {
  const auto own = emulation::word_of(value);
  const auto* words = emulation::meet(own);
  unsigned lanes = 0;
  for (int i = 0; i < emulation::kLanes; ++i) lanes |= unsigned(words[i] == own) << i;
  return lanes;
}
inline unsigned __reduce_add_sync(unsigned, unsigned value) {
  const auto* words = emulation::meet(value);
  unsigned sum = 0;
  for (int i = 0; i < emulation::kLanes; ++i) sum += unsigned(words[i]);
  return sum;
}
inline unsigned __reduce_or_sync(unsigned, unsigned value) {
  const auto* words = emulation::meet(value);
  unsigned all = 0;
  for (int i = 0; i < emulation::kLanes; ++i) all |= unsigned(words[i]);
  return all;
}

inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline int __clz(int value) { return value ? __builtin_clz(unsigned(value)) : 32; }
inline int __ffs(unsigned value) { return __builtin_ffs(value); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((1ull * a * b) >> 32); }
inline float __fdividef(float a, float b) { return a / b; }
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  return unsigned(((unsigned long long)(high) << 32 | low) << by % 32 >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return unsigned(((unsigned long long)(high) << 32 | low) >> by % 32);
}
inline float __uint_as_float(unsigned word) { return emulation::value_of<float>(word); }
inline unsigned __float_as_uint(float value) { return unsigned(emulation::word_of(value)); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fsub_rn(float a, float b) { return a - b; }
namespace emulation {

// f16, to nearest even.
inline unsigned half_of(float x) {
  const unsigned sign = __float_as_uint(x) >> 31 << 15;
  const float size = fabsf(x);
  if (x != x) return 0x7fff;
  if (size >= 65520) return sign | 0x7c00;
  if (size < 0x1p-14f) return sign | unsigned(nearbyintf(ldexpf(size, 24)));
  int exponent;
  const float fraction = frexpf(size, &exponent);
  return sign | (((exponent + 14) << 10) + unsigned(nearbyintf(ldexpf(fraction, 11))) - 1024);
}
inline float of_half(unsigned short word) {
  const int exponent = word >> 10 & 31, mantissa = word & 1023;
  float size = exponent ? ldexpf(float(1024 + mantissa), exponent - 25) : ldexpf(float(mantissa), -24);
  if (exponent == 31) size = mantissa ? __builtin_nanf("") : __builtin_inff();
  return word >> 15 ? -size : size;
}

}  // namespace emulation

template <class T>
T __ldcg(const T* at) {
  emulation::check_aligned(at, sizeof(T));
  return *at;
}
inline size_t __cvta_generic_to_shared(const void* at) {
  return static_cast<const unsigned char*>(at) - emulation::cta->memory;
}

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a < b ? b : a; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }
inline long long min(long long a, long long b) { return a < b ? a : b; }
inline long long max(long long a, long long b) { return a < b ? b : a; }

template <class T>
T atomicAdd(T* at, T by) {
  return __atomic_fetch_add(at, by, __ATOMIC_SEQ_CST);
}
template <class T>
T atomicOr(T* at, T by) {
  return __atomic_fetch_or(at, by, __ATOMIC_SEQ_CST);
}
template <class T>
T atomicExch(T* at, T to) {
  return __atomic_exchange_n(at, to, __ATOMIC_SEQ_CST);
}
template <class T>
T atomicCAS(T* at, T from, T to) {
  __atomic_compare_exchange_n(at, &from, to, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return from;
}
