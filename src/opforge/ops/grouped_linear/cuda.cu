// SPDX-License-Identifier: Apache-2.0
// Where groups end is only known to the GPU: nothing here waits for it.
#include <opforge/families/product/cuda_host.h>

#include "grouped.h"
#include "plain.cuh"
#include "sums.cuh"
#include "tiles.h"

namespace opforge {

namespace {

// Offsets as kernels read them, and what keeps their memory alive.
struct Ends {
  Tensor tensor;
  ProductGroups groups;
};

Ends ends_of(const Tensor& offsets, int64_t total) {
  const Tensor flat = contiguous(offsets);
  const bool wide = dtype_code(flat) == aoti_torch_dtype_int64();
  return {flat, {Groups::none, flat.const_data_ptr(), wide, int(flat.numel()), int(total)}};
}

// A matrix as an operand seen from its columns: the inner dim is the rows.
template <class T>
Operand columns_operand(const Tensor& x) {
  if constexpr (sizeof(T) == 4) {  // TF32 is multiplied inner-major only
    return detail::packed<T>(as_matrix(x), true);
  } else {
    Operand rows = rows_of<T>(x);
    rows.view.major = Major::outer;
    std::swap(rows.outer, rows.inner);
    return rows;
  }
}

// A matrix for each group: groups x outer x inner.
template <class T>
Operand weights_operand(const Tensor& w) {
  const auto size = sizes(w), stride = strides(w);
  const int64_t groups = size[0], outer = size[1], inner = size[2];
  const auto view = [&](Major major, int64_t row_stride) -> Operand {
    return {w, {w.const_data_ptr(), major, row_stride, stride[0]}, outer, inner};
  };
  if (stride[2] == 1 && can_map(data<T>(w), {outer, inner, stride[1], groups, stride[0]})) {
    return view(Major::inner, stride[1]);
  }
  if (sizeof(T) == 2 && stride[1] == 1 &&
      can_map(data<T>(w), {inner, outer, stride[2], groups, stride[0]})) {
    return view(Major::outer, stride[2]);
  }
  Operand copy = detail::packed<T>(as_matrix(w), false);
  copy.outer = outer;
  copy.view.batch_stride = outer * copy.view.stride;
  return copy;
}

// y = x wᵀ + bias for the rows of each group, where w is (groups, outputs, features).
Tensor row_products(const Tensor& x, const Tensor& w, const Ends& ends,
                    const std::optional<Tensor>& biases, bool tf32) {
  const int64_t m = x.size(0), groups = w.size(0), n = w.size(1), k = w.size(2);
  const Tensor y = new_tensor({m, n}, x);
  if (y.numel() == 0) return y;
  const cudaStream_t stream = current_stream(x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    if constexpr (sizeof(T) <= 4) {
      if (groups > 0 && has_hopper_kernel(dtype_of(x), tf32, m, n, k)) {
        const Operand a = rows_of<T>(x), b = weights_operand<T>(w);
        ProductCall call{dtype_of(x), m, n, k, groups};
        call.a = a.view, call.b[0] = b.view;
        call.out[0] = matrix_of(y, n);
        if (biases) {
          call.columns[0] = {biases->const_data_ptr(), dtype_of(*biases), strides(*biases)[1],
                             strides(*biases)[0]};
        }
        call.groups = ends.groups;
        call.groups.kind = Groups::rows;
        call.stream = stream;
        if (run_row_groups(call)) return;
      }
    }
    PlainParams<T> p{as_matrix(x).read<T>(), {data<T>(w), strides(w)[1], strides(w)[2]}};
    p.b_batch = strides(w)[0];
    p.out = mutable_data<T>(y);
    p.m = int(m), p.n = int(n), p.k = int(k);
    if (biases) {
      p.biases = data<T>(*biases);
      p.bias_step = strides(*biases)[1], p.bias_batch = strides(*biases)[0];
    }
    p.groups = ends.groups;
    launch_plain_groups<Groups::rows>(p, stream);
  });
  return y;
}

// gradᵀ x of the rows of each group.
Tensor inner_products(const Tensor& grad, const Tensor& x, const Ends& ends, bool tf32) {
  const int64_t k = x.size(0), groups = ends.groups.count, m = grad.size(1), n = x.size(1);
  const Tensor result = new_tensor({groups, m, n}, x);
  if (result.numel() == 0) return result;
  const cudaStream_t stream = current_stream(x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    if constexpr (sizeof(T) <= 4) {
      if (has_hopper_kernel(dtype_of(x), tf32, m, n, k)) {
        const Operand a = columns_operand<T>(grad), b = columns_operand<T>(x);
        ProductCall call{dtype_of(x), m, n, k, groups};
        call.a = a.view, call.b[0] = b.view;
        call.out[0] = matrix_of(result, n);
        call.out[0].batch_stride = m * n;
        call.groups = ends.groups;
        call.groups.kind = Groups::inner;
        call.stream = stream;
        if (run_inner_groups(call)) return;
      }
    }
    const Matrix<const T> g = as_matrix(grad).read<T>(), from = as_matrix(x).read<T>();
    PlainParams<T> p{{g.data, g.col_stride, g.row_stride},
                     {from.data, from.col_stride, from.row_stride}};
    p.out = mutable_data<T>(result);
    p.m = int(m), p.n = int(n);
    p.groups = ends.groups;
    launch_plain_groups<Groups::inner>(p, stream);
  });
  return result;
}

// The sums of the rows of each group.
Tensor row_sums(const Tensor& grad, const Ends& ends) {
  const int64_t cols = grad.size(1);
  const Tensor sums = new_tensor({ends.groups.count, cols}, grad);
  if (sums.numel() == 0) return sums;
  dispatch(dtype_of(grad), [&]<class T>(Type<T>) {
    const MatrixView from = as_matrix(grad);
    launch_sum_groups<T>(from.read<T>(), cols, mutable_data<T>(sums), ends.groups,
                         current_stream(grad));
  });
  return sums;
}

}  // namespace

Tensor grouped_linear_cuda(const Tensor& x, const Tensor& weights, const Tensor& offsets,
                           const std::optional<Tensor>& biases, bool tf32) {
  check_grouped("grouped_linear", x, weights, offsets);
  check_options("grouped_linear", x, weights, biases, tf32);
  const DeviceGuard guard(x.get_device_index());
  return row_products(x, weights, ends_of(offsets, x.size(0)), biases, tf32);
}

std::tuple<Tensor, Tensor, Tensor> grouped_linear_backward_cuda(
    const Tensor& grad_y, const Tensor& x, const Tensor& weights, const Tensor& offsets, bool tf32,
    bool needs_x, bool needs_weights, bool needs_biases) {
  check_grouped("grouped_linear_backward", x, weights, offsets);
  check_grad(grad_y, x, weights);
  const DeviceGuard guard(x.get_device_index());
  const Ends ends = ends_of(offsets, x.size(0));
  const Tensor none = no_tensor(x);
  return {needs_x ? row_products(grad_y, permute(weights, {0, 2, 1}), ends, {}, tf32) : none,
          needs_weights ? inner_products(grad_y, x, ends, tf32) : none,
          needs_biases ? row_sums(grad_y, ends) : none};
}

OPFORGE_IMPL(grouped_linear, grouped_linear_cuda)
OPFORGE_IMPL(grouped_linear_backward, grouped_linear_backward_cuda)

}  // namespace opforge
