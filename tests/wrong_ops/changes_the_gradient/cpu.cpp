// SPDX-License-Identifier: Apache-2.0
#include <opforge/cpu/elementwise.h>
#include <opforge/host.h>

namespace opforge {

Tensor changes_the_gradient_cpu(const Tensor& x, double scale) {
  const Tensor y = empty(sizes(x), x);
  over_elements(
      y,
      [&](const Layout<2>& layout, const Tensor& y, const Tensor& x) {
        dispatch(dtype_of(x), [&]<class T>(Type<T>) {
          Walk<2> at(layout, 0);
          for (int64_t i = 0; i < layout.count(); ++i, at.next()) {
            const auto v = widen(data<T>(x)[at.offset[1]]);
            mutable_data<T>(y)[at.offset[0]] = narrow<T>((v < 0 ? 0 : v) * compute_t<T>(scale));
          }
        });
      },
      x);
  return y;
}

Tensor changes_the_gradient_backward_cpu(const Tensor& grad_y, const Tensor& x, double scale) {
  OPFORGE_CHECK(same_shape(grad_y, x) && dtype_code(grad_y) == dtype_code(x),
                "changes_the_gradient_backward: grad_y and x differ in shape or dtype");
  const Tensor grad = contiguous(grad_y);  // a copy of an expanded one, at least
  const Tensor grad_x = empty(sizes(x), x);
  over_elements(
      grad_x,
      [&](const Layout<3>& layout, const Tensor& out, const Tensor& grad, const Tensor& x) {
        dispatch(dtype_of(x), [&]<class T>(Type<T>) {
          Walk<3> at(layout, 0);
          for (int64_t i = 0; i < layout.count(); ++i, at.next()) {
            T& passed = mutable_data<T>(grad)[at.offset[1]];
            // Wrong: a contiguous grad_y is autograd's, not ours.
            if (widen(data<T>(x)[at.offset[2]]) <= 0) passed = narrow<T>(compute_t<T>(0));
            mutable_data<T>(out)[at.offset[0]] = narrow<T>(widen(passed) * compute_t<T>(scale));
          }
        });
      },
      grad, x);
  return grad_x;
}

OPFORGE_IMPL(changes_the_gradient, changes_the_gradient_cpu)
OPFORGE_IMPL(changes_the_gradient_backward, changes_the_gradient_backward_cpu)

}  // namespace opforge
