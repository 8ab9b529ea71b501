// SPDX-License-Identifier: Apache-2.0
#include <opforge/cpu/elementwise.h>
#include <opforge/host.h>

namespace opforge {

// Wrong: outputs are contiguous unless the record says otherwise.
static std::vector<int64_t> column_major(const Tensor& x) {
  std::vector<int64_t> strides;
  int64_t step = 1;
  for (const int64_t n : sizes(x)) {
    strides.push_back(step);
    step *= std::max<int64_t>(n, 1);
  }
  return strides;
}

Tensor strides_not_promised_cpu(const Tensor& x, double scale) {
  const Tensor y = empty_strided(sizes(x), column_major(x), dtype_code(x), x);
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

OPFORGE_IMPL(strides_not_promised, strides_not_promised_cpu)

}  // namespace opforge
