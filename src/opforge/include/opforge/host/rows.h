// SPDX-License-Identifier: Apache-2.0
// Tensors as the rows that rows.cuh works on, and parameters per column. For cuda.cu files.
#pragma once

#include <opforge/core/params.h>
#include <opforge/host.h>

#include <opforge/algorithms/rows.cuh>

namespace opforge {

// A tensor seen as rows along its last dim, which is contiguous; the other dims are one or two.
struct RowsView {
  Tensor tensor;  // the tensor itself, or a copy where it cannot be seen so
  Layout<1> leading;

  template <class T>
  Rows<const T> read() const {
    Rows<const T> rows;
    rows.data = data<T>(tensor);
    if (leading.rank > 0) rows.stride = leading.stride[0][0];
    if (leading.rank > 1) {
      rows.inner = Divider<uint32_t>(leading.size[0]);
      rows.outer_stride = leading.stride[0][1];
    }
    return rows;
  }
  // Whether all rows begin at multiples of so many elements, counted from the first.
  bool steps_by(int64_t n) const {
    for (int d = 0; d < leading.rank; ++d) {
      if (leading.stride[0][d] % n != 0) return false;
    }
    return true;
  }
};

inline RowsView as_rows(const Tensor& x) {
  const auto size = sizes(x), stride = strides(x);
  const size_t last = size.size() - 1;
  const RowsView view{x, flatten_in_order(size.first(last), stride.first(last))};
  const Layout<1>& leading = view.leading;
  const bool gaps = size[last] > 1 && stride[last] != 1;
  const bool simple =
      leading.fits && (leading.rank <= 1 || (leading.rank == 2 && leading.stride[0][1] != 0 &&
                                             leading.count() < (int64_t(1) << 31)));
  return gaps || !simple ? as_rows(contiguous(x)) : view;
}

// Whether the rows of two tensors of one shape all begin as far from a 16-byte boundary.
template <class T>
bool aligned_alike(const RowsView& a, const RowsView& b) {
  constexpr int N = kVec<T>;
  if (misalignment(data<T>(a.tensor)) != misalignment(data<T>(b.tensor))) return false;
  if (a.steps_by(N) && b.steps_by(N)) return true;
  const auto step = [](const RowsView& v) { return v.leading.stride[0][0] % N; };
  return a.leading.rank <= 1 && b.leading.rank <= 1 && step(a) == step(b);
}

// One past the last element of rows of so many columns.
template <class T>
const T* end_of(const RowsView& v, int64_t cols) {
  int64_t last = cols;
  for (int d = 0; d < v.leading.rank; ++d) last += (v.leading.size[d] - 1) * v.leading.stride[0][d];
  return data<T>(v.tensor) + last;
}

// Calls run(Width<N>{}, ragged) with the 16-byte vector width if the operands are aligned alike in
// every row, otherwise with 1. Ragged: some rows do not begin or end at such a boundary.
template <class T, class Run>
void with_row_vectors(std::initializer_list<const RowsView*> operands, const Run& run) {
  constexpr int N = kVec<T>;
  const RowsView& first = **operands.begin();
  bool vectors = tuning.vec != 1;
  for (const RowsView* v : operands) vectors = vectors && aligned_alike<T>(*v, first);
  if (!vectors) return run(Width<1>{}, false);
  const bool whole = misalignment(data<T>(first.tensor)) == 0 && first.steps_by(N);
  run(Width<N>{}, !whole || sizes(first.tensor).back() % N != 0);
}

// A parameter with a value per column: contiguous, in float or in the dtype of x.
struct ParamView {
  std::optional<Tensor> tensor;  // the given one, or a copy; it must outlive the launch

  Param read() const {
    if (!tensor) return {};
    return {tensor->const_data_ptr(), dtype_of(*tensor) == DType::f32};
  }
};

inline ParamView as_param(const std::optional<Tensor>& param, const Tensor& x) {
  if (!param) return {};
  const int32_t dtype = dtype_code(*param), wide = aoti_torch_dtype_float32();
  if (dtype == wide || dtype == dtype_code(x)) return {contiguous(*param)};
  const Tensor copy = empty(sizes(*param), wide, x);
  copy_into(copy, *param);
  return {copy};
}

}  // namespace opforge
