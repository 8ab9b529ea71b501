// SPDX-License-Identifier: Apache-2.0
// softmax and log_softmax of v = x * scale + mask over rows. Includes no torch header.
//
//   moves     reads x (and the mask) and writes y: the floor is a copy. What causal hides is not
//             read.
//   computes  6 operations for each element, one or two of them exponentials.
//
// Visitors for algorithms/rows.cuh, which holds a row in the registers of its threads. Each thread
// finds the Peak of what it holds, peaks are combined over the row, and each thread writes y.
//
// Exponentials cost the most: a multiprocessor computes 16 of them per clock, while memory delivers
// 5 bfloat16. So there is time for two per element. Without a mask (SoftmaxPlain), a thread holds
// elements as they came from memory, in few registers, and more blocks of a multiprocessor load
// rows at the same time. With a mask (SoftmaxForward), it computes exponentials once, relative to
// the largest element of each vector, and holds them instead of the elements. At last, it
// multiplies each vector with a factor.
#pragma once

#include <opforge/algorithms/rows.cuh>
#include <opforge/families/softmax/mask.cuh>
#include <opforge/families/softmax/peak.cuh>

namespace opforge {

// No mask, and a scale that leaves the order of the elements and is not tiny.
template <class T, bool Log>
struct SoftmaxPlain : WithoutParams {
  using Element = T;
  static constexpr bool kAnyRow = false;
  Rows<const T> x;
  T* y;
  float scale, exponent;  // of 2, for 1 of x
  int64_t cols;

  template <bool Ragged>
  using Holds = Holdings<Hold<4, 512, 3, 1>, Hold<4, 512, 3, 1>, Hold<8, 256, 4, 1>>;

  struct Cursor {
    int64_t row;
    const T* x;
  };
  template <int N>
  struct Loaded {
    Packed<T, N> x;
  };
  // More exact than to subtract a logarithm, but a product more.
  static constexpr bool kDivides = !Log && sizeof(T) > 2;
  struct Settled {
    float base, rest;  // 1 / sum if it divides, else log(sum), to the base that is wanted
  };

  __device__ __forceinline__ Cursor start(int64_t row) const { return {row, x.at(row)}; }
  __device__ __forceinline__ const T* first(const Cursor& c) const { return c.x; }

  template <int N>
  __device__ __forceinline__ Loaded<N> load(const Cursor& c, int64_t col) const {
    return {load_packed<N>(c.x + col)};
  }
  template <int N>
  __device__ __forceinline__ void prepare(const Cursor&, int64_t, Loaded<N>&, bool) const {}

  // A row of -inf is NaN, as in PyTorch: an infinite rest, or infinite differences.
  template <class Each, class Total>
  __device__ __forceinline__ Settled settle(const Cursor&, const Each& each,
                                            const Total& total) const {
    Largest<T> largest;
    each([&]<int N>(const Loaded<N>& in) { largest.add(in.x); });
    ScaledPeak peak{largest.value(), 0, exponent};
    const float base = finite_base(peak.top);
    each([&]<int N>(const Loaded<N>& in) {
      float v[N], own = 0;
      widen(in.x, v);
#pragma unroll
      for (int e = 0; e < N; ++e) own += power(v[e], base, exponent);
      peak.sum += own;
    });
    peak = total(peak);
    const float rest = kDivides ? 1.0f / peak.sum : Log ? log(peak.sum) : roughly_log2(peak.sum);
    return {finite_base(peak.top), rest};
  }
  __device__ __forceinline__ void finish(const Cursor&, const Settled&) const {}

  template <int N>
  __device__ __forceinline__ Packed<T, N> result(const Cursor&, int64_t, const Loaded<N>& in,
                                                 const NoParams&, const Settled& settled) const {
    float v[N];
    widen(in.x, v);
#pragma unroll
    for (int e = 0; e < N; ++e) {
      if constexpr (Log) {  // half of the difference, which itself may be infinite
        v[e] = fma(fma(v[e], 0.5f, -0.5f * settled.base), 2 * scale, -settled.rest);
      } else if constexpr (kDivides) {
        v[e] = power(v[e], settled.base, exponent) * settled.rest;
      } else {
        v[e] = roughly_exp2(fma(v[e] - settled.base, exponent, -settled.rest));
      }
    }
    return narrow<T>(v);
  }
  template <int N>
  __device__ __forceinline__ void write(const Cursor& c, int64_t col,
                                        const Packed<T, N>& out) const {
    store<N>(y + c.row * cols + col, out);
  }
};

// What a kernel is compiled for: a kernel that can do less takes fewer registers. Alike: causal, a
// mask whose vectors are aligned as those of x and of its dtype, both or nothing. Any: all masks.
enum class Masked { alike, any };

template <class T, bool Log, Masked masked>
struct SoftmaxForward : WithoutParams, HeldAsUsual {
  using Element = T;
  using A = compute_t<T>;
  static constexpr bool kAlike = masked == Masked::alike, kAnyRow = masked == Masked::any;
  Rows<const T> x;
  T* y;
  Mask mask;
  Causal causal;
  A scale;
  int64_t cols;

