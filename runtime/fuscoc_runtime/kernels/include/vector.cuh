// Vectors of row elements: wide loads and stores, and their f32 values.
#pragma once
#include "base.cuh"

namespace fuscoc {

struct Bf16 {
  static constexpr int bytes = 2;
  __device__ static __forceinline__ void unpack(u32 word, float (&to)[2]) {
    to[0] = __uint_as_float(word << 16);
    to[1] = __uint_as_float(word & 0xffff0000u);
  }
  __device__ static __forceinline__ u32 pack(float low, float high) {
    u32 word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
  }
};

struct F32 {
  static constexpr int bytes = 4;
};

// `kBytes` consecutive bytes of a row: 16 when rows allow it, else 8, 4 or 2.
template <class Element, int kBytes>
struct Vector {
  static constexpr int words = kBytes < 4 ? 1 : kBytes / 4;
  static constexpr int elements = kBytes / Element::bytes;
  u32 word[words];

  // Rows may have been written by a peer while this kernel runs: ordinary (not read-only) loads.
  __device__ __forceinline__ void load(const char* at) {
    if constexpr (kBytes == 16)
      asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3]) : "l"(at));
    else if constexpr (kBytes == 8)
      asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(word[0]), "=r"(word[1]) : "l"(at));
    else if constexpr (kBytes == 4)
      asm volatile("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(word[0]) : "l"(at));
    else
      asm volatile("ld.global.L1::no_allocate.u16 %0, [%1];" : "=r"(word[0]) : "l"(at));
  }
  __device__ __forceinline__ void store(char* at) const {
    if constexpr (kBytes == 16)
      asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(word[0]), "r"(word[1]),
                   "r"(word[2]), "r"(word[3]) : "memory");
    else if constexpr (kBytes == 8)
      asm volatile("st.global.L1::no_allocate.v2.u32 [%0], {%1, %2};" ::"l"(at), "r"(word[0]), "r"(word[1]) : "memory");
    else if constexpr (kBytes == 4)
      asm volatile("st.global.L1::no_allocate.u32 [%0], %1;" ::"l"(at), "r"(word[0]) : "memory");
    else
      asm volatile("st.global.L1::no_allocate.u16 [%0], %1;" ::"l"(at), "h"(u16(word[0])) : "memory");
  }
  __device__ __forceinline__ void add_to(float (&sum)[elements], float weight) const {
#pragma unroll
    for (int w = 0; w < words; ++w) {
      if constexpr (Element::bytes == 4) {
        sum[w] = fmaf(__uint_as_float(word[w]), weight, sum[w]);
      } else {
        float value[2];
        Element::unpack(word[w], value);
        sum[w * 2] = fmaf(value[0], weight, sum[w * 2]);
        if constexpr (elements > 1) sum[w * 2 + 1] = fmaf(value[1], weight, sum[w * 2 + 1]);
      }
    }
  }
  __device__ __forceinline__ void from(const float (&sum)[elements]) {
#pragma unroll
    for (int w = 0; w < words; ++w) {
      if constexpr (Element::bytes == 4) word[w] = __float_as_uint(sum[w]);
      else if constexpr (elements == 1) word[w] = Element::pack(sum[0], 0.f);
      else word[w] = Element::pack(sum[w * 2], sum[w * 2 + 1]);
    }
  }
};

}  // namespace fuscoc
