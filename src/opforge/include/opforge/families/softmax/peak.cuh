// SPDX-License-Identifier: Apache-2.0
// The largest element of a part of a row, and the sum of exponentials relative to it: what the
// threads of a row combine into a softmax. Includes no torch header.
#pragma once

#include <opforge/core/reduce.h>
#include <opforge/core/vec.h>

#include <cmath>
#include <opforge/families/activations/device.cuh>

namespace opforge {

__device__ __forceinline__ float exp_of(float x) { return roughly_exp2(1.44269504f * x); }
__device__ __forceinline__ double exp_of(double x) { return exp(x); }

// Where nothing but -inf was seen it is taken relative to 0, which leaves it at -inf.
template <class A>
__device__ __forceinline__ A finite_base(A top) {
  return top == A(-INFINITY) ? A(0) : top;
}

// The largest of some elements, NaN aside, and the sum of exp(v - top) over them, NaN included.
template <class A>
struct Peak {
  A top = A(-INFINITY), sum = 0;

  // One of the two factors is 1, so that a += b and b += a round alike.
  __device__ __forceinline__ void operator+=(const Peak& other) {
    const bool higher = other.top > top;
    const A low = higher ? top : other.top, high = higher ? other.top : top;
    const A factor = exp_of(low - finite_base(high));
    sum = higher ? fma(sum, factor, other.sum) : fma(other.sum, factor, sum);
    top = high;
  }
};

// The largest of a thread's elements, NaN aside. Of 16-bit ones two at a time.
template <class T>
class Largest {
 public:
  __device__ __forceinline__ Largest() {
    for (uint32_t& word : pairs_.word) word = std::is_same_v<T, half> ? 0xfc00fc00u : 0xff80ff80u;
  }
  template <int N>
  __device__ __forceinline__ void add(const Packed<T, N>& packed) {
#if defined(__CUDA_ARCH__)
    if constexpr (sizeof(T) == 2 && N == kVec<T>) {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) {
        Pair<T> one, other;
        memcpy(&one, &pairs_.word[i], sizeof one);
        memcpy(&other, &packed.word[i], sizeof other);
        one = __hmax2(one, other);
        memcpy(&pairs_.word[i], &one, sizeof one);
      }
      return;
    }
#endif
    take(packed, top_);
  }
  __device__ __forceinline__ float value() const {
    float top = top_;
    if constexpr (sizeof(T) == 2) take(pairs_, top);
    return top;
  }

 private:
  template <int N>
  static __device__ __forceinline__ void take(const Packed<T, N>& packed, float& top) {
    float v[N];
    widen(packed, v);
#pragma unroll
    for (int e = 0; e < N; ++e) top = max(top, v[e]);
  }

  float top_ = -INFINITY;
  Packed<T, kVec<T>> pairs_;  // -inf each
};

// e^((x - base) * scale), given the exponent of 2 for 1 of x.
__device__ __forceinline__ float power(float x, float base, float exponent) {
  return roughly_exp2((x - base) * exponent);
}

// As Peak, of elements that are not scaled yet, so that no product rounds their differences.
struct ScaledPeak {
  float top = -INFINITY, sum = 0;
  float exponent = 1;  // of 2, for 1 of an element; the same in all that are added up

  __device__ __forceinline__ void operator+=(const ScaledPeak& other) {
    const bool higher = other.top > top;
    const float low = higher ? top : other.top, high = higher ? other.top : top;
    const float factor = power(low, finite_base(high), other.exponent);
    sum = higher ? fma(sum, factor, other.sum) : fma(other.sum, factor, sum);
    top = high;
    exponent = other.exponent;
  }
};

// One exponential for all lanes, not one for each step.
__device__ __forceinline__ ScaledPeak warp_total(ScaledPeak peak) {
  const float top = warp_max(peak.top);
  peak.sum = warp_sum(peak.sum * power(peak.top, finite_base(top), peak.exponent));
  peak.top = top;
  return peak;
}

}  // namespace opforge
