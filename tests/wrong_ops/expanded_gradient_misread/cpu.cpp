// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

namespace opforge {

Tensor expanded_gradient_misread_cpu(const Tensor& x) {
  OPFORGE_CHECK(x.dim() > 0, "expanded_gradient_misread: x needs a dimension");
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

Tensor expanded_gradient_misread_backward_cpu(const Tensor& grad_y) {
  OPFORGE_CHECK(grad_y.dim() > 0, "expanded_gradient_misread_backward: grad_y needs a dimension");
  const Tensor grad_x = empty(sizes(grad_y), grad_y);
  if (grad_y.numel() == 0) return grad_x;
  MatrixView grad = as_matrix(grad_y);
  // Wrong: a stride of 0 is not one of 1.
  if (grad.col_stride > 1) grad = as_matrix(contiguous(grad_y));
  dispatch(dtype_of(grad_y), [&]<class T>(Type<T>) {
    for (int64_t row = 0; row < grad.rows; ++row) {
      const T* const from = grad.data<T>() + row * grad.row_stride;
      double sum = 0;
      for (int64_t j = 0; j < grad.cols; ++j) sum += widen(from[j]);
      for (int64_t j = 0; j < grad.cols; ++j) {
        mutable_data<T>(grad_x)[row * grad.cols + j] =
            narrow<T>(compute_t<T>(widen(from[j]) - sum / double(grad.cols)));
      }
    }
  });
  return grad_x;
}

OPFORGE_IMPL(expanded_gradient_misread, expanded_gradient_misread_cpu)
OPFORGE_IMPL(expanded_gradient_misread_backward, expanded_gradient_misread_backward_cpu)

}  // namespace opforge
