// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

namespace opforge {

std::tuple<Tensor, Tensor> peak_cpu(const Tensor& x) {
  OPFORGE_CHECK(x.dim() > 0 && sizes(x).back() > 0, "peak: x needs rows");
  const auto shape = sizes(x).first(size_t(x.dim() - 1));
  const Tensor value = empty(shape, x), index = empty(shape, aoti_torch_dtype_int64(), x);
  const MatrixView m = as_matrix(x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    const Matrix<const T> from = m.read<T>();
    for (int64_t row = 0; row < value.numel(); ++row) {
      int64_t best = 0;
      for (int64_t j = 1; j < m.cols; ++j) {
        const compute_t<T> most = widen(*from.at(row, best)), v = widen(*from.at(row, j));
        if (most == most && (v > most || v != v)) best = j;  // the first NaN is the largest
      }
      mutable_data<T>(value)[row] = *from.at(row, best);
      mutable_data<int64_t>(index)[row] = best;
    }
  });
  return {value, index};
}

Tensor peak_backward_cpu(const Tensor& grad_value, const Tensor& index,
                         const std::vector<int64_t>& x_shape) {
  OPFORGE_CHECK(same_shape(grad_value, index) && index.is_contiguous() && !x_shape.empty() &&
                    index.dim() + 1 == int64_t(x_shape.size()),
                "peak_backward: grad_value and index have one element for each row of x");
  const Tensor grad_x = empty(x_shape, grad_value);
  fill_zero(grad_x);
  const Tensor grad = contiguous(grad_value);
  const int64_t cols = x_shape.back();
  dispatch(dtype_of(grad), [&]<class T>(Type<T>) {
    for (int64_t row = 0; row < index.numel(); ++row) {
      mutable_data<T>(grad_x)[row * cols + data<int64_t>(index)[row]] = data<T>(grad)[row];
    }
  });
  return grad_x;
}

OPFORGE_IMPL(peak, peak_cpu)
OPFORGE_IMPL(peak_backward, peak_backward_cpu)

}  // namespace opforge
