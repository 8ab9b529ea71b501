// SPDX-License-Identifier: Apache-2.0
// relu moves 2 bytes per byte of x and does one comparison: its floor is a copy.
#pragma once

#include <opforge/algorithms/elementwise.cuh>

namespace opforge {

struct Relu {
  template <class A>
  __device__ A operator()(A x) const {
    return x < A(0) ? A(0) : x;  // keeps NaN and -0.0
  }
};

struct ReluBackward {
  template <class A>
  __device__ A operator()(A grad, A y) const {
    return y <= A(0) ? A(0) : grad;  // where y is NaN the gradient passes
  }
};

}  // namespace opforge
