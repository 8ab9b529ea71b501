// SPDX-License-Identifier: Apache-2.0
#include "check.h"
#include "kernel.cuh"

namespace opforge {

Tensor bias_gelu_cuda(const Tensor& x, const Tensor& bias, bool tanh) {
  check_bias("bias_gelu", x, bias);
  const DeviceGuard guard(x.get_device_index());
  const Tensor y = empty(sizes(x), x);
  over_elements(
      y,
      [&](const Layout<3>& layout, const Tensor& y, const Tensor& x, const Tensor& bias) {
        dispatch(dtype_of(x), [&]<class T>(Type<T>) {
          elementwise<T, 2>(layout, mutable_data<T>(y), {data<T>(x), data<T>(bias)},
                            BiasGelu<T>{{tanh}}, current_stream(x));
        });
      },
      x, bias);
  return y;
}

std::tuple<Tensor, Tensor> bias_gelu_backward_cuda(const Tensor& grad_y, const Tensor& x,
                                                   const Tensor& bias, bool tanh) {
  check_backward(grad_y, x, bias);
  const DeviceGuard guard(x.get_device_index());
  const Tensor grad_x = empty(sizes(x), x), grad_bias = empty(sizes(bias), x);
  if (x.numel() == 0) {
    fill_zero(grad_bias);
    return {grad_x, grad_bias};
  }
  const MatrixView grad = as_matrix(grad_y), in = as_matrix(x), out = as_matrix(grad_x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    const auto run = [&]<bool by_tanh>(std::bool_constant<by_tanh>) {
      const BiasGeluBackward<T, by_tanh> visitor{grad.read<T>(), in.read<T>(), out.write<T>(),
                                                 data<T>(bias), strides(bias)[0]};
      with_vectors<T>({grad.read<T>(), in.read<T>(), out.read<T>()}, [&]<int N>(Width<N>) {
        const auto p = plan_columns<T, N>(1, out.rows, out.cols, out.read<T>());
        const int64_t words = p.workspace();
        const Tensor partial = empty({&words, 1}, accumulator_dtype(x), x);
        sum_columns<N>(p, visitor, mutable_data<compute_t<T>>(partial), mutable_data<T>(grad_bias),
                       current_stream(x));
      });
    };
    tanh ? run(std::true_type{}) : run(std::false_type{});
  });
  return {grad_x, grad_bias};
}

OPFORGE_IMPL(bias_gelu, bias_gelu_cuda)
OPFORGE_IMPL(bias_gelu_backward, bias_gelu_backward_cuda)

}  // namespace opforge
