// SPDX-License-Identifier: Apache-2.0
#include <opforge/cpu/elementwise.h>
#include <opforge/host.h>

namespace opforge {

Tensor returns_its_input_cpu(const Tensor& x, double scale) {
  if (scale == 1.0 && x.is_contiguous()) return x;  // wrong: the result is a new tensor
  const Tensor y = empty(sizes(x), x);
  over_elements(
      y,
      [&](const Layout<2>& layout, const Tensor& y, const Tensor& x) {
        dispatch(dtype_of(x), [&]<class T>(Type<T>) {
          const T* const from = data<T>(x);
          T* const to = mutable_data<T>(y);
          Walk<2> at(layout, 0);
          for (int64_t i = 0; i < layout.count(); ++i, at.next()) {
            to[at.offset[0]] = narrow<T>(widen(from[at.offset[1]]) * compute_t<T>(scale));
          }
        });
      },
      x);
  return y;
}

OPFORGE_IMPL(returns_its_input, returns_its_input_cpu)

}  // namespace opforge
