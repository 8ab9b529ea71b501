// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor twice_cuda(const Tensor& x) {
  OPFORGE_CHECK(x.is_contiguous() && dtype_of(x) == DType::f32, "x must be contiguous float32");
  OPFORGE_CHECK(x.numel() % 4 == 0, "x must be whole vectors");
  const DeviceGuard guard(x.get_device_index());
  const Tensor y = empty(sizes(x), x);
  launch(twice,
         {dim3(unsigned((x.numel() + kTile - 1) / kTile)), dim3(kThreads), current_stream(x)},
         data<float>(x), mutable_data<float>(y), int(x.numel()));
  return y;
}

OPFORGE_IMPL(twice, twice_cuda)

}  // namespace opforge
