// SPDX-License-Identifier: Apache-2.0
// What linear_dact checks on the CPU and on a GPU.
#pragma once

#include <opforge/families/product/host.h>

namespace opforge {

// The number of activated values in a row: what `weight` multiplies.
inline int64_t check_dact(const Tensor& grad, const std::optional<Tensor>& weight, const Tensor& z,
                          bool gated) {
  const char* const op = "linear_dact";
  OPFORGE_CHECK(grad.dim() >= 1 && z.dim() == grad.dim(), op,
                ": grad and z must have the same number of dims, at least one");
  OPFORGE_CHECK(same_device(grad, z) && dtype_code(grad) == dtype_code(z), op,
                ": grad and z differ in device or dtype");
  const int64_t last = grad.dim() - 1;
  int64_t features = grad.size(last);
  if (weight) {
    OPFORGE_CHECK(weight->dim() == 2 && weight->size(0) == features, op,
                  ": weight must be (outputs, features), and grad (..., outputs)");
    OPFORGE_CHECK(same_device(grad, *weight) && dtype_code(grad) == dtype_code(*weight), op,
                  ": grad and weight differ in device or dtype");
    features = weight->size(1);
  }
  OPFORGE_CHECK(std::ranges::equal(sizes(grad).first(size_t(last)), sizes(z).first(size_t(last))) &&
                    z.size(last) == (gated ? 2 : 1) * features,
                op, ": z must have the rows of grad and the columns of weight, twice if gated");
  return features;
}

}  // namespace opforge
