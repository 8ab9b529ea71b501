// SPDX-License-Identifier: Apache-2.0
#include "check.h"
#include "kernel.cuh"

namespace opforge {

Tensor scale_bias_relu_cuda(const Tensor& x, const Tensor& bias, double scale) {
  check_forward(x, bias);
  const DeviceGuard guard(x.get_device_index());
  const Tensor y = empty(sizes(x), x);
  over_elements(
      y,
      [&](const Layout<3>& layout, const Tensor& y, const Tensor& x, const Tensor& bias) {
        dispatch(dtype_of(x), [&]<class T>(Type<T>) {
          elementwise<T, 2>(layout, mutable_data<T>(y), {data<T>(x), data<T>(bias)},
                            ScaleBiasRelu{scale}, current_stream(x));
        });
      },
      x, bias);
  return y;
}

std::tuple<Tensor, Tensor> scale_bias_relu_backward_cuda(const Tensor& grad_y, const Tensor& y,
                                                         double scale) {
  check_backward(grad_y, y);
  const DeviceGuard guard(y.get_device_index());
  const int64_t cols = y.size(y.dim() - 1);
  const Tensor grad_x = empty(sizes(y), y), grad_bias = empty({&cols, 1}, y);
  if (y.numel() == 0) {
    fill_zero(grad_bias);
    return {grad_x, grad_bias};
  }
  const MatrixView grad = as_matrix(grad_y), kept = as_matrix(y), out = as_matrix(grad_x);
  dispatch(dtype_of(y), [&]<class T>(Type<T>) {
    const ScaleBiasReluBackward<T> visitor{grad.read<T>(), kept.read<T>(), out.write<T>(),
                                           compute_t<T>(scale)};
    with_vectors<T>({grad.read<T>(), kept.read<T>(), out.read<T>()}, [&]<int N>(Width<N>) {
      const auto p = plan_columns<T, N>(1, out.rows, out.cols, out.read<T>());
      const int64_t words = p.workspace();
      const Tensor partial = empty({&words, 1}, accumulator_dtype(y), y);
      sum_columns<N>(p, visitor, mutable_data<compute_t<T>>(partial), mutable_data<T>(grad_bias),
                     current_stream(y));
    });
  });
  return {grad_x, grad_bias};
}

OPFORGE_IMPL(scale_bias_relu, scale_bias_relu_cuda)
OPFORGE_IMPL(scale_bias_relu_backward, scale_bias_relu_backward_cuda)

}  // namespace opforge
