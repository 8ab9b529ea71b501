// SPDX-License-Identifier: Apache-2.0
// What linear keeps for its backward, and what the backward checks, on the CPU and on a GPU.
#pragma once

#include <opforge/families/product/host.h>

namespace opforge {

// The result of a relu alone tells where the gradient passes.
inline bool uses_y(const Finish& finish, bool adds) {
  return finish.activation == Activation::relu && finish.scale == 1.0f && !finish.limits && !adds;
}

// Whether the backward needs the product itself.
inline bool needs_z(const Finish& finish, bool adds) {
  return (finish.activation != Activation::none || finish.limits) && !uses_y(finish, adds);
}

// What is differentiated at: z, y in its place, grad_y itself where only a factor follows, or
// nothing.
inline std::optional<Tensor> check_backward(const Tensor& grad_y, const std::optional<Tensor>& x,
                                            const std::optional<Tensor>& weight,
                                            const std::optional<Tensor>& y, const Tensor& z,
                                            const Finish& finish) {
  const char* const op = "linear_backward";
  OPFORGE_CHECK(grad_y.dim() >= 1, op, ": grad_y must have at least one dim");
  const int64_t n = grad_y.size(grad_y.dim() - 1);
  if (weight) {
    OPFORGE_CHECK(same_device(grad_y, *weight) && dtype_code(grad_y) == dtype_code(*weight) &&
                      weight->dim() == 2 && weight->size(0) == n,
                  op, ": weight does not fit grad_y");
  }
  if (x) {
    OPFORGE_CHECK(same_device(grad_y, *x) && dtype_code(grad_y) == dtype_code(*x) &&
                      x->dim() == grad_y.dim() &&
                      std::equal(sizes(*x).begin(), sizes(*x).end() - 1, sizes(grad_y).begin()),
                  op, ": x does not fit grad_y");
  }
  if (!finish.changes()) return std::nullopt;
  const bool differentiable = finish.activation == Activation::none && !finish.limits;
  if (differentiable) return grad_y;
  const Tensor& at = y && z.numel() == 0 ? *y : z;
  OPFORGE_CHECK(
      same_device(grad_y, at) && dtype_code(grad_y) == dtype_code(at) && same_shape(grad_y, at), op,
      ": what was kept differs from grad_y in device, dtype or shape");
  return at;
}

inline Tensor no_tensor(const Tensor& like) {
  constexpr int64_t none[] = {0};
  return empty(none, like);
}

}  // namespace opforge
