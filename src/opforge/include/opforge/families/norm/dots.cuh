// SPDX-License-Identifier: Apache-2.0
// The two sums over a row that the gradient of a norm needs. Includes no torch header.
#pragma once

#include <cuda_runtime.h>

namespace opforge {

// What is added up of a row: the gradients times the normalised values, and the gradients.
template <class A, bool Centered>
struct Dots {
  A inner = 0, sum = 0;
  __device__ __forceinline__ void operator+=(const Dots& other) {
    inner += other.inner;
    sum += other.sum;
  }
};

template <class A>
struct Dots<A, false> {
  A inner = 0;
  static constexpr A sum = 0;
  __device__ __forceinline__ void operator+=(const Dots& other) { inner += other.inner; }
};

}  // namespace opforge
