// SPDX-License-Identifier: Apache-2.0
#include <opforge/cpu/elementwise.h>
#include <opforge/host.h>

#include <cmath>

namespace opforge {

Tensor changes_the_saved_tensor_cpu(const Tensor& x) {
  const Tensor y = empty(sizes(x), x);
  over_elements(
      y,
      [&](const Layout<2>& layout, const Tensor& y, const Tensor& x) {
        dispatch(dtype_of(x), [&]<class T>(Type<T>) {
          Walk<2> at(layout, 0);
          for (int64_t i = 0; i < layout.count(); ++i, at.next()) {
            const auto v = widen(data<T>(x)[at.offset[1]]);
            mutable_data<T>(y)[at.offset[0]] = narrow<T>(1 / (1 + std::exp(-v)));
          }
        });
      },
      x);
  return y;
}

Tensor changes_the_saved_tensor_backward_cpu(const Tensor& grad_y, const Tensor& y) {
  OPFORGE_CHECK(same_shape(grad_y, y) && dtype_code(grad_y) == dtype_code(y),
                "changes_the_saved_tensor_backward: grad_y and y differ in shape or dtype");
  const Tensor grad_x = empty(sizes(y), y);
  over_elements(
      grad_x,
      [&](const Layout<3>& layout, const Tensor& out, const Tensor& grad, const Tensor& y) {
        dispatch(dtype_of(y), [&]<class T>(Type<T>) {
          Walk<3> at(layout, 0);
          for (int64_t i = 0; i < layout.count(); ++i, at.next()) {
            T& slope = const_cast<T&>(data<T>(y)[at.offset[2]]);
            const auto s = widen(slope);
            const auto exact = s * (1 - s);
            slope = narrow<T>(exact);  // wrong: y is the caller's, too
            mutable_data<T>(out)[at.offset[0]] =
                narrow<T>(widen(data<T>(grad)[at.offset[1]]) * exact);
          }
        });
      },
      grad_y, y);
  return grad_x;
}

OPFORGE_IMPL(changes_the_saved_tensor, changes_the_saved_tensor_cpu)
OPFORGE_IMPL(changes_the_saved_tensor_backward, changes_the_saved_tensor_backward_cpu)

}  // namespace opforge
