// Casts on the way: a warp turns the row in its buffer, as it left the source, into the row that
// arrives. If it does not get longer and lanes hold whole parts of its blocks, that happens in place;
// otherwise from one part of the buffer to another.
#pragma once
#include "vector.cuh"

namespace fuscoc {

constexpr int kLaneElements = 8;  // consecutive elements that a lane casts at a time
constexpr int kLaneVectors = 2;   // how often it does so before it overwrites what it has read
constexpr float kLargest = 3.402823466e38f;     // f32's largest finite value
constexpr float kLeastAmax = 7.888609052e-31f;  // 2^-100

// The 8-bit float nearest to x, ties to even and saturating, for GPUs that have no such instruction.
template <class Float8>
__device__ __forceinline__ u32 narrow(float x) {
  constexpr int kShift = 23 - Float8::mantissa_bits;
  constexpr u32 kLeastNormal = u32(128 - Float8::bias) << 23;
  const u32 bits = __float_as_uint(fminf(fabsf(x), Float8::largest));
  // Below the normal values, steps are as long as just above: adding that value leaves their number.
  const float step = __uint_as_float(kLeastNormal + (u32(23 - Float8::mantissa_bits) << 23));
  const u32 subnormal = __float_as_uint(__uint_as_float(bits) + step) - __float_as_uint(step);
  const u32 rounded = (bits + (1u << (kShift - 1)) - 1 + (bits >> kShift & 1)) >> kShift;
  const u32 normal = rounded - (u32(127 - Float8::bias) << Float8::mantissa_bits);
  const u32 magnitude = bits < kLeastNormal ? subnormal : normal;
  return x != x ? 0x7f : magnitude | (__float_as_uint(x) >> 31 << 7);
}

template <int kMantissaBits>
struct Float8 {
  static constexpr int bytes = 1, mantissa_bits = kMantissaBits, bias = (1 << (6 - kMantissaBits)) - 1;
  static constexpr float largest = kMantissaBits == 3 ? 448.f : 57344.f;
  __device__ static __forceinline__ u32 pack(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    u16 word;
    if constexpr (kMantissaBits == 3)
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(word) : "f"(high), "f"(low));
    else
      asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(word) : "f"(high), "f"(low));
    return word;
#else
    return narrow<Float8>(low) | narrow<Float8>(high) << 8;
#endif
  }
  __device__ static __forceinline__ float widen(u32 byte) {
    constexpr u32 kInfinity = kMantissaBits == 3 ? 0x7f : 0x7c;  // E4m3 has none: all that is not finite is NaN
    const u32 bits = byte & 0x7f;
    float value = __uint_as_float((bits << (23 - kMantissaBits)) + (u32(127 - bias) << 23));
    if (bits >> kMantissaBits == 0) value = __fmul_rn(float(bits), __uint_as_float(u32(128 - bias - kMantissaBits) << 23));
    if (bits >= kInfinity) value = __uint_as_float(kMantissaBits == 2 && bits == kInfinity ? 0x7f800000u : 0x7fffffffu);
    return __uint_as_float(__float_as_uint(value) | byte >> 7 << 31);
  }
};
using E4m3 = Float8<3>;
using E5m2 = Float8<2>;

template <class From>
__device__ __forceinline__ void read_elements(const char* at, float (&to)[kLaneElements]) {
  if constexpr (From::bytes == 4) {
    const float4* words = reinterpret_cast<const float4*>(at);
    const float4 low = words[0], high = words[1];
    to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
    to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
  } else {
    const uint4 words = *reinterpret_cast<const uint4*>(at);
    const u32 word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      float pair[2];
      From::unpack(word[w], pair);
      to[w * 2] = pair[0], to[w * 2 + 1] = pair[1];
    }
  }
}

template <class To>
__device__ __forceinline__ void write_elements(char* at, const float (&from)[kLaneElements]) {
  u32 word[4];
#pragma unroll
  for (int w = 0; w < 4; ++w) word[w] = To::pack(from[w * 2], from[w * 2 + 1]);
  if constexpr (To::bytes == 2)
    *reinterpret_cast<uint4*>(at) = make_uint4(word[0], word[1], word[2], word[3]);
  else
    *reinterpret_cast<uint2*>(at) = make_uint2(word[0] | word[1] << 16, word[2] | word[3] << 16);
}

// a / b to nearest even without a branch, where b is in [2^-100, kLargest] and a below 2^16: scaled so,
// no number on the way is subnormal or infinite.
__device__ __forceinline__ float divide(float a, float b) {
  constexpr float kScale = 1.f / 256;
  const float divisor = __fmul_rn(b, kScale);
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(divisor));
  inverse = fmaf(fmaf(-divisor, inverse, 1.f), inverse, inverse);
  float quotient = __fmul_rn(a, inverse);
#pragma unroll
  for (int i = 0; i < 2; ++i) quotient = fmaf(fmaf(-divisor, quotient, a), inverse, quotient);
  return __fmul_rn(quotient, kScale);
}

