// SPDX-License-Identifier: Apache-2.0
// layer_norm and rms_norm, with a prologue (a relu, a dropout and an added residual) and an
// epilogue (a relu and a dropout). Forward: a visitor for algorithms/rows.cuh. Includes no torch
// header.
//
//   h = prologue(x) + residual      y = epilogue(normed(h) · weight + bias)
#pragma once

#include <opforge/core/params.h>

#include <opforge/algorithms/rows.cuh>
#include <opforge/families/norm/relu_dropout.cuh>

namespace opforge {

// The statistics of a row: its mean and 1 / its standard deviation. Without a mean (rms_norm) the
// deviation is that from zero.
template <class A>
struct Scale {
  A mean, rstd;
};

// Sums are taken of differences from a pivot, an element of the row: a row of one value has no
// differences. But not an element close to the largest number, the differences from which would add
// up to infinity; then the variance is infinite anyway.
template <class A>
__device__ __forceinline__ A pivot_of(A element) {
  return element * element < A(INFINITY) ? element : A(0);
}

// What a vector adds to the sum of the differences; by itself, so that vectors are added side by
// side.
template <int N, class A>
__device__ __forceinline__ A sum_from(A pivot, const A (&v)[N]) {
  A own = 0;
#pragma unroll
  for (int e = 0; e < N; ++e) own += v[e] - pivot;
  return own;
}

template <bool Centered, int N, class A>
__device__ __forceinline__ A squares_from(A mean, const A (&v)[N]) {
  A own = 0;
#pragma unroll
  for (int e = 0; e < N; ++e) {
    const A away = Centered ? v[e] - mean : v[e];
    own = fma(away, away, own);
  }
  return own;
}

// The sums of a row's differences from its pivot, and of their squares, for 16-bit elements: mean
// and variance in one step. That is exact enough if the pivot is close to the elements, compared
// with their spread: then the variance is no small difference of large numbers. See precise().
template <class A>
struct PivotMoments {
  A sum = 0, squares = 0;

  template <int N>
  __device__ __forceinline__ void add(A pivot, const A (&v)[N]) {
    A own = 0, own_squares = 0;  // by themselves, so that vectors are added side by side
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const A away = v[e] - pivot;
      own += away;
      own_squares = fma(away, away, own_squares);
    }
    sum += own;
    squares += own_squares;
  }
  __device__ __forceinline__ void operator+=(const PivotMoments& other) {
    sum += other.sum;
    squares += other.squares;
  }
  __device__ __forceinline__ A variance(A share) const {
    return fma(-(sum * share), sum * share, squares * share);
  }
  // Whether the pivot is within four deviations of the mean, as of 15999 of 16000 normal elements,
  // and the squares did not overflow, which those of the deviations may not do.
  __device__ __forceinline__ bool precise(A share) const {
    return squares < A(INFINITY) && (sum * share) * (sum * share) <= A(16) * variance(share);
  }
};

template <bool Centered, int N, class A>
__device__ __forceinline__ void normalise(A (&v)[N], const Scale<A>& scale) {
#pragma unroll
  for (int e = 0; e < N; ++e) v[e] = (Centered ? v[e] - scale.mean : v[e]) * scale.rstd;
}

// Without a mean there is no bias.
template <bool Centered, int N, class A>
__device__ __forceinline__ void weigh(A (&v)[N], const A (&weight)[N], const A (&bias)[N]) {
#pragma unroll
  for (int e = 0; e < N; ++e) v[e] = Centered ? fma(v[e], weight[e], bias[e]) : v[e] * weight[e];
}

// What a kernel is compiled for. The less it can, the fewer registers it takes.
enum class ForwardKind {
  plain,       // nothing but the norm, no offset; weight (and bias, if Centered) in the dtype of x
  relu,        // the same with a relu as the prologue
  no_dropout,  // anything else; the parameters there are have one dtype, W, and are aligned
  dropout,     // the same with dropouts; vectors lie at multiples of their length in the result
  any,         // any parameters
};

template <class T, bool Centered, ForwardKind kind, class W = T>
struct NormForward {
  using Element = T;
  using A = compute_t<T>;
  static constexpr bool kFused = kind > ForwardKind::relu, kDropout = kind >= ForwardKind::dropout;
  static constexpr bool kAnyRow = kind == ForwardKind::any;
  Rows<const T> x, residual;
  T *h, *y;  // h if there is a residual; without y only the statistics are wanted
  A *mean, *rstd;
  Param weight, bias;
  ReluDropout<A> prologue, epilogue;
  A offset, eps, share;  // offset: of the weight, if there is one; share: 1 / cols
  int64_t cols;

