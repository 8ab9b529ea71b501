// SPDX-License-Identifier: Apache-2.0
// The host side of layer_norm and rms_norm on the CPU, after the checks and the allocation in
// families/norm/host.h: operands, and the kernel for their dtype.
#pragma once

#include <opforge/cpu/rows_host.h>
#include <opforge/families/norm/cpu_backward.h>
#include <opforge/families/norm/host.h>

namespace opforge {

// A prologue (seed 0) or epilogue (seed 1).
template <class T>
ReluDropout<T> relu_dropout(const NormArguments& given, Stage stage, int seed) {
  ReluDropout<T> result;
  result.relu = has_relu(stage);
  result.dropout = has_dropout(stage);
  if (!result.dropout) return result;
  result.seed = uint64_t(data<int64_t>(*given.seed)[seed * given.seed->stride(0)]);
  result.threshold = drop_threshold(given.p);
  result.factor = compute_t<T>(kept_scale(given.p));
  return result;
}

// A parameter in the dtype of computations, contiguous.
inline std::optional<Tensor> wide_param(const std::optional<Tensor>& param, const Tensor& x) {
  if (!param || dtype_code(*param) == accumulator_dtype(x)) {
    return param ? std::optional(contiguous(*param)) : std::nullopt;
  }
  const Tensor copy = empty(sizes(*param), accumulator_dtype(x), x);
  copy_into(copy, *param);
  return copy;
}

// The options for elements of type T. The parameters must outlive it.
template <bool Centered, class T>
Norm<T> make_norm(const NormArguments& given, const Tensor& x, const std::optional<Tensor>& weight,
                  const std::optional<Tensor>& bias) {
  using A = compute_t<T>;
  Norm<T> norm;
  norm.cols = x.size(x.dim() - 1);
  norm.rows = count_rows(x);
  norm.prologue = relu_dropout<T>(given, given.prologue, 0);
  norm.epilogue = relu_dropout<T>(given, given.epilogue, 1);
  norm.weight = weight ? data<A>(*weight) : nullptr;
  norm.bias = bias ? data<A>(*bias) : nullptr;
  // -0.0 changes nothing it is added to, not even a zero's sign. PyTorch's layer_norm adds 0.0.
  norm.offset = A(given.offset == 0 ? -0.0 : given.offset);
  norm.no_bias = A(Centered ? 0.0 : -0.0);
  norm.eps = given.eps;
  return norm;
}

template <bool Centered>
NormResult norm_forward_cpu(const NormArguments& given, const Tensor& x,
                            const std::optional<Tensor>& residual, bool save) {
  const NormResult out = allocate_result<Centered>(given, x, residual, save);
  const auto weight = wide_param(given.weight, x), bias = wide_param(given.bias, x);
  const RowsView from = as_rows(x);
  const std::optional<RowsView> added = residual ? std::optional(as_rows(*residual)) : std::nullopt;
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    using A = compute_t<T>;
    normalise_rows<Centered>(make_norm<Centered, T>(given, x, weight, bias), from.read<T>(),
                             added ? added->read<T>() : Rows<T>{}, mutable_data<T>(out.y),
                             mutable_data<T>(out.h),
                             save && Centered ? mutable_data<A>(out.mean) : nullptr,
                             save ? mutable_data<A>(out.rstd) : nullptr);
  });
  return out;
}

template <bool Centered>
NormGradients norm_backward_cpu(const NormArguments& given, const Tensor& grad_y,
                                const std::optional<Tensor>& grad_of_h, const NormSaved& saved) {
  const std::optional<Tensor> grad_h = saved.summed ? grad_of_h : std::nullopt;
  const NormGradients out = allocate_gradients<Centered>(given, grad_y, grad_h, saved);
  const Tensor& like = saved.values();
  if (like.numel() == 0) return out;
  const auto weight = wide_param(given.weight, like), bias = wide_param(given.bias, like);
  const RowsView grads = as_rows(grad_y), values = as_rows(like);
  std::optional<RowsView> others, inputs;
  if (grad_h) others = as_rows(*grad_h);
  if (saved.needs_x(given)) inputs = as_rows(*saved.x);
  const Tensor mean = contiguous(saved.mean), rstd = contiguous(saved.rstd);
  dispatch(dtype_of(like), [&]<class T>(Type<T>) {
    using A = compute_t<T>;
    const Norm<T> norm = make_norm<Centered, T>(given, like, weight, bias);
    NormBackward<T> p{.grad_y = grads.read<T>(), .h = values.read<T>(), .summed = saved.summed};
    if (others) p.grad_h = others->read<T>();
    if (inputs) p.x = inputs->read<T>();
    p.mean = saved.has_statistics() && Centered ? data<A>(mean) : nullptr;
    p.rstd = saved.has_statistics() ? data<A>(rstd) : nullptr;
    p.grad_x = mutable_data<T>(out.x);
    p.grad_residual = out.residual.numel() > 0 ? mutable_data<T>(out.residual) : nullptr;
    const int64_t blocks = ceil_div(norm.rows, p.block(norm.rows));
    const auto sums_of = [&](const std::optional<Tensor>& param) {
      const size_t n = param ? size_t(blocks * norm.cols) : 0;
      return param ? std::make_unique_for_overwrite<A[]>(n) : nullptr;
    };
    const auto weight_sums = sums_of(given.weight), bias_sums = sums_of(given.bias);
    p.weight_sums = weight_sums.get();
    p.bias_sums = bias_sums.get();
    find_gradients<Centered>(norm, p);
    const auto finish = [&](const A* sums, const Tensor& to) {
      if (sums == nullptr) return;
      dispatch_all(dtype_of(to), [&]<class Out>(Type<Out>) {
        sum_rows(sums, blocks, norm.cols, mutable_data<Out>(to));
      });
    };
    finish(weight_sums.get(), out.weight);
    finish(bias_sums.get(), out.bias);
  });
  return out;
}

}  // namespace opforge
