// SPDX-License-Identifier: Apache-2.0
// The units of linear_dact: families/product/hopper.cuh or ampere.cuh with the derivative of an
// activation, or of a gated one, as its epilogue. Bytes: grad and weight, z and its gradient once,
// and h where it is wanted. Operations: 2 m n k.
#pragma once

#include <opforge/core/unit.h>

#include <opforge/families/product/activation.cuh>
#include <opforge/families/product/ampere_launch.cuh>
#include <opforge/families/product/epilogue.cuh>
#include <opforge/families/product/hopper_launch.cuh>

namespace opforge {

// The gradient of z and h = act(z), given z. The first is summed down the columns.
template <class Out_>
struct DactEpilogue {
  using Out = Out_;
  static constexpr int kParts = 1, kIn = 1, kOut = 2, kColumns = 0;
  static constexpr bool kSums = true;
  Activation activation;

  template <class P, class F>
  __device__ __forceinline__ void choose(const P& p, const F& f) const {
    with_activation<Out>(activation, [&](const auto& act) {
      const auto gradient = [&]<int N>(const float (&product)[1][N], const float (&in)[1][N],
                                       const float (&)[1][N], float (&out)[2][N]) {
#pragma unroll
        for (int v = 0; v < N; ++v) out[0][v] = act.gradient(in[0][v], product[0][v], out[1][v]);
      };
      if (p.plain) {
        f(gradient);
      } else {
        p.outs == 1 ? f(with_known<1, 1>(gradient)) : f(with_known<1, 2>(gradient));
      }
    });
  }
};

// The gradients of gate and up and h = act(gate) * up, given gate and up.
template <class Out_>
struct GatedDactEpilogue {
  using Out = Out_;
  static constexpr int kParts = 1, kIn = 2, kOut = 3, kColumns = 0;
  static constexpr bool kSums = false;
  Activation activation;

  template <class P, class F>
  __device__ __forceinline__ void choose(const P& p, const F& f) const {
    with_activation<Out>(activation, [&](const auto& act) {
      const auto gradients = [&]<int N>(const float (&product)[1][N], const float (&in)[2][N],
                                        const float (&)[1][N], float (&out)[3][N]) {
#pragma unroll
        for (int v = 0; v < N; ++v) {
          float value;
          out[0][v] = act.gradient(in[0][v], product[0][v] * in[1][v], value);
          out[1][v] = product[0][v] * value;
          out[2][v] = value * in[1][v];
        }
      };
      if (p.plain) {
        f(gradients);
      } else {
        p.outs == 2 ? f(with_known<2, 2>(gradients)) : f(with_known<2, 3>(gradients));
      }
    });
  }
};

// The majors that operands have: of weight the columns are needed, and TF32 must be inner-major.
template <template <class> class Epilogue, class Tile>
bool run_dact_short(const ProductCall& call, Activation activation) {
  constexpr Major a = Major::inner, b = Major::outer;
  if (call.dtype == DType::f16) {
    return run_hopper<HopperProduct<half, Tile, a, b, Epilogue<half>>>(call, {activation});
  }
  return run_hopper<HopperProduct<bfloat16, Tile, a, b, Epilogue<bfloat16>>>(call, {activation});
}

template <template <class> class Epilogue, class Tile>
bool run_dact_tf32(const ProductCall& call, Activation activation) {
  constexpr Major inner = Major::inner;
  return run_hopper<HopperProduct<float, Tile, inner, inner, Epilogue<float>>>(call, {activation});
}

template <template <class> class Epilogue>
// unreached: the check simulates Hopper; see tests/ops/test_linear_mma.py
bool run_dact_ampere_short(const ProductCall& call, Activation activation) {
  constexpr Major a = Major::inner, b = Major::outer;
  if (call.dtype == DType::f16) {
    return run_ampere<AmpereProduct<half, a, b, Epilogue<half>>>(call, {activation});
  }
  return run_ampere<AmpereProduct<bfloat16, a, b, Epilogue<bfloat16>>>(call, {activation});
}

template <template <class> class Epilogue>
// unreached: the check simulates Hopper; see tests/ops/test_linear_mma.py
bool run_dact_ampere_tf32(const ProductCall& call, Activation activation) {
  constexpr Major inner = Major::inner;
  return run_ampere<AmpereProduct<float, inner, inner, Epilogue<float>>>(call, {activation});
}

}  // namespace opforge