  // What takes few registers: two vectors to a thread if rows are short, and less at once for long
  // ones, two of which take up a multiprocessor otherwise.
  static constexpr bool kWideParams = (Centered ? 2 : 1) * sizeof(W) > 2 * sizeof(T);
  using Usual = HoldUsual<(kDropout || kWideParams ? 1 : 2)>;
  using Lean = std::conditional_t<Centered, Usual, Hold<2, 512, 4, 1>>;
  using Short = std::conditional_t<kFused, HoldLittle, Lean>;
  using Long = std::conditional_t<kFused || Centered, Usual, Hold<4, 512, 3, 1>>;
  template <bool Ragged>
  using Holds = std::conditional_t<Ragged || kDropout || !std::is_same_v<T, W>, Holdings<Usual>,
                                   Holdings<Short, Usual, Long, HoldLittle>>;

  template <int N>
  struct Loaded {
    Packed<T, N> h, residual;  // h is x until it is prepared
    uint32_t kept;             // by the epilogue, if it has a dropout
  };

  struct Cursor {
    int64_t row;
    const T *x, *residual;
    Loaded<1> first;              // the first element
    uint64_t prologue, epilogue;  // keys of the dropouts
  };

  __device__ __forceinline__ Cursor start(int64_t row) const {
    Cursor c{row, x.at(row), kFused && h != nullptr ? residual.at(row) : nullptr, {}, 0, 0};
    if constexpr (kDropout) {
      c.prologue = prologue.key();
      c.epilogue = epilogue.key();
    }
    if constexpr (Centered) c.first = load<1>(c, 0);
    return c;
  }
  __device__ __forceinline__ const T* first(const Cursor& c) const { return c.x; }

  template <int N>
  __device__ __forceinline__ Loaded<N> load(const Cursor& c, int64_t col) const {
    Loaded<N> in;
    in.h = load_packed<N>(c.x + col);
    if (kFused && h != nullptr) in.residual = load_packed<N>(c.residual + col);
    return in;
  }

  // Bits are made here, where the loads of the row are under way and registers are free.
  template <int N>
  __device__ __forceinline__ void prepare(const Cursor& c, int64_t col, Loaded<N>& in,
                                          bool again) const {
    const auto kept = [&](const ReluDropout<A>& which, uint64_t key) {
      if (!kDropout || !which.dropout) return ~0u;
      return which.template kept<N, kind == ForwardKind::dropout>(key, c.row * cols + col);
    };
    if constexpr (kDropout) in.kept = kept(epilogue, c.epilogue);
    apply_prologue(in, kept(prologue, c.prologue));
    if (kFused && h != nullptr && !again) store<N>(h + c.row * cols + col, in.h);
  }

  template <int N>
  __device__ __forceinline__ void apply_prologue(Loaded<N>& in, uint32_t kept) const {
    if (kind == ForwardKind::relu || (kFused && prologue.relu)) in.h = relu_of(in.h);
    const bool drops = kDropout && prologue.dropout, adds = kFused && h != nullptr;
    if (!drops && !adds) return;
    A v[N];
    widen(in.h, v);
    if (drops) prologue.drop(kept, v);
    if (adds) {
      A other[N];
      widen(in.residual, other);
#pragma unroll
      for (int e = 0; e < N; ++e) v[e] += other[e];
    }
    in.h = narrow<T>(v);
  }

  template <class Each, class Total>
  __device__ __forceinline__ Scale<A> settle(const Cursor& c, const Each& each,
                                             const Total& total) const {
    const auto mean_square = [&](A mean) {
      Sum<A> squares;
      each([&]<int N>(const Loaded<N>& in) {
        A v[N];
        widen(in.h, v);
        squares.value += squares_from<Centered>(mean, v);
      });
      return total(squares).value * share;
    };
    if constexpr (!Centered) return {A(0), rsqrt(mean_square(A(0)) + eps)};
    const A pivot = pivot_of(first_value(c));
    // No way in one step is as exact, and the row is at hand.
    if constexpr (sizeof(T) > 2) return scale_in_two_steps(pivot, each, total, mean_square);
    return scale_in_one_step(pivot, each, total, mean_square);
  }

