// SPDX-License-Identifier: Apache-2.0
// layer_norm and rms_norm, with what may stand around them: a relu, a dropout and an added residual
// before the norm, a relu and a dropout after it. Forward. Includes no torch header.
#pragma once

#include <opforge/params.h>
#include <opforge/rng.h>

#include <opforge/rows.cuh>

namespace opforge {

// Bit i: element first + i stays. A call, not inlined: it is long, and wanted in many places.
template <int N>
__device__ __noinline__ uint32_t kept_bits(uint64_t seed, uint64_t first, uint32_t threshold) {
  bool kept[N];
  keep<N>(seed, first, threshold, kept);
  uint32_t bits = 0;
#pragma unroll
  for (int e = 0; e < N; ++e) bits |= uint32_t(kept[e]) << e;
  return bits;
}

// A relu, a dropout or both; the mask follows from the seed, on the device, and the element.
struct Around {
  bool relu = false, dropout = false;
  const int64_t* seed = nullptr;
  uint32_t threshold = 0;
  double factor = 1;  // of what is kept

  // Which of N elements stay, for the other two.
  template <int N>
  __device__ __forceinline__ uint32_t kept(int64_t first) const {
    return dropout ? kept_bits<N>(uint64_t(*seed), uint64_t(first), threshold) : 0;
  }

  template <int N, class A>
  __device__ __forceinline__ void forward(uint32_t kept, A (&v)[N]) const {
    if (relu) {
#pragma unroll
      for (int e = 0; e < N; ++e) v[e] = v[e] < A(0) ? A(0) : v[e];  // keeps NaN
    }
    drop(kept, v);
  }

  // `v` becomes the gradient of the input, given that of the output and the input.
  template <int N, class A>
  __device__ __forceinline__ void backward(uint32_t kept, const A (&input)[N], A (&v)[N]) const {
    drop(kept, v);
    if (relu) {
#pragma unroll
      for (int e = 0; e < N; ++e) v[e] = input[e] <= A(0) ? A(0) : v[e];
    }
  }

 private:
  template <int N, class A>
  __device__ __forceinline__ void drop(uint32_t kept, A (&v)[N]) const {
    if (!dropout) return;
#pragma unroll
    for (int e = 0; e < N; ++e) v[e] = (kept >> e & 1) != 0 ? v[e] * A(factor) : A(0);
  }
};

// What a row is normalised by. Centered: the mean, and the squares around it, of how many elements;
// two of these merge without cancellation. Else: the sum of squares.
template <class A, bool Centered>
struct Moments {
  A count = 0, mean = 0, squares = 0;

  template <int N>
  __device__ __forceinline__ void add(const A (&v)[N]) {
    Moments own;
    own.count = N;
#pragma unroll
    for (int e = 0; e < N; ++e) own.mean += v[e];
    own.mean /= N;
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const A away = v[e] - own.mean;
      own.squares = fma(away, away, own.squares);
    }
    *this += own;
  }
  __device__ __forceinline__ void operator+=(const Moments& other) {
    const A both = count + other.count;
    if (both == A(0)) return;
    const A apart = other.mean - mean, share = A(1) / both;
    mean = (mean * count + other.mean * other.count) * share;
    squares = (squares + other.squares) + apart * apart * (count * other.count * share);
    count = both;
  }
  __device__ __forceinline__ A rstd(int64_t cols, A eps) const {
    return A(1) / sqrt(squares / A(cols) + eps);
  }
};

template <class A>
struct Moments<A, false> {
  A squares = 0;
  static constexpr int mean = 0;

  template <int N>
  __device__ __forceinline__ void add(const A (&v)[N]) {
#pragma unroll
    for (int e = 0; e < N; ++e) squares = fma(v[e], v[e], squares);
  }
  __device__ __forceinline__ void operator+=(const Moments& other) { squares += other.squares; }
  __device__ __forceinline__ A rstd(int64_t cols, A eps) const {
    return A(1) / sqrt(squares / A(cols) + eps);
  }
};

// y = after((h - mean) * rstd * (weight + offset) + bias) with h = before(x) + residual.
// Extras: there is a residual, a relu or a dropout. Without them fewer registers do.
template <class T, bool Centered, bool Extras>
struct NormForward {
  using Element = T;
  using A = compute_t<T>;
  using Total = Moments<A, Centered>;
  Rows<const T> x, residual;
  T *h, *y;  // h, if there is a residual
  A *mean, *rstd;
  Param weight, bias;
  Around before, after;
  A offset, eps;
  int64_t cols;

  struct Cursor {
    int64_t row;
    const T *x, *residual;
  };

  template <int N>
  struct Loaded {
    Vec<T, N> h;
  };

  __device__ __forceinline__ Cursor start(int64_t row) const {
    return {row, x.at(row), Extras && h != nullptr ? residual.at(row) : nullptr};
  }
  __device__ __forceinline__ const T* first(const Cursor& c) const { return c.x; }

  template <int N>
  __device__ __forceinline__ Loaded<N> load(const Cursor& c, int64_t col, bool again) const {
    if (Extras && again && h != nullptr) return {opforge::load<N>(h + c.row * cols + col)};
    Loaded<N> in{opforge::load<N>(c.x + col)};
    if constexpr (Extras) {
      Vec<T, N> other = {};
      if (h != nullptr) other = opforge::load<N>(c.residual + col);
      A v[N];
#pragma unroll
      for (int e = 0; e < N; ++e) v[e] = widen(in.h.value[e]);
      before.forward(before.template kept<N>(c.row * cols + col), v);
#pragma unroll
      for (int e = 0; e < N; ++e) in.h.value[e] = narrow<T>(v[e] + widen(other.value[e]));
      if (h != nullptr) store<N>(h + c.row * cols + col, in.h);
    }
    return in;
  }

  template <int N>
  __device__ __forceinline__ void add(Total& total, const Loaded<N>& in) const {
    A v[N];
#pragma unroll
    for (int e = 0; e < N; ++e) v[e] = widen(in.h.value[e]);
    total.add(v);
  }

  __device__ __forceinline__ void finish(const Cursor& c, const Total& total) const {
    if (mean != nullptr) mean[c.row] = total.mean;
    if (rstd != nullptr) rstd[c.row] = total.rstd(cols, eps);
  }

  template <int N>
  __device__ __forceinline__ void use(const Cursor& c, int64_t col, const Loaded<N>& in,
                                      const Total& total) const {
    const A factor = total.rstd(cols, eps);
    A v[N], w[N];
#pragma unroll
    for (int e = 0; e < N; ++e) v[e] = (widen(in.h.value[e]) - A(total.mean)) * factor;
    if (weight) {
      read<T>(weight, col, w);
#pragma unroll
      for (int e = 0; e < N; ++e) v[e] *= w[e] + offset;
    }
    if (bias) {
      read<T>(bias, col, w);
#pragma unroll
      for (int e = 0; e < N; ++e) v[e] += w[e];
    }
    if constexpr (Extras) after.forward(after.template kept<N>(c.row * cols + col), v);
    Vec<T, N> out;
#pragma unroll
    for (int e = 0; e < N; ++e) out.value[e] = narrow<T>(v[e]);
    store<N>(y + c.row * cols + col, out);
  }
};

}  // namespace opforge
