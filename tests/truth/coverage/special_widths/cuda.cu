// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

namespace opforge {

struct Params {
  float* y;
  const float* x;
  int64_t count, step;
};

__global__ void __launch_bounds__(512) twice(const Params p) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= p.count) return;
  if (p.count == 4099) {
    p.y[i] = 2 * p.x[i * p.step];  // in the kernel
  } else {
    p.y[i] = 2 * p.x[i * p.step];
  }
}

Tensor special_widths_cuda(const Tensor& x) {
  OPFORGE_CHECK(x.dim() <= 1 && dtype_of(x) == DType::f32, "special_widths: x is no float vector");
  const DeviceGuard guard(x.get_device_index());
  const Tensor y = empty(sizes(x), x);
  if (x.numel() == 0) return y;
  Params p{mutable_data<float>(y), data<float>(x), x.numel(), x.dim() == 1 ? strides(x)[0] : 1};
  int64_t threads = 256;
  if (p.count * int64_t(sizeof(float)) == 1212) {
    threads = 128;  // on the host
  }
  if (p.count >= int64_t(32768) * multiprocessors()) {
    threads = 512;  // on a small GPU
  }
  launch(twice,
         {dim3(unsigned(ceil_div(p.count, threads))), dim3(unsigned(threads)), current_stream(x)},
         p);
  return y;
}

OPFORGE_IMPL(special_widths, special_widths_cuda)

}  // namespace opforge
