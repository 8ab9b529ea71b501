// SPDX-License-Identifier: Apache-2.0
#include <opforge/cpu/elementwise.h>
#include <opforge/host.h>

namespace opforge {

Tensor dtypes_mixed_up_cpu(const Tensor& a, const Tensor& b) {
  OPFORGE_CHECK(same_shape(a, b),
                "dtypes_mixed_up: a and b differ in shape");  // wrong: or in dtype
  const Tensor c = empty(sizes(a), a);
  over_elements(
      c,
      [](const Layout<3>& layout, const Tensor& c, const Tensor& a, const Tensor& b) {
        dispatch(dtype_of(a), [&]<class T>(Type<T>) {
          elementwise(layout, mutable_data<T>(c), {data<T>(a), data<T>(b)},
                      [](auto a, auto b) { return a * b; });
        });
      },
      a, b);
  return c;
}

OPFORGE_IMPL(dtypes_mixed_up, dtypes_mixed_up_cpu)

}  // namespace opforge
