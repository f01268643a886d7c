// Vectors of row elements: wide loads and stores, and their f32 values.
#pragma once
#include "base.cuh"

namespace fuscoc {

// How terms become one: an element type's sum is of `Addend`s, and begins at start().
struct Summed {
  using Addend = float;
  __device__ static __forceinline__ float start() { return 0.f; }
  __device__ static __forceinline__ float add(float sum, float value, float weight) {
    return fmaf(value, weight, sum);
  }
};

// An element type. `Partial` is the type of partial sums on their way, wide enough that none
// overflows where the whole sum does not.
struct F32 : Summed {
  static constexpr int bytes = 4;
  using Partial = F32;
};

// Bits of any meaning: a "sum" is its only term.
struct Raw {
  static constexpr int bytes = 1;
  using Partial = Raw;
  using Addend = u32;
  __device__ static __forceinline__ u32 start() { return 0; }
};

struct Bf16 : Summed {
  static constexpr int bytes = 2;
  using Partial = Bf16;
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

struct F16 : Summed {
  static constexpr int bytes = 2;
  using Partial = F32;
  __device__ static __forceinline__ void unpack(u32 word, float (&to)[2]) {
    asm("{\n\t.reg .b16 low, high;\n\tmov.b32 {low, high}, %2;\n\tcvt.f32.f16 %0, low;\n\tcvt.f32.f16 %1, high;\n\t}"
        : "=f"(to[0]), "=f"(to[1]) : "r"(word));
  }
  __device__ static __forceinline__ u32 pack(float low, float high) {
    u32 word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
  }
};

// Numbers that terms are added as, and not by f32: f64 and, for maxima, integers.
template <class Type>
struct Number {
  static constexpr int bytes = sizeof(Type);
  using Partial = Number;
  using Addend = Type;
  __device__ static __forceinline__ Type start() { return 0; }
  __device__ static __forceinline__ Type add(Type sum, Type value, float weight) { return fma(value, Type(weight), sum); }
};
template <class Element>
constexpr bool kIsNumber = false;
template <class Type>
constexpr bool kIsNumber<Number<Type>> = true;

// The same, but a "sum" is the largest term, or NaN.
template <class Element>
struct Largest : Element {
  using Partial = Largest;
  __device__ static __forceinline__ float start() { return __uint_as_float(0xff800000u); }
  __device__ static __forceinline__ float add(float sum, float value, float) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(sum), "f"(value));
    return larger;
  }
};

template <class Type>
struct Largest<Number<Type>> : Number<Type> {
  using Partial = Largest;
  __device__ static __forceinline__ Type start() {
    if constexpr (Type(0.5) != 0) return Type(__uint_as_float(0xff800000u));
    else if constexpr (Type(-1) < Type(0)) return Type(1ull << (8 * sizeof(Type) - 1));
    else return 0;
  }
  __device__ static __forceinline__ Type add(Type sum, Type value, float) {
    return value != value || value > sum ? value : sum;
  }
};
template <class Type>
constexpr bool kIsNumber<Largest<Number<Type>>> = true;

// `kBytes` consecutive bytes of a row: 16 when rows allow it, else 8, 4, 2 or 1; of a wider partial
// row twice that.
template <class Element, int kBytes>
struct Vector {
  static constexpr int bytes = kBytes;
  static constexpr int words = kBytes < 4 ? 1 : kBytes / 4;
  static constexpr bool number = kIsNumber<Element>, raw = Element::bytes == 1 && !number;
  static constexpr int addends = raw ? words : kBytes / Element::bytes;
  using Sum = typename Element::Addend[addends];
  u32 word[words];

