// SPDX-License-Identifier: Apache-2.0
// The sum of e^x over a part of a row, without overflow: relative to the largest x of that part.
#pragma once

#include <opforge/core/reduce.h>
#include <opforge/core/vec.h>

#include <cmath>
#include <opforge/families/activations/device.cuh>

namespace opforge {

// The largest of some vectors, NaN aside; of 16-bit elements two at a time.
template <class T, int K, int N>
__device__ __forceinline__ compute_t<T> largest(const Packed<T, N> (&v)[K]) {
  compute_t<T> top = -INFINITY;
#if defined(__CUDA_ARCH__)
  if constexpr (kShort<T> && N % 2 == 0) {
    Pair<T> tops;
#pragma unroll
    for (int i = 0; i < K * N / 2; ++i) {
      Pair<T> two;
      memcpy(&two, &v[i / (N / 2)].word[i % (N / 2)], sizeof two);
      tops = i == 0 ? two : __hmax2(tops, two);
    }
    return fmaxf(widen(tops.x), widen(tops.y));
  }
#endif
#pragma unroll
  for (int k = 0; k < K; ++k) {
    compute_t<T> wide[N];
    widen(v[k], wide);
#pragma unroll
    for (int e = 0; e < N; ++e) top = fmax(top, wide[e]);
  }
  return top;
}

// What is known of a part of a row: its largest element (the peak), NaN aside, and the sum of
// e^(v - peak). For 16-bit elements the sum is of 2^(v · rate - shift), where the rate is log2(e),
// but see rate(), and the shift is peak · rate, rounded. That takes one fma, not a difference and a
// product. log() corrects for the rounding.
template <class T>
struct ExpSum {
  using A = compute_t<T>;
  A peak = -INFINITY, sum = 0;

  // What is subtracted: the peak; 0 where nothing but -inf was seen, because -inf - -inf is NaN.
  static __device__ __forceinline__ A base(A top) { return top == A(-INFINITY) ? A(0) : top; }
  // With log2(e), the shift of a huge peak has a rounding error e so large that 2^e could overflow.
  // Then the rate is a power of two instead: the product is exact, and e is 0. The sum is the same
  // at both rates: unequal 16-bit elements are so far apart there that the smaller one adds 0.
  static __device__ __forceinline__ A rate(A top) {
    return fabs(top) > A(1e8) ? A(1.0 / 1024) : A(1.44269504f);
  }
  // What a sum is multiplied with when its peak changes.
  static __device__ __forceinline__ A rescale(A from, A to) {
    if (from == A(-INFINITY)) return A(0);
    if constexpr (!kShort<T>) return std::exp(from - to);
    return roughly_exp2(product(from, rate(to)) - product(to, rate(to)));
  }
  __device__ __forceinline__ void raise_peak(A top) {
    sum *= rescale(peak, top);
    peak = top;
  }

  // All vectors share a peak: what was summed before is scaled once.
  template <int K, int N>
  __device__ __forceinline__ void add(const Packed<T, N> (&v)[K]) {
    raise_peak(fmax(peak, largest(v)));
    const A from = base(peak), by = rate(from), shift = product(from, by);
    A own[K] = {};
#pragma unroll
    for (int k = 0; k < K; ++k) {
      A x[N];
      widen(v[k], x);
#pragma unroll
      for (int e = 0; e < N; ++e) {
        own[k] += kShort<T> ? roughly_exp2(fma(x[e], by, -shift)) : std::exp(x[e] - from);
      }
    }
#pragma unroll
    for (int k = 0; k < K; ++k) sum += own[k];
  }
  // One of the two factors is 1, so that a += b and b += a round alike.
  __device__ __forceinline__ void operator+=(const ExpSum& other) {
    const bool higher = other.peak > peak;
    const A low = higher ? peak : other.peak, high = higher ? other.peak : peak;
    const A factor = rescale(low, high);
    sum = higher ? fma(sum, factor, other.sum) : fma(other.sum, factor, sum);
    peak = high;
  }
  // The logarithm of the sum of e^(v - peak).
  __device__ __forceinline__ A log() const {
    const A logs = std::log(sum), from = base(peak), by = rate(from);
    return kShort<T> ? fma(fma(from, by, -product(from, by)), A(-0.69314718f), logs) : logs;
  }
};

// First the peak of all lanes, so that each sum is scaled once.
template <class T>
__device__ __forceinline__ ExpSum<T> warp_total(ExpSum<T> total, int width) {
  compute_t<T> top = total.peak;
  for (int step = width / 2; step > 0; step /= 2) {
    top = fmax(top, __shfl_xor_sync(0xffffffffu, top, step));
  }
  total.raise_peak(top);
  total.sum = warp_sum(total.sum, width);
  return total;
}
template <class T>
__device__ __forceinline__ ExpSum<T> warp_total(ExpSum<T> total) {
  return warp_total(total, kWarp);
}

}  // namespace opforge
