// SPDX-License-Identifier: Apache-2.0
// What follows a product, and its gradient, where no kernel of the product does it. On the GPU.
#pragma once

#include <opforge/families/product/host.h>

#include <opforge/algorithms/elementwise.cuh>
#include <opforge/families/product/activation.cuh>

namespace opforge {

// y = finish(z) + residual, elementwise.
inline Tensor finish_elements(const Tensor& z, const std::optional<Tensor>& residual,
                              const Finish& finish) {
  const Tensor y = empty(sizes(z), z);
  dispatch(dtype_of(z), [&]<class T>(Type<T>) {
    const auto run = [&](const auto& layout, const Tensor& y, const auto&... in) {
      elementwise<T, sizeof...(in)>(layout, mutable_data<T>(y), {data<T>(in)...},
                                    FinishElements<T>{finish}, current_stream(y));
    };
    residual ? over_elements(y, run, z, *residual) : over_elements(y, run, z);
  });
  return y;
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
    const auto run = [&](const auto& visitor, std::initializer_list<Matrix<const T>> matrices) {
      with_vectors<T>(matrices, [&]<int N>(Width<N>) {
        const auto p = plan_columns<T, N>(1, grad.rows, grad.cols, *matrices.begin());
        const int64_t words = p.workspace();
        const Tensor partial = empty({&words, 1}, accumulator_dtype(grad_y), grad_y);
        sum_columns<N>(p, visitor, mutable_data<compute_t<T>>(partial), mutable_data<T>(sums),
                       current_stream(grad_y));
      });
    };
    if (z) {
      const MatrixView in = as_matrix(*z), out = as_matrix(grad_z);
      run(FinishGradient<T, true>{grad.read<T>(), in.read<T>(), out.write<T>(), finish},
          {out.read<T>(), grad.read<T>(), in.read<T>()});
    } else {
      run(FinishGradient<T, false>{grad.read<T>(), {}, {}, finish}, {grad.read<T>()});
    }
  });
  return {grad_z, sums};
}

}  // namespace opforge
