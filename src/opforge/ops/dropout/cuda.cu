// SPDX-License-Identifier: Apache-2.0
#include <opforge/families/dropout/host.h>

#include <opforge/algorithms/elementwise.cuh>
#include <opforge/families/dropout/device.cuh>

namespace opforge {

// Forward and backward alike: the gradient is dropped where x was.
Tensor dropout_cuda(const Tensor& x, const Tensor& seed, double p) {
  OPFORGE_CHECK(same_device(x, seed), "dropout: x and seed are on different devices");
  check_dropout("dropout", seed, p);
  const DeviceGuard guard(x.get_device_index());
  const Tensor y = empty(sizes(x), x);
  over_elements(
      y,
      [&](const Layout<2>& layout, const Tensor& y, const Tensor& x) {
        dispatch(dtype_of(x), [&]<class T>(Type<T>) {
          const auto drop = make_dropout<compute_t<T>>(data<int64_t>(seed), p);
          elementwise<T, 1>(layout, mutable_data<T>(y), {data<T>(x)}, drop, current_stream(x));
        });
      },
      x);
  return y;
}

OPFORGE_IMPL(dropout, dropout_cuda)
OPFORGE_IMPL(dropout_backward, dropout_cuda)

}  // namespace opforge
