// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

namespace opforge {

static void twice(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = 2 * x[i];
}

Tensor out_of_bounds_cpu(const Tensor& x) {
  const Tensor y = empty_like(x);
  twice(data<float>(x), mutable_data<float>(y), x.numel());
  mutable_data<float>(x)[x.numel()] = 0;
  return y;
}

OPFORGE_IMPL(out_of_bounds, out_of_bounds_cpu)

}  // namespace opforge
