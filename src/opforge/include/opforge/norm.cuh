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

  template <int N, class A>
  __device__ __forceinline__ void drop(int64_t first, A (&v)[N]) const {
    const uint32_t kept = kept_bits<N>(uint64_t(*seed), uint64_t(first), threshold);
#pragma unroll
    for (int e = 0; e < N; ++e) v[e] = (kept >> e & 1) != 0 ? v[e] * A(factor) : A(0);
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

// What a vector of T adds to the sum of a row around its pivot.
template <class T, int N, class A>
__device__ __forceinline__ A sum_around(A pivot, const A (&v)[N]) {
  A own = 0;                       // by itself, so that vectors are added side by side
  if constexpr (sizeof(T) == 2) {  // N times one of them is exact in a float
#pragma unroll
    for (int e = 0; e < N; ++e) own += v[e];
    return fma(A(-N), pivot, own);
  } else {
#pragma unroll
    for (int e = 0; e < N; ++e) own += v[e] - pivot;
    return own;
  }
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
// relu before or after it. All: any parameters; otherwise those there are have one dtype, W, and
// are aligned.
enum class Extras { none, relu, no_dropout, all };

template <class T, bool Centered, Extras extras, class W = T>
struct NormForward {
  using Element = T;
  using A = compute_t<T>;
  static constexpr bool kExtras = extras > Extras::relu, kDropout = extras == Extras::all;
  static constexpr bool kRelu = extras != Extras::none, kLong = extras == Extras::all;
  Rows<const T> x, residual;
  T *h, *y;  // h if there is a residual; without y only the statistics are wanted
  A *mean, *rstd;
  Param weight, bias;
  Around before, after;
  A offset, eps, share;  // offset: of the weight, if there is one; share: 1 / cols
  int64_t cols;

  template <int N>
  struct Loaded {
    Packed<T, N> h, residual;  // h is x until it is prepared
  };

  struct Cursor {
    int64_t row;
    const T *x, *residual;
    Loaded<1> some;  // the first element
  };

  __device__ __forceinline__ Cursor start(int64_t row) const {
    Cursor c{row, x.at(row), kExtras && h != nullptr ? residual.at(row) : nullptr, {}};
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

  template <int N>
  __device__ __forceinline__ void prepare(const Cursor& c, int64_t col, Loaded<N>& in,
                                          bool again) const {
    if (kRelu && before.relu) in.h = relu_of(in.h);
    if constexpr (kExtras) {
      const bool drops = kDropout && before.dropout;
      if (!drops && h == nullptr) return;
      A v[N];
      widen(in.h, v);
      if (drops) before.drop(c.row * cols + col, v);
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

  // Around the mean in two steps: no way in one is as exact, and the row is at hand.
  template <class Each, class Total>
  __device__ __forceinline__ Scale<A> settle(const Cursor& c, const Each& each,
                                             const Total& total) const {
    A mean = 0;
    if constexpr (Centered) {
      Loaded<1> some = c.some;
      prepare(c, 0, some, true);
      A element[1];
      widen(some.h, element);
      const A pivot = pivot_of(element[0]);
      Sum<A> sum;
      each([&]<int N>(const Loaded<N>& in) {
        A v[N];
        widen(in.h, v);
        sum.value += sum_around<T>(pivot, v);
      });
      mean = fma(total(sum).value, share, pivot);
    }
    Sum<A> squares;
    each([&]<int N>(const Loaded<N>& in) {
      A v[N];
      widen(in.h, v);
      squares.value += squares_around<Centered>(mean, v);
    });
    return {mean, rsqrt(fma(total(squares).value, share, eps))};
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
    if constexpr (kRelu) after.template forward<kDropout>(c.row * cols + col, v);
    return narrow<T>(v);
  }

  template <int N>
  __device__ __forceinline__ void write(const Cursor& c, int64_t col,
                                        const Packed<T, N>& out) const {
    if (!kExtras || y != nullptr) store<N>(y + c.row * cols + col, out);
  }
};

}  // namespace opforge
