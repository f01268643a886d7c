// A cast that computes: an element becomes (x - shift) * factor in f32, both rounded, with the numbers of its
// channel, and then what arrives. A row is read from one part of a warp's buffer and written to another.
#pragma once
#include "cast.cuh"

namespace fuscoc {

// Integers that f32 holds.
template <class Type>
struct Integer {
  static constexpr int bytes = sizeof(Type);
  __device__ static __forceinline__ float widen(u32 byte) { return float(Type(byte)); }
  __device__ static __forceinline__ void unpack(u32 word, float (&to)[2]) {
    to[0] = float(Type(word)), to[1] = float(Type(word >> 16));
  }
};

// `number` elements in whole words.
template <class From, int kNumber>
__device__ __forceinline__ void read_group(const char* at, float (&to)[kNumber]) {
  const u32* const words = reinterpret_cast<const u32*>(at);
#pragma unroll
  for (int w = 0; w < kNumber * From::bytes / 4; ++w) {
    const u32 word = words[w];
    if constexpr (From::bytes == 4) {
      to[w] = __uint_as_float(word);
    } else if constexpr (From::bytes == 2) {
      float pair[2];
      From::unpack(word, pair);
      to[w * 2] = pair[0], to[w * 2 + 1] = pair[1];
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[w * 4 + i] = From::widen(word >> i * 8 & 0xff);
    }
  }
}
template <class To, int kNumber>
__device__ __forceinline__ void write_group(char* at, const float (&from)[kNumber]) {
  u32* const words = reinterpret_cast<u32*>(at);
#pragma unroll
  for (int w = 0; w < kNumber * To::bytes / 4; ++w) {
    if constexpr (To::bytes == 4) words[w] = __float_as_uint(from[w]);
    else if constexpr (To::bytes == 2) words[w] = To::pack(from[w * 2], from[w * 2 + 1]);
    else words[w] = To::pack(from[w * 4], from[w * 4 + 1]) | To::pack(from[w * 4 + 2], from[w * 4 + 3]) << 16;
  }
}

// The fewest elements of whole words at both ends that begin with the first of `channels` channels.
__device__ constexpr int group_of(int channels, int bytes) {
  int number = channels;
  while (number * bytes % 4) number += channels;
  return number;
}

// `Line` has the numbers of every channel. A lane has groups of elements, whose channels are known to the
// compiler; what is left at the end lanes have one by one.
template <class From, class To, int kElements, class Line>
__device__ __forceinline__ void normalise(const char* from, char* to, int lane) {
  constexpr int kLeast = From::bytes < To::bytes ? From::bytes : To::bytes;
  constexpr int kGroup = group_of(Line::channels, kLeast), kGroups = kElements / kGroup;
  const auto computed = [](float x, int channel) { return __fmul_rn(__fsub_rn(x, Line::shift(channel)), Line::factor(channel)); };
#pragma unroll 1
  for (int group = lane; group < kGroups; group += kWarp) {
    float value[kGroup];
    read_group<From>(from + group * (kGroup * From::bytes), value);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) value[i] = computed(value[i], i % Line::channels);
    write_group<To>(to + group * (kGroup * To::bytes), value);
  }
#pragma unroll 1
  for (int i = kGroups * kGroup + lane; i < kElements; i += kWarp)
    write_element<To>(to, i, computed(read_element<From>(from, i), i % Line::channels));
  fence_bulk_proxy();
  __syncwarp();
}

}  // namespace fuscoc
