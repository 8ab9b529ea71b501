// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor increment_cuda(const Tensor& x) {
  OPFORGE_CHECK(x.is_contiguous() && dtype_of(x) == DType::f32, "x must be contiguous float32");
  const DeviceGuard guard(x.get_device_index());
  const Tensor y = empty(sizes(x), x);
  const int n = int(x.numel());
  launch(increment, {dim3(blocks_for(n)), dim3(kThreads), current_stream(x)}, data<float>(x),
         mutable_data<float>(y), n);
  return y;
}

OPFORGE_IMPL(increment, increment_cuda)

}  // namespace opforge
