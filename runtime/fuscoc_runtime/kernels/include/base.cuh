// Words shared by every device header: integer types, memory-order primitives, bounded waits.
//
// The headers need no other header, so NVRTC and nvcc compile them alike.
#pragma once

namespace fuscoc {

using i64 = long long;
using u64 = unsigned long long;
using u32 = unsigned int;
using u16 = unsigned short;

template <int kBytes>
struct UnitOf;
template <>
struct UnitOf<16> { using type = uint4; };
template <>
struct UnitOf<8> { using type = uint2; };
template <>
struct UnitOf<4> { using type = u32; };
template <>
struct UnitOf<2> { using type = u16; };
template <>
struct UnitOf<1> { using type = unsigned char; };

constexpr int kWarp = 32;
constexpr u32 kAllLanes = 0xffffffffu;
constexpr int kMaxRanks = 8;
constexpr int kMaxFields = 8;
constexpr int kMaxInputs = 8;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr bool kBulkCopies = true;  // 1-D TMA
#else
constexpr bool kBulkCopies = false;
#endif

__host__ __device__ constexpr i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }
__host__ __device__ constexpr i64 round_up(i64 a, i64 b) { return ceil_div(a, b) * b; }
__host__ __device__ constexpr i64 floor_div(i64 a, i64 b) { return a / b - (a % b < 0); }
__host__ __device__ constexpr i64 floor_mod(i64 a, i64 b) { return a % b + (a % b < 0 ? b : 0); }

// Words that other GPUs write or read are accessed at system scope. An aligned 8-byte word is
// written whole, so {count, epoch} needs no fence between its halves.
__device__ __forceinline__ u32 load_relaxed(const u32* at) {
  u32 value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
__device__ __forceinline__ u64 load_relaxed(const u64* at) {
  u64 value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}
__device__ __forceinline__ void store_relaxed(u32* at, u32 value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
__device__ __forceinline__ void store_relaxed(u64* at, u64 value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
__device__ __forceinline__ void add_relaxed(u32* at, u32 value) {
  asm volatile("red.relaxed.sys.global.add.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
// Of all who exchange an epoch for the same word, one finds another one there: that is who comes first.
__device__ __forceinline__ u32 exchange_relaxed(u32* at, u32 value) {
  u32 before;
  asm volatile("atom.exch.relaxed.sys.global.b32 %0, [%1], %2;" : "=r"(before) : "l"(at), "r"(value) : "memory");
  return before;
}
// What the flag's writer did before its fence is visible after this load (cheaper than a fence).
__device__ __forceinline__ u32 load_acquire(const u32* at) {
  u32 value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
__device__ __forceinline__ u64 load_acquire(const u64* at) {
  u64 value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}
__device__ __forceinline__ void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
__device__ __forceinline__ void fence_system() {
  asm volatile("fence.acq_rel.sys;" ::: "memory");
}
// Orders what ordinary loads have seen before what the bulk-copy engine reads next.
__device__ __forceinline__ void fence_bulk_proxy() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
}

// A kernel launched as a programmatic dependent starts when every CTA of the one before it has run
// `let_next_start`; what that kernel writes may be read after `wait_for_previous`.
__device__ __forceinline__ void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ u64 tagged(u32 value, u32 epoch) { return (u64(epoch) << 32) | value; }
__device__ __forceinline__ bool reached(u32 flag, u32 epoch) { return int(flag - epoch) >= 0; }
// The same of combines with one handle, {epoch of its dispatch, number}: another epoch is no later one.
__device__ __forceinline__ bool reached(u64 tag, u64 other) {
  return tag >> 32 == other >> 32 && int(u32(tag) - u32(other)) >= 0;
}

// Bytes of which any floating-point number is NaN, and an integer no plausible one, in every type.
__device__ __forceinline__ void poison(char* to, i64 nbytes, i64 thread, i64 num_threads) {
  const i64 head = (16 - reinterpret_cast<u64>(to) % 16) % 16;
  const i64 wide = nbytes > head ? (nbytes - head) / 16 : 0;
  for (i64 i = thread; i < wide; i += num_threads) reinterpret_cast<uint4*>(to + head)[i] = {~0u, ~0u, ~0u, ~0u};
  const i64 rest = nbytes - 16 * wide;  // before and behind them
  for (i64 i = thread; i < rest; i += num_threads) to[i < head ? i : i + 16 * wide] = char(0xff);
}

__device__ __forceinline__ u32 lanes_below() {
  u32 mask;
  asm("mov.u32 %0, %%lanemask_lt;" : "=r"(mask));
  return mask;
}

}  // namespace fuscoc
