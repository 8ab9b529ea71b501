// SPDX-License-Identifier: Apache-2.0
#include <opforge/host.h>

#include "kernel.cuh"

namespace opforge {

template <class F>
static void for_type(const Tensor& x, const F& run) {
  const DType dtype = dtype_of(x);
  OPFORGE_CHECK(dtype == DType::f32 || dtype == DType::f64,
                "order_dependent_gradient: unsupported dtype");
  dtype == DType::f32 ? run(Type<float>{}) : run(Type<double>{});
}

Tensor order_dependent_gradient_cuda(const Tensor& x, const Tensor& bias) {
  OPFORGE_CHECK(same_device(x, bias),
                "order_dependent_gradient: x and bias are on different devices");
  OPFORGE_CHECK(x.dim() > 0 && bias.dim() == 1 && bias.size(0) == sizes(x).back() &&
                    dtype_code(x) == dtype_code(bias),
                "order_dependent_gradient: bias must hold one value per column of x, in its dtype");
  const DeviceGuard guard(x.get_device_index());
  const Tensor y = empty(sizes(x), x);
  if (y.numel() == 0) return y;
  const MatrixView m = as_matrix(x);
  for_type(x, [&]<class T>(Type<T>) {
    launch(add<T>, {dim3(unsigned(m.rows)), dim3(kThreads), current_stream(x)}, m.read<T>(),
           data<T>(bias), bias.stride(0), mutable_data<T>(y), m.cols);
  });
  return y;
}

std::tuple<Tensor, Tensor> order_dependent_gradient_backward_cuda(const Tensor& grad_y) {
  OPFORGE_CHECK(grad_y.dim() > 0, "order_dependent_gradient_backward: grad_y needs a dimension");
  const DeviceGuard guard(grad_y.get_device_index());
  const Tensor grad_x = empty(sizes(grad_y), grad_y);
  const Tensor grad_bias = empty(sizes(grad_y).last(1), grad_y);
  fill_zero(grad_bias);
  if (grad_y.numel() == 0) return {grad_x, grad_bias};
  const MatrixView m = as_matrix(grad_y);
  for_type(grad_y, [&]<class T>(Type<T>) {
    launch(add_backward<T>, {dim3(unsigned(m.rows)), dim3(kThreads), current_stream(grad_y)},
           m.read<T>(), mutable_data<T>(grad_x), mutable_data<T>(grad_bias), m.cols);
  });
  return {grad_x, grad_bias};
}

OPFORGE_IMPL(order_dependent_gradient, order_dependent_gradient_cuda)
OPFORGE_IMPL(order_dependent_gradient_backward, order_dependent_gradient_backward_cuda)

}  // namespace opforge
