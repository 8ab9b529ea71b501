// SPDX-License-Identifier: Apache-2.0
// What the host sides of stencil2d share on CPU and GPU: checks, new tensors.
#pragma once

#include <opforge/host.h>

#include "pixels.h"

namespace opforge {

// The boundary of an op whose arguments are right.
inline Boundary checked(const Tensor& x, const Tensor& weight, int64_t boundary) {
  OPFORGE_CHECK(same_device(x, weight), "stencil2d: x and weight are on different devices");
  OPFORGE_CHECK(x.dim() >= 2, "stencil2d: x must have at least two dims");
  OPFORGE_CHECK(weight.dim() == 1 && (weight.size(0) == 5 || weight.size(0) == 9),
                "stencil2d: weight must have 5 or 9 values");
  OPFORGE_CHECK(dtype_code(weight) == dtype_code(x) || dtype_of(weight) == DType::f32,
                "stencil2d: weight must have the dtype of x, or float32");
  OPFORGE_CHECK(boundary >= 0 && boundary <= int64_t(Boundary::periodic), "stencil2d: boundary ",
                boundary, " is unknown");
  const Boundary kind = Boundary(boundary);
  OPFORGE_CHECK(kind != Boundary::reflect || (x.size(x.dim() - 2) > 1 && x.size(x.dim() - 1) > 1),
                "stencil2d: boundary 'reflect' needs two rows and two columns of x");
  return kind;
}

struct StencilGradients {
  Tensor x, weight;  // empty where not needed
};

inline StencilGradients allocate_gradients(const Tensor& grad_y, const Tensor& x,
                                           const Tensor& weight, bool needs_x, bool needs_weight) {
  OPFORGE_CHECK(
      same_device(grad_y, x) && same_shape(grad_y, x) && dtype_code(grad_y) == dtype_code(x),
      "stencil2d_backward: grad_y and x differ in device, shape or dtype");
  const int64_t none = 0;
  const StencilGradients out{
      needs_x ? empty(sizes(x), x) : empty({&none, 1}, x),
      needs_weight ? empty(sizes(weight), weight) : empty({&none, 1}, weight)};
  if (x.numel() == 0) fill_zero(out.weight);
  return out;
}

}  // namespace opforge
