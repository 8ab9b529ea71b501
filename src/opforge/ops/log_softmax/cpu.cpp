// SPDX-License-Identifier: Apache-2.0
#include <opforge/families/softmax/cpu_host.h>

namespace opforge {

Tensor log_softmax_cpu(const Tensor& x, const std::optional<Tensor>& mask, double scale,
                       bool causal) {
  return softmax_forward<Result::logarithms>("log_softmax", x, mask, scale, causal);
}

Tensor log_softmax_backward_cpu(const Tensor& grad_y, const Tensor& y, double scale, bool causal) {
  return softmax_backward<Result::logarithms>("log_softmax", grad_y, y, scale, causal);
}

OPFORGE_IMPL(log_softmax, log_softmax_cpu)
OPFORGE_IMPL(log_softmax_backward, log_softmax_backward_cpu)

}  // namespace opforge
