// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <opforge/algorithms/elementwise.cuh>

namespace opforge {

struct LogAddExp {
  __device__ double operator()(double a, double b) const {
    if (a != a || b != b) return a + b;
    const double larger = a > b ? a : b, smaller = a > b ? b : a;
    return larger == smaller ? larger + log1p(1.0) : larger + log1p(exp(smaller - larger));
  }
};

}  // namespace opforge
