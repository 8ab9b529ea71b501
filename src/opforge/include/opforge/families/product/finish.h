// SPDX-License-Identifier: Apache-2.0
// What follows a product: an activation, a factor, limits. The same numbers on the host and in
// kernels. Includes no torch header.
#pragma once

#include <opforge/core/types.h>

namespace opforge {

// In the order of ACTIVATIONS in opforge/ops/families/products.py.
enum class Activation : int { none, relu, gelu, gelu_tanh, silu, sigmoid };

// min(max(scale act(z), low), high)
struct Finish {
  Activation activation = Activation::none;
  double scale = 1, low = 0, high = 0;
  bool limits = false;

  bool changes() const { return activation != Activation::none || scale != 1 || limits; }

  // What happens to the value of the activation. NaN stays.
  template <class A>
  OPFORGE_HOST_DEVICE A after(A value) const {
    A y = value * A(scale);
    if (limits) {
      y = y < A(low) ? A(low) : y;
      y = y > A(high) ? A(high) : y;
    }
    return y;
  }

  // Whether the gradient passes at a value of the activation.
  template <class A>
  OPFORGE_HOST_DEVICE bool passes(A value) const {
    const A y = value * A(scale);
    return !limits || !(y < A(low) || y > A(high));
  }
};

}  // namespace opforge
