// SPDX-License-Identifier: Apache-2.0
#include <opforge/cpu/elementwise.h>
#include <opforge/host.h>

namespace opforge {

Tensor relu_cpu(const Tensor& x) {
  const Tensor y = empty_like(x);
  over_elements(
      y,
      [](const Layout<2>& layout, const Tensor& y, const Tensor& x) {
        dispatch(dtype_of(x), [&]<class T>(Type<T>) {
          elementwise(layout, mutable_data<T>(y), {data<T>(x)}, [](auto v) { return rectify(v); });
        });
      },
      x);
  return y;
}

Tensor relu_backward_cpu(const Tensor& grad_y, const Tensor& y) {
  OPFORGE_CHECK(same_shape(grad_y, y) && dtype_code(grad_y) == dtype_code(y),
                "relu_backward: grad_y and y differ in shape or dtype");
  const Tensor grad_x = empty_like(y);
  over_elements(
      grad_x,
      [](const Layout<3>& layout, const Tensor& out, const Tensor& grad, const Tensor& y) {
        dispatch(dtype_of(y), [&]<class T>(Type<T>) {
          elementwise(layout, mutable_data<T>(out), {data<T>(grad), data<T>(y)},
                      [](auto grad, auto y) { return rectify_gradient(grad, y); });
        });
      },
      grad_y, y);
  return grad_x;
}

OPFORGE_IMPL(relu, relu_cpu)
OPFORGE_IMPL(relu_backward, relu_backward_cpu)

}  // namespace opforge
