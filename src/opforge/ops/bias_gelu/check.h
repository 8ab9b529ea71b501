// SPDX-License-Identifier: Apache-2.0
// What bias_gelu refuses, on the CPU and on a GPU.
#pragma once

#include <opforge/host.h>

namespace opforge {

inline void check_bias(const char* op, const Tensor& x, const Tensor& bias) {
  OPFORGE_CHECK(same_device(x, bias), op, ": x and bias are on different devices");
  OPFORGE_CHECK(dtype_code(x) == dtype_code(bias), op, ": x and bias differ in dtype");
  OPFORGE_CHECK(x.dim() >= 1 && bias.dim() == 1 && bias.size(0) == x.size(x.dim() - 1), op,
                ": bias must hold one value per column of x");
}

inline void check_backward(const Tensor& grad_y, const Tensor& x, const Tensor& bias) {
  check_bias("bias_gelu_backward", x, bias);
  OPFORGE_CHECK(
      same_device(grad_y, x) && same_shape(grad_y, x) && dtype_code(grad_y) == dtype_code(x),
      "bias_gelu_backward: grad_y and x differ in device, shape or dtype");
}

}  // namespace opforge
