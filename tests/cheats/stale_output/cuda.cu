// SPDX-License-Identifier: Apache-2.0
#include <opforge/core/launch.h>
#include <opforge/host.h>

namespace opforge {

__global__ void twice(const float* x, float* y, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}

static void run(const Tensor& x, const Tensor& y, cudaStream_t stream) {
  const int64_t n = x.numel();
  launch(twice, {dim3(unsigned((n + 255) / 256)), dim3(256), stream}, data<float>(x),
         mutable_data<float>(y), n);
}

Tensor stale_output_cuda(const Tensor& x) {
  const DeviceGuard guard(x.get_device_index());
  static int calls = 0;
  const Tensor y = empty_like(x);
  if (++calls <= 5) run(x, y, current_stream(x));
  return y;
}

OPFORGE_IMPL(stale_output, stale_output_cuda)

}  // namespace opforge
