// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor reverse_tiles_cuda(const Tensor& x) {
  OPFORGE_CHECK(x.is_contiguous() && dtype_of(x) == DType::f32, "x must be contiguous float32");
  const DeviceGuard guard(x.get_device_index());
  const Tensor y = empty(sizes(x), x);
  launch(reverse_tiles, {dim3(2), dim3(kThreads), current_stream(x)}, data<float>(x),
         mutable_data<float>(y), int(x.numel()));
  return y;
}

OPFORGE_IMPL(reverse_tiles, reverse_tiles_cuda)

}  // namespace opforge
