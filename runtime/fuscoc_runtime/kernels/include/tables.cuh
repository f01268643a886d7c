// Tables that place keys: inputs of a call, which must be the same on all ranks. Ranks tell each other, behind
// their counts, one number of 64 bits that a table gives, in two words. If ranks that have joined the call have
// different ones, each of them finds another one's that is not its own: then nothing is moved anywhere.
#pragma once
#include "call.cuh"

namespace fuscoc {

template <class Shape, class = void>
constexpr bool kByTable = false;
template <class Shape>
constexpr bool kByTable<Shape, decltype(void(Shape::by_table))> = true;

template <class Shape>
constexpr int kTableWords = kByTable<Shape> ? 2 : 0;

// What a key adds to the number of a table that says `owner`: odd factors make bits depend on all lower ones.
__device__ __forceinline__ u64 number_of(int key, i64 owner) {
  u64 mixed = (u64(owner) * 65536 + key + 1) * 0x3c79ac492ba7b653;
  mixed = (mixed ^ mixed >> 32) * 0x1c69b3f74ac4ae35;
  mixed = (mixed ^ mixed >> 29) * 0x3c79ac492ba7b653;
  return mixed ^ mixed >> 32;
}

// Whether a number is at least 0, and less than `end`: the rank of a key, which a table may give any i64 for.
__device__ __forceinline__ bool is_below(int number, int end) { return u32(number) < u32(end); }
__device__ __forceinline__ bool is_below(i64 number, int end) { return u64(number) < u64(end); }

// What a CTA that plans knows of tables; nothing, where none places keys.
template <bool kTold>
struct Tables {
  __device__ __forceinline__ void begin() {}
  __device__ __forceinline__ void add(u64) {}
  __device__ __forceinline__ void compare(int, int, u32) {}
  __device__ __forceinline__ u32 word(int) const { return 0; }
  __device__ __forceinline__ bool differ(u32) const { return false; }
};
template <>
struct Tables<true> {
  u64 number;  // of this rank's
  u32 others;  // ranks, a bit each, that have told another one

  // By one thread.
  __device__ __forceinline__ void begin() { number = others = 0; }
  // By all threads, behind that: adds what the keys of each give.
  __device__ __forceinline__ void add(u64 sum) {
    sum = sum_to_lane(sum);
    if (threadIdx.x % kWarp == kWarp - 1 && sum) atomicAdd(&number, sum);
  }
  // A word of the number, once all have added; the one that a rank has told.
  __device__ __forceinline__ u32 word(int i) const { return u32(number >> 32 * i); }
  __device__ __forceinline__ void compare(int peer, int i, u32 told) {
    if (told != word(i)) atomicOr(&others, 1u << peer);
  }
  // Whether ranks have given different tables: one that is `refusing` the call has given none.
  __device__ __forceinline__ bool differ(u32 refusing) const { return others & ~refusing; }
};

}  // namespace fuscoc
