// SPDX-License-Identifier: Apache-2.0
#include <opforge/families/product/cuda_finish_host.h>
#include <opforge/families/product/cuda_host.h>

#include "linear.h"
#include "tiles.h"

namespace opforge {

namespace {

// result = a b, where b is given as its columns. False where there is no kernel for it.
template <class T>
bool product_into(const Tensor& result, const Operand& a, const Operand& b,
                  const LinearOptions& options, const std::optional<Tensor>& bias, const Tensor* z,
                  const std::optional<MatrixView>& residual) {
  ProductCall call{dtype_of(result), a.outer, b.outer, a.inner};
  call.a = a.view, call.b[0] = b.view;
  call.out[0] = matrix_of(result, b.outer);
  if (bias) {
    call.columns[0] = {bias->const_data_ptr(), dtype_of(*bias), strides(*bias)[0]};
  }
  if (z != nullptr) call.out[call.outs++] = matrix_of(*z, b.outer);
  if (residual) {
    call.in[call.ins++] = {const_cast<void*>(residual->tensor.const_data_ptr()),
                           residual->row_stride};
  }
  Tensor floats = result, zeros = result;
  call.memory = [&](int64_t float_count, int64_t zero_count) -> ProductMemory {
    floats = empty({&float_count, 1}, aoti_torch_dtype_float32(), result);
    zeros = empty({&zero_count, 1}, aoti_torch_dtype_int32(), result);
    fill_zero(zeros);
    return {mutable_data<float>(floats), static_cast<int*>(zeros.mutable_data_ptr())};
  };
  call.stream = current_stream(result);
  return run_product(call, options);
}

}  // namespace

std::tuple<Tensor, Tensor> linear_cuda(const Tensor& x, const Tensor& weight,
                                       const std::optional<Tensor>& bias,
                                       const std::optional<Tensor>& residual, int64_t activation,
                                       double scale, const std::optional<double>& low,
                                       const std::optional<double>& high, bool tf32, bool save) {
  const std::vector<int64_t> shape = linear_shape("linear", x, weight, bias, residual);
  const Finish finish = finish_of(activation, scale, low, high);
  const bool keeps = save && needs_z(finish, residual.has_value());
  const DeviceGuard guard(x.get_device_index());
  const int64_t k = weight.size(1), n = weight.size(0), m = k == 0 ? 0 : x.numel() / k;
  if (has_kernel(dtype_of(x), tf32, m, n, k)) {
    const Tensor y = empty(shape, x), z = empty(keeps ? shape : std::vector<int64_t>{0}, x);
    std::optional<MatrixView> added;
    if (residual) added = with_rows(*residual);
    bool done = false;
    dispatch(dtype_of(x), [&]<class T>(Type<T>) {
      done = product_into<T>(y, operand_of<T>(x, false), operand_of<T>(weight, false),
                             {finish, added.has_value()}, bias, keeps ? &z : nullptr, added);
    });
    if (done) return {y, z};
  }
  const Tensor z = torch_linear(x, weight, bias);
  const Tensor y = finish.changes() || residual ? finish_elements(z, residual, finish) : z;
  return {y, keeps ? z : no_tensor(x)};
}

std::tuple<Tensor, Tensor, Tensor> linear_backward_cuda(
    const Tensor& grad_y, const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
    const std::optional<Tensor>& y, const Tensor& z, int64_t activation, double scale,
    const std::optional<double>& low, const std::optional<double>& high, bool tf32, bool needs_x,
    bool needs_weight, bool needs_bias) {
  const Finish finish = finish_of(activation, scale, low, high);
  check_backward(grad_y, x, weight, bias);
  const DeviceGuard guard(grad_y.get_device_index());
  const std::optional<Tensor> kept = differentiated_at(grad_y, x, weight, bias, y, z, finish);
  const Tensor none = no_tensor(grad_y);
  Tensor grad_z = grad_y, grad_bias = none;
  if (kept || needs_bias) {
    const auto [passed, sums] = finish_backward(grad_y, kept, finish);
    grad_z = passed;
    if (needs_bias) grad_bias = sums;
  }
  const int64_t n = grad_z.size(grad_z.dim() - 1), m = n == 0 ? 0 : grad_z.numel() / n;
  // Products with kernels of ours, else with torch's.
  const auto product = [&](const std::vector<int64_t>& shape, int64_t inner, const auto& operands,
                           const auto& by_torch) {
    const Tensor result = empty(shape, grad_y);
    const int64_t cols = shape.back(), rows = cols == 0 ? 0 : result.numel() / cols;
    bool done = false;
    if (has_kernel(dtype_of(grad_y), tf32, rows, cols, inner)) {
      dispatch(dtype_of(grad_y), [&]<class T>(Type<T> type) {
        const auto [a, b] = operands(type);
        done = product_into<T>(result, a, b, {}, {}, nullptr, {});
      });
    }
    return done ? result : contiguous(by_torch());
  };
  Tensor grad_x = none, grad_weight = none;
  if (needs_x) {
    std::vector<int64_t> shape(sizes(grad_y).begin(), sizes(grad_y).end());
    shape.back() = weight.size(1);
    grad_x = product(
        shape, n,
        [&]<class T>(Type<T>) {
          return std::pair(operand_of<T>(grad_z, false), operand_of<T>(weight, true));
        },
        [&] { return torch_matmul(grad_z, weight); });
  }
  if (needs_weight) {
    grad_weight = product(
        {n, x.size(x.dim() - 1)}, m,
        [&]<class T>(Type<T>) {
          return std::pair(operand_of<T>(grad_z, true), operand_of<T>(x, true));
        },
        [&] { return torch_matmul(permute(as_rows(grad_z), {1, 0}), as_rows(x)); });
  }
  return {grad_x, grad_weight, grad_bias};
}

OPFORGE_IMPL(linear, linear_cuda)
OPFORGE_IMPL(linear_backward, linear_backward_cuda)

}  // namespace opforge
