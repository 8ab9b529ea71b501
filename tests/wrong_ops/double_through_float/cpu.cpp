// SPDX-License-Identifier: Apache-2.0
#include <opforge/cpu/elementwise.h>
#include <opforge/host.h>

namespace opforge {

Tensor double_through_float_cpu(const Tensor& x, double scale) {
  const Tensor y = empty(sizes(x), x);
  over_elements(
      y,
      [&](const Layout<2>& layout, const Tensor& y, const Tensor& x) {
        dispatch(dtype_of(x), [&]<class T>(Type<T>) {
          const T* const from = data<T>(x);
          T* const to = mutable_data<T>(y);
          Walk<2> at(layout, 0);
          for (int64_t i = 0; i < layout.count(); ++i, at.next()) {
            // Wrong: double for double.
            const float v = float(widen(from[at.offset[1]])) * float(scale);
            to[at.offset[0]] = narrow<T>(v);
          }
        });
      },
      x);
  return y;
}

OPFORGE_IMPL(double_through_float, double_through_float_cpu)

}  // namespace opforge
