// SPDX-License-Identifier: Apache-2.0
#include <opforge/cpu/elementwise.h>
#include <opforge/host.h>

namespace opforge {

Tensor zero_stride_as_one_cpu(const Tensor& x, double scale) {
  const Tensor y = empty(sizes(x), x);
  over_elements(
      y,
      [&](const Layout<2>& layout, const Tensor& y, const Tensor& x) {
        dispatch(dtype_of(x), [&]<class T>(Type<T>) {
          const T* const from = data<T>(x);
          T* const to = mutable_data<T>(y);
          Layout<2> steps = layout;
          // Wrong: 0 is a stride like others.
          for (int64_t& stride : steps.stride[1]) stride = std::max<int64_t>(stride, 1);
          Walk<2> at(steps, 0);
          for (int64_t i = 0; i < layout.count(); ++i, at.next()) {
            to[at.offset[0]] = narrow<T>(widen(from[at.offset[1]]) * compute_t<T>(scale));
          }
        });
      },
      x);
  return y;
}

OPFORGE_IMPL(zero_stride_as_one, zero_stride_as_one_cpu)

}  // namespace opforge
