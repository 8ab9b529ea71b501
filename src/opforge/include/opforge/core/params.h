// SPDX-License-Identifier: Apache-2.0
// A value per column (weights, biases) in a dtype of its own. Includes no torch header.
#pragma once

#include <opforge/core/vec.h>

namespace opforge {

// Contiguous, and in float or in the element type of the rows it goes with; none if null.
struct Param {
  const void* data = nullptr;
  bool is_float = false;

  __device__ __forceinline__ explicit operator bool() const { return data != nullptr; }
};

// Read in place of a parameter that is missing: one word, repeated for the longest vector of
// floats.
template <uint32_t Word>
__device__ const Vec<uint32_t, 4> repeated[2] = {{Word, Word, Word, Word},
                                                 {Word, Word, Word, Word}};

template <class W>
constexpr uint32_t kOne = 0;  // unused, but needed to compile for double
template <>
constexpr uint32_t kOne<float> = 0x3f800000;
template <>
constexpr uint32_t kOne<bfloat16> = 0x3f803f80;
template <>
constexpr uint32_t kOne<half> = 0x3c003c00;

namespace detail {

template <int N, class W, class A>
__device__ __forceinline__ void read_param(const W* from, A (&out)[N]) {
  constexpr int M = N < kVec<W> ? N : kVec<W>;
  if (misalignment(from, sizeof(Vec<W, M>)) == 0) {
#pragma unroll
    for (int i = 0; i < N; i += M) {
      compute_t<W> v[M];
      widen(load_packed<M>(from + i), v);
#pragma unroll
      for (int e = 0; e < M; ++e) out[i + e] = A(v[e]);
    }
  } else {
#pragma unroll
    for (int e = 0; e < N; ++e) out[e] = A(widen(from[e]));
  }
}

}  // namespace detail

// The values for N columns of a parameter that is aligned. With ragged rows, a vector of a row may
// begin at any column, so the values are loaded one by one.
template <class W, int N, bool Ragged>
__device__ __forceinline__ Packed<W, N> load_param(const W* data, int64_t col) {
  if constexpr (Ragged) {
    Vec<W, N> values;
#pragma unroll
    for (int e = 0; e < N; ++e) values.value[e] = data[col + e];
    return values;
  } else {
    constexpr int M = N < kVec<W> ? N : kVec<W>;
    Packed<W, N> values;
#pragma unroll
    for (int i = 0; i < N; i += M) {
      const Packed<W, M> some = load_packed<M>(data + col + i);
      memcpy(values.word + i * sizeof(W) / sizeof(some.word[0]), some.word, sizeof some);
    }
    return values;
  }
}

// The values for N columns from `col` on, of rows of T.
template <class T, int N, class A>
__device__ __forceinline__ void read(const Param& param, int64_t col, A (&out)[N]) {
  if (param.is_float) {
    detail::read_param(static_cast<const float*>(param.data) + col, out);
  } else {
    detail::read_param(static_cast<const T*>(param.data) + col, out);
  }
}

}  // namespace opforge
