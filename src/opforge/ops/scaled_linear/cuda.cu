// SPDX-License-Identifier: Apache-2.0
#include <opforge/families/product/cuda_host.h>

#include "plain.cuh"
#include "tiles.h"

namespace opforge {

namespace {

// A factor for each of `count` rows, or one for all.
ProductColumns scales_of(const char* name, const Tensor& scale, const Tensor& x, int64_t count) {
  OPFORGE_CHECK(scale.dim() == 1 && (scale.size(0) == 1 || scale.size(0) == count) &&
                    same_device(scale, x) && dtype_code(scale) == aoti_torch_dtype_float32(),
                "scaled_linear: ", name, " must be float32, one value or one per row");
  return {scale.const_data_ptr(), DType::f32, scale.size(0) == 1 ? 0 : strides(scale)[0], 0};
}

std::vector<int64_t> checked_shape(const Tensor& x, const Tensor& weight,
                                   const std::optional<Tensor>& bias,
                                   const std::optional<Tensor>& residual, int32_t dtype) {
  OPFORGE_CHECK(x.dim() >= 1 && weight.dim() == 2 && x.size(x.dim() - 1) == weight.size(1),
                "scaled_linear: x must be (..., features) and weight (outputs, features)");
  for (const Tensor& bytes : {x, weight}) {
    OPFORGE_CHECK(same_device(x, bytes) && dtype_code(bytes) == aoti_torch_dtype_uint8(),
                  "scaled_linear: x and weight must be bytes on one device");
  }
  std::vector<int64_t> shape(sizes(x).begin(), sizes(x).end());
  shape.back() = weight.size(0);
  if (bias) {
    OPFORGE_CHECK(same_device(x, *bias) && dtype_code(*bias) == dtype && bias->dim() == 1 &&
                      bias->size(0) == weight.size(0),
                  "scaled_linear: bias must be (outputs), in the dtype of the result");
  }
  if (residual) {
    OPFORGE_CHECK(same_device(x, *residual) && dtype_code(*residual) == dtype &&
                      std::ranges::equal(sizes(*residual), shape),
                  "scaled_linear: residual must have the shape and dtype of the result");
  }
  return shape;
}

struct Layer {
  ProductColumns row_scale, col_scale;
  std::optional<Tensor> bias;
  std::optional<MatrixView> residual;
  Finish finish;
  bool e5m2, fast_accum;
};

// False where there is no kernel for it.
bool by_kernel(const Tensor& y, const Tensor* z, const Tensor& x, const Tensor& weight,
               const Layer& layer) {
  const bool plain = !layer.bias && !layer.residual && !layer.finish.changes() && z == nullptr;
  if (layer.e5m2 && !plain) return false;
  const DType dtype = dtype_of(y);
  const Operand a = rows_of<uint8_t>(x), b = rows_of<uint8_t>(weight);
  ProductCall call{dtype, a.outer, b.outer, a.inner};
  call.a = a.view, call.b[0] = b.view;
  call.out[0] = matrix_of(y, b.outer);
  call.rows = layer.row_scale;
  call.columns[layer.e5m2 ? 0 : 1] = layer.col_scale;
  if (layer.bias) {
    call.columns[0] = {layer.bias->const_data_ptr(), dtype, strides(*layer.bias)[0]};
  }
  if (z != nullptr) call.out[call.outs++] = matrix_of(*z, b.outer);
  if (layer.residual) {
    const MatrixView& added = *layer.residual;
    call.in[call.ins++] = {const_cast<void*>(added.tensor.const_data_ptr()), added.row_stride};
  }
  call.stream = current_stream(y);
  return run_product(call, {layer.finish, layer.residual.has_value()}, layer.e5m2,
                     layer.fast_accum);
}

template <class T>
Tensor widened(const Tensor& x, bool e5m2, const Tensor& like) {
  const MatrixView v = as_matrix(x);
  const int64_t size[] = {v.rows, v.cols};
  const Tensor result = empty(size, like);
  const Matrix<const uint8_t> from = v.read<uint8_t>();
  const cudaStream_t stream = current_stream(x);
  if (e5m2) {
    launch_widen<float8_e5m2>(from, mutable_data<T>(result), v.rows, v.cols, stream);
  } else {
    launch_widen<float8_e4m3>(from, mutable_data<T>(result), v.rows, v.cols, stream);
  }
  return result;
}

// The numbers as floats, and torch's product of them.
void by_torch(const Tensor& y, const Tensor* z, const Tensor& x, const Tensor& weight,
              const Layer& layer) {
  dispatch_all(dtype_of(y), [&]<class Out>(Type<Out>) {
    using A = compute_t<Out>;
    const int64_t one[] = {1};
    const Tensor like =
        empty(one, sizeof(A) == 8 ? aoti_torch_dtype_float64() : aoti_torch_dtype_float32(), y);
    const Tensor a = widened<A>(x, layer.e5m2, like), b = widened<A>(weight, false, like);
    const Tensor sums = contiguous(torch_matmul(a, permute(b, {1, 0})));
    PlainFinish<Out> p{data<A>(sums), sums.size(0), sums.size(1), layer.row_scale, layer.col_scale};
    if (layer.bias) p.bias = data<Out>(*layer.bias), p.bias_step = strides(*layer.bias)[0];
    if (layer.residual) p.residual = layer.residual->read<Out>();
    p.finish = layer.finish;
    p.y = mutable_data<Out>(y);
    if (z != nullptr) p.z = mutable_data<Out>(*z);
    launch_finish(p, current_stream(y));
  });
}

}  // namespace

std::tuple<Tensor, Tensor> scaled_linear_cuda(const Tensor& x, const Tensor& weight,
                                              const std::optional<Tensor>& bias,
                                              const std::optional<Tensor>& residual,
                                              const Tensor& x_scale, const Tensor& weight_scale,
                                              int64_t activation, bool e5m2, bool fast_accum,
                                              int64_t dtype, bool with_z) {
  const int32_t codes[] = {aoti_torch_dtype_float32(), aoti_torch_dtype_float16(),
                           aoti_torch_dtype_bfloat16(), aoti_torch_dtype_float64()};
  OPFORGE_CHECK(dtype >= 0 && dtype < 4, "scaled_linear: there is no dtype ", dtype);
  const int32_t code = codes[dtype];
  const std::vector<int64_t> shape = checked_shape(x, weight, bias, residual, code);
  const int64_t n = weight.size(0), k = weight.size(1);
  int64_t m = 1;
  for (size_t d = 0; d + 1 < shape.size(); ++d) m *= shape[d];
  Layer layer{scales_of("x_scale", x_scale, x, m),
              scales_of("weight_scale", weight_scale, x, n),
              bias,
              {},
              finish_of(activation, 1, {}, {}),
              e5m2,
              fast_accum};
  const DeviceGuard guard(x.get_device_index());
  const Tensor y = empty(shape, code, x);
  const Tensor z = empty(with_z ? shape : std::vector<int64_t>{0}, code, x);
  if (m == 0 || n == 0) return {y, z};
  if (residual) layer.residual = with_rows(*residual);
  const Tensor* const kept = with_z ? &z : nullptr;
  const bool known = has_hopper_kernel(DType(dtype), true, m, n, k);
  if (!known || !by_kernel(y, kept, x, weight, layer)) by_torch(y, kept, x, weight, layer);
  return {y, z};
}

OPFORGE_IMPL(scaled_linear, scaled_linear_cuda)

}  // namespace opforge
