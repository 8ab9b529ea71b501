// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor relu_cuda(const Tensor& x) {
  const DeviceGuard guard(x.get_device_index());
  const Tensor y = empty_like(x);
  over_elements(
      y,
      [&](const Layout<2>& layout, const Tensor& y, const Tensor& x) {
        dispatch(dtype_of(x), [&]<class T>(Type<T>) {
          elementwise<T, 1>(layout, mutable_data<T>(y), {data<T>(x)}, Relu{}, current_stream(x));
        });
      },
      x);
  return y;
}

Tensor relu_backward_cuda(const Tensor& grad_y, const Tensor& y) {
  OPFORGE_CHECK(
      same_device(grad_y, y) && same_shape(grad_y, y) && dtype_code(grad_y) == dtype_code(y),
      "relu_backward: grad_y and y differ in device, shape or dtype");
  const DeviceGuard guard(y.get_device_index());
  const Tensor grad_x = empty_like(y);
  over_elements(
      grad_x,
      [&](const Layout<3>& layout, const Tensor& out, const Tensor& grad, const Tensor& y) {
        dispatch(dtype_of(y), [&]<class T>(Type<T>) {
          elementwise<T, 2>(layout, mutable_data<T>(out), {data<T>(grad), data<T>(y)},
                            ReluBackward{}, current_stream(y));
        });
      },
      grad_y, y);
  return grad_x;
}

OPFORGE_IMPL(relu, relu_cuda)
OPFORGE_IMPL(relu_backward, relu_backward_cuda)

}  // namespace opforge
