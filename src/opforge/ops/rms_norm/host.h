// SPDX-License-Identifier: Apache-2.0
// The arguments of rms_norm, for the host side on CPU and GPU.
#pragma once

#include <opforge/families/norm/host.h>

namespace opforge {

inline NormArguments rms_norm_arguments(const std::optional<Tensor>& weight,
                                        const std::optional<Tensor>& seed, double eps,
                                        double offset, int64_t before, int64_t after, double p) {
  return {.op = "rms_norm",
          .weight = weight,
          .bias = std::nullopt,
          .seed = seed,
          .eps = eps,
          .offset = offset,
          .prologue = as_stage(before),
          .epilogue = as_stage(after),
          .p = p};
}

}  // namespace opforge
