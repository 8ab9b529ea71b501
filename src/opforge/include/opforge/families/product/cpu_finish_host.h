// SPDX-License-Identifier: Apache-2.0
// What follows a product, and its gradient, on the CPU: a pass each.
#pragma once

#include <opforge/cpu/columns.h>
#include <opforge/families/product/activation_cpu.h>
#include <opforge/families/product/host.h>

namespace opforge {

// y = finish(z) + residual, elementwise.
inline Tensor finish_elements(const Tensor& z, const std::optional<Tensor>& residual,
                              const Finish& finish) {
  const Tensor y = empty(sizes(z), z);
  dispatch(dtype_of(z), [&]<class T>(Type<T>) {
    with_activation<T>(finish.activation, [&](const auto& act) {
      const auto over = [&](const auto& f, const auto&... operands) {
        over_elements(
            y,
            [&](const auto& layout, const Tensor& y, const auto&... in) {
              elementwise(layout, mutable_data<T>(y), {data<T>(in)...}, f);
            },
            operands...);
      };
      const auto value = [&](auto z) { return finished<T>(finish, act.value(z)); };
      residual ? over([value](auto z, auto r) { return value(z) + r; }, z, *residual)
               : over(value, z);
    });
  });
  return y;
}

// Some columns of a row: the gradient of z is written, and added to `sums` before it is rounded.
template <class T, class Act>
OPFORGE_INLINE void backward_row(const T* grad, int64_t grad_step, const T* z, int64_t z_step,
                                 int64_t n, T* grad_z, sum_t<T>* sums, const Finish& finish,
                                 const Act& act) {
  const auto passed = [&](vec<T> incoming, vec<T> at) {
    vec<T> value;
    const vec<T> result = act.gradient(at, incoming * compute_t<T>(finish.scale), value);
    return passing<T>(finish, value, result);
  };
  int64_t j = 0;
  for (; j + kLanes<T> <= n; j += kLanes<T>) {
    const vec<T> v = passed(load(grad + j * grad_step, grad_step), load(z + j * z_step, z_step));
    store(grad_z + j, v);
    add_to<T>(sums + j, v);
  }
  if (j == n) return;
  const vec<T> v = passed(load_some(grad + j * grad_step, grad_step, n - j),
                          load_some(z + j * z_step, z_step, n - j));
  store_some(grad_z + j, 1, n - j, v);
  for (int k = 0; j < n; ++j, ++k) sums[j] += v[k];
}

// The gradient of z and its sums down the columns. Without z they are those of grad_y.
inline std::tuple<Tensor, Tensor> finish_backward(const Tensor& grad_y,
                                                  const std::optional<Tensor>& z,
                                                  const Finish& finish) {
  const MatrixView grad = as_matrix(grad_y);
  const Tensor grad_z = z ? empty(sizes(grad_y), grad_y) : grad_y;
  const Tensor sums = empty({&grad.cols, 1}, grad_y);
  if (grad_y.numel() == 0) {
    fill_zero(sums);
    return {grad_z, sums};
  }
  dispatch(dtype_of(grad_y), [&]<class T>(Type<T>) {
    const Matrix<const T> grads = grad.read<T>();
    if (!z) {
      sum_columns(grad.rows, grad.cols, mutable_data<T>(sums),
                  [&](int64_t row, int64_t col, int64_t n, sum_t<T>* to) {
                    const T* const from = grads.at(row, col);
                    for (int64_t j = 0; j < n; ++j) {
                      to[j] += sum_t<T>(widen(from[j * grads.col_stride]));
                    }
                  });
      return;
    }
    const MatrixView in = as_matrix(*z);
    const Matrix<const T> zs = in.read<T>();
    T* const out = mutable_data<T>(grad_z);
    with_activation<T>(finish.activation, [&](const auto& act) {
      sum_columns(grad.rows, grad.cols, mutable_data<T>(sums),
                  [&](int64_t row, int64_t col, int64_t n, sum_t<T>* to) {
                    backward_row(grads.at(row, col), grads.col_stride, zs.at(row, col),
                                 zs.col_stride, n, out + row * grad.cols + col, to, finish, act);
                  });
    });
  });
  return {grad_z, sums};
}

}  // namespace opforge
