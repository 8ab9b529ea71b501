// SPDX-License-Identifier: Apache-2.0
#include <opforge/cpu/elementwise.h>
#include <opforge/host.h>

#include <cmath>

namespace opforge {

Tensor square_in_half_cpu(const Tensor& x) {
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
            if constexpr (sizeof(T) == 2) {
              const float square = widen(narrow<T>(v * v));  // wrong: keep it in float
              to[at.offset[0]] = narrow<T>(std::sqrt(1 + square));
            } else {
              to[at.offset[0]] = std::hypot(v, T(1));
            }
          }
        });
      },
      x);
  return y;
}

OPFORGE_IMPL(square_in_half, square_in_half_cpu)

}  // namespace opforge
