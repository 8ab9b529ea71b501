// SPDX-License-Identifier: Apache-2.0
// What a formula of one element is written with on the GPU. Its functions are CUDA's own, and
// these.
#pragma once

#include <math.h>  // in the simulator, whose compiler has no others, also those of float
#include <opforge/core/launch.h>

#define OPFORGE_FORMULA __device__ __forceinline__

namespace opforge {

// A number in the type that the formula is computed in.
template <class real>
OPFORGE_FORMULA real number(double value) {
  return real(value);
}

// The larger and the smaller of two numbers; NaN if one of them is.
template <class real>
OPFORGE_FORMULA real larger(real a, real b) {
  return a > b || a != a ? a : b;
}
template <class real>
OPFORGE_FORMULA real smaller(real a, real b) {
  return a < b || a != a ? a : b;
}

// 1 / (1 + e^-x), by way of e^-|x|, which cannot overflow.
template <class real>
OPFORGE_FORMULA real sigmoid(real x) {
  const real e = exp(-fabs(x));
  return (x < real(0) ? e : real(1)) / (e + real(1));
}

// -1, 0 or 1; 0 for NaN.
template <class real>
OPFORGE_FORMULA real sign(real x) {
  return x > real(0) ? real(1) : x < real(0) ? real(-1) : real(0);
}

}  // namespace opforge
