// SPDX-License-Identifier: Apache-2.0
// The gradients of softmax and log_softmax over rows. Includes no torch header.
//
//   moves     reads grad_y and y and writes grad_x: 1.5 copies. What causal hides is not read.
//   computes  4 operations for each element; an exponential, too, for log_softmax.
//
// A visitor for algorithms/rows.cuh: each thread adds up what it holds, the sums meet over the row,
// and each thread writes grad_x.
#pragma once

#include <opforge/algorithms/rows.cuh>
#include <opforge/families/softmax/mask.cuh>
#include <opforge/families/softmax/peak.cuh>

namespace opforge {

// dx = scale * y * (dy - sum(dy * y)), or scale * (dy - exp(y) * sum(dy)) of the logarithm.
template <class T, bool Log, bool Hides>
struct SoftmaxBackward : WithoutParams {
  using Element = T;
  using A = compute_t<T>;
  static constexpr bool kAnyRow = Hides;
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
                                                 const NoParams&, A sum) const {
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
