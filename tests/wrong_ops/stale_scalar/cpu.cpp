// SPDX-License-Identifier: Apache-2.0
#include <opforge/cpu/elementwise.h>
#include <opforge/host.h>

namespace opforge {

Tensor stale_scalar_cpu(const Tensor& x, double scale) {
  const Tensor y = empty(sizes(x), x);
  static const double factor = scale;  // wrong: set once
  over_elements(
      y,
      [&](const Layout<2>& layout, const Tensor& y, const Tensor& x) {
        dispatch(dtype_of(x), [&]<class T>(Type<T>) {
          const T* const from = data<T>(x);
          T* const to = mutable_data<T>(y);
          Walk<2> at(layout, 0);
          for (int64_t i = 0; i < layout.count(); ++i, at.next()) {
            to[at.offset[0]] = narrow<T>(widen(from[at.offset[1]]) * compute_t<T>(factor));
          }
        });
      },
      x);
  return y;
}

OPFORGE_IMPL(stale_scalar, stale_scalar_cpu)

}  // namespace opforge
