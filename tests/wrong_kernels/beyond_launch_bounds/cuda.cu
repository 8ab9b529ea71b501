// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor doubled_cuda(const Tensor& x) {
  OPFORGE_CHECK(x.is_contiguous(), "x must be contiguous");
  const DeviceGuard guard(x.get_device_index());
  const Tensor y = empty(sizes(x), x);
  const int n = int(x.numel());
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    launch(doubled<T>, {dim3((n + kThreads - 1) / kThreads), dim3(kThreads), current_stream(x)},
           data<T>(x), mutable_data<T>(y), n);
  });
  return y;
}

OPFORGE_IMPL(doubled, doubled_cuda)

}  // namespace opforge