  using Column = std::conditional_t<kAnyRow, int64_t, int>;  // 32 bits do for a row that is held

  struct Cursor {
    int64_t row;
    const T* x;
    int64_t mask;
    Column visible;
  };

  template <int N>
  struct Loaded {
    Packed<T, N> x, mask;
    A v[N], top;  // once prepared: v, or exp(v - top) if no logarithm is wanted
  };

  // What became of a row: y = v * factor(of a vector), or (v - top) - shift.
  struct Settled {
    A top, factor, shift;
  };

  __device__ __forceinline__ Cursor start(int64_t row) const {
    return {row, x.at(row), mask.values ? mask.at(row) : 0, Column(causal.visible(row, cols))};
  }
  __device__ __forceinline__ const T* first(const Cursor& c) const { return c.x; }

  template <int N>
  __device__ __forceinline__ Loaded<N> load(const Cursor& c, int64_t col) const {
    Loaded<N> in;
    in.x = in.mask = {};
    if (Column(col) >= c.visible) return in;
    in.x = load_packed<N>(c.x + col);
    if (kAlike && mask.values) {
      in.mask = load_packed<N>(static_cast<const T*>(mask.values.data) + c.mask + col);
    }
    return in;
  }

  template <int N>
  __device__ __forceinline__ void prepare(const Cursor& c, int64_t col, Loaded<N>& in, bool) const {
    widen(in.x, in.v);
    if (kAlike || (mask.values && Column(col) < c.visible)) {
      A added[N];
      if constexpr (kAlike) {
        widen(in.mask, added);
      } else {
        mask.read_columns<T>(c.mask, col, added);
      }
#pragma unroll
      for (int e = 0; e < N; ++e) in.v[e] = fma(in.v[e], scale, added[e]);
    } else {
#pragma unroll
      for (int e = 0; e < N; ++e) in.v[e] = product(in.v[e], scale);
    }
    hide(c, col, in.v, A(-INFINITY));
    in.top = A(-INFINITY);
#pragma unroll
    for (int e = 0; e < N; ++e) in.top = max(in.top, in.v[e]);
    if constexpr (!Log) exponentials(in.v, in.top, in.v);
  }

  // Without a mask a row of -inf is NaN, as in PyTorch: 0 / 0, or infinite differences.
  template <class Each, class Total>
  __device__ __forceinline__ Settled settle(const Cursor&, const Each& each,
                                            const Total& total) const {
    Peak<A> peak;
    each([&]<int N>(const Loaded<N>& in) {
      A powers[N];
      Peak<A> own;
      own.top = in.top;
      if constexpr (Log) exponentials(in.v, in.top, powers);
#pragma unroll
      for (int e = 0; e < N; ++e) own.sum += Log ? powers[e] : in.v[e];
      peak += own;
    });
    peak = total(peak);
    const bool masks = mask.values || causal.queries != 0;
    const bool covered = masks && peak.sum == A(0);
    if constexpr (Log) return {finite_base(peak.top), A(1), covered ? A(0) : log(peak.sum)};
    return {finite_base(peak.top), covered ? A(0) : A(1) / peak.sum, A(0)};
  }
  __device__ __forceinline__ void finish(const Cursor&, const Settled&) const {}

  template <int N>
  __device__ __forceinline__ Packed<T, N> result(const Cursor& c, int64_t col, const Loaded<N>& in,
                                                 const NoParams&, const Settled& settled) const {
    A out[N];
    if constexpr (Log) {
#pragma unroll
      for (int e = 0; e < N; ++e) out[e] = (in.v[e] - settled.top) - settled.shift;
    } else {
      const A factor = exp_of(in.top - settled.top) * settled.factor;
#pragma unroll
      for (int e = 0; e < N; ++e) out[e] = in.v[e] * factor;
    }
    hide(c, col, out, Log ? A(-INFINITY) : A(0));  // also if the row is NaN
    return narrow<T>(out);
  }

  template <int N>
  __device__ __forceinline__ void write(const Cursor& c, int64_t col,
                                        const Packed<T, N>& out) const {
    store<N>(y + c.row * cols + col, out);
  }

 private:
  template <int N>
  static __device__ __forceinline__ void exponentials(const A (&v)[N], A top, A (&out)[N]) {
    const A base = finite_base(top);
#pragma unroll
    for (int e = 0; e < N; ++e) out[e] = exp_of(v[e] - base);
  }
  template <int N>
  __device__ __forceinline__ void hide(const Cursor& c, int64_t col, A (&v)[N], A value) const {
    const Column left = c.visible - Column(col);
    if (left >= N) return;
#pragma unroll
    for (int e = 0; e < N; ++e) v[e] = e < left ? v[e] : value;
  }
};

}  // namespace opforge
