// SPDX-License-Identifier: Apache-2.0
#include <opforge/families/norm/cuda_host.h>

#include "host.h"
#include "kernel.cuh"

namespace opforge {

std::tuple<Tensor, Tensor, Tensor, Tensor> layer_norm_cuda(
    const Tensor& x, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
    const std::optional<Tensor>& residual, const std::optional<Tensor>& seed, double eps,
    int64_t before, int64_t after, double p, bool save) {
  const NormArguments given = layer_norm_arguments(weight, bias, seed, eps, before, after, p);
  const NormResult out = norm_forward_cuda<true>(given, x, residual, save);
  return {out.y, out.h, out.mean, out.rstd};
}

OPFORGE_IMPL(layer_norm, layer_norm_cuda)

}  // namespace opforge
