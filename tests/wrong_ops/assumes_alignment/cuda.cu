// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

Tensor assumes_alignment_cuda(const Tensor& x, double scale) {
  const DeviceGuard guard(x.get_device_index());
  const Tensor y = empty(sizes(x), x);
  if (y.numel() == 0) return y;
  over_elements(
      y,
      [&](const Layout<2>& layout, const Tensor& y, const Tensor& x) {
        dispatch(dtype_of(x), [&]<class T>(Type<T>) {
          // Wrong: and misalignment(data<T>(x)) == 0
          const bool vectors = x.is_contiguous();
          const int64_t blocks = ceil_div(y.numel(), kThreads * kVec<T>);
          launch(multiply<T>, {dim3(unsigned(blocks)), dim3(kThreads), current_stream(x)},
                 data<T>(x), mutable_data<T>(y), y.numel(), Walk<uint64_t, 2>(layout), scale,
                 vectors);
        });
      },
      x);
  return y;
}

OPFORGE_IMPL(assumes_alignment, assumes_alignment_cuda)

}  // namespace opforge
