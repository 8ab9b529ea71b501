// SPDX-License-Identifier: Apache-2.0
// Sums across threads, in a fixed order, and the largest of a warp. Includes no torch header.
#pragma once

#include <opforge/core/shared.h>

#include <cstdint>
#include <cstring>

namespace opforge {

constexpr int kWarp = 32;

// A product that is always rounded by itself. Fused with the subtraction, a * b - a * b would not
// be 0.
__device__ __forceinline__ float product(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double product(double a, double b) { return __dmul_rn(a, b); }

// The sum over a group of `width` neighbouring lanes (a power of two up to 32), in every lane.
template <class A>
__device__ __forceinline__ A warp_sum(A value, int width = kWarp) {
  for (int step = width / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, step);
  }
  return value;
}

// The same for a struct of numbers with an operator +=, under which a += b and b += a end in the
// same bits, so that all lanes agree.
template <class Total>
__device__ __forceinline__ void add_lane(Total& total, int step) {
  static_assert(sizeof(Total) % 4 == 0);
  uint32_t words[sizeof(Total) / 4];
  memcpy(words, &total, sizeof total);
#pragma unroll
  for (uint32_t& word : words) word = __shfl_xor_sync(0xffffffffu, word, step);
  Total other;
  memcpy(&other, words, sizeof other);
  total += other;
}

template <class Total>
__device__ __forceinline__ Total warp_total(Total total) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) add_lane(total, step);
  return total;
}

template <class Total>
__device__ __forceinline__ Total warp_total(Total total, int width) {
#pragma unroll 1
  for (int step = width / 2; step > 0; step /= 2) add_lane(total, step);
  return total;
}

// The largest of a warp's numbers, none of them NaN, in every lane.
__device__ __forceinline__ float warp_max(float value) {
#if defined(OPFORGE_SIM) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800)
  // Integers that are ordered as the floats: one instruction compares those of all lanes.
  const auto flip = [](int bits) { return bits ^ (bits >> 31 & 0x7fffffff); };
  return __int_as_float(flip(__reduce_max_sync(0xffffffffu, flip(__float_as_int(value)))));
#else
  for (int step = kWarp / 2; step > 0; step /= 2) {
    value = max(value, __shfl_xor_sync(0xffffffffu, value, step));
  }
  return value;
#endif
}

// The sum over each group of `width` threads (a power of two, or the whole block; all of its
// threads call). Valid in all of them.
template <class A>
__device__ __forceinline__ A group_sum(A value, int width) {
  if (width <= kWarp) return warp_sum(value, width);
  struct Partial {
    A warp[kWarp];
  };
  Partial& partial = shared<Partial>();
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, warps = width / kWarp;
  value = warp_sum(value);
  if (lane == 0) partial.warp[warp] = value;
  __syncthreads();
  const int first = warp / warps * warps;  // the first warp of this group
  A total = lane < warps ? partial.warp[first + lane] : A(0);
  return warp_sum(total);
}

}  // namespace opforge
