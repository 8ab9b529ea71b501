// SPDX-License-Identifier: Apache-2.0
// The product is torch's (oneDNN). What follows it is a pass for the gradient and its sums, and one
// for h.
#include <opforge/families/product/cpu_finish_host.h>
#include <opforge/families/product/cpu_gate_host.h>

#include "linear_dact.h"

namespace opforge {

std::tuple<Tensor, Tensor, Tensor> linear_dact_cpu(const Tensor& grad,
                                                   const std::optional<Tensor>& weight,
                                                   const Tensor& z, int64_t activation, bool gated,
                                                   bool, bool with_h, bool with_sums) {
  check_dact(grad, weight, z, gated);
  const Finish finish = finish_of(activation, 1, {}, {});
  const Tensor grad_h = weight ? torch_matmul(grad, *weight) : grad;
  const auto none = [&] { return no_tensor(grad); };
  if (!gated) {
    const auto [passed, sums] = finish_backward(grad_h, z, finish);
    return {passed, with_h ? finish_elements(z, {}, finish) : none(), with_sums ? sums : none()};
  }
  const Tensor passed = gate_backward("linear_dact", grad_h, z, finish.activation);
  return {passed, with_h ? gate_elements("linear_dact", z, {}, finish.activation) : none(),
          with_sums ? std::get<1>(finish_backward(passed, {}, {})) : none()};
}

OPFORGE_IMPL(linear_dact, linear_dact_cpu)

}  // namespace opforge
