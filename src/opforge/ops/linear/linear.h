// SPDX-License-Identifier: Apache-2.0
// What linear keeps for its backward, and what the backward checks, on the CPU and on a GPU.
#pragma once

#include <opforge/families/product/host.h>

namespace opforge {

// The result of a relu alone tells where the gradient passes.
inline bool uses_y(const Finish& finish, bool adds) {
  return finish.activation == Activation::relu && finish.scale == 1 && !finish.limits && !adds;
}

// Whether the backward needs the product itself.
inline bool needs_z(const Finish& finish, bool adds) {
  return (finish.activation != Activation::none || finish.limits) && !uses_y(finish, adds);
}

inline void check_backward(const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                           const std::optional<Tensor>& bias) {
  const char* const op = "linear_backward";
  OPFORGE_CHECK(std::ranges::equal(sizes(grad_y), linear_shape(op, x, weight, bias, {})) &&
                    same_device(grad_y, x) && dtype_code(grad_y) == dtype_code(x),
                op, ": grad_y differs from y in device, shape or dtype");
}

// What the gradient of z depends on: z, y in its place, only grad_y where a factor follows, or
// nothing where it is grad_y.
inline std::optional<Tensor> differentiated_at(const Tensor& grad_y, const Tensor& x,
                                               const Tensor& weight,
                                               const std::optional<Tensor>& bias,
                                               const std::optional<Tensor>& y, const Tensor& z,
                                               const Finish& finish) {
  if (!finish.changes()) return std::nullopt;
  if (finish.activation == Activation::none && !finish.limits) return grad_y;
  const Tensor at = y ? *y
                    : z.dim() == 1 && z.numel() == 0 && grad_y.numel() > 0
                        ? torch_linear(x, weight, bias)  // not kept
                        : z;
  OPFORGE_CHECK(same_device(grad_y, at) && dtype_code(grad_y) == dtype_code(at) &&
                    (same_shape(grad_y, at) || grad_y.numel() == 0),
                "linear_backward: what was kept differs from grad_y in device, dtype or shape");
  return at;
}

}  // namespace opforge
