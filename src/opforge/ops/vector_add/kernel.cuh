// SPDX-License-Identifier: Apache-2.0
// vector_add reads two tensors and writes one: its floor is a copy of those bytes. It computes one
// addition for each element.
#pragma once

#include <opforge/algorithms/elementwise.cuh>

namespace opforge {

struct Add {
  template <class A>
  __device__ A operator()(A a, A b) const {
    return a + b;
  }
};

}  // namespace opforge
