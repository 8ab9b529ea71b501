// SPDX-License-Identifier: Apache-2.0
#include <opforge/cpu/elementwise.h>
#include <opforge/host.h>

namespace opforge {

Tensor minus_zero_lost_cpu(const Tensor& x, double scale) {
  const Tensor y = empty(sizes(x), x);
  over_elements(
      y,
      [&](const Layout<2>& layout, const Tensor& y, const Tensor& x) {
        dispatch(dtype_of(x), [&]<class T>(Type<T>) {
          const T* const from = data<T>(x);
          T* const to = mutable_data<T>(y);
          Walk<2> at(layout, 0);
          for (int64_t i = 0; i < layout.count(); ++i, at.next()) {
            const auto v = widen(from[at.offset[1]]);
            const compute_t<T> bias = 0;
            to[at.offset[0]] = narrow<T>(v * compute_t<T>(scale) + bias);  // wrong: -0.0 + 0.0
          }
        });
      },
      x);
  return y;
}

OPFORGE_IMPL(minus_zero_lost, minus_zero_lost_cpu)

}  // namespace opforge
