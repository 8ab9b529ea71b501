// SPDX-License-Identifier: Apache-2.0
// A product of torch's (oneDNN) for each group.
#include <opforge/cpu/columns.h>

#include "grouped.h"

namespace opforge {

namespace {

// Calls f(group, first row, rows) for each group, then after(first row, rows) for the rows after
// the last one.
template <class F, class After>
void each_group(const Tensor& offsets, int64_t total, const F& f, const After& after) {
  const Tensor flat = contiguous(offsets);
  const bool wide = dtype_code(flat) == aoti_torch_dtype_int64();
  int64_t begin = 0;
  for (int64_t i = 0; i < flat.numel(); ++i) {
    const int64_t given = wide ? data<int64_t>(flat)[i] : data<int32_t>(flat)[i];
    const int64_t end = std::clamp(given, begin, total);
    f(i, begin, end - begin);
    begin = end;
  }
  after(begin, total - begin);
}

// The matrix, or a copy where strides exceed 32 bits: torch's products misread those.
Tensor in_reach(const Tensor& matrix) {
  const bool near = std::ranges::max(strides(matrix)) <= std::numeric_limits<int32_t>::max();
  return near ? matrix : contiguous(matrix);
}

Tensor rows(const Tensor& x, int64_t first, int64_t count) {
  return detail::call_torch("aten::narrow", "", x, int64_t(0), first, count);
}

Tensor group(const Tensor& x, int64_t i) {
  return detail::call_torch("aten::select", "int", x, int64_t(0), i);
}

}  // namespace

Tensor grouped_linear_cpu(const Tensor& x, const Tensor& weights, const Tensor& offsets,
                          const std::optional<Tensor>& biases, bool tf32) {
  check_grouped("grouped_linear", x, weights, offsets);
  check_options("grouped_linear", x, weights, biases, tf32);
  const Tensor y = new_tensor({x.size(0), weights.size(1)}, x);
  if (y.numel() == 0) return y;
  each_group(
      offsets, x.size(0),
      [&](int64_t i, int64_t first, int64_t count) {
        if (count == 0) return;
        std::optional<Tensor> bias;
        if (biases) bias = group(*biases, i);
        copy_into(rows(y, first, count),
                  torch_linear(in_reach(rows(x, first, count)), in_reach(group(weights, i)), bias));
      },
      [&](int64_t first, int64_t count) {
        if (count > 0) fill_zero(rows(y, first, count));
      });
  return y;
}

std::tuple<Tensor, Tensor, Tensor> grouped_linear_backward_cpu(
    const Tensor& grad_y, const Tensor& x, const Tensor& weights, const Tensor& offsets, bool,
    bool needs_x, bool needs_weights, bool needs_biases) {
  check_grouped("grouped_linear_backward", x, weights, offsets);
  check_grad(grad_y, x, weights);
  const int64_t total = x.size(0), k = x.size(1), groups = weights.size(0), n = weights.size(1);
  const Tensor none = no_tensor(x);
  const Tensor grad_x = needs_x ? new_tensor({total, k}, x) : none;
  const Tensor grad_weights = needs_weights ? new_tensor({groups, n, k}, x) : none;
  const Tensor grad_biases = needs_biases ? new_tensor({groups, n}, x) : none;
  each_group(
      offsets, total,
      [&](int64_t i, int64_t first, int64_t count) {
        if (count == 0) {
          if (needs_weights) fill_zero(group(grad_weights, i));
          if (needs_biases) fill_zero(group(grad_biases, i));
          return;
        }
        const Tensor grad = in_reach(rows(grad_y, first, count));
        if (needs_x) {
          copy_into(rows(grad_x, first, count), torch_matmul(grad, in_reach(group(weights, i))));
        }
        if (needs_weights) {
          copy_into(group(grad_weights, i),
                    torch_matmul(permute(grad, {1, 0}), in_reach(rows(x, first, count))));
        }
        if (!needs_biases || n == 0) return;
        dispatch(dtype_of(grad), [&]<class T>(Type<T>) {
          const Matrix<const T> from = as_matrix(grad).read<T>();
          sum_columns(count, n, mutable_data<T>(grad_biases) + i * n,
                      [&](int64_t row, int64_t col, int64_t width, sum_t<T>* to) {
                        for (int64_t j = 0; j < width; ++j) {
                          to[j] += sum_t<T>(widen(*from.at(row, col + j)));
                        }
                      });
        });
      },
      [&](int64_t first, int64_t count) {
        if (needs_x && count > 0) fill_zero(rows(grad_x, first, count));
      });
  return {grad_x, grad_weights, grad_biases};
}

OPFORGE_IMPL(grouped_linear, grouped_linear_cpu)
OPFORGE_IMPL(grouped_linear_backward, grouped_linear_backward_cpu)

}  // namespace opforge
