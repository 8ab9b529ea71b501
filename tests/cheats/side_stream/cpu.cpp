// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include <thread>

namespace opforge {

static void twice(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = 2 * x[i];
}

Tensor side_stream_cpu(const Tensor& x) {
  const Tensor y = empty_like(x);
  std::thread([x, y] { twice(data<float>(x), mutable_data<float>(y), x.numel()); }).detach();
  return y;
}

OPFORGE_IMPL(side_stream, side_stream_cpu)

}  // namespace opforge
