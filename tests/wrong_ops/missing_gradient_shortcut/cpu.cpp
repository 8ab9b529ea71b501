// SPDX-License-Identifier: Apache-2.0
#include <opforge/cpu/elementwise.h>
#include <opforge/host.h>

#include <cmath>

namespace opforge {

std::tuple<Tensor, Tensor> missing_gradient_shortcut_cpu(const Tensor& x) {
  const Tensor sine = empty(sizes(x), x), cosine = empty(sizes(x), x);
  const Tensor from = contiguous(x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    for (int64_t i = 0; i < x.numel(); ++i) {
      const auto v = widen(data<T>(from)[i]);
      mutable_data<T>(sine)[i] = narrow<T>(std::sin(v));
      mutable_data<T>(cosine)[i] = narrow<T>(std::cos(v));
    }
  });
  return {sine, cosine};
}

Tensor missing_gradient_shortcut_backward_cpu(const Tensor& grad_sine, const Tensor& grad_cosine,
                                              const Tensor& x) {
  for (const Tensor& grad : {grad_sine, grad_cosine}) {
    OPFORGE_CHECK(same_shape(grad, x) && dtype_code(grad) == dtype_code(x),
                  "missing_gradient_shortcut_backward: a gradient and x differ in shape or dtype");
  }
  const Tensor grad_x = empty(sizes(x), x);
  over_elements(
      grad_x,
      [](const Layout<4>& layout, const Tensor& out, const Tensor& sine, const Tensor& cosine,
         const Tensor& x) {
        dispatch(dtype_of(x), [&]<class T>(Type<T>) {
          bool unused = true;
          Walk<4> at(layout, 0), again(layout, 0);
          for (int64_t i = 0; i < layout.count(); ++i, at.next()) {
            unused &= widen(data<T>(sine)[at.offset[1]]) == 0;
          }
          if (unused) return fill_zero(out);  // wrong: cosine may be used
          for (int64_t i = 0; i < layout.count(); ++i, again.next()) {
            const auto v = widen(data<T>(x)[again.offset[3]]);
            mutable_data<T>(out)[again.offset[0]] =
                narrow<T>(widen(data<T>(sine)[again.offset[1]]) * std::cos(v) -
                          widen(data<T>(cosine)[again.offset[2]]) * std::sin(v));
          }
        });
      },
      grad_sine, grad_cosine, x);
  return grad_x;
}

OPFORGE_IMPL(missing_gradient_shortcut, missing_gradient_shortcut_cpu)
OPFORGE_IMPL(missing_gradient_shortcut_backward, missing_gradient_shortcut_backward_cpu)

}  // namespace opforge
