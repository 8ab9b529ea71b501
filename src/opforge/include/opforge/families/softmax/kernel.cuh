// SPDX-License-Identifier: Apache-2.0
// softmax and log_softmax of v = x * scale + mask over rows, and their gradients. Includes no torch
// header.
//
// The exponential is the dear part: 16 of them a clock, while memory delivers 5 bfloat16. So there
// is time to take them twice: without a mask a row is held as it lies in memory, in few registers,
// and more blocks of a multiprocessor have theirs under way. With one, forward softmax takes them
// once, around the largest element of each vector, and holds them in place of the elements; what is
// left is a factor per vector.
#pragma once

#include <opforge/core/params.h>

#include <opforge/algorithms/rows.cuh>
#include <opforge/families/activations/device.cuh>

namespace opforge {

__device__ __forceinline__ float exp_of(float x) { return roughly_exp2(1.44269504f * x); }
__device__ __forceinline__ double exp_of(double x) { return exp(x); }

// Where nothing but -inf was seen it is taken relative to 0, which leaves it at -inf.
template <class A>
__device__ __forceinline__ A finite_base(A top) {
  return top == A(-INFINITY) ? A(0) : top;
}

// The largest of some elements, NaN aside, and the sum of exp(v - top) over them, NaN included.
template <class A>
struct Peak {
  A top = A(-INFINITY), sum = 0;

  // One of the two factors is 1, so that a += b and b += a round alike.
  __device__ __forceinline__ void operator+=(const Peak& other) {
    const bool higher = other.top > top;
    const A low = higher ? top : other.top, high = higher ? other.top : top;
    const A factor = exp_of(low - finite_base(high));
    sum = higher ? fma(sum, factor, other.sum) : fma(other.sum, factor, sum);
    top = high;
  }
};

// How many keys the query of a row sees, if the last two dims are queries and keys.
struct Causal {
  int64_t queries = 0;  // 0: all of them
  Divider<uint32_t> by_queries;
  bool many = false;  // more rows than 32 bits can count

  __device__ __forceinline__ int64_t visible(int64_t row, int64_t keys) const {
    if (queries == 0) return keys;
    const int64_t query =
        many ? row % queries : row - int64_t(by_queries.divide(uint32_t(row))) * queries;
    const int64_t seen = query + 1 + keys - queries;
    return seen < 0 ? 0 : seen;
  }
};

// What is added to x: in float or in the type of x, with any strides.
struct Mask {
  Param values;
  int64_t step = 0;  // from column to column
  Walk<uint32_t, 1> rows;

  __device__ __forceinline__ int64_t at(int64_t row) const {
    uint32_t inner;
    return rows.offset(0, uint32_t(row), inner);
  }

  template <class T, int N, class A>
  __device__ __forceinline__ void read_columns(int64_t at, int64_t col, A (&out)[N]) const {
    if (step == 1) return read<T>(values, at + col, out);
#pragma unroll
    for (int e = 0; e < N; ++e) {
      A one[1];
      read<T>(values, at + (col + e) * step, one);
      out[e] = one[0];
    }
  }
};

// The largest of a thread's elements, NaN aside. Of 16-bit ones two at a time.
template <class T>
class Largest {
 public:
  __device__ __forceinline__ Largest() {
    for (uint32_t& word : pairs_.word) word = std::is_same_v<T, half> ? 0xfc00fc00u : 0xff80ff80u;
  }
  template <int N>
  __device__ __forceinline__ void add(const Packed<T, N>& packed) {
#if defined(__CUDA_ARCH__)
    if constexpr (sizeof(T) == 2 && N == kVec<T>) {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) {
        Pair<T> one, other;
        memcpy(&one, &pairs_.word[i], sizeof one);
        memcpy(&other, &packed.word[i], sizeof other);
        one = __hmax2(one, other);
        memcpy(&pairs_.word[i], &one, sizeof one);
      }
      return;
    }
#endif
    take(packed, top_);
  }
  __device__ __forceinline__ float value() const {
    float top = top_;
    if constexpr (sizeof(T) == 2) take(pairs_, top);
    return top;
  }

 private:
  template <int N>
  static __device__ __forceinline__ void take(const Packed<T, N>& packed, float& top) {
    float v[N];
    widen(packed, v);
#pragma unroll
    for (int e = 0; e < N; ++e) top = max(top, v[e]);
  }

  float top_ = -INFINITY;
  Packed<T, kVec<T>> pairs_;  // -inf each
};

// e^((x - base) * scale), given the exponent of 2 for 1 of x.
__device__ __forceinline__ float power(float x, float base, float exponent) {
  return roughly_exp2((x - base) * exponent);
}

// As Peak, of elements that are not scaled yet, so that no product rounds their differences.
struct ScaledPeak {
  float top = -INFINITY, sum = 0;
  float exponent = 1;  // of 2, for 1 of an element; the same in all that are added up

  __device__ __forceinline__ void operator+=(const ScaledPeak& other) {
    const bool higher = other.top > top;
    const float low = higher ? top : other.top, high = higher ? other.top : top;
    const float factor = power(low, finite_base(high), other.exponent);
    sum = higher ? fma(sum, factor, other.sum) : fma(other.sum, factor, sum);
    top = high;
    exponent = other.exponent;
  }
};

