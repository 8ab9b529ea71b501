// SPDX-License-Identifier: Apache-2.0
#include <opforge/cpu/elementwise.h>
#include <opforge/host.h>

#include <cmath>
#include <limits>

namespace opforge {

Tensor subnormals_flushed_cpu(const Tensor& x, double scale) {
  const Tensor y = empty(sizes(x), x);
  over_elements(
      y,
      [&](const Layout<2>& layout, const Tensor& y, const Tensor& x) {
        dispatch(dtype_of(x), [&]<class T>(Type<T>) {
          const T* const from = data<T>(x);
          T* const to = mutable_data<T>(y);
          Walk<2> at(layout, 0);
          for (int64_t i = 0; i < layout.count(); ++i, at.next()) {
            auto v = widen(from[at.offset[1]]) * compute_t<T>(scale);
            // Wrong: those are numbers, too.
            if (std::abs(v) < std::numeric_limits<compute_t<T>>::min()) v = std::copysign(0, v);
            to[at.offset[0]] = narrow<T>(v);
          }
        });
      },
      x);
  return y;
}

OPFORGE_IMPL(subnormals_flushed, subnormals_flushed_cpu)

}  // namespace opforge
