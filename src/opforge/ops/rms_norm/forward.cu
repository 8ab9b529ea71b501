// SPDX-License-Identifier: Apache-2.0
#include <opforge/families/norm/cuda_host.h>

#include "host.h"
#include "kernel.cuh"

namespace opforge {

std::tuple<Tensor, Tensor, Tensor> rms_norm_cuda(const Tensor& x,
                                                 const std::optional<Tensor>& weight,
                                                 const std::optional<Tensor>& residual,
                                                 const std::optional<Tensor>& seed, double eps,
                                                 double offset, int64_t before, int64_t after,
                                                 double p, bool save) {
  const NormArguments given = rms_norm_arguments(weight, seed, eps, offset, before, after, p);
  const NormResult out = norm_forward_cuda<false>(given, x, residual, save);
  return {out.y, out.h, out.rstd};
}

OPFORGE_IMPL(rms_norm, rms_norm_cuda)

}  // namespace opforge
