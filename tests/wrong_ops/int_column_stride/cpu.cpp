// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

namespace opforge {

Tensor int_column_stride_cpu(const Tensor& x) {
  OPFORGE_CHECK(x.dim() == 2, "int_column_stride: x is no matrix");
  const Tensor y = empty(sizes(x), x);
  const int64_t rows = x.size(0), cols = x.size(1), row_stride = x.stride(0);
  const int stride = int(x.stride(1));  // wrong: 64 bits are needed
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    for (int64_t i = 0; i < rows * cols; ++i) {
      const T v = data<T>(x)[i / cols * row_stride + i % cols * stride];
      mutable_data<T>(y)[i] = narrow<T>(widen(v) * 2);
    }
  });
  return y;
}

OPFORGE_IMPL(int_column_stride, int_column_stride_cpu)

}  // namespace opforge
