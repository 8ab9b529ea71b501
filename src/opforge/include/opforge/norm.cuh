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

  // For the elements from `first` on.
  template <bool Dropout, int N, class A>
  __device__ __forceinline__ void forward(int64_t first, A (&v)[N]) const {
    if (relu) {
#pragma unroll
      for (int e = 0; e < N; ++e) v[e] = v[e] < A(0) ? A(0) : v[e];  // keeps NaN
    }
    if (Dropout && dropout) drop(first, v);
  }

  // `v` becomes the gradient of the input, given that of the output and the input.
  template <bool Dropout, int N, class A>
  __device__ __forceinline__ void backward(int64_t first, const A (&input)[N], A (&v)[N]) const {
    if (Dropout && dropout) drop(first, v);
    if (relu) {
#pragma unroll
      for (int e = 0; e < N; ++e) v[e] = input[e] <= A(0) ? A(0) : v[e];
    }
  }

 private:
  template <int N, class A>
  __device__ __forceinline__ void drop(int64_t first, A (&v)[N]) const {
    const uint32_t kept = kept_bits<N>(uint64_t(*seed), uint64_t(first), threshold);
#pragma unroll
    for (int e = 0; e < N; ++e) v[e] = (kept >> e & 1) != 0 ? v[e] * A(factor) : A(0);
  }
};

// What is added up of a row, and what it comes to: mean and 1 / deviation around it.
template <class A>
struct Scale {
  A mean, rstd;
};

// Around zero.
template <class A>
struct Squares {
  A squares = 0;

  template <int N>
  __device__ __forceinline__ void add(const A (&v)[N], A) {
    A own = v[0] * v[0];  // by itself, so that vectors are added side by side
#pragma unroll
    for (int e = 1; e < N; ++e) own = fma(v[e], v[e], own);
    squares += own;
  }
  __device__ __forceinline__ void operator+=(const Squares& other) { squares += other.squares; }
  __device__ __forceinline__ Scale<A> scale(A, A share, A eps) const {
    return {A(0), rsqrt(fma(squares, share, eps))};
  }
};

// Around the mean, for 16-bit elements: sums around a pivot taken from the row. However far the
// pivot is from the mean, the variance is right to a fraction of what such an element can tell.
template <class A>
struct PivotedMoments {
  A sum = 0, squares = 0;

  template <int N>
  __device__ __forceinline__ void add(const A (&v)[N], A pivot) {
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const A away = v[e] - pivot;
      sum += away;
      squares = fma(away, away, squares);
    }
  }
  __device__ __forceinline__ void operator+=(const PivotedMoments& other) {
    sum += other.sum;
    squares += other.squares;
  }
  __device__ __forceinline__ Scale<A> scale(A pivot, A share, A eps) const {
    const A average = sum * share, variance = fma(squares, share, -average * average);
    return {pivot + average, rsqrt((variance < A(0) ? A(0) : variance) + eps)};
  }
};

// The same for float and double: how many elements, their mean, and the squares around it. Two of
// these merge without cancellation.
template <class A>
struct MergedMoments {
  A count = 0, mean = 0, squares = 0;

  template <int N>
  __device__ __forceinline__ void add(const A (&v)[N], A) {
    MergedMoments own;
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
  __device__ __forceinline__ void operator+=(const MergedMoments& other) {
    if (other.count == A(0)) return;
    if (count == A(0)) {
      *this = other;
      return;
    }
    const A both = count + other.count;
    const A apart = other.mean - mean, share = A(1) / both;
    // Not touched where they agree: the deviations of a row of one value are 0.
    if (apart != A(0)) mean = (mean * count + other.mean * other.count) * share;
    squares = (squares + other.squares) + apart * apart * (count * other.count * share);
    count = both;
  }
  __device__ __forceinline__ Scale<A> scale(A, A share, A eps) const {
    return {mean, rsqrt(fma(squares, share, eps))};
  }
};

template <class T, bool Centered>
using Moments = std::conditional_t<
    !Centered, Squares<compute_t<T>>,
    std::conditional_t<(sizeof(T) < 4), PivotedMoments<compute_t<T>>, MergedMoments<compute_t<T>>>>;

// What stands around the norm, as far as a kernel is compiled for it: the less, the fewer
// registers.
enum class Extras { none, no_dropout, all };

template <class T, bool Centered, Extras extras>
struct NormForward {
  using Element = T;
  using A = compute_t<T>;
  using Total = Moments<T, Centered>;
  static constexpr bool kExtras = extras != Extras::none, kDropout = extras == Extras::all;
  Rows<const T> x, residual;
  T *h, *y;  // h, if there is a residual
  A *mean, *rstd;
  Param weight, bias;
  Around before, after;
  A offset, eps, share;  // share: 1 / cols
  int64_t cols;

