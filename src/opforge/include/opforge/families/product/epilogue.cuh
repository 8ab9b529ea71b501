// SPDX-License-Identifier: Apache-2.0
// What becomes of a matrix product before it is written. Includes no torch header.
//
// An epilogue has choose(f), which calls f with a function without run-time choices. This function
// gets a thread's values of a chunk: of kParts products, of the matrices it reads (kIn), and of
// what there is per column (kColumns). It returns those of the matrices it writes (kOut). With
// kSums, the first of them is also summed down the columns.
#pragma once

#include <cuda_runtime.h>
#include <opforge/core/types.h>

#include <opforge/families/product/activation.cuh>

namespace opforge {

// y = finish(a b + bias) + residual, and z = a b + bias itself.
template <class Out_>
struct LinearEpilogue {
  using Out = Out_;
  static constexpr int kParts = 1, kIn = 1, kOut = 2, kColumns = 1;
  static constexpr bool kSums = false;
  Activation activation;
  float scale;
  bool adds;  // the residual
  bool limits;
  float low, high;

  LinearEpilogue(const Finish& finish, bool adds)
      : activation(finish.activation),
        scale(float(finish.scale)),
        adds(adds),
        limits(finish.limits),
        low(float(finish.low)),
        high(float(finish.high)) {}
  LinearEpilogue() = default;

  template <class F>
  __device__ __forceinline__ void choose(const F& f) const {
    with_activation<Out>(activation, [&](const auto& act) {
      f([&]<int N>(const float (&product)[1][N], const float (&in)[1][N],
                   const float (&columns)[1][N], float (&out)[2][N]) {
#pragma unroll
        for (int v = 0; v < N; ++v) {
          out[1][v] = product[0][v] + columns[0][v];
          out[0][v] = act.value(out[1][v]) * scale;
        }
        if (limits) {
#pragma unroll
          for (int v = 0; v < N; ++v) {
            out[0][v] = out[0][v] < low ? low : out[0][v];
            out[0][v] = out[0][v] > high ? high : out[0][v];
          }
        }
        if (adds) {
#pragma unroll
          for (int v = 0; v < N; ++v) out[0][v] += in[0][v];
        }
      });
    });
  }
};

}  // namespace opforge
