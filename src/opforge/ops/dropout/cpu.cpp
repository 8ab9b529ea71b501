// SPDX-License-Identifier: Apache-2.0
#include <opforge/families/dropout/cpu.h>
#include <opforge/families/dropout/host.h>

namespace opforge {

// Forward and backward alike: the gradient is dropped where x was.
Tensor dropout_cpu(const Tensor& x, const Tensor& seed, double p) {
  check_dropout("dropout", seed, p);
  const Tensor y = empty(sizes(x), x);
  over_elements(
      y,
      [&](const Layout<2>& layout, const Tensor& y, const Tensor& x) {
        dispatch(dtype_of(x), [&]<class T>(Type<T>) {
          elementwise(layout, mutable_data<T>(y), {data<T>(x)},
                      CpuDropout<T>(data<int64_t>(seed), p));
        });
      },
      x);
  return y;
}

OPFORGE_IMPL(dropout, dropout_cpu)
OPFORGE_IMPL(dropout_backward, dropout_cpu)

}  // namespace opforge
