// SPDX-License-Identifier: Apache-2.0
#include <opforge/cpu/columns.h>
#include <opforge/families/activations/cpu.h>

#include "check.h"

namespace opforge {

namespace {

template <class T, class F>
void with_gelu(bool tanh, const F& f) {
  tanh ? f(Gelu<T, true>{}) : f(Gelu<T, false>{});
}

// One row, some columns of it: grad_x is written, and added to `sums` before it is rounded.
template <class T, class Act>
OPFORGE_INLINE void backward_row(const T* grad, int64_t grad_step, const T* x, int64_t x_step,
                                 const T* bias, int64_t bias_step, int64_t n, T* grad_x,
                                 sum_t<T>* sums, const Act& gelu) {
  vec<T> value;
  int64_t j = 0;
  for (; j + kLanes<T> <= n; j += kLanes<T>) {
    const vec<T> shifted = load(x + j * x_step, x_step) + load(bias + j * bias_step, bias_step);
    const vec<T> passed = gelu.gradient(shifted, load(grad + j * grad_step, grad_step), value);
    store(grad_x + j, passed);
    add_to<T>(sums + j, passed);
  }
  if (j == n) return;
  const vec<T> shifted =
      load_some(x + j * x_step, x_step, n - j) + load_some(bias + j * bias_step, bias_step, n - j);
  const vec<T> passed =
      gelu.gradient(shifted, load_some(grad + j * grad_step, grad_step, n - j), value);
  store_some(grad_x + j, 1, n - j, passed);
  for (int k = 0; j < n; ++j, ++k) sums[j] += passed[k];
}

}  // namespace

Tensor bias_gelu_cpu(const Tensor& x, const Tensor& bias, bool tanh) {
  check_bias("bias_gelu", x, bias);
  const Tensor y = empty(sizes(x), x);
  over_elements(
      y,
      [tanh](const Layout<3>& layout, const Tensor& y, const Tensor& x, const Tensor& bias) {
        dispatch(dtype_of(x), [&]<class T>(Type<T>) {
          with_gelu<T>(tanh, [&](auto gelu) {
            elementwise(layout, mutable_data<T>(y), {data<T>(x), data<T>(bias)},
                        [gelu](auto v, auto b) { return gelu.value(v + b); });
          });
        });
      },
      x, bias);
  return y;
}

std::tuple<Tensor, Tensor> bias_gelu_backward_cpu(const Tensor& grad_y, const Tensor& x,
                                                  const Tensor& bias, bool tanh) {
  check_backward(grad_y, x, bias);
  const Tensor grad_x = empty(sizes(x), x), grad_bias = empty(sizes(bias), x);
  if (x.numel() == 0) {
    fill_zero(grad_bias);
    return {grad_x, grad_bias};
  }
  const MatrixView grad = as_matrix(grad_y), in = as_matrix(x);
  const int64_t bias_step = strides(bias)[0];
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    const Matrix<const T> grads = grad.read<T>(), xs = in.read<T>();
    T* const out = mutable_data<T>(grad_x);
    prefer_huge_pages(out, in.rows * in.cols * int64_t(sizeof(T)));
    with_gelu<T>(tanh, [&](auto gelu) {
      sum_columns(in.rows, in.cols, mutable_data<T>(grad_bias),
                  [&](int64_t row, int64_t col, int64_t n, sum_t<T>* sums) {
                    backward_row(grads.at(row, col), grads.col_stride, xs.at(row, col),
                                 xs.col_stride, data<T>(bias) + col * bias_step, bias_step, n,
                                 out + row * in.cols + col, sums, gelu);
                  });
    });
  });
  return {grad_x, grad_bias};
}

OPFORGE_IMPL(bias_gelu, bias_gelu_cpu)
OPFORGE_IMPL(bias_gelu_backward, bias_gelu_backward_cpu)

}  // namespace opforge
