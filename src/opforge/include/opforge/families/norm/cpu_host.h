// SPDX-License-Identifier: Apache-2.0
// The host side of layer_norm and rms_norm on the CPU: check → allocate → dispatch → run.
#pragma once

#include <opforge/cpu/rows_host.h>
#include <opforge/families/norm/cpu_backward.h>

namespace opforge {

// What both directions of a norm are given beside tensors of x's shape, as the schema has it.
struct NormArguments {
  const char* name;
  std::optional<Tensor> weight, bias, seed;
  double eps, offset;
  int64_t before, after;
  double p;

  void check(const Tensor& x) const {
    OPFORGE_CHECK(x.dim() >= 1, name, ": x must have a dim");
    for (const std::optional<Tensor>* param : {&weight, &bias}) {
      OPFORGE_CHECK(!*param || ((*param)->dim() == 1 && (*param)->size(0) == x.size(x.dim() - 1)),
                    name, ": weight and bias must hold one value per column of x");
    }
    OPFORGE_CHECK(((before | after) & 2) == 0 || (seed && seed->dim() == 1 && seed->numel() == 2 &&
                                                  dtype_code(*seed) == aoti_torch_dtype_int64()),
                  name, ": seed must be two int64");
    OPFORGE_CHECK(eps > 0 && eps < INFINITY, name, ": eps must be positive");
    OPFORGE_CHECK(p >= 0 && p <= 1, name, ": p must be from 0 to 1");
  }

  template <class T>
  Around<T> around(int64_t what, int which) const {
    Around<T> result;
    result.relu = (what & 1) != 0;
    result.dropout = (what & 2) != 0;
    if (!result.dropout) return result;
    result.seed = uint64_t(data<int64_t>(*seed)[which * seed->stride(0)]);
    result.threshold = drop_threshold(p);
    result.factor = compute_t<T>(kept_scale(p));
    return result;
  }
};

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
  norm.rows = 1;
  for (const int64_t n : sizes(x).first(size_t(x.dim() - 1))) norm.rows *= n;
  norm.before = given.around<T>(given.before, 0);
  norm.after = given.around<T>(given.after, 1);
  norm.weight = weight ? data<A>(*weight) : nullptr;
  norm.bias = bias ? data<A>(*bias) : nullptr;
  // -0.0 changes nothing it is added to, not even a zero's sign. PyTorch's layer_norm adds 0.0.
  norm.offset = A(given.offset == 0 ? -0.0 : given.offset);
  norm.no_bias = A(Centered ? 0.0 : -0.0);
  norm.eps = given.eps;
  return norm;
}

constexpr int64_t kNone = 0;
constexpr std::span<const int64_t> kNothing{&kNone, 1};  // the shape of what is not returned

struct NormResult {
  Tensor y, h, mean, rstd;
};

template <bool Centered>
NormResult norm_forward(const NormArguments& given, const Tensor& x,
                        const std::optional<Tensor>& residual, bool save) {
  given.check(x);
  OPFORGE_CHECK(!residual || (same_shape(x, *residual) && dtype_code(x) == dtype_code(*residual)),
                given.name, ": residual must be like x");
  const auto shape = sizes(x), kept = save ? shape.first(shape.size() - 1) : kNothing;
  const int32_t wide = accumulator_dtype(x);
  const NormResult out{empty(shape, x), empty(residual ? shape : kNothing, x),
                       empty(Centered ? kept : kNothing, wide, x), empty(kept, wide, x)};
  const auto weight = wide_param(given.weight, x), bias = wide_param(given.bias, x);
  const RowsView from = as_rows(x);
  const std::optional<RowsView> added = residual ? std::optional(as_rows(*residual)) : std::nullopt;
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {
    using A = compute_t<T>;
    norm_forward<Centered>(make_norm<Centered, T>(given, x, weight, bias), from.read<T>(),
                           added ? added->read<T>() : Rows<T>{}, mutable_data<T>(out.y),
                           mutable_data<T>(out.h),
                           save && Centered ? mutable_data<A>(out.mean) : nullptr,
                           save ? mutable_data<A>(out.rstd) : nullptr);
  });
  return out;
}

