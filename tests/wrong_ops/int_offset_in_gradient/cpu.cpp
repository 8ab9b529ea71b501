// SPDX-License-Identifier: Apache-2.0
#include <opforge/cpu/elementwise.h>
#include <opforge/host.h>

namespace opforge {

Tensor int_offset_in_gradient_cpu(const Tensor& x, double scale) {
  const Tensor y = empty(sizes(x), x);
  over_elements(
      y,
      [&](const Layout<2>& layout, const Tensor& y, const Tensor& x) {
        dispatch(dtype_of(x), [&]<class T>(Type<T>) {
          Walk<2> at(layout, 0);
          for (int64_t i = 0; i < layout.count(); ++i, at.next()) {
            const auto v = widen(data<T>(x)[at.offset[1]]);
            mutable_data<T>(y)[at.offset[0]] = narrow<T>(v * compute_t<T>(scale));
          }
        });
      },
      x);
  return y;
}

Tensor int_offset_in_gradient_backward_cpu(const Tensor& grad_y, double scale) {
  const Tensor grad_x = empty(sizes(grad_y), grad_y);
  over_elements(
      grad_x,
      [&](const Layout<2>& layout, const Tensor& out, const Tensor& grad) {
        dispatch(dtype_of(grad), [&]<class T>(Type<T>) {
          Walk<2> at(layout, 0);
          for (int64_t i = 0; i < layout.count(); ++i, at.next()) {
            const int offset = int(at.offset[1]);  // wrong: 64 bits are needed
            const auto v = widen(data<T>(grad)[offset]);
            mutable_data<T>(out)[at.offset[0]] = narrow<T>(v * compute_t<T>(scale));
          }
        });
      },
      grad_y);
  return grad_x;
}

OPFORGE_IMPL(int_offset_in_gradient, int_offset_in_gradient_cpu)
OPFORGE_IMPL(int_offset_in_gradient_backward, int_offset_in_gradient_backward_cpu)

}  // namespace opforge
