// SPDX-License-Identifier: Apache-2.0
// layer_norm and rms_norm, with what may stand around them: a relu, a dropout and an added residual
// before the norm, a relu and a dropout after it. Forward. Includes no torch header.
#pragma once

#include <opforge/core/params.h>
#include <opforge/core/rng.h>

#include <opforge/algorithms/rows.cuh>

namespace opforge {

// max(v, 0) of every element; keeps NaN and -0.0. Of 16-bit ones two at a time.
template <class T, int N>
__device__ __forceinline__ Packed<T, N> relu_of(Packed<T, N> packed) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
#pragma unroll
    for (uint32_t& word : packed.word) {
      Pair<T> two;
      memcpy(&two, &word, sizeof two);
      word &= ~__hlt2_mask(two, Pair<T>{});
    }
    return packed;
  }
#endif
  compute_t<T> v[N];
  widen(packed, v);
#pragma unroll
  for (int e = 0; e < N; ++e) v[e] = v[e] < 0 ? compute_t<T>(0) : v[e];
  return narrow<T>(v);
}

// A gradient, but 0 where the input of a relu was at most 0.
template <class T, int N>
__device__ __forceinline__ Packed<T, N> relu_gradient(Packed<T, N> grad, const Packed<T, N>& in) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      Pair<T> two;
      memcpy(&two, &in.word[i], sizeof two);
      grad.word[i] &= ~__hle2_mask(two, Pair<T>{});
    }
    return grad;
  }
#endif
  compute_t<T> v[N], g[N];
  widen(in, v);
  widen(grad, g);
#pragma unroll
  for (int e = 0; e < N; ++e) g[e] = v[e] <= 0 ? compute_t<T>(0) : g[e];
  return narrow<T>(g);
}

// A relu, a dropout or both; the mask follows from the seed, on the device, and the element.
template <class A>
struct Around {
  bool relu = false, dropout = false;
  const int64_t* seed = nullptr;
  uint32_t threshold = 0;
  A factor = 1;  // of what is kept

  __device__ __forceinline__ uint64_t key() const { return dropout ? uint64_t(*seed) : 0; }
  // Bit e: element first + e stays. Whole: `first` is a multiple of N, as the compiler then sees.
  template <int N, bool Whole = false>
  __device__ __forceinline__ uint32_t kept(uint64_t key, int64_t first) const {
    return kept_bits<N>(key, Whole ? first & -int64_t(N) : first, threshold);
  }
  template <int N>
  __device__ __forceinline__ void drop(uint32_t kept, A (&v)[N]) const {
#pragma unroll
    for (int e = 0; e < N; ++e) v[e] = (kept >> e & 1) != 0 ? v[e] * factor : A(0);
  }
};

// What a row comes to: its mean and 1 / its deviation around it, or around zero.
template <class A>
struct Scale {
  A mean, rstd;
};

// What a mean is added up around: an element, so that a row of one value has no differences. But
// not one close to the largest number, the distances from which would add up to infinity; then the
// variance is infinite anyway.
template <class A>
__device__ __forceinline__ A pivot_of(A element) {
  return element * element < A(INFINITY) ? element : A(0);
}

// What a vector adds to the sum of a row around its pivot; by itself, so that vectors are added
// side by side.
template <int N, class A>
__device__ __forceinline__ A sum_around(A pivot, const A (&v)[N]) {
  A own = 0;
#pragma unroll
  for (int e = 0; e < N; ++e) own += v[e] - pivot;
  return own;
}

template <bool Centered, int N, class A>
__device__ __forceinline__ A squares_around(A mean, const A (&v)[N]) {
  A own = 0;
#pragma unroll
  for (int e = 0; e < N; ++e) {
    const A away = Centered ? v[e] - mean : v[e];
    own = fma(away, away, own);
  }
  return own;
}

// The sum of a row of 16-bit elements around its pivot, and that of the squares: mean and variance
// in one step. That is exact enough if the pivot lies among the elements, not far off: then both
// are of the size of what is wanted.
template <class A>
struct AroundPivot {
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
  __device__ __forceinline__ void operator+=(const AroundPivot& other) {
    sum += other.sum;
    squares += other.squares;
  }
  __device__ __forceinline__ A variance(A share) const {
    return fma(-(sum * share), sum * share, squares * share);
  }
  // Whether the pivot is within four deviations of the mean, as of 15999 of 16000 normal elements,
  // and the squares did not overflow, which those around the mean may not do.
  __device__ __forceinline__ bool precise(A share) const {
    return squares < A(INFINITY) && (sum * share) * (sum * share) <= A(16) * variance(share);
  }
};

