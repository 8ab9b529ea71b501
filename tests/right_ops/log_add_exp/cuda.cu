// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor log_add_exp_cuda(const Tensor& a, const Tensor& b) {
  OPFORGE_CHECK(dtype_of(a) == DType::f64 && dtype_of(b) == DType::f64,
                "log_add_exp: a and b are float64");
  OPFORGE_CHECK(same_shape(a, b) && same_device(a, b),
                "log_add_exp: a and b differ in shape or device");
  const DeviceGuard guard(a.get_device_index());
  const Tensor y = empty(sizes(a), a);
  over_elements(
      y,
      [](const Layout<3>& layout, const Tensor& y, const Tensor& a, const Tensor& b) {
        elementwise<double, 2>(layout, mutable_data<double>(y), {data<double>(a), data<double>(b)},
                               LogAddExp{}, current_stream(a));
      },
      a, b);
  return y;
}

OPFORGE_IMPL(log_add_exp, log_add_exp_cuda)

}  // namespace opforge
