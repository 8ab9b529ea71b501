// SPDX-License-Identifier: Apache-2.0
#include <opforge/families/norm/cuda_backward_host.h>

#include "host.h"
#include "kernel.cuh"

namespace opforge {

std::tuple<Tensor, Tensor, Tensor, Tensor> layer_norm_backward_cuda(
    const Tensor& grad_y, const std::optional<Tensor>& grad_h, const std::optional<Tensor>& x,
    const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
    const std::optional<std::vector<int64_t>>& residual_shape, const Tensor& h, const Tensor& mean,
    const Tensor& rstd, const std::optional<Tensor>& seed, double eps, int64_t before,
    int64_t after, double p) {
  const NormArguments given = layer_norm_arguments(weight, bias, seed, eps, before, after, p);
  const NormGradients out = norm_backward_cuda<true>(
      given, grad_y, grad_h, {x, residual_shape.has_value(), h, mean, rstd});
  return {out.x, out.weight, out.bias, out.residual};
}

OPFORGE_IMPL(layer_norm_backward, layer_norm_backward_cuda)

}  // namespace opforge
