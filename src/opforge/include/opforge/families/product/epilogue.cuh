// SPDX-License-Identifier: Apache-2.0
// What becomes of a matrix product before it is written. Includes no torch header.
//
// An epilogue has choose(p, f), which calls f with a function without run-time choices. This
// function gets a thread's values of a chunk: of kParts products, of the matrices it reads (kIn),
// and of what there is per column (kColumns). It returns those of the matrices it writes (kOut).
// With kSums, the first of them is also summed down the columns.
//
// p says how many matrices this call reads and writes, and whether these are plain (not aligned).
// Where choose() knows all that, it passes on a function made by with_known(), which takes half as
// long.
#pragma once

#include <cuda_runtime.h>
#include <opforge/core/types.h>

#include <opforge/families/product/activation.cuh>
#include <type_traits>

namespace opforge {

// A function of an epilogue, for calls that read so many matrices and write so many, all aligned.
template <int Ins, int Outs, class F>
struct KnownTransform : F {
  static constexpr int kIns = Ins, kOuts = Outs;
};
template <int Ins, int Outs, class F>
__device__ __forceinline__ KnownTransform<Ins, Outs, F> with_known(const F& transform) {
  return {transform};
}

// y = a b
template <class Out_>
struct CopyEpilogue {
  using Out = Out_;
  static constexpr int kParts = 1, kIn = 0, kOut = 1, kColumns = 0;
  static constexpr bool kSums = false;

  template <class P, class F>
  __device__ __forceinline__ void choose(const P& p, const F& f) const {
    const auto copy = []<int N, int In, int Columns>(
                          const float (&product)[1][N], const float (&)[In][N],
                          const float (&)[Columns][N], float (&out)[1][N]) {
#pragma unroll
      for (int v = 0; v < N; ++v) out[0][v] = product[0][v];
    };
    p.plain ? f(copy) : f(with_known<0, 1>(copy));
  }
};

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

  template <class P, class F>
  __device__ __forceinline__ void choose(const P& p, const F& f) const {
    with_activation<Out>(activation, [&]<class Act>(const Act& act) {
      const auto simple = [&]<int N>(const float (&product)[1][N], const float (&in)[1][N],
                                     const float (&columns)[1][N], float (&out)[2][N]) {
#pragma unroll
        for (int v = 0; v < N; ++v) {
          out[1][v] = product[0][v] + columns[0][v];
          out[0][v] = act.value(out[1][v]);
        }
      };
      const auto general = [&]<int N>(const float (&product)[1][N], const float (&in)[1][N],
                                      const float (&columns)[1][N], float (&out)[2][N]) {
        simple(product, in, columns, out);
#pragma unroll
        for (int v = 0; v < N; ++v) out[0][v] *= scale;
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
      };
      const auto sum = [&]<int N>(const float (&product)[1][N], const float (&in)[1][N],
                                  const float (&columns)[1][N], float (&out)[2][N]) {
#pragma unroll
        for (int v = 0; v < N; ++v) out[0][v] = product[0][v] + columns[0][v] + in[0][v];
      };
      constexpr bool kNone = std::is_same_v<Act, Identity<Out>>;
      if (p.plain || limits || scale != 1.0f || (adds && !kNone)) {
        f(general);
      } else if (adds) {
        if constexpr (kNone) {
          p.outs == 1 ? f(with_known<1, 1>(sum)) : f(general);
        }
      } else if (p.outs == 1) {
        f(with_known<0, 1>(simple));
      } else {
        f(with_known<0, 2>(simple));
      }
    });
  }
};

}  // namespace opforge
