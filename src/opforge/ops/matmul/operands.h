// SPDX-License-Identifier: Apache-2.0
// Matrices, or batches of them, as operands of kernels that read 16 bytes at a time.
#pragma once

#include <opforge/families/product/cuda_host.h>

namespace opforge {

// The operand whose outer indices are the rows of x, or with `transposed` its columns. What cannot
// be read as it is, is copied, and so is what batches share if the copy engine is to read it.
template <class T>
Operand batched_operand(const Tensor& x, bool transposed, bool copy_engine) {
  if (x.dim() == 2) return operand_of<T>(x, transposed);
  const int64_t batches = x.size(0), rows = x.size(1), cols = x.size(2);
  const int64_t outer = transposed ? cols : rows, inner = transposed ? rows : cols;
  const auto stride = strides(x);
  const bool shared = copy_engine && batches > 1 && stride[0] == 0;
  const auto readable = [&](int row, int col) {
    return !shared && (stride[size_t(col)] == 1 || x.size(col) == 1) &&
           can_map(data<T>(x),
                   MatrixExtent{x.size(row), x.size(col), stride[size_t(row)], batches, stride[0]});
  };
  const auto view = [&](Major major, int64_t between) -> Operand {
    return {x, {x.const_data_ptr(), major, between, stride[0]}, outer, inner};
  };
  constexpr bool kAnyMajor = sizeof(T) == 2;
  const Major of_rows = transposed ? Major::outer : Major::inner;
  const Major of_cols = transposed ? Major::inner : Major::outer;
  if ((kAnyMajor || of_rows == Major::inner) && readable(1, 2)) return view(of_rows, stride[1]);
  if ((kAnyMajor || of_cols == Major::inner) && readable(2, 1)) return view(of_cols, stride[2]);

  const int64_t per_16 = 16 / int64_t(sizeof(T)), padded = ceil_div(inner, per_16) * per_16;
  const int64_t size[] = {batches, outer, padded};
  const Tensor copy = empty(size, x);
  const int64_t from_outer = stride[transposed ? 2 : 1], from_inner = stride[transposed ? 1 : 2];
  const bool one_matrix = outer * from_outer == stride[0];
  const int64_t parts = one_matrix ? 1 : batches, of_part = one_matrix ? batches * outer : outer;
  for (int64_t i = 0; i < parts; ++i) {
    launch_pack(Matrix<const T>{data<T>(x) + i * stride[0], from_outer, from_inner},
                mutable_data<T>(copy) + i * outer * padded, padded, of_part, inner,
                current_stream(x));
  }
  return {copy, {copy.const_data_ptr(), Major::inner, padded, outer * padded}, outer, inner};
}

}  // namespace opforge