// The largest finite magnitude of every block of which a lane holds a part in each vector; not 0.
template <int kBlock>
__device__ __forceinline__ void find_amax(const float (&value)[kLaneVectors][kLaneElements],
                                          float (&amax)[kLaneVectors]) {
  bool finite = true;
#pragma unroll
  for (int v = 0; v < kLaneVectors; ++v) {
    amax[v] = kLeastAmax;
#pragma unroll
    for (int i = 0; i < kLaneElements; ++i) amax[v] = fmaxf(amax[v], fabsf(value[v][i]));  // never NaN
    finite = finite && amax[v] <= kLargest;
  }
  if (!__all_sync(kAllLanes, finite)) {
#pragma unroll
    for (int v = 0; v < kLaneVectors; ++v) {
      amax[v] = kLeastAmax;
#pragma unroll
      for (int i = 0; i < kLaneElements; ++i)
        if (fabsf(value[v][i]) <= kLargest) amax[v] = fmaxf(amax[v], fabsf(value[v][i]));
    }
  }
#pragma unroll
  for (int lanes = kBlock / kLaneElements / 2; lanes > 0; lanes /= 2) {
#pragma unroll
    for (int v = 0; v < kLaneVectors; ++v)
      amax[v] = fmaxf(amax[v], __shfl_xor_sync(kAllLanes, amax[v], lanes));
  }
}

// `kElements` elements at `row` become To; with a kBlock, every so many of them get one of `scales`.
template <class From, class To, int kElements, int kBlock>
__device__ __forceinline__ void cast_elements(char* row, float* scales, int lane) {
  static_assert(To::bytes <= From::bytes && kElements % kLaneElements == 0);
  constexpr int kStep = kWarp * kLaneElements;
  constexpr bool kWhole = kElements % (kStep * kLaneVectors) == 0;  // no lane is ever beyond the end
#pragma unroll 1
  for (int begin = lane * kLaneElements; begin - lane * kLaneElements < kElements; begin += kStep * kLaneVectors) {
    float value[kLaneVectors][kLaneElements];
#pragma unroll
    for (int v = 0; v < kLaneVectors; ++v) {
      const int at = begin + v * kStep;
#pragma unroll
      for (int i = 0; i < kLaneElements; ++i) value[v][i] = 0.f;
      if (kWhole || at < kElements) read_elements<From>(row + at * From::bytes, value[v]);
    }
    if constexpr (kBlock > 0) {
      float amax[kLaneVectors];
      find_amax<kBlock>(value, amax);
#pragma unroll
      for (int v = 0; v < kLaneVectors; ++v) {
        const int at = begin + v * kStep;
        if ((kWhole || at < kElements) && at % kBlock == 0) scales[at / kBlock] = __fmul_rn(amax[v], 1.f / To::largest);
        const float factor = divide(To::largest, amax[v]);
#pragma unroll
        for (int i = 0; i < kLaneElements; ++i) value[v][i] = __fmul_rn(value[v][i], factor);
      }
    }
    __syncwarp();  // the lanes overwrite what others have read
#pragma unroll
    for (int v = 0; v < kLaneVectors; ++v) {
      const int at = begin + v * kStep;
      if (kWhole || at < kElements) write_elements<To>(row + at * To::bytes, value[v]);
    }
  }
  fence_bulk_proxy();
  __syncwarp();
}

template <class From>
__device__ __forceinline__ float read_element(const char* row, int i) {
  if constexpr (From::bytes == 4) {
    return reinterpret_cast<const float*>(row)[i];
  } else if constexpr (From::bytes == 2) {
    float pair[2];
    From::unpack(reinterpret_cast<const u16*>(row)[i], pair);
    return pair[0];
  } else {
    return From::widen(reinterpret_cast<const unsigned char*>(row)[i]);
  }
}
template <class To>
__device__ __forceinline__ void write_element(char* row, int i, float value) {
  if constexpr (To::bytes == 4) reinterpret_cast<float*>(row)[i] = value;
  else if constexpr (To::bytes == 2) reinterpret_cast<u16*>(row)[i] = u16(To::pack(value, 0.f));
  else row[i] = char(To::pack(value, 0.f));
}

// The same of any types, numbers of elements and blocks, where `to` and `from` do not overlap. With
// `kApplied` the scales have come with the elements; otherwise they are made. A lane has a block of its
// own, or all share one that has an element for each.
template <class From, class To, int kElements, int kBlock, bool kApplied>
__device__ __forceinline__ void cast_apart(const char* from, char* to, float* scales, int lane) {
  if constexpr (kBlock == 0 || kApplied) {
#pragma unroll 1
    for (int i = lane; i < kElements; i += kWarp) {
      float value = read_element<From>(from, i);
      if constexpr (kApplied) value = __fmul_rn(value, scales[i / kBlock]);
      write_element<To>(to, i, value);
    }
  } else {
    constexpr int kLanes = kBlock < kWarp ? 1 : kWarp;
#pragma unroll 1
    for (int block = lane / kLanes; block < kElements / kBlock; block += kWarp / kLanes) {
      const int begin = block * kBlock + lane % kLanes, end = (block + 1) * kBlock;
      float amax = kLeastAmax;
#pragma unroll 1
      for (int i = begin; i < end; i += kLanes) {
        const float magnitude = fabsf(read_element<From>(from, i));
        if (magnitude <= kLargest) amax = fmaxf(amax, magnitude);
      }
#pragma unroll
      for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) amax = fmaxf(amax, __shfl_xor_sync(kAllLanes, amax, lanes));
      if (lane % kLanes == 0) scales[block] = __fmul_rn(amax, 1.f / To::largest);
      const float factor = divide(To::largest, amax);
#pragma unroll 1
      for (int i = begin; i < end; i += kLanes) write_element<To>(to, i, __fmul_rn(read_element<From>(from, i), factor));
    }
  }
  fence_bulk_proxy();
  __syncwarp();
}

}  // namespace fuscoc
