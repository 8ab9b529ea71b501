// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor histogram_cuda(const Tensor& x) {
  OPFORGE_CHECK(x.is_contiguous() && dtype_of(x) == DType::f32, "x must be contiguous float32");
  const DeviceGuard guard(x.get_device_index());
  const int64_t bins = kBins;
  const Tensor y = empty({&bins, 1}, x);
  launch(histogram, {dim3(1), dim3(kThreads), current_stream(x)}, data<float>(x),
         mutable_data<float>(y), int(x.numel()));
  return y;
}

OPFORGE_IMPL(histogram, histogram_cuda)

}  // namespace opforge
