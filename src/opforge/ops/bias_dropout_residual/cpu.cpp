// SPDX-License-Identifier: Apache-2.0
#include <opforge/cpu/columns.h>
#include <opforge/families/dropout/cpu.h>

#include "check.h"

namespace opforge {

Tensor bias_dropout_residual_cpu(const Tensor& x, const std::optional<Tensor>& bias,
                                 const Tensor& residual, const Tensor& seed, double p) {
  check_forward(x, bias, residual, seed, p);
  const Tensor y = empty(sizes(x), x);
  const auto run = [&](const auto& layout, const Tensor& y, const auto&... in) {
    dispatch(dtype_of(y), [&]<class T>(Type<T>) {
      elementwise(layout, mutable_data<T>(y), {data<T>(in)...},
                  CpuDropout<T>(data<int64_t>(seed), p));
    });
  };
  if (bias) {
    over_elements(y, run, x, residual, *bias);
  } else {
    over_elements(y, run, x, residual);
  }
  return y;
}

// One row, some columns of it: grad_x is written and added to `sums`.
template <class T>
OPFORGE_INLINE void backward_row(const T* grad, int64_t step,
                                 const typename CpuDropout<T>::Row& row, int64_t n, T* grad_x,
                                 sum_t<T>* sums) {
  int64_t j = 0;
  for (; j + kLanes<T> <= n; j += kLanes<T>) {
    const auto passed = row(j, load(grad + j * step, step));
    store(grad_x + j, passed);
    add_to<T>(sums + j, passed);
  }
  if (j == n) return;
  const auto passed = row(j, load_some(grad + j * step, step, n - j));
  store_some(grad_x + j, 1, n - j, passed);
  for (int k = 0; j < n; ++j, ++k) sums[j] += passed[k];
}

std::tuple<Tensor, Tensor> bias_dropout_residual_backward_cpu(const Tensor& grad_y,
                                                              const Tensor& seed, double p,
                                                              bool needs_bias) {
  check_backward(grad_y, seed, p);
  const int64_t cols = needs_bias ? grad_y.size(grad_y.dim() - 1) : 0;
  const Tensor grad_x = empty(sizes(grad_y), grad_y), grad_bias = empty({&cols, 1}, grad_y);
  if (grad_y.numel() == 0) {
    fill_zero(grad_bias);
    return {grad_x, grad_bias};
  }
  dispatch(dtype_of(grad_y), [&]<class T>(Type<T>) {
    const CpuDropout<T> drop(data<int64_t>(seed), p);
    if (!needs_bias) {
      over_elements(
          grad_x,
          [&](const Layout<2>& layout, const Tensor& out, const Tensor& grad) {
            elementwise(layout, mutable_data<T>(out), {data<T>(grad)}, drop);
          },
          grad_y);
      return;
    }
    const MatrixView grad = as_matrix(grad_y);
    const T* const from = grad.data<T>();
    T* const to = mutable_data<T>(grad_x);
    prefer_huge_pages(to, grad_y.numel() * int64_t(sizeof(T)));
    sum_columns(grad.rows, cols, mutable_data<T>(grad_bias),
                [&](int64_t row, int64_t col, int64_t n, sum_t<T>* sums) {
                  const int64_t first = row * cols + col;
                  backward_row<T>(from + row * grad.row_stride + col * grad.col_stride,
                                  grad.col_stride, drop.row(first, n), n, to + first, sums);
                });
  });
  return {grad_x, grad_bias};
}

OPFORGE_IMPL(bias_dropout_residual, bias_dropout_residual_cpu)
OPFORGE_IMPL(bias_dropout_residual_backward, bias_dropout_residual_backward_cpu)

}  // namespace opforge
