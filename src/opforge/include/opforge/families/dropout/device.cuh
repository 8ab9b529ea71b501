// SPDX-License-Identifier: Apache-2.0
// Dropout as a function for elementwise.cuh. Includes no torch header.
//
//   moves     dropout alone reads x and writes y: the floor is a copy.
//   computes  for eight elements of 16 bits a call of philox and eight comparisons: 70 of the 130
//             instructions of a thread. The copy leaves time for 240.
#pragma once

#include <cuda_runtime.h>
#include <opforge/core/rng.h>

namespace opforge {

template <class A>
struct Dropout {
  const int64_t* seed;
  uint32_t threshold;
  A scale;

  template <int N>
  struct At {
    bool kept[N];
    A scale;

    __device__ __forceinline__ A operator()(int e, A x) const { return kept[e] ? x * scale : A(0); }
    // residual + dropout(x + bias); to add -0.0 changes nothing
    __device__ __forceinline__ A operator()(int e, A x, A residual, A bias = A(-0.0)) const {
      return fma(kept[e] ? x + bias : A(0), scale, residual);
    }
  };

  template <int N>
  __device__ __forceinline__ At<N> at(int64_t first) const {
    At<N> result;
    result.scale = scale;
    keep<N>(uint64_t(*seed), first, threshold, result.kept);
    return result;
  }
};

template <class A>
Dropout<A> make_dropout(const int64_t* seed, double p) {
  return {seed, drop_threshold(p), A(kept_scale(p))};
}

}  // namespace opforge
