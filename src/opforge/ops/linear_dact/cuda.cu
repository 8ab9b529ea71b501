// SPDX-License-Identifier: Apache-2.0
#include <opforge/families/product/choice.h>
#include <opforge/families/product/cuda_finish_host.h>
#include <opforge/families/product/cuda_gate_host.h>
#include <opforge/families/product/cuda_host.h>
#include <opforge/host/partial_sums.h>

#include "linear_dact.h"

namespace opforge {

namespace {

bool run_unit(const ProductCall& call, Activation activation, bool gated) {
  using Tile = ProductTile<Activation>;
  static Unit<bool(const ProductCall&, const Activation&)> large("large"), pingpong("pingpong"),
      tf32("tf32"), gated_pingpong("gated_pingpong"), gated_tf32("gated_tf32");
  static const Tile one[] = {{&large, 256, 256, 2, 1, 1.0}, {&pingpong, 256, 128, 2, 1, 1.1}};
  static const Tile pair[] = {{&gated_pingpong, 256, 128, 2, 1, 1.0}};
  static const Tile one_tf32[] = {{&tf32, 256, 128, 2, 1, 1.0}};
  static const Tile pair_tf32[] = {{&gated_tf32, 256, 128, 2, 1, 1.0}};
  static Unit<bool(const ProductCall&, const Activation&)> ampere("ampere"),
      ampere_gated("ampere_gated"), ampere_tf32("ampere_tf32"),
      ampere_gated_tf32("ampere_gated_tf32");
  static const Tile all_ampere[] = {{&ampere, 128, 128, 1, 1, 1.0},
                                    {&ampere_gated, 128, 128, 1, 1, 1.0},
                                    {&ampere_tf32, 128, 128, 1, 1, 1.0},
                                    {&ampere_gated_tf32, 128, 128, 1, 1, 1.0}};
  // unreached: the check simulates Hopper; see tests/ops/test_linear_mma.py
  if (!is_hopper()) {
    const int which = (call.dtype == DType::f32 ? 2 : 0) + (gated ? 1 : 0);
    return run_chosen(std::span(&all_ampere[which], 1), call, activation);
  }
  std::span<const Tile> tiles = one;
  if (gated) tiles = pair;
  if (call.dtype == DType::f32) tiles = one_tf32;
  if (call.dtype == DType::f32 && gated) tiles = pair_tf32;
  return run_chosen(tiles, call, activation);
}

// The operand whose outer indices are the columns of weight: as it lies if its rows are contiguous.
template <class T>
Operand columns_of(const Tensor& weight) {
  if constexpr (sizeof(T) != 2) {
    return operand_of<T>(weight, true);
  } else {
    const Operand rows = rows_of<T>(weight);
    return {
        rows.tensor, {rows.view.data, Major::outer, rows.view.stride, 0}, rows.inner, rows.outer};
  }
}

// passed, h and the sums of 64 rows of passed, if they are wanted. False where there is no kernel.
template <class T>
bool product_into(const Tensor& passed, const Tensor* h, const Tensor* partial, const Tensor& grad,
                  const Tensor& weight, const MatrixView& z, Activation activation, bool gated) {
  const Operand a = rows_of<T>(grad), b = columns_of<T>(weight);
  const int64_t features = b.outer, cols = z.cols;
  ProductCall call{dtype_of(passed), a.outer, features, a.inner};
  call.a = a.view, call.b[0] = b.view;
  T* const from = const_cast<T*>(z.data<T>());
  T* const to = mutable_data<T>(passed);
  call.ins = call.outs = gated ? 2 : 1;
  for (int i = 0; i < call.ins; ++i) {
    call.in[i] = {from + i * features, z.row_stride};
    call.out[i] = {to + i * features, cols};
  }
  if (h != nullptr) call.out[call.outs++] = matrix_of(*h, features);
  if (partial != nullptr) call.sums = mutable_data<float>(*partial);
  call.stream = current_stream(passed);
  return run_unit(call, activation, gated);
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> linear_dact_cuda(const Tensor& grad,
                                                    const std::optional<Tensor>& weight,
                                                    const Tensor& z, int64_t activation, bool gated,
                                                    bool tf32, bool with_h, bool with_sums) {
  const int64_t features = check_dact(grad, weight, z, gated);
  const Finish finish = finish_of(activation, 1, {}, {});
  const DeviceGuard guard(grad.get_device_index());
  const auto none = [&] { return no_tensor(grad); };
  const auto sums_of = [&](const Tensor& passed) {
    return with_sums ? std::get<1>(finish_backward(passed, {}, {})) : none();
  };
  const int64_t outputs = weight ? weight->size(0) : 0;
  const int64_t rows = outputs == 0 ? 0 : grad.numel() / outputs;
  if (weight && has_kernel(dtype_of(grad), tf32, rows, features, outputs)) {
    const Tensor passed = empty(sizes(z), grad);
    std::vector<int64_t> shape(sizes(z).begin(), sizes(z).end());
    shape.back() = features;
    const Tensor h = with_h ? empty(shape, grad) : none();
    const MatrixView in = with_rows(z);
    const bool adds = with_sums && !gated;
    const int64_t parts[2] = {adds ? ceil_div(rows, 64) : 0, features};
    const Tensor partial = empty(parts, aoti_torch_dtype_float32(), grad);
    bool done = false;
    dispatch(dtype_of(grad), [&]<class T>(Type<T>) {
      done = product_into<T>(passed, with_h ? &h : nullptr, adds ? &partial : nullptr, grad,
                             *weight, in, finish.activation, gated);
    });
    if (done && !adds) return {passed, h, sums_of(passed)};
    if (done) {
      const Tensor sums = empty({&features, 1}, grad);
      PartialSums<float>{data<float>(partial), nullptr, parts[0], features}.finish(
          sums, sums, false, current_stream(grad));
      return {passed, h, sums};
    }
  }
  const Tensor grad_h = weight ? torch_matmul(grad, *weight) : grad;
  if (!gated) {
    const auto [passed, sums] = finish_backward(grad_h, z, finish);
    return {passed, with_h ? finish_elements(z, {}, finish) : none(), with_sums ? sums : none()};
  }
  const Tensor passed = gate_backward("linear_dact", grad_h, z, finish.activation);
  return {passed, with_h ? gate_elements("linear_dact", z, {}, finish.activation) : none(),
          sums_of(passed)};
}

OPFORGE_IMPL(linear_dact, linear_dact_cuda)

}  // namespace opforge
