// SPDX-License-Identifier: Apache-2.0
#include "check.h"
#include "kernel.cuh"

namespace opforge {

Tensor bias_dropout_residual_cuda(const Tensor& x, const std::optional<Tensor>& bias,
                                  const Tensor& residual, const Tensor& seed, double p) {
  check_forward(x, bias, residual, seed, p);
  const DeviceGuard guard(x.get_device_index());
  const Tensor y = empty(sizes(x), x);
  const auto run = [&](const auto& layout, const Tensor& y, const auto&... in) {
    dispatch(dtype_of(y), [&]<class T>(Type<T>) {
      elementwise<T, sizeof...(in)>(layout, mutable_data<T>(y), {data<T>(in)...},
                                    make_dropout<compute_t<T>>(data<int64_t>(seed), p),
                                    current_stream(y));
    });
  };
  if (bias) {
    over_elements(y, run, x, residual, *bias);
  } else {
    over_elements(y, run, x, residual);
  }
  return y;
}

std::tuple<Tensor, Tensor> bias_dropout_residual_backward_cuda(const Tensor& grad_y,
                                                               const Tensor& seed, double p,
                                                               bool needs_bias) {
  check_backward(grad_y, seed, p);
  const DeviceGuard guard(grad_y.get_device_index());
  const int64_t cols = needs_bias ? grad_y.size(grad_y.dim() - 1) : 0;
  const Tensor grad_x = empty(sizes(grad_y), grad_y), grad_bias = empty({&cols, 1}, grad_y);
  if (grad_y.numel() == 0) {
    fill_zero(grad_bias);
    return {grad_x, grad_bias};
  }
  dispatch(dtype_of(grad_y), [&]<class T>(Type<T>) {
    const auto drop = make_dropout<compute_t<T>>(data<int64_t>(seed), p);
    if (!needs_bias) {
      over_elements(
          grad_x,
          [&](const Layout<2>& layout, const Tensor& out, const Tensor& grad) {
            elementwise<T, 1>(layout, mutable_data<T>(out), {data<T>(grad)}, drop,
                              current_stream(grad));
          },
          grad_y);
      return;
    }
    const MatrixView grad = as_matrix(grad_y), out = as_matrix(grad_x);
    BiasDropoutResidualBackward<T> visitor{grad.read<T>(), out.write<T>(), drop};
    visitor.grad_x.row_stride = out.cols;  // of a single row, too
    OPFORGE_CHECK(misalignment(visitor.grad_x.data) == 0, "opforge: torch's memory is misaligned");
    with_vectors<T>({grad.read<T>(), out.read<T>()}, [&]<int N>(Width<N>) {
      const auto plan = plan_columns<T, N>(1, out.rows, out.cols, out.read<T>());
      const int64_t words = plan.workspace();
      const Tensor partial = empty({&words, 1}, accumulator_dtype(grad_y), grad_y);
      sum_columns<N>(plan, visitor, mutable_data<compute_t<T>>(partial), mutable_data<T>(grad_bias),
                     current_stream(grad_y));
    });
  });
  return {grad_x, grad_bias};
}

OPFORGE_IMPL(bias_dropout_residual, bias_dropout_residual_cuda)
OPFORGE_IMPL(bias_dropout_residual_backward, bias_dropout_residual_backward_cuda)

}  // namespace opforge
