// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor int_size_on_gpu_cuda(const Tensor& x) {
  const DeviceGuard guard(x.get_device_index());
  const Tensor in = contiguous(x);
  const Tensor y = empty(sizes(x), x);
  const int n = x.numel();  // wrong: a tensor may have more than 2^31 elements
  if (n == 0) return y;
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    launch(twice<T>, {dim3(unsigned(ceil_div(n, kThreads))), dim3(kThreads), current_stream(x)},
           data<T>(in), mutable_data<T>(y), n);
  });
  return y;
}

OPFORGE_IMPL(int_size_on_gpu, int_size_on_gpu_cuda)

}  // namespace opforge
