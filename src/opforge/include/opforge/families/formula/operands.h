// SPDX-License-Identifier: Apache-2.0
// The tensors of a formula by how they lie to its rows, as generated host code names them.
#pragma once

#include <opforge/host.h>

#include <array>
#include <vector>

namespace opforge {

// An element for each of the matrix (Whole), a value per column, or one per row. Numbers of no
// dims count as per row.
template <int N>
struct Whole {
  std::array<Tensor, N> tensor;
};
template <int N>
struct PerColumn {
  std::array<Tensor, N> tensor;
};
template <int N>
struct PerRow {
  std::array<Tensor, N> tensor;
};

template <class... In>
Whole<sizeof...(In)> whole(const In&... in) {
  return {{in...}};
}
template <class... In>
PerColumn<sizeof...(In)> per_column(const In&... in) {
  return {{in...}};
}
template <class... In>
PerRow<sizeof...(In)> per_row(const In&... in) {
  return {{in...}};
}

// The shape of x without its last dim, with 1 in its place, or only the last.
inline std::vector<int64_t> shape_of(const Tensor& x) { return {sizes(x).begin(), sizes(x).end()}; }
inline std::vector<int64_t> rows_of(const Tensor& x) {
  return {sizes(x).begin(), sizes(x).end() - 1};
}
inline std::vector<int64_t> kept_rows_of(const Tensor& x) {
  std::vector<int64_t> shape = shape_of(x);
  shape.back() = 1;
  return shape;
}
inline int64_t count_rows(const Tensor& x) {
  int64_t rows = 1;
  for (const int64_t n : rows_of(x)) rows *= n;
  return rows;
}

// Values between two kernels: in the type that is computed in.
inline Tensor between(const std::vector<int64_t>& shape, const Tensor& like) {
  return empty(shape, accumulator_dtype(like), like);
}

// x with a last dim of 1, so that it is broadcast to the columns.
inline Tensor beside_columns(const Tensor& x) {
  StableIValue stack[2] = {torch::stable::detail::from(x),
                           torch::stable::detail::from(int64_t(-1))};
  OPFORGE_CHECK(
      torch_call_dispatcher("aten::unsqueeze", "", stack, TORCH_ABI_VERSION) == AOTI_TORCH_SUCCESS,
      "opforge: unsqueeze failed");
  return torch::stable::detail::to<Tensor>(stack[0]);
}

// x in that type, contiguous.
inline Tensor widened(const Tensor& x) {
  if (dtype_code(x) == accumulator_dtype(x)) return contiguous(x);
  const Tensor copy = between(shape_of(x), x);
  copy_into(copy, x);
  return copy;
}

// The layout of a result and of values for it: each has as many elements, contiguous, or one.
template <size_t N>
Layout<int(N) + 1> layout_of_values(const Tensor& out, const std::array<Tensor, N>& values) {
  Layout<int(N) + 1> layout;
  layout.rank = 1;
  layout.size[0] = out.numel();
  layout.stride[0][0] = 1;
  for (size_t k = 0; k < N; ++k) layout.stride[k + 1][0] = values[k].numel() == 1 ? 0 : 1;
  return layout;
}

inline void check_alike(const char* op, const Tensor& x, const Tensor& other) {
  OPFORGE_CHECK(same_device(x, other), op, ": the tensors are on different devices");
  OPFORGE_CHECK(dtype_code(x) == dtype_code(other), op, ": the tensors differ in dtype");
}
inline void check_whole(const char* op, const Tensor& x, const Tensor& other) {
  check_alike(op, x, other);
  OPFORGE_CHECK(same_shape(x, other), op, ": the tensors differ in shape");
}
inline void check_per_column(const char* op, const Tensor& x, const Tensor& other) {
  check_alike(op, x, other);
  OPFORGE_CHECK(other.dim() == 1 && other.size(0) == sizes(x).back(), op,
                ": there must be one value per column");
}
inline void check_per_row(const char* op, const Tensor& x, const Tensor& other) {
  check_alike(op, x, other);
  const auto size = sizes(other), like = sizes(x);
  const bool kept = size.size() == like.size() && size.back() == 1;
  OPFORGE_CHECK(
      std::ranges::equal(kept ? size.first(size.size() - 1) : size, like.first(like.size() - 1)),
      op, ": there must be one value per row");
}
inline void check_number(const char* op, const Tensor& x, const Tensor& other) {
  check_alike(op, x, other);
  OPFORGE_CHECK(other.numel() == 1, op, ": there must be one value");
}

}  // namespace opforge
