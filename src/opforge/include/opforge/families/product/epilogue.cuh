// SPDX-License-Identifier: Apache-2.0
// What becomes of a matrix product before it is written. Includes no torch header.
//
// An epilogue gets a thread's values of a chunk, of kParts products and of the matrices it reads
// (kIn), and returns those of the matrices it writes (kOut). With kSums, the first of them is also
// summed down the columns.
#pragma once

#include <cuda_runtime.h>
#include <opforge/core/types.h>

#include <cstdint>
#include <opforge/families/product/activation.cuh>

namespace opforge {

// y = finish(a b + bias) + residual, and a b + bias itself.
template <class Out_>
struct LinearEpilogue {
  using Out = Out_;
  static constexpr int kParts = 1, kIn = 1, kOut = 2;
  static constexpr bool kSums = false;
  const Out* bias;  // or null
  int64_t bias_step;
  Finish finish;
  bool adds;  // the residual

  template <int N, class Place>
  __device__ __forceinline__ void operator()(const float (&product)[1][N], const float (&in)[1][N],
                                             const Place& at, float (&out)[2][N]) const {
#pragma unroll
    for (int v = 0; v < N; ++v) out[1][v] = product[0][v];
    if (bias != nullptr) {
#pragma unroll
      for (int v = 0; v < N; ++v) {
        const int col = at.col(v);
        if (col < at.n) out[1][v] += widen(bias[col * bias_step]);
      }
    }
    with_activation<Out>(finish.activation, [&](const auto& act) {
#pragma unroll
      for (int v = 0; v < N; ++v) out[0][v] = finish.after(act.value(out[1][v]));
    });
    if (adds) {
#pragma unroll
      for (int v = 0; v < N; ++v) out[0][v] += in[0][v];
    }
  }
};

}  // namespace opforge
