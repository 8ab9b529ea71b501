// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

namespace opforge {

Tensor narrow_gradient_misread_cpu(const Tensor& x) {
  OPFORGE_CHECK(x.dim() > 0, "narrow_gradient_misread: x needs a dimension");
  const Tensor y = empty(sizes(x), x);
  if (x.numel() == 0) return y;
  const MatrixView from = as_matrix(x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    const auto in = from.read<T>();
    for (int64_t row = 0; row < from.rows; ++row) {
      double sum = 0;
      for (int64_t j = 0; j < from.cols; ++j) sum += widen(*in.at(row, j));
      for (int64_t j = 0; j < from.cols; ++j) {
        mutable_data<T>(y)[row * from.cols + j] =
            narrow<T>(compute_t<T>(widen(*in.at(row, j)) - sum / double(from.cols)));
      }
    }
  });
  return y;
}

Tensor narrow_gradient_misread_backward_cpu(const Tensor& grad_y) {
  OPFORGE_CHECK(grad_y.dim() > 0, "narrow_gradient_misread_backward: grad_y needs a dimension");
  const Tensor grad_x = empty(sizes(grad_y), grad_y);
  if (grad_y.numel() == 0) return grad_x;
  // Wrong: the strides of the other dims matter, too.
  const Tensor grad = strides(grad_y).back() == 1 ? grad_y : contiguous(grad_y);
  const int64_t cols = sizes(grad).back(), rows = grad.numel() / cols;
  dispatch(dtype_of(grad), [&]<class T>(Type<T>) {
    for (int64_t row = 0; row < rows; ++row) {
      const T* const from = data<T>(grad) + row * cols;
      double sum = 0;
      for (int64_t j = 0; j < cols; ++j) sum += widen(from[j]);
      for (int64_t j = 0; j < cols; ++j) {
        mutable_data<T>(grad_x)[row * cols + j] =
            narrow<T>(compute_t<T>(widen(from[j]) - sum / double(cols)));
      }
    }
  });
  return grad_x;
}

OPFORGE_IMPL(narrow_gradient_misread, narrow_gradient_misread_cpu)
OPFORGE_IMPL(narrow_gradient_misread_backward, narrow_gradient_misread_backward_cpu)

}  // namespace opforge
