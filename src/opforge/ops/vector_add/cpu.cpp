// SPDX-License-Identifier: Apache-2.0
#include <opforge/cpu/elementwise.h>
#include <opforge/host.h>

namespace opforge {

Tensor vector_add_cpu(const Tensor& a, const Tensor& b) {
  OPFORGE_CHECK(dtype_code(a) == dtype_code(b), "vector_add: a and b differ in dtype");
  const Tensor c = empty(broadcast(sizes(a), sizes(b)), a);
  over_elements(
      c,
      [](const Layout<3>& layout, const Tensor& c, const Tensor& a, const Tensor& b) {
        dispatch(dtype_of(a), [&]<class T>(Type<T>) {
          elementwise(layout, mutable_data<T>(c), {data<T>(a), data<T>(b)},
                      [](auto x, auto y) { return x + y; });
        });
      },
      a, b);
  return c;
}

OPFORGE_IMPL(vector_add, vector_add_cpu)

}  // namespace opforge
