// SPDX-License-Identifier: Apache-2.0
#include <opforge/cpu/elementwise.h>
#include <opforge/host.h>

namespace opforge {

Tensor changes_its_input_cpu(const Tensor& x, double scale) {
  const Tensor y = empty(sizes(x), x);
  over_elements(
      y,
      [&](const Layout<2>& layout, const Tensor& y, const Tensor& x) {
        dispatch(dtype_of(x), [&]<class T>(Type<T>) {
          const T* const from = data<T>(x);
          T* const to = mutable_data<T>(y);
          Walk<2> at(layout, 0);
          for (int64_t i = 0; i < layout.count(); ++i, at.next()) {
            T& value = const_cast<T&>(from[at.offset[1]]);
            if (widen(value) < 0) value = narrow<T>(compute_t<T>(0));  // wrong: x is not ours
            to[at.offset[0]] = narrow<T>(widen(value) * compute_t<T>(scale));
          }
        });
      },
      x);
  return y;
}

OPFORGE_IMPL(changes_its_input, changes_its_input_cpu)

}  // namespace opforge