  __device__ __forceinline__ auto& half(int i) { return reinterpret_cast<Vector<Element, kBytes / 2>*>(word)[i]; }
  __device__ __forceinline__ const auto& half(int i) const {
    return reinterpret_cast<const Vector<Element, kBytes / 2>*>(word)[i];
  }
  __device__ __forceinline__ void fill(u32 bits) {
#pragma unroll
    for (int i = 0; i < words; ++i) word[i] = bits;
  }
  // Rows may have been written by a peer while this kernel runs: ordinary (not read-only) loads.
  __device__ __forceinline__ void load(const char* at) {
    if constexpr (kBytes == 32) {
      half(0).load(at);
      half(1).load(at + 16);
    } else if constexpr (kBytes == 16)
      asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3]) : "l"(at));
    else if constexpr (kBytes == 8)
      asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(word[0]), "=r"(word[1]) : "l"(at));
    else if constexpr (kBytes == 4)
      asm volatile("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(word[0]) : "l"(at));
    else if constexpr (kBytes == 2)
      asm volatile("ld.global.L1::no_allocate.u16 %0, [%1];" : "=r"(word[0]) : "l"(at));
    else
      asm volatile("ld.global.L1::no_allocate.u8 %0, [%1];" : "=r"(word[0]) : "l"(at));
  }
  __device__ __forceinline__ void store(char* at) const {
    if constexpr (kBytes == 32) {
      half(0).store(at);
      half(1).store(at + 16);
    } else if constexpr (kBytes == 16)
      asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(word[0]), "r"(word[1]),
                   "r"(word[2]), "r"(word[3]) : "memory");
    else if constexpr (kBytes == 8)
      asm volatile("st.global.L1::no_allocate.v2.u32 [%0], {%1, %2};" ::"l"(at), "r"(word[0]), "r"(word[1]) : "memory");
    else if constexpr (kBytes == 4)
      asm volatile("st.global.L1::no_allocate.u32 [%0], %1;" ::"l"(at), "r"(word[0]) : "memory");
    else if constexpr (kBytes == 2)
      asm volatile("st.global.L1::no_allocate.u16 [%0], %1;" ::"l"(at), "h"(u16(word[0])) : "memory");
    else
      asm volatile("st.global.L1::no_allocate.u8 [%0], %1;" ::"l"(at), "r"(word[0]) : "memory");
  }
  // A sum that has no term is zero.
  __device__ static __forceinline__ void begin(Sum& sum, bool has_terms) {
#pragma unroll
    for (int i = 0; i < addends; ++i) sum[i] = has_terms ? Element::start() : 0;
  }
  __device__ __forceinline__ void add_to(Sum& sum, float weight) const {
    if constexpr (number) {
#pragma unroll
      for (int i = 0; i < addends; ++i) {
        typename Element::Addend value;
        memcpy(&value, reinterpret_cast<const char*>(word) + i * Element::bytes, Element::bytes);
        sum[i] = Element::add(sum[i], value, weight);
      }
    } else {
#pragma unroll
      for (int w = 0; w < words; ++w) {
        if constexpr (raw) {
          sum[w] = word[w];
        } else if constexpr (Element::bytes == 4) {
          sum[w] = Element::add(sum[w], __uint_as_float(word[w]), weight);
        } else {
          float value[2];
          Element::unpack(word[w], value);
          sum[w * 2] = Element::add(sum[w * 2], value[0], weight);
          if constexpr (addends > 1) sum[w * 2 + 1] = Element::add(sum[w * 2 + 1], value[1], weight);
        }
      }
    }
  }
  __device__ __forceinline__ void from(const Sum& sum) {
    if constexpr (number) {
      memcpy(word, sum, kBytes);
    } else {
#pragma unroll
      for (int w = 0; w < words; ++w) {
        if constexpr (raw) word[w] = sum[w];
        else if constexpr (Element::bytes == 4) word[w] = __float_as_uint(sum[w]);
        else if constexpr (addends == 1) word[w] = Element::pack(sum[0], 0.f);
        else word[w] = Element::pack(sum[w * 2], sum[w * 2 + 1]);
      }
    }
  }
};

}  // namespace fuscoc
