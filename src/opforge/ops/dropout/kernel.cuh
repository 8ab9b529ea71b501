// SPDX-License-Identifier: Apache-2.0
// dropout reads x and writes y: the floor is a copy. The mask costs arithmetic alone: of eight
// elements of 16 bits, two calls of philox, some 90 of the 180 instructions of a thread; the copy
// leaves time for 240.
#pragma once

#include <opforge/rng.h>

#include <opforge/elementwise.cuh>

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
  };

  template <int N>
  __device__ __forceinline__ At<N> at(uint64_t first) const {
    At<N> result;
    result.scale = scale;
    keep<N>(uint64_t(*seed), first, threshold, result.kept);
    return result;
  }
};

}  // namespace opforge
