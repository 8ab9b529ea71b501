// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor vector_add_cuda(const Tensor& a, const Tensor& b) {
  OPFORGE_CHECK(same_device(a, b), "vector_add: a and b are on different devices");
  OPFORGE_CHECK(dtype_code(a) == dtype_code(b), "vector_add: a and b differ in dtype");
  const DeviceGuard guard(a.get_device_index());
  // Vectors need the broadcast operand last; the order does not matter to a sum.
  if (a.numel() < b.numel()) return vector_add_cuda(b, a);
  const Tensor c = empty(broadcast(sizes(a), sizes(b)), a);
  over_elements(
      c,
      [&](const Layout<3>& layout, const Tensor& c, const Tensor& a, const Tensor& b) {
        dispatch(dtype_of(a), [&]<class T>(Type<T>) {
          elementwise<T, 2>(layout, mutable_data<T>(c), {data<T>(a), data<T>(b)}, Add{},
                            current_stream(a));
        });
      },
      a, b);
  return c;
}

OPFORGE_IMPL(vector_add, vector_add_cuda)

}  // namespace opforge
