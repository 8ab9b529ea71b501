// SPDX-License-Identifier: Apache-2.0
// The products are torch's (oneDNN). What follows them is one pass.
#include <opforge/families/product/cpu_gate_host.h>

#include "gated_linear.h"

namespace opforge {

std::tuple<Tensor, Tensor> gated_linear_cpu(const Tensor& x, const Tensor& gate_weight,
                                            const std::optional<Tensor>& up_weight,
                                            const std::optional<Tensor>& gate_bias,
                                            const std::optional<Tensor>& up_bias,
                                            int64_t activation, bool, bool save) {
  const Activation act = finish_of(activation, 1, {}, {}).activation;
  gated_linear_shape(x, gate_weight, up_weight, gate_bias, up_bias);
  const Tensor gate = torch_linear(x, gate_weight, gate_bias);
  std::optional<Tensor> up;
  if (up_weight) up = torch_linear(x, *up_weight, up_bias);
  const Tensor y = gate_elements("gated_linear", gate, up, act);
  return {y, !save ? no_tensor(x) : up ? beside(gate, *up) : gate};
}

OPFORGE_IMPL(gated_linear, gated_linear_cpu)

}  // namespace opforge
