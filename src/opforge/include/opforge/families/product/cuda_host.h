// SPDX-License-Identifier: Apache-2.0
// Tensors as operands and results of the kernels of this folder, on the GPU.
#pragma once

#include <opforge/core/tensor_map.h>
#include <opforge/families/product/call.h>
#include <opforge/families/product/gpu.h>
#include <opforge/families/product/host.h>

#include <opforge/families/product/pack.cuh>

namespace opforge {

// Whether tensor cores take such elements, and kernels such sizes. Empty products are torch's.
inline bool fits_kernels(DType dtype, bool tf32, int64_t m, int64_t n, int64_t k) {
  constexpr int64_t kMost = (int64_t(1) << 31) - 1024;  // tiles reach beyond the end
  const bool known = dtype == DType::f16 || dtype == DType::bf16 || (dtype == DType::f32 && tf32);
  return known && m > 0 && n > 0 && k > 0 && m < kMost && n < kMost && k < kMost;
}

// Whether there are kernels for them on this GPU: of hopper.cuh, or of any kind.
inline bool has_hopper_kernel(DType dtype, bool tf32, int64_t m, int64_t n, int64_t k) {
  return is_hopper() && fits_kernels(dtype, tf32, m, n, k);
}
inline bool has_kernel(DType dtype, bool tf32, int64_t m, int64_t n, int64_t k) {
  return has_mma() && fits_kernels(dtype, tf32, m, n, k);
}

// A matrix as an operand, and what keeps its memory alive.
struct Operand {
  Tensor tensor;
  ProductOperand view;
  int64_t outer, inner;
};

namespace detail {

// A copy whose rows are `inner` long and aligned.
template <class T>
Operand packed(const MatrixView& x, bool transposed) {
  const int64_t outer = transposed ? x.cols : x.rows, inner = transposed ? x.rows : x.cols;
  const int64_t per_16 = 16 / int64_t(sizeof(T)), stride = (inner + per_16 - 1) / per_16 * per_16;
  const int64_t size[2] = {outer, stride};
  const Tensor copy = empty({size, 2}, x.tensor);
  const Matrix<const T> from =
      transposed ? Matrix<const T>{x.data<T>(), x.col_stride, x.row_stride} : x.read<T>();
  launch_pack(from, mutable_data<T>(copy), stride, outer, inner, current_stream(x.tensor));
  return {copy, {copy.const_data_ptr(), Major::inner, stride, 0}, outer, inner};
}

}  // namespace detail

// The operand whose outer indices are the rows of x, or with `transposed` its columns. If the copy
// engine cannot read x as it is, or T must be inner-major and is not, it is copied.
template <class T>
Operand operand_of(const Tensor& x, bool transposed) {
  const MatrixView v = as_matrix(x);
  const int64_t outer = transposed ? v.cols : v.rows, inner = transposed ? v.rows : v.cols;
  const auto view = [&](Major major, int64_t stride) -> Operand {
    return {v.tensor, {v.tensor.const_data_ptr(), major, stride, 0}, outer, inner};
  };
  const bool rows_first =
      v.col_stride == 1 && can_map(v.data<T>(), MatrixExtent{v.rows, v.cols, v.row_stride});
  const bool cols_first =
      v.row_stride == 1 && can_map(v.data<T>(), MatrixExtent{v.cols, v.rows, v.col_stride});
  const Major of_rows = transposed ? Major::outer : Major::inner;
  const Major of_cols = transposed ? Major::inner : Major::outer;
  constexpr bool kAnyMajor = sizeof(T) == 2;
  if (rows_first && (kAnyMajor || of_rows == Major::inner)) return view(of_rows, v.row_stride);
  if (cols_first && (kAnyMajor || of_cols == Major::inner)) return view(of_cols, v.col_stride);
  return detail::packed<T>(v, transposed);
}

// The operand whose outer indices are the rows of x, inner-major: a copy, unless the copy engine
// can read the rows as they are.
template <class T>
Operand rows_of(const Tensor& x) {
  const MatrixView v = as_matrix(x);
  if (v.col_stride == 1 && can_map(v.data<T>(), MatrixExtent{v.rows, v.cols, v.row_stride})) {
    return {v.tensor, {v.tensor.const_data_ptr(), Major::inner, v.row_stride, 0}, v.rows, v.cols};
  }
  return detail::packed<T>(v, false);
}

// A tensor as a matrix whose rows are contiguous: a copy, if they are not.
inline MatrixView with_rows(const Tensor& x) {
  const MatrixView view = as_matrix(x);
  return view.col_stride == 1 ? view : as_matrix(contiguous(x));
}

// A contiguous tensor as a matrix of so many columns.
inline ProductMatrix matrix_of(const Tensor& x, int64_t cols) {
  return {x.numel() == 0 ? nullptr : x.mutable_data_ptr(), cols, 0};
}

}  // namespace opforge
