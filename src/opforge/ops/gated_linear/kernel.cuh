// SPDX-License-Identifier: Apache-2.0
// The units of gated_linear: families/product/hopper.cuh or ampere.cuh with two products, of the
// same tile of x with a tile of each weight, and the gate as its epilogue. Bytes: x, both weights
// and y once, and both products where they are kept. Operations: 4 m n k.
#pragma once

#include <opforge/core/unit.h>

#include <opforge/families/product/activation.cuh>
#include <opforge/families/product/ampere_launch.cuh>
#include <opforge/families/product/hopper_launch.cuh>

namespace opforge {

// y = act(x gateᵀ + bias) * (x upᵀ + bias). Where it `keeps` the two factors before the activation,
// it needs shared memory for three results, which costs a stage of the large tile.
template <class Out_, bool keeps>
struct GatedEpilogue {
  using Out = Out_;
  static constexpr int kParts = 2, kIn = 0, kOut = keeps ? 3 : 1, kColumns = 2;
  static constexpr bool kSums = false;
  Activation activation;

  template <class P, class F>
  __device__ __forceinline__ void choose(const P& p, const F& f) const {
    with_activation<Out>(activation, [&](const auto& act) {
      f([&]<int N>(const float (&product)[2][N], const float (&)[1][N],
                   const float (&columns)[2][N], float (&out)[kOut][N]) {
#pragma unroll
        for (int v = 0; v < N; ++v) {
          const float gate = product[0][v] + columns[0][v], up = product[1][v] + columns[1][v];
          out[0][v] = act.value(gate) * up;
          if constexpr (keeps) out[1][v] = gate, out[2][v] = up;
        }
      });
    });
  }
};

template <class T, bool keeps, class Tile>
bool run_gated(const ProductCall& call, Activation activation) {
  using Epilogue = GatedEpilogue<T, keeps>;
  return run_hopper<HopperProduct<T, Tile, Major::inner, Major::inner, Epilogue>>(call,
                                                                                  {activation});
}

template <class T, bool keeps>
// unreached: the check simulates Hopper; see tests/ops/test_linear_mma.py
bool run_gated_ampere(const ProductCall& call, Activation activation) {
  using Epilogue = GatedEpilogue<T, keeps>;
  return run_ampere<AmpereProduct<T, Major::inner, Major::inner, Epilogue>>(call, {activation});
}

template <bool keeps>
// unreached: the check simulates Hopper; see tests/ops/test_linear_mma.py
bool run_gated_ampere_short(const ProductCall& call, Activation activation) {
  if (call.dtype == DType::f16) return run_gated_ampere<half, keeps>(call, activation);
  return run_gated_ampere<bfloat16, keeps>(call, activation);
}

template <bool keeps, class Tile>
bool run_gated_short(const ProductCall& call, Activation activation) {
  if (call.dtype == DType::f16) return run_gated<half, keeps, Tile>(call, activation);
  return run_gated<bfloat16, keeps, Tile>(call, activation);
}

}  // namespace opforge