template <bool Centered, int N, class A>
__device__ __forceinline__ void normalise(A (&v)[N], const Scale<A>& scale) {
#pragma unroll
  for (int e = 0; e < N; ++e) v[e] = (Centered ? v[e] - scale.mean : v[e]) * scale.rstd;
}

// Around zero there is no bias.
template <bool Centered, int N, class A>
__device__ __forceinline__ void weigh(A (&v)[N], const A (&weight)[N], const A (&bias)[N]) {
#pragma unroll
  for (int e = 0; e < N; ++e) v[e] = Centered ? fma(v[e], weight[e], bias[e]) : v[e] * weight[e];
}

// What a kernel is compiled for: the less, the fewer registers. None: nothing around the norm, no
// offset, and a weight (and a bias, if there can be one) of the dtype of x. Relu: the same with a
// relu before it. Dropout: vectors lie at multiples of their length in the result. All: any
// parameters; otherwise those there are have one dtype, W, and are aligned.
enum class Extras { none, relu, no_dropout, dropout, all };

template <class T, bool Centered, Extras extras, class W = T>
struct NormForward {
  using Element = T;
  using A = compute_t<T>;
  static constexpr bool kExtras = extras > Extras::relu, kDropout = extras >= Extras::dropout;
  static constexpr bool kLong = extras == Extras::all;
  Rows<const T> x, residual;
  T *h, *y;  // h if there is a residual; without y only the statistics are wanted
  A *mean, *rstd;
  Param weight, bias;
  Around<A> before, after;
  A offset, eps, share;  // offset: of the weight, if there is one; share: 1 / cols
  int64_t cols;

  // What takes few registers: two vectors to a thread if rows are short, and less at once for long
  // ones, two of which take up a multiprocessor otherwise.
  static constexpr bool kMuchBeside = (Centered ? 2 : 1) * sizeof(W) > 2 * sizeof(T);
  using Usual = HoldUsual<(kDropout || kMuchBeside ? 1 : 2)>;
  using Lean = std::conditional_t<Centered, Usual, Hold<2, 512, 4, 1>>;
  using Short = std::conditional_t<kExtras, HoldLittle, Lean>;
  using Long = std::conditional_t<kExtras || Centered, Usual, Hold<4, 512, 3, 1>>;
  template <bool Ragged>
  using Holds = std::conditional_t<Ragged || kDropout || !std::is_same_v<T, W>, Holdings<Usual>,
                                   Holdings<Short, Usual, Long, HoldLittle>>;

  template <int N>
  struct Loaded {
    Packed<T, N> h, residual;  // h is x until it is prepared
    uint32_t kept;             // after the norm, if there is a dropout
  };

  struct Cursor {
    int64_t row;
    const T *x, *residual;
    Loaded<1> some;          // the first element
    uint64_t before, after;  // keys of the dropouts
  };

  __device__ __forceinline__ Cursor start(int64_t row) const {
    Cursor c{row, x.at(row), kExtras && h != nullptr ? residual.at(row) : nullptr, {}, 0, 0};
    if constexpr (kDropout) {
      c.before = before.key();
      c.after = after.key();
    }
    if constexpr (Centered) c.some = load<1>(c, 0);
    return c;
  }
  __device__ __forceinline__ const T* first(const Cursor& c) const { return c.x; }

  template <int N>
  __device__ __forceinline__ Loaded<N> load(const Cursor& c, int64_t col) const {
    Loaded<N> in;
    in.h = load_packed<N>(c.x + col);
    if (kExtras && h != nullptr) in.residual = load_packed<N>(c.residual + col);
    return in;
  }

  // Bits are made here, where the loads of the row are under way and registers are free.
  template <int N>
  __device__ __forceinline__ void prepare(const Cursor& c, int64_t col, Loaded<N>& in,
                                          bool again) const {
    const auto kept = [&](const Around<A>& around, uint64_t key) {
      if (!kDropout || !around.dropout) return ~0u;
      return around.template kept<N, extras == Extras::dropout>(key, c.row * cols + col);
    };
    if constexpr (kDropout) in.kept = kept(after, c.after);
    join(in, kept(before, c.before));
    if (kExtras && h != nullptr && !again) store<N>(h + c.row * cols + col, in.h);
  }