  // The first element of h.
  __device__ __forceinline__ A first_value(const Cursor& c) const {
    Loaded<1> in = c.first;
    const bool drops = kDropout && prologue.dropout;
    apply_prologue(in, drops ? prologue.template kept<1>(c.prologue, c.row * cols) : ~0u);
    A element[1];
    widen(in.h, element);
    return element[0];
  }

  // First the mean, then the squares of the deviations from it.
  template <class Each, class Total, class MeanSquare>
  __device__ __forceinline__ Scale<A> scale_in_two_steps(A pivot, const Each& each,
                                                         const Total& total,
                                                         const MeanSquare& mean_square) const {
    Sum<A> sum;
    each([&]<int N>(const Loaded<N>& in) {
      A v[N];
      widen(in.h, v);
      sum.value += sum_from(pivot, v);
    });
    const A mean = fma(total(sum).value, share, pivot);
    return {mean, rsqrt(mean_square(mean) + eps)};
  }

  // Both at once, and the variance again where that was not precise.
  template <class Each, class Total, class MeanSquare>
  __device__ __forceinline__ Scale<A> scale_in_one_step(A pivot, const Each& each,
                                                        const Total& total,
                                                        const MeanSquare& mean_square) const {
    PivotMoments<A> moments;
    each([&]<int N>(const Loaded<N>& in) {
      A v[N];
      widen(in.h, v);
      moments.add(pivot, v);
    });
    moments = total(moments);
    const A mean = fma(moments.sum, share, pivot);
    A variance = moments.variance(share);
    // Rows of one warp go together.
    const bool precise = moments.precise(share);
    if (__any_sync(0xffffffffu, !precise)) {
      const A again = mean_square(mean);
      if (!precise) variance = again;
    }
    return {mean, rsqrt(variance + eps)};
  }

  __device__ __forceinline__ void finish(const Cursor& c, const Scale<A>& scale) const {
    if (mean != nullptr) mean[c.row] = scale.mean;
    if (rstd != nullptr) rstd[c.row] = scale.rstd;
  }

  template <int N, bool Ragged>
  struct Params {
    Packed<W, N> of[Centered ? 2 : 1];  // weight, bias
  };
  template <int N, bool Ragged>
  __device__ __forceinline__ Params<N, Ragged> load_params(const Cursor&, int64_t col) const {
    Params<N, Ragged> params{};
    // What is missing is loaded, too: a branch would come between the loads.
    const auto load = [&](const Param& p, const auto& otherwise, auto& to) {
      const bool given = !kFused || p;
      to = load_param<W, N, Ragged>(reinterpret_cast<const W*>(given ? p.data : otherwise),
                                    given ? col : 0);
    };
    if constexpr (kind != ForwardKind::any) {
      load(weight, repeated<kOne<W>>, params.of[0]);
      if constexpr (Centered) load(bias, repeated<0>, params.of[1]);
    }
    return params;
  }

  template <int N, bool Ragged>
  __device__ __forceinline__ Packed<T, N> result(const Cursor& c, int64_t col, const Loaded<N>& in,
                                                 const Params<N, Ragged>& params,
                                                 const Scale<A>& scale) const {
    A v[N], w[N], b[N];
    widen(in.h, v);
    normalise<Centered>(v, scale);
    if constexpr (kind == ForwardKind::any) {
      fill(w, A(1));
      fill(b, A(0));  // PyTorch adds it, too: there is no -0.0
      if (weight) read<T>(weight, col, w);
      if (Centered && bias) read<T>(bias, col, b);
    } else {
      widen(params.of[0], w);
      if constexpr (Centered) widen(params.of[1], b);
    }
    if (!Centered && kFused && offset != A(0)) {
#pragma unroll
      for (int e = 0; e < N; ++e) w[e] += offset;
    }
    weigh<Centered>(v, w, b);
    if (kFused && epilogue.relu) {
#pragma unroll
      for (int e = 0; e < N; ++e) v[e] = v[e] < A(0) ? A(0) : v[e];  // keeps NaN
    }
    if (kDropout && epilogue.dropout) epilogue.drop(in.kept, v);
    return narrow<T>(v);
  }

  template <int N>
  __device__ __forceinline__ void write(const Cursor& c, int64_t col,
                                        const Packed<T, N>& out) const {
    if (!kFused || y != nullptr) store<N>(y + c.row * cols + col, out);
  }
};

}  // namespace opforge
