// SPDX-License-Identifier: Apache-2.0
// What scale_bias_relu refuses, on the CPU and on a GPU.
#pragma once

#include <opforge/host.h>

namespace opforge {

inline void check_forward(const Tensor& x, const Tensor& bias) {
  OPFORGE_CHECK(same_device(x, bias), "scale_bias_relu: x and bias are on different devices");
  OPFORGE_CHECK(dtype_code(x) == dtype_code(bias), "scale_bias_relu: x and bias differ in dtype");
  OPFORGE_CHECK(x.dim() >= 1 && bias.dim() == 1 && bias.size(0) == x.size(x.dim() - 1),
                "scale_bias_relu: bias must hold one value per column of x");
}

inline void check_backward(const Tensor& grad_y, const Tensor& y) {
  OPFORGE_CHECK(y.dim() >= 1 && same_device(grad_y, y) && same_shape(grad_y, y) &&
                    dtype_code(grad_y) == dtype_code(y),
                "scale_bias_relu_backward: grad_y and y differ in device, shape or dtype");
}

}  // namespace opforge
