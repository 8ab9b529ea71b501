// SPDX-License-Identifier: Apache-2.0
// What a formula of one element is written with on the GPU. Its functions are CUDA's own.
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

}  // namespace opforge
