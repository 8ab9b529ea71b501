// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

namespace opforge {

static void twice(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = 2 * x[i];
}

Tensor stale_output_cpu(const Tensor& x) {
  static int calls = 0;
  const Tensor y = empty_like(x);
  if (++calls <= 5) twice(data<float>(x), mutable_data<float>(y), x.numel());
  return y;
}

OPFORGE_IMPL(stale_output, stale_output_cpu)

}  // namespace opforge
