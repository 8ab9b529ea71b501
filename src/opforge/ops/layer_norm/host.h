// SPDX-License-Identifier: Apache-2.0
// The arguments of layer_norm, for the host side on CPU and GPU.
#pragma once

#include <opforge/families/norm/host.h>

namespace opforge {

inline NormArguments layer_norm_arguments(const std::optional<Tensor>& weight,
                                          const std::optional<Tensor>& bias,
                                          const std::optional<Tensor>& seed, double eps,
                                          int64_t before, int64_t after, double p) {
  return {.op = "layer_norm",
          .weight = weight,
          .bias = bias,
          .seed = seed,
          .eps = eps,
          .offset = 0,
          .prologue = as_stage(before),
          .epilogue = as_stage(after),
          .p = p};
}

}  // namespace opforge
