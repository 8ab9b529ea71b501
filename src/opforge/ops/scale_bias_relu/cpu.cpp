// SPDX-License-Identifier: Apache-2.0
#include <opforge/cpu/columns.h>

#include "check.h"

namespace opforge {

Tensor scale_bias_relu_cpu(const Tensor& x, const Tensor& bias, double scale) {
  check_forward(x, bias);
  const Tensor y = empty(sizes(x), x);
  over_elements(
      y,
      [scale](const Layout<3>& layout, const Tensor& y, const Tensor& x, const Tensor& bias) {
        dispatch(dtype_of(x), [&]<class T>(Type<T>) {
          const vec<T> factor = compute_t<T>(scale) - vec<T>{};
          elementwise(layout, mutable_data<T>(y), {data<T>(x), data<T>(bias)},
                      [factor](auto v, auto b) { return rectify(fma(v, factor, b)); });
        });
      },
      x, bias);
  return y;
}

// One row, some columns of it: grad_x is written, and what passes is added to `sums`.
template <class T>
OPFORGE_INLINE void backward_row(const T* grad, int64_t grad_step, const T* y, int64_t y_step,
                                 vec<T> scale, int64_t n, T* grad_x, sum_t<T>* sums) {
  int64_t j = 0;
  for (; j + kLanes<T> <= n; j += kLanes<T>) {
    const auto passed =
        rectify_gradient(load(grad + j * grad_step, grad_step), load(y + j * y_step, y_step));
    store(grad_x + j, passed * scale);
    add_to<T>(sums + j, passed);
  }
  if (j == n) return;
  const auto passed = rectify_gradient(load_some(grad + j * grad_step, grad_step, n - j),
                                       load_some(y + j * y_step, y_step, n - j));
  store_some(grad_x + j, 1, n - j, passed * scale);
  for (int k = 0; j < n; ++j, ++k) sums[j] += passed[k];
}

std::tuple<Tensor, Tensor> scale_bias_relu_backward_cpu(const Tensor& grad_y, const Tensor& y,
                                                        double scale) {
  check_backward(grad_y, y);
  const Tensor grad_x = empty(sizes(y), y), grad_bias = empty(sizes(y).last(1), y);
  if (y.numel() == 0) {
    fill_zero(grad_bias);
    return {grad_x, grad_bias};
  }
  const MatrixView grad = as_matrix(grad_y), result = as_matrix(y);
  const int64_t rows = result.rows, cols = result.cols;
  dispatch(dtype_of(y), [&]<class T>(Type<T>) {
    const T *const grad_data = grad.data<T>(), *const y_data = result.data<T>();
    T* const out = mutable_data<T>(grad_x);
    prefer_huge_pages(out, rows * cols * int64_t(sizeof(T)));
    const vec<T> factor = compute_t<T>(scale) - vec<T>{};
    sum_columns(rows, cols, mutable_data<T>(grad_bias),
                [&](int64_t row, int64_t col, int64_t n, sum_t<T>* sums) {
                  backward_row(grad_data + row * grad.row_stride + col * grad.col_stride,
                               grad.col_stride,
                               y_data + row * result.row_stride + col * result.col_stride,
                               result.col_stride, factor, n, out + row * cols + col, sums);
                });
  });
  return {grad_x, grad_bias};
}

OPFORGE_IMPL(scale_bias_relu, scale_bias_relu_cpu)
OPFORGE_IMPL(scale_bias_relu_backward, scale_bias_relu_backward_cpu)

}  // namespace opforge
