// SPDX-License-Identifier: Apache-2.0
// What bias_dropout_residual refuses, on the CPU and on a GPU.
#pragma once

#include <opforge/families/dropout/host.h>

#include <optional>

namespace opforge {

inline void check_forward(const Tensor& x, const std::optional<Tensor>& bias,
                          const Tensor& residual, const Tensor& seed, double p) {
  OPFORGE_CHECK(x.dim() >= 1 && same_device(x, residual) && same_shape(x, residual) &&
                    dtype_code(x) == dtype_code(residual),
                "bias_dropout_residual: x and residual differ in device, shape or dtype");
  OPFORGE_CHECK(!bias || (same_device(x, *bias) && dtype_code(x) == dtype_code(*bias) &&
                          bias->dim() == 1 && bias->size(0) == x.size(x.dim() - 1)),
                "bias_dropout_residual: bias must hold one value per column of x");
  OPFORGE_CHECK(same_device(x, seed), "bias_dropout_residual: seed is not where x is");
  check_dropout("bias_dropout_residual", seed, p);
}

inline void check_backward(const Tensor& grad_y, const Tensor& seed, double p) {
  OPFORGE_CHECK(grad_y.dim() >= 1 && same_device(grad_y, seed),
                "bias_dropout_residual_backward: grad_y is a scalar or not where the seed is");
  check_dropout("bias_dropout_residual_backward", seed, p);
}

}  // namespace opforge
