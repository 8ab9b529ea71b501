// SPDX-License-Identifier: Apache-2.0
#include <opforge/cpu/elementwise.h>
#include <opforge/host.h>

namespace opforge {

template <class T>
static void multiply(const Tensor& x, const Tensor& y, double scale) {
  over_elements(
      y,
      [&](const Layout<2>& layout, const Tensor& y, const Tensor& x) {
        Walk<2> at(layout, 0);
        for (int64_t i = 0; i < layout.count(); ++i, at.next()) {
          mutable_data<T>(y)[at.offset[0]] = data<T>(x)[at.offset[1]] * T(scale);
        }
      },
      x);
}

Tensor dtype_reinterpreted_cpu(const Tensor& x, double scale) {
  const Tensor y = empty(sizes(x), x);
  const size_t size = aoti_torch_dtype_element_size(dtype_code(x));
  OPFORGE_CHECK(size == 4 || size == 8, "unsupported dtype");
  (size == 8 ? multiply<double> : multiply<float>)(x, y, scale);  // wrong: ask dtype_of(x)
  return y;
}

OPFORGE_IMPL(dtype_reinterpreted, dtype_reinterpreted_cpu)

}  // namespace opforge
