// SPDX-License-Identifier: Apache-2.0
// The gradients of norms of rows that are too long for families/norm/backward.cuh. Blocks take a
// piece of a row each, element by element: first what it adds to the row's sums, then its
// gradients; a thread goes down each column. Includes no torch header.
#pragma once

#include <opforge/families/norm/backward.cuh>

namespace opforge {

// A prologue or epilogue of one element, and its gradient.
template <class A>
__device__ __forceinline__ A dropped(const ReluDropout<A>& which, int64_t at, A v) {
  A one[1] = {v};
  if (which.dropout) which.drop(which.template kept<1>(which.key(), at), one);
  return one[0];
}
template <class A>
__device__ __forceinline__ A pass(const ReluDropout<A>& which, int64_t at, A v) {
  return dropped(which, at, which.relu && v < A(0) ? A(0) : v);
}
template <class A>
__device__ __forceinline__ A pass_back(const ReluDropout<A>& which, int64_t at, A input, A v) {
  return which.relu && input <= A(0) ? A(0) : dropped(which, at, v);
}

// A row of the operands of NormBackward, at a column.
template <class T>
struct LongRow {
  using A = compute_t<T>;
  const NormBackward<T>& p;
  int64_t row;

  __device__ __forceinline__ const T* source(int i) const { return p.ring.source[i].at(row); }

  __device__ __forceinline__ A value(int64_t col) const {
    const A h = widen(source(1)[col]);
    return p.summed ? h : widen(narrow<T>(pass(p.prologue, row * p.plan.cols + col, h)));
  }

  __device__ __forceinline__ A scale(int64_t col) const {
    A w[1] = {A(1)};
    if (p.weight) {
      read<T>(p.weight, col, w);
      if (p.offset != A(0)) w[0] += p.offset;
    }
    return w[0];
  }

  // The gradient of the norm's result, given what was normalised to `normed`.
  __device__ __forceinline__ A gradient(int64_t col, A normed) const {
    A shift[1] = {A(0)};
    if (p.bias) read<T>(p.bias, col, shift);
    const A result = normed * scale(col) + shift[0];
    return pass_back(p.epilogue, row * p.plan.cols + col, result, widen(source(0)[col]));
  }
};

// Pieces of a row: two columns to a thread, so that a thread waits for little one after the other,
// unless there would be more pieces than threads to add them up.
inline int long_pieces(int64_t cols) {
  return int(std::min<int64_t>(ceil_div(cols, int64_t(2 * kRowThreads)), kRowThreads));
}

// Which piece of which row is this block's.
struct LongPiece {
  int64_t row, first, last;  // columns

  __device__ __forceinline__ LongPiece(int64_t cols, int pieces) {
    row = blockIdx.x / unsigned(pieces);
    const int64_t width = ceil_div(cols, int64_t(pieces));
    first = (blockIdx.x - unsigned(row) * unsigned(pieces)) * width;
    last = min(first + width, cols);
  }
};

// Also the gradients of parameters that are like x, if there is one row.
template <class T, bool Centered>
__global__ void __launch_bounds__(kRowThreads)
    norm_backward_dots(const NormBackward<T> p, int pieces, Dots<compute_t<T>, true>* dots,
                       T* grad_weight, T* grad_bias) {
  using A = compute_t<T>;
  const LongPiece piece(p.plan.cols, pieces);
  const LongRow<T> at{p, piece.row};
  const A mean = Centered ? p.mean[at.row] : A(0), rstd = p.rstd[at.row];
  Dots<A, true> total;
  for (int64_t col = piece.first + threadIdx.x; col < piece.last; col += blockDim.x) {
    const A normed = (at.value(col) - mean) * rstd, passed = at.gradient(col, normed);
    const A grad = passed * at.scale(col);
    total += {grad * normed, Centered ? grad : A(0)};
    if (grad_weight != nullptr) grad_weight[col] = narrow<T>(passed * normed);
    if (grad_bias != nullptr) grad_bias[col] = narrow<T>(passed);
  }
  release_next();
  total = row_total(p.plan, total);
  if (threadIdx.x == 0) dots[blockIdx.x] = total;
}

// Writes the gradients of x and residual.
template <class T, bool Centered>
__global__ void __launch_bounds__(kRowThreads)
    norm_backward_piece(const NormBackward<T> p, int pieces, const Dots<compute_t<T>, true>* dots) {
  using A = compute_t<T>;
  const LongPiece piece(p.plan.cols, pieces);
  const LongRow<T> at{p, piece.row};
  const A mean = Centered ? p.mean[at.row] : A(0), rstd = p.rstd[at.row];
  Dots<A, true> total;
  await_previous();
  if (int(threadIdx.x) < pieces) total = dots[piece.row * pieces + threadIdx.x];
  total = row_total(p.plan, total);
  for (int64_t col = piece.first + threadIdx.x; col < piece.last; col += blockDim.x) {
    const int64_t flat = at.row * p.plan.cols + col;
    const A normed = (at.value(col) - mean) * rstd;
    const A apart = product(at.gradient(col, normed), at.scale(col)) - total.sum * p.share;
    A grad = fma(-normed, total.inner * p.share, apart) * rstd;
    if (p.has_grad_h) grad += widen(at.source(2)[col]);
    if (p.grad_residual != nullptr) p.grad_residual[flat] = narrow<T>(grad);
    const A x = widen(at.source(p.has_x ? p.ring.sources - 1 : 1)[col]);
    p.grad_x[flat] = narrow<T>(pass_back(p.prologue, flat, x, grad));
  }
  release_next();
}

template <class T>
__global__ void __launch_bounds__(256) norm_backward_column(const NormBackward<T> p) {
  using A = compute_t<T>;
  const int64_t col = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (col >= p.plan.cols) return;
  A weight_sum = 0, bias_sum = 0;
  for (int64_t row = 0; row < p.plan.rows; ++row) {
    const LongRow<T> at{p, row};
    const A mean = p.mean == nullptr ? A(0) : p.mean[row];
    const A normed = (at.value(col) - mean) * p.rstd[row];
    const A grad = at.gradient(col, normed);
    weight_sum = fma(grad, normed, weight_sum);
    bias_sum += grad;
  }
  if (p.weight_sums != nullptr) p.weight_sums[col] = weight_sum;
  if (p.bias_sums != nullptr) p.bias_sums[col] = bias_sum;
}

}  // namespace opforge
