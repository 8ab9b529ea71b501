// SPDX-License-Identifier: Apache-2.0
#include <opforge/families/product/choice.h>
#include <opforge/families/product/cuda_gate_host.h>
#include <opforge/families/product/cuda_host.h>

#include "gated_linear.h"

namespace opforge {

namespace {

bool run_unit(const ProductCall& call, Activation activation, bool keeps) {
  using Tile = ProductTile<Activation>;
  static Unit<bool(const ProductCall&, const Activation&)> large("large"), large_kept("large_kept"),
      pingpong("pingpong"), pingpong_kept("pingpong_kept"), split("split"), tf32("tf32"),
      tf32_kept("tf32_kept");
  static const Tile all[] = {
      {&large, 256, 128, 2, 1, 1.0}, {&pingpong, 256, 64, 2, 1, 1.1}, {&split, 64, 64, 4, 4, 4.3}};
  static const Tile all_kept[] = {{&large_kept, 256, 128, 2, 1, 1.0},
                                  {&pingpong_kept, 256, 64, 2, 1, 1.1}};
  static const Tile all_tf32[] = {{&tf32, 256, 64, 2, 1, 1.0}};
  static const Tile all_tf32_kept[] = {{&tf32_kept, 256, 64, 2, 1, 1.0}};
  static Unit<bool(const ProductCall&, const Activation&)> ampere("ampere"),
      ampere_kept("ampere_kept"), ampere_tf32("ampere_tf32"), ampere_tf32_kept("ampere_tf32_kept");
  static const Tile all_ampere[] = {{&ampere, 128, 64, 1, 1, 1.0},
                                    {&ampere_kept, 128, 64, 1, 1, 1.0},
                                    {&ampere_tf32, 128, 64, 1, 1, 1.0},
                                    {&ampere_tf32_kept, 128, 64, 1, 1, 1.0}};
  // unreached: the check simulates Hopper; see tests/ops/test_linear_mma.py
  if (!is_hopper()) {
    const int which = (call.dtype == DType::f32 ? 2 : 0) + (keeps ? 1 : 0);
    return run_chosen(std::span(&all_ampere[which], 1), call, activation);
  }
  std::span<const Tile> tiles = all;
  if (keeps) tiles = all_kept;
  if (call.dtype == DType::f32) tiles = all_tf32;
  if (call.dtype == DType::f32 && keeps) tiles = all_tf32_kept;
  return run_chosen(tiles, call, activation);
}

// y, and z if it is kept. False where there is no kernel for it.
template <class T>
bool product_into(const Tensor& y, const Tensor* z, const Tensor& x, const Tensor& gate_weight,
                  const std::optional<Tensor>& up_weight, const std::optional<Tensor>& gate_bias,
                  const std::optional<Tensor>& up_bias, Activation activation) {
  const int64_t n = y.size(y.dim() - 1);
  const Operand a = rows_of<T>(x), gate = rows_of<T>(gate_weight);
  const Operand up = up_weight ? rows_of<T>(*up_weight) : gate;
  ProductCall call{dtype_of(y), a.outer, n, a.inner};
  call.a = a.view, call.b[0] = gate.view, call.b[1] = up.view;
  if (!up_weight) call.b[1].data = static_cast<const T*>(up.view.data) + n * up.view.stride;
  const auto column = [&](const Tensor& bias, int64_t first) -> ProductColumns {
    const int64_t step = strides(bias)[0];
    return {data<T>(bias) + first * step, dtype_of(bias), step};
  };
  if (gate_bias) call.columns[0] = column(*gate_bias, 0);
  if (up_bias) call.columns[1] = column(*up_bias, 0);
  if (gate_bias && !up_weight) call.columns[1] = column(*gate_bias, n);
  call.out[0] = matrix_of(y, n);
  if (z != nullptr) {
    T* const kept = mutable_data<T>(*z);
    call.out[call.outs++] = {kept, 2 * n};
    call.out[call.outs++] = {kept + n, 2 * n};
  }
  call.stream = current_stream(y);
  return run_unit(call, activation, z != nullptr);
}

}  // namespace

std::tuple<Tensor, Tensor> gated_linear_cuda(const Tensor& x, const Tensor& gate_weight,
                                             const std::optional<Tensor>& up_weight,
                                             const std::optional<Tensor>& gate_bias,
                                             const std::optional<Tensor>& up_bias,
                                             int64_t activation, bool tf32, bool save) {
  const Activation act = finish_of(activation, 1, {}, {}).activation;
  const std::vector<int64_t> shape =
      gated_linear_shape(x, gate_weight, up_weight, gate_bias, up_bias);
  const DeviceGuard guard(x.get_device_index());
  const int64_t k = gate_weight.size(1), m = k == 0 ? 0 : x.numel() / k;
  if (has_kernel(dtype_of(x), tf32, m, shape.back(), k)) {
    const Tensor y = empty(shape, x), z = save ? empty(shape_of_z(shape), x) : no_tensor(x);
    bool done = false;
    dispatch(dtype_of(x), [&]<class T>(Type<T>) {
      done = product_into<T>(y, save ? &z : nullptr, x, gate_weight, up_weight, gate_bias, up_bias,
                             act);
    });
    if (done) return {y, z};
  }
  const Tensor gate = torch_linear(x, gate_weight, gate_bias);
  std::optional<Tensor> up;
  if (up_weight) up = torch_linear(x, *up_weight, up_bias);
  const Tensor y = gate_elements("gated_linear", gate, up, act);
  return {y, !save ? no_tensor(x) : up ? beside(gate, *up) : gate};
}

OPFORGE_IMPL(gated_linear, gated_linear_cuda)

}  // namespace opforge
