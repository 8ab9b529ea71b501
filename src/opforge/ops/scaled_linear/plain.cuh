// SPDX-License-Identifier: Apache-2.0
// What is left to do where torch makes the product: its operands as floats, and one pass over the
// sums. Includes no torch header.
#pragma once

#include <opforge/core/float8.h>
#include <opforge/core/launch.h>
#include <opforge/core/layout.h>
#include <opforge/families/product/call.h>

#include <climits>
#include <opforge/families/product/activation.cuh>

namespace opforge {

constexpr int kPlainThreads = 256;

inline dim3 plain_blocks(int64_t elements) {
  const int64_t blocks = ceil_div(elements, kPlainThreads);
  if (blocks > INT_MAX) fail("scaled_linear: ", elements, " elements are too many");
  return dim3(unsigned(blocks));
}

// The numbers that bytes mean, without their scales.
template <class Q, class T>
__global__ void __launch_bounds__(kPlainThreads)
    widen_bytes(const Matrix<const uint8_t> from, T* to, int64_t rows, int64_t cols) {
  const int64_t i = int64_t(blockIdx.x) * kPlainThreads + threadIdx.x;
  if (i < rows * cols) to[i] = T(widen(Q{*from.at(i / cols, i % cols)}));
}

template <class Q, class T>
inline void launch_widen(const Matrix<const uint8_t>& from, T* to, int64_t rows, int64_t cols,
                         cudaStream_t stream) {
  if (rows * cols == 0) return;
  launch(widen_bytes<Q, T>, {plain_blocks(rows * cols), dim3(kPlainThreads), stream}, from, to,
         rows, cols);
}

template <class Out>
struct PlainFinish {
  const compute_t<Out>* sums;
  int64_t rows, cols;
  ProductColumns row_scale, col_scale;
  const Out* bias;  // or none
  int64_t bias_step;
  Matrix<const Out> residual;  // or without data
  Finish finish;
  Out *y, *z;  // z or none
};

template <class Out>
__global__ void __launch_bounds__(kPlainThreads) finish_sums(const PlainFinish<Out> p) {
  using A = compute_t<Out>;
  const int64_t i = int64_t(blockIdx.x) * kPlainThreads + threadIdx.x;
  if (i >= p.rows * p.cols) return;
  const int64_t row = i / p.cols, col = i % p.cols;
  A z = p.sums[i] * (A(p.row_scale.at(0, int(row))) * A(p.col_scale.at(0, int(col))));
  if (p.bias != nullptr) z += widen(p.bias[col * p.bias_step]);
  if (p.z != nullptr) p.z[i] = narrow<Out>(z);
  A y = FinishElements<Out>{p.finish}(z);
  if (p.residual.data != nullptr) y += widen(*p.residual.at(row, col));
  p.y[i] = narrow<Out>(y);
}

template <class Out>
inline void launch_finish(const PlainFinish<Out>& p, cudaStream_t stream) {
  if (p.rows * p.cols == 0) return;
  launch(finish_sums<Out>, {plain_blocks(p.rows * p.cols), dim3(kPlainThreads), stream}, p);
}

}  // namespace opforge