  template <int N>
  __device__ __forceinline__ void join(Loaded<N>& in, uint32_t kept) const {
    if (extras == Extras::relu || (kExtras && before.relu)) in.h = relu_of(in.h);
    const bool drops = kDropout && before.dropout, adds = kExtras && h != nullptr;
    if (!drops && !adds) return;
    A v[N];
    widen(in.h, v);
    if (drops) before.drop(kept, v);
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
    const auto squares_around_mean = [&](A mean) {
      Sum<A> squares;
      each([&]<int N>(const Loaded<N>& in) {
        A v[N];
        widen(in.h, v);
        squares.value += squares_around<Centered>(mean, v);
      });
      return total(squares).value * share;
    };
    if constexpr (!Centered) return {A(0), rsqrt(squares_around_mean(A(0)) + eps)};
    Loaded<1> some = c.some;
    const bool drops = kDropout && before.dropout;
    join(some, drops ? before.template kept<1>(c.before, c.row * cols) : ~0u);
    A element[1];
    widen(some.h, element);
    const A pivot = pivot_of(element[0]);
    if constexpr (sizeof(T) > 2) {  // no way in one step is as exact, and the row is at hand
      Sum<A> sum;
      each([&]<int N>(const Loaded<N>& in) {
        A v[N];
        widen(in.h, v);
        sum.value += sum_around(pivot, v);
      });
      const A mean = fma(total(sum).value, share, pivot);
      return {mean, rsqrt(squares_around_mean(mean) + eps)};
    }
    AroundPivot<A> moments;
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
      const A again = squares_around_mean(mean);
      if (!precise) variance = again;
    }
    return {mean, rsqrt(variance + eps)};
  }
  __device__ __forceinline__ void finish(const Cursor& c, const Scale<A>& scale) const {
    if (mean != nullptr) mean[c.row] = scale.mean;
    if (rstd != nullptr) rstd[c.row] = scale.rstd;
  }

  template <int N, bool Ragged>
  struct Beside {
    Packed<W, N> param[Centered ? 2 : 1];  // weight, bias
  };
  template <int N, bool Ragged>
  __device__ __forceinline__ Beside<N, Ragged> load_beside(const Cursor&, int64_t col) const {
    Beside<N, Ragged> beside{};
    // What is missing is loaded, too: a branch would come between the loads.
    const auto load = [&](const Param& p, const auto& otherwise, auto& to) {
      const bool given = !kExtras || p;
      to = load_param<W, N, Ragged>(reinterpret_cast<const W*>(given ? p.data : otherwise),
                                    given ? col : 0);
    };
    if constexpr (extras != Extras::all) {
      load(weight, repeated<kOne<W>>, beside.param[0]);
      if constexpr (Centered) load(bias, repeated<0>, beside.param[1]);
    }
    return beside;
  }

  template <int N, bool Ragged>
  __device__ __forceinline__ Packed<T, N> result(const Cursor& c, int64_t col, const Loaded<N>& in,
                                                 const Beside<N, Ragged>& beside,
                                                 const Scale<A>& scale) const {
    A v[N], w[N], b[N];
    widen(in.h, v);
    normalise<Centered>(v, scale);
    if constexpr (extras == Extras::all) {
      fill(w, A(1));
      fill(b, A(0));  // PyTorch adds it, too: there is no -0.0
      if (weight) read<T>(weight, col, w);
      if (Centered && bias) read<T>(bias, col, b);
    } else {
      widen(beside.param[0], w);
      if constexpr (Centered) widen(beside.param[1], b);
    }
    if (!Centered && kExtras && offset != A(0)) {
#pragma unroll
      for (int e = 0; e < N; ++e) w[e] += offset;
    }
    weigh<Centered>(v, w, b);
    if (kExtras && after.relu) {
#pragma unroll
      for (int e = 0; e < N; ++e) v[e] = v[e] < A(0) ? A(0) : v[e];  // keeps NaN
    }
    if (kDropout && after.dropout) after.drop(in.kept, v);
    return narrow<T>(v);
  }

  template <int N>
  __device__ __forceinline__ void write(const Cursor& c, int64_t col,
                                        const Packed<T, N>& out) const {
    if (!kExtras || y != nullptr) store<N>(y + c.row * cols + col, out);
  }
};

}  // namespace opforge
