// SPDX-License-Identifier: Apache-2.0
#include <opforge/cpu/elementwise.h>
#include <opforge/host.h>

namespace opforge {

Tensor assumes_contiguous_cpu(const Tensor& x, double scale) {
  const Tensor y = empty(sizes(x), x);
  bool expanded = false;
  for (const int64_t stride : strides(x)) expanded |= stride == 0;
  over_elements(
      y,
      [&](const Layout<2>& layout, const Tensor& y, const Tensor& x) {
        dispatch(dtype_of(x), [&]<class T>(Type<T>) {
          const T* const from = data<T>(x);
          T* const to = mutable_data<T>(y);
          Walk<2> at(layout, 0);
          for (int64_t i = 0; i < layout.count(); ++i, at.next()) {
            // Wrong: the place in y is not the place in x.
            to[at.offset[0]] = narrow<T>(widen(from[at.offset[0]]) * compute_t<T>(scale));
          }
        });
      },
      expanded ? contiguous(x) : x);
  return y;
}

OPFORGE_IMPL(assumes_contiguous, assumes_contiguous_cpu)

}  // namespace opforge
