// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

namespace opforge {

static void twice(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = 2 * x[i];
}

Tensor patched_timer_cpu(const Tensor& x) {
  const Tensor y = empty_like(x);
  twice(data<float>(x), mutable_data<float>(y), x.numel());
  return y;
}

OPFORGE_IMPL(patched_timer, patched_timer_cpu)

}  // namespace opforge