// What a backward gets of the forward; the schema says when a tensor is missing or empty.
struct NormSaved {
  std::optional<Tensor> x;
  bool summed;  // there was a residual: h is saved
  Tensor h, mean, rstd;
};

struct NormGradients {
  Tensor x, weight, bias, residual;
};

template <bool Centered>
NormGradients norm_backward(const NormArguments& given, const Tensor& grad_y,
                            const std::optional<Tensor>& grad_of_h, const NormSaved& saved) {
  const bool relu_beside_h = saved.summed && (given.before & 1) != 0;
  OPFORGE_CHECK((saved.x || saved.summed) && (saved.x || !relu_beside_h), given.name,
                "_backward: what the forward saved is missing");
  const Tensor& like = saved.summed ? saved.h : *saved.x;
  const std::optional<Tensor> grad_h = saved.summed ? grad_of_h : std::nullopt;
  given.check(like);
  for (const Tensor* other : {&grad_y, grad_h ? &*grad_h : &grad_y, saved.x ? &*saved.x : &like}) {
    OPFORGE_CHECK(same_shape(like, *other) && dtype_code(like) == dtype_code(*other), given.name,
                  "_backward: the gradients differ from x in shape or dtype");
  }
  const bool own_residual = saved.summed && given.before != 0;
  const auto gradient = [&](const std::optional<Tensor>& param) {
    return param ? empty(sizes(*param), *param) : empty(kNothing, like);
  };
  const NormGradients out{empty(sizes(like), like), gradient(given.weight), gradient(given.bias),
                          empty(own_residual ? sizes(like) : kNothing, like)};
  if (like.numel() == 0) {
    fill_zero(out.weight);
    fill_zero(out.bias);
    return out;
  }
  const auto weight = wide_param(given.weight, like), bias = wide_param(given.bias, like);
  const RowsView grads = as_rows(grad_y), values = as_rows(like);
  const std::optional<RowsView> others = grad_h ? std::optional(as_rows(*grad_h)) : std::nullopt,
                                inputs =
                                    relu_beside_h ? std::optional(as_rows(*saved.x)) : std::nullopt;
  const bool has_statistics = saved.rstd.numel() > 0;
  const Tensor mean = contiguous(saved.mean), rstd = contiguous(saved.rstd);
  dispatch(dtype_of(like), [&]<class T>(Type<T>) {
    using A = compute_t<T>;
    const Norm<T> norm = make_norm<Centered, T>(given, like, weight, bias);
    const int32_t wide = accumulator_dtype(like);
    OPFORGE_CHECK(
        !has_statistics || (rstd.numel() == norm.rows && dtype_code(rstd) == wide &&
                            (!Centered || (mean.numel() == norm.rows && dtype_code(mean) == wide))),
        given.name, "_backward: the statistics do not fit x");
    NormBackward<T> p{.grad_y = grads.read<T>(), .h = values.read<T>(), .summed = saved.summed};
    if (others) p.grad_h = others->read<T>();
    if (inputs) p.x = inputs->read<T>();
    p.mean = has_statistics && Centered ? data<A>(mean) : nullptr;
    p.rstd = has_statistics ? data<A>(rstd) : nullptr;
    p.grad_x = mutable_data<T>(out.x);
    p.grad_residual = own_residual ? mutable_data<T>(out.residual) : nullptr;
    const int64_t blocks = ceil_div(norm.rows, p.block(norm.rows));
    const auto sums_of = [&](const std::optional<Tensor>& param) {
      const size_t n = param ? size_t(blocks * norm.cols) : 0;
      return param ? std::make_unique_for_overwrite<A[]>(n) : nullptr;
    };
    const auto weight_sums = sums_of(given.weight), bias_sums = sums_of(given.bias);
    p.weight_sums = weight_sums.get();
    p.bias_sums = bias_sums.get();
    norm_backward<Centered>(norm, p);
    const auto finish = [&](const A* sums, const Tensor& to) {
      if (sums == nullptr) return;
      dispatch(dtype_of(to), [&]<class Out>(Type<Out>) {
        sum_rows(sums, blocks, norm.cols, mutable_data<Out>(to));
      });
    };
    finish(weight_sums.get(), out.weight);
    finish(bias_sums.get(), out.bias);
  });
  return out;
}

}  // namespace opforge
