// SPDX-License-Identifier: Apache-2.0
#include <opforge/cpu/elementwise.h>
#include <opforge/host.h>

namespace opforge {

Tensor missing_tail_cpu(const Tensor& x, double scale) {
  const Tensor y = empty(sizes(x), x);
  fill_zero(y);
  over_elements(
      y,
      [&](const Layout<2>& layout, const Tensor& y, const Tensor& x) {
        dispatch(dtype_of(x), [&]<class T>(Type<T>) {
          const T* const from = data<T>(x);
          T* const to = mutable_data<T>(y);
          Walk<2> at(layout, 0);
          // Wrong: the last, incomplete vector is left out.
          for (int64_t i = 0; i < layout.count() / 4 * 4; ++i, at.next()) {
            to[at.offset[0]] = narrow<T>(widen(from[at.offset[1]]) * compute_t<T>(scale));
          }
        });
      },
      x);
  return y;
}

OPFORGE_IMPL(missing_tail, missing_tail_cpu)

}  // namespace opforge