  struct Cursor {
    int64_t row;
    const T *x, *residual;
    A pivot;
  };

  template <int N>
  struct Loaded {
    Packed<T, N> h, residual;  // h is x until it is prepared
  };

  __device__ __forceinline__ Cursor start(int64_t row) const {
    Cursor c{row, x.at(row), kExtras && h != nullptr ? residual.at(row) : nullptr, A(0)};
    // Some of the row's elements, whatever becomes of them before they are added up.
    if (Centered && sizeof(T) < 4) c.pivot = pivot_of(c);
    return c;
  }
  __device__ __forceinline__ const T* first(const Cursor& c) const { return c.x; }

  // Close to the mean as a rule: the average of the first elements, with what is added to them.
  __device__ __forceinline__ A pivot_of(const Cursor& c) const {
    const int count = cols < 4 ? int(cols) : 4;
    A sum = 0;
    for (int i = 0; i < count; ++i) {
      sum += widen(c.x[i]);
      if (c.residual != nullptr) sum += widen(c.residual[i]);
    }
    sum /= A(count);
    return sum - sum == A(0) ? sum : A(0);  // not if it is infinite, or NaN
  }

  template <int N>
  __device__ __forceinline__ Loaded<N> load(const Cursor& c, int64_t col) const {
    Loaded<N> in;
    in.h = load_packed<N>(c.x + col);
    if (kExtras && h != nullptr) in.residual = load_packed<N>(c.residual + col);
    return in;
  }

  template <int N>
  __device__ __forceinline__ void prepare(const Cursor& c, int64_t col, Loaded<N>& in,
                                          bool again) const {
    if constexpr (kExtras) {
      A v[N];
      widen(in.h, v);
      before.template forward<kDropout>(c.row * cols + col, v);
      if (h != nullptr) {
        A other[N];
        widen(in.residual, other);
#pragma unroll
        for (int e = 0; e < N; ++e) v[e] += other[e];
      }
      in.h = narrow<T>(v);
      if (h != nullptr && !again) store<N>(h + c.row * cols + col, in.h);
    }
  }

  template <int N>
  __device__ __forceinline__ void add(const Cursor& c, Total& total, const Loaded<N>& in) const {
    A v[N];
    widen(in.h, v);
    total.add(v, c.pivot);
  }

  __device__ __forceinline__ Scale<A> settle(const Cursor& c, const Total& total) const {
    return total.scale(c.pivot, share, eps);
  }
  __device__ __forceinline__ void finish(const Cursor& c, const Scale<A>& scale) const {
    if (mean != nullptr) mean[c.row] = scale.mean;
    if (rstd != nullptr) rstd[c.row] = scale.rstd;
  }

  template <int N>
  __device__ __forceinline__ Packed<T, N> result(const Cursor& c, int64_t col, const Loaded<N>& in,
                                                 const Scale<A>& scale) const {
    A v[N], w[N];
    widen(in.h, v);
#pragma unroll
    for (int e = 0; e < N; ++e) v[e] = (v[e] - scale.mean) * scale.rstd;
    if (weight) {
      read<T>(weight, col, w);
      if (offset != A(0)) {
#pragma unroll
        for (int e = 0; e < N; ++e) w[e] += offset;
      }
#pragma unroll
      for (int e = 0; e < N; ++e) v[e] *= w[e];
    }
    if (bias) {
      read<T>(bias, col, w);
#pragma unroll
      for (int e = 0; e < N; ++e) v[e] += w[e];
    } else if (Centered) {
#pragma unroll
      for (int e = 0; e < N; ++e) v[e] += A(0);  // PyTorch's bias: there is no -0.0
    }
    if constexpr (kExtras) after.template forward<kDropout>(c.row * cols + col, v);
    return narrow<T>(v);
  }

  template <int N>
  __device__ __forceinline__ void write(const Cursor& c, int64_t col,
                                        const Packed<T, N>& out) const {
    store<N>(y + c.row * cols + col, out);
  }
};

}  // namespace opforge
