// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

namespace opforge {

Tensor int_size_cpu(const Tensor& x) {
  OPFORGE_CHECK(x.dim() == 2, "int_size: x is no matrix");
  const Tensor in = contiguous(x);
  const Tensor y = empty(sizes(x), x);
  const int64_t rows = x.size(0);
  const int cols = x.size(1);  // wrong: a row may have more than 2^31 elements
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    for (int64_t i = 0; i < rows * cols; ++i) {
      mutable_data<T>(y)[i] = narrow<T>(widen(data<T>(in)[i]) * 2);
    }
  });
  return y;
}

OPFORGE_IMPL(int_size, int_size_cpu)

}  // namespace opforge