// One exponential for all lanes, not one for each step.
__device__ __forceinline__ ScaledPeak warp_total(ScaledPeak peak) {
  const float top = warp_max(peak.top);
  peak.sum = warp_sum(peak.sum * power(peak.top, finite_base(top), peak.exponent));
  peak.top = top;
  return peak;
}

// No mask, and a scale that leaves the order of the elements and is not tiny.
template <class T, bool Log>
struct SoftmaxPlain : NothingBeside {
  using Element = T;
  static constexpr bool kLong = false;
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
                                                 const Nothing&, const Settled& settled) const {
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

// What a kernel is compiled for: the less, the fewer registers. Causal, a mask whose vectors lie as
// those of x, both or nothing; or any mask.
enum class Masked { alike, any };

template <class T, bool Log, Masked masked>
struct SoftmaxForward : NothingBeside, HeldAsUsual {
  using Element = T;
  using A = compute_t<T>;
  static constexpr bool kAlike = masked == Masked::alike, kLong = masked == Masked::any;
  Rows<const T> x;
  T* y;
  Mask mask;
  Causal causal;
  A scale;
  int64_t cols;

  using Column = std::conditional_t<kLong, int64_t, int>;  // 32 bits do for a row that is held

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
    if constexpr (!Log) raise(in.v, in.top, in.v);
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
      if constexpr (Log) raise(in.v, in.top, powers);
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
                                                 const Nothing&, const Settled& settled) const {
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
  static __device__ __forceinline__ void raise(const A (&v)[N], A top, A (&out)[N]) {
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

// dx = scale * y * (dy - sum(dy * y)), or scale * (dy - exp(y) * sum(dy)) of the logarithm.
template <class T, bool Log, bool Hides>
struct SoftmaxBackward : NothingBeside {
  using Element = T;
  using A = compute_t<T>;
  static constexpr bool kLong = Hides;
  Rows<const T> grad_y, y;
  T* grad_x;
  Causal causal;
  A scale;
  int64_t cols;

  template <bool Ragged>
  using Holds = std::conditional_t<Ragged || Hides, Holdings<HoldUsual<2>>,
                                   Holdings<HoldUsual<2>, HoldUsual<2>, HoldUsual<2>, HoldLittle>>;

  struct Cursor {
    int64_t row;
    const T *grad_y, *y;
    int64_t visible;
  };

  template <int N>
  struct Loaded {
    Packed<T, N> grad_y, y;
  };

  __device__ __forceinline__ Cursor start(int64_t row) const {
    return {row, grad_y.at(row), y.at(row), Hides ? causal.visible(row, cols) : cols};
  }
  __device__ __forceinline__ const T* first(const Cursor& c) const { return c.y; }

  template <int N>
  __device__ __forceinline__ Loaded<N> load(const Cursor& c, int64_t col) const {
    if (Hides && col >= c.visible) return Loaded<N>{};
    return {load_packed<N>(c.grad_y + col), load_packed<N>(c.y + col)};
  }
  // The gradient of what is hidden counts for nothing.
  template <int N>
  __device__ __forceinline__ void prepare(const Cursor& c, int64_t col, Loaded<N>& in, bool) const {
    if (!Hides || col + N <= c.visible) return;
    A grad[N];
    widen(in.grad_y, grad);
    hide(c, col, grad);
    in.grad_y = narrow<T>(grad);
  }

  template <class Each, class Total>
  __device__ __forceinline__ A settle(const Cursor&, const Each& each, const Total& total) const {
    Sum<A> sum;
    each([&]<int N>(const Loaded<N>& in) {
      A grad[N], out[N], own = 0;  // by itself, so that vectors are added side by side
      widen(in.grad_y, grad);
      widen(in.y, out);
#pragma unroll
      for (int e = 0; e < N; ++e) own = Log ? own + grad[e] : fma(grad[e], out[e], own);
      sum.value += own;
    });
    return total(sum).value;
  }
  __device__ __forceinline__ void finish(const Cursor&, A) const {}

  template <int N>
  __device__ __forceinline__ Packed<T, N> result(const Cursor& c, int64_t col, const Loaded<N>& in,
                                                 const Nothing&, A sum) const {
    A grad[N], out[N];
    widen(in.grad_y, grad);
    widen(in.y, out);
#pragma unroll
    for (int e = 0; e < N; ++e) {
      grad[e] = Log ? scale * fma(-exp_of(out[e]), sum, grad[e]) : scale * out[e] * (grad[e] - sum);
    }
    if (Hides && col + N > c.visible) hide(c, col, grad);
    return narrow<T>(grad);
  }

  template <int N>
  __device__ __forceinline__ void write(const Cursor& c, int64_t col,
                                        const Packed<T, N>& out) const {
    store<N>(grad_x + c.row * cols + col, out);
  }

 private:
  template <int N>
  static __device__ __forceinline__ void hide(const Cursor& c, int64_t col, A (&v)[N]) {
    const int left = col < c.visible ? int(c.visible - col) : 0;
#pragma unroll
    for (int e = 0; e < N; ++e) v[e] = e < left ? v[e] : A(0);
  }
};

}  // namespace opforge
