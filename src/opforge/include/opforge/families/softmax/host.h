// SPDX-License-Identifier: Apache-2.0
// What the host sides of softmax and log_softmax share on CPU and GPU: checks, allocation and
// operands.
#pragma once

#include <opforge/host.h>
#if defined(USE_CUDA)
#include <opforge/host/rows.h>
#else
#include <opforge/cpu/rows_host.h>
#endif

#include <optional>

namespace opforge {

enum class Result { probabilities, logarithms };

// A mask stretched to the rows of x: the given tensor, or a copy; it must outlive the kernel.
struct MaskView {
  RowsView view;
  int64_t step = 0;  // from column to column
};

// Kernels read masks of the dtype of x, or of `wide`.
inline MaskView stretch(const char* op, const Tensor& given, const Tensor& x, int32_t wide) {
  Tensor mask = given;
  if (dtype_of(given) != dtype_of(x) && dtype_code(given) != wide) {
    mask = empty(sizes(given), wide, x);
    copy_into(mask, given);
  }
  const auto shape = sizes(x), own = sizes(mask), own_strides = strides(mask);
  OPFORGE_CHECK(same_device(x, mask) && own.size() <= shape.size(), op,
                ": mask must broadcast to x");
  int64_t strides[kMaxDims] = {};
  const size_t missing = shape.size() - own.size(), last = shape.size() - 1;
  for (size_t d = 0; d < own.size(); ++d) {
    OPFORGE_CHECK(own[d] == 1 || own[d] == shape[d + missing], op, ": mask must broadcast to x");
    if (own[d] != 1) strides[d + missing] = own_strides[d];
  }
  const MaskView result{{mask, flatten_in_order(shape.first(last), {strides, last})},
                        shape[last] == 1 ? 1 : strides[last]};
  const Layout<1>& leading = result.view.leading;
  const bool simple = leading.fits && (leading.rank <= 1 || leading.count() < (int64_t(1) << 31));
  return simple ? result : stretch(op, expand_copy(mask, shape), x, wide);
}

// The rows of x, and how many queries they are of if they are causal: 0 if they are not.
struct SoftmaxRows {
  int64_t rows, cols, queries;

  SoftmaxRows(const char* op, const Tensor& x, bool causal) {
    OPFORGE_CHECK(x.dim() >= 1, op, ": x must have a dim");
    OPFORGE_CHECK(!causal || x.dim() >= 2, op, ": causal needs queries and keys");
    cols = x.size(x.dim() - 1);
    rows = cols == 0 ? 0 : x.numel() / cols;
    queries = causal ? x.size(x.dim() - 2) : 0;
  }
};

// Makes y and calls run(Type<T>, rows, x, mask or nothing, y).
template <class Run>
Tensor make_softmax(const char* op, const Tensor& x, const std::optional<Tensor>& mask, bool causal,
                    int32_t wide, const Run& run) {
  const SoftmaxRows rows(op, x, causal);
  const Tensor y = empty(sizes(x), x);
  std::optional<MaskView> added;
  if (mask) added = stretch(op, *mask, x, wide);
  if (rows.rows == 0) return y;
  const RowsView from = as_rows(x);
  dispatch(dtype_of(x), [&]<class T>(Type<T> type) { run(type, rows, from, added, y); });
  return y;
}

// Makes grad_x and calls run(Type<T>, rows, grad_y, y, grad_x).
template <class Run>
Tensor make_softmax_gradient(const char* op, const Tensor& grad_y, const Tensor& y, bool causal,
                             const Run& run) {
  OPFORGE_CHECK(y.dim() >= 1 && same_device(grad_y, y) && same_shape(grad_y, y) &&
                    dtype_code(grad_y) == dtype_code(y),
                op, "_backward: grad_y differs from y in device, shape or dtype");
  const SoftmaxRows rows(op, y, causal);
  const Tensor grad_x = empty(sizes(y), y);
  if (rows.rows == 0) return grad_x;
  const RowsView grads = as_rows(grad_y), values = as_rows(y);
  dispatch(dtype_of(y), [&]<class T>(Type<T> type) { run(type, rows, grads, values, grad_x); });
  return grad_x;
}

}  // namespace opforge
