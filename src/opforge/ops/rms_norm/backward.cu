// SPDX-License-Identifier: Apache-2.0
#include <opforge/families/norm/cuda_backward_host.h>

#include "host.h"
#include "kernel.cuh"

namespace opforge {

std::tuple<Tensor, Tensor, Tensor> rms_norm_backward_cuda(
    const Tensor& grad_y, const std::optional<Tensor>& grad_h, const std::optional<Tensor>& x,
    const std::optional<Tensor>& weight, const std::optional<std::vector<int64_t>>& residual_shape,
    const Tensor& h, const Tensor& rstd, const std::optional<Tensor>& seed, double eps,
    double offset, int64_t before, int64_t after, double p) {
  const NormArguments given = rms_norm_arguments(weight, seed, eps, offset, before, after, p);
  const NormGradients out = norm_backward_cuda<false>(
      given, grad_y, grad_h, {x, residual_shape.has_value(), h, rstd, rstd});
  return {out.x, out.weight, out.residual};
}

OPFORGE_IMPL(rms_norm_backward, rms_norm_backward_cuda)

}  // namespace opforge
