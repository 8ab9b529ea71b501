// SPDX-License-Identifier: Apache-2.0
#include <opforge/families/norm/cpu_host.h>
#include <opforge/host/split.h>

#include "cpu_pixels.h"

namespace opforge {

namespace {

enum class Lies { kByPlanes, kByPixels, kOtherwise };

// A tensor as samples, channels and pixels.
struct ImagesView {
  Tensor tensor;
  int64_t pixels = 1, sample, channel, pixel = 1;  // the last three are strides
  Lies lies = Lies::kOtherwise;

  ImagesView(const Tensor& x, int64_t groups)
      : tensor(x), sample(x.stride(0)), channel(x.stride(1)) {
    const int64_t channels = x.size(1), depth = channels / groups;
    if (!detail::merge_dims(x, 2, size_t(x.dim()), pixels, pixel)) return;
    if (channels > 1 && channel == 1) {
      lies = Lies::kByPixels;
    } else if ((pixels == 1 || pixel == 1) && (depth == 1 || channel == pixels)) {
      lies = Lies::kByPlanes;
    }
  }

  template <class T>
  Images<const T> read() const {
    return {data<T>(tensor), sample, channel, pixel};
  }
  template <class T>
  Images<T> write() const {
    prefer_huge_pages(mutable_data<T>(tensor), tensor.numel() * int64_t(sizeof(T)));
    return {mutable_data<T>(tensor), sample, channel, pixel};
  }
};

// x and a new tensor like it: where there are kernels for the layout they are `from` and `to`.
struct Placed {
  Tensor result;
  ImagesView from, to;

  Placed(const Tensor& x, int64_t groups)
      : result(empty_like(x)), from(x, groups), to(result, groups) {
    if (from.lies == Lies::kOtherwise || from.lies != to.lies) {
      from = ImagesView(contiguous(x), groups);
    }
    if (from.lies != to.lies) to = ImagesView(empty(sizes(x), x), groups);
  }

  bool by_planes() const { return from.lies == Lies::kByPlanes; }

  // Another tensor of the same shape, or a copy of it that lies as x does.
  ImagesView beside(const Tensor& other, int64_t groups) const {
    const ImagesView view(other, groups);
    if (view.lies == from.lies) return view;
    const Tensor copy = empty_like(from.tensor);
    copy_into(copy, other);
    return ImagesView(copy, groups);
  }

  Tensor finish() const {
    if (to.tensor.get() != result.get()) copy_into(result, to.tensor);
    return result;
  }
};

void check(const Tensor& x, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
           int64_t groups, double eps) {
  OPFORGE_CHECK(x.dim() >= 2, "group_norm: x must have at least two dims");
  OPFORGE_CHECK(groups >= 1 && x.size(1) % groups == 0,
                "group_norm: groups must divide the channels of x");
  for (const std::optional<Tensor>* param : {&weight, &bias}) {
    OPFORGE_CHECK(!*param || ((*param)->dim() == 1 && (*param)->size(0) == x.size(1)),
                  "group_norm: weight and bias must hold one value per channel of x");
  }
  OPFORGE_CHECK(eps > 0 && eps < INFINITY, "group_norm: eps must be positive");
}

// Calls f with types for the two.
template <class F>
void dispatch(DType dtype, bool silu, const F& f) {
  opforge::dispatch(dtype, [&](auto type) {
    if (silu) {
      f(type, std::true_type{});
    } else {
      f(type, std::false_type{});
    }
  });
}

// The parameters, which are wide, must outlive it.
template <class T, bool kSilu>
GroupNorm<T, kSilu> make_norm(const Tensor& x, const std::optional<Tensor>& weight,
                              const std::optional<Tensor>& bias, int64_t groups, double eps) {
  using A = compute_t<T>;
  const int64_t samples = x.size(0), channels = x.size(1);
  const int64_t pixels = x.numel() / (samples * channels), depth = channels / groups;
  GroupNorm<T, kSilu> norm{samples, channels, pixels, groups, depth, depth * pixels, eps};
  if (weight) norm.weight = data<A>(*weight);
  if (bias) norm.bias = data<A>(*bias);
  return norm;
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> group_norm_cpu(const Tensor& x,
                                                  const std::optional<Tensor>& weight,
                                                  const std::optional<Tensor>& bias, int64_t groups,
                                                  double eps, bool silu, bool save) {
  check(x, weight, bias, groups, eps);
  const int32_t wide = accumulator_dtype(x);
  const int64_t shape[] = {x.size(0), groups};
  const std::span<const int64_t> kept =
      save && x.numel() > 0 ? std::span<const int64_t>(shape) : kNothing;
  const Tensor mean = empty(kept, wide, x), rstd = empty(kept, wide, x);
  if (x.numel() == 0) return {empty_like(x), mean, rstd};
  const Placed placed(x, groups);
  const auto wide_weight = wide_param(weight, x), wide_bias = wide_param(bias, x);
  const Tensor means = save ? mean : empty(shape, wide, x),
               rstds = save ? rstd : empty(shape, wide, x);
  dispatch(dtype_of(x), silu, [&]<class T, bool kSilu>(Type<T>, std::bool_constant<kSilu>) {
    using A = compute_t<T>;
    const auto norm = make_norm<T, kSilu>(x, wide_weight, wide_bias, groups, eps);
    const Statistics<T> saved{mutable_data<A>(means), mutable_data<A>(rstds)};
    const auto run = placed.by_planes() ? planes_forward<T, kSilu> : pixels_forward<T, kSilu>;
    run(norm, placed.from.read<T>(), placed.to.write<T>(), saved);
  });
  return {placed.finish(), mean, rstd};
}

std::tuple<Tensor, Tensor, Tensor> group_norm_backward_cpu(const Tensor& grad_y, const Tensor& x,
                                                           const std::optional<Tensor>& weight,
                                                           const std::optional<Tensor>& bias,
                                                           int64_t groups, double eps, bool silu,
                                                           const Tensor& mean, const Tensor& rstd) {
  check(x, weight, bias, groups, eps);
  OPFORGE_CHECK(same_shape(grad_y, x) && dtype_code(grad_y) == dtype_code(x),
                "group_norm_backward: grad_y and x differ in shape or dtype");
  const int64_t shape[] = {x.size(0), groups};
  const int32_t wide = accumulator_dtype(x);
  const bool has_statistics = rstd.numel() > 0;
  for (const Tensor* saved : {&mean, &rstd}) {
    OPFORGE_CHECK(
        saved->numel() == (has_statistics ? shape[0] * shape[1] : 0) && dtype_code(*saved) == wide,
        "group_norm_backward: the statistics do not fit x");
  }
  const auto gradient = [&](const std::optional<Tensor>& param) {
    return param ? empty(sizes(*param), *param) : empty(kNothing, x);
  };
  const Tensor grad_weight = gradient(weight), grad_bias = gradient(bias);
  if (x.numel() == 0) {
    fill_zero(grad_weight);
    fill_zero(grad_bias);
    return {empty_like(x), grad_weight, grad_bias};
  }
  const Placed placed(x, groups);
  const ImagesView grads = placed.beside(grad_y, groups);
  const auto wide_weight = wide_param(weight, x), wide_bias = wide_param(bias, x);
  const Tensor means = has_statistics ? contiguous(mean) : empty(shape, wide, x),
               rstds = has_statistics ? contiguous(rstd) : empty(shape, wide, x);
  dispatch(dtype_of(x), silu, [&]<class T, bool kSilu>(Type<T>, std::bool_constant<kSilu>) {
    using A = compute_t<T>;
    const auto norm = make_norm<T, kSilu>(x, wide_weight, wide_bias, groups, eps);
    const Statistics<T> saved{mutable_data<A>(means), mutable_data<A>(rstds)};
    const auto sums_of = [&](const std::optional<Tensor>& param) {
      const size_t n = size_t(norm.samples * norm.channels);
      return param ? std::make_unique_for_overwrite<A[]>(n) : nullptr;
    };
    const auto weight_sums = sums_of(weight), bias_sums = sums_of(bias);
    const auto run = placed.by_planes() ? planes_backward<T, kSilu> : pixels_backward<T, kSilu>;
    run(norm, grads.read<T>(), placed.from.read<T>(), saved, has_statistics, placed.to.write<T>(),
        {weight_sums.get(), bias_sums.get()});
    const auto finish = [&](const A* sums, const Tensor& to) {
      if (sums == nullptr) return;
      dispatch(dtype_of(to), [&]<class Out>(Type<Out>) {
        sum_rows(sums, norm.samples, norm.channels, mutable_data<Out>(to));
      });
    };
    finish(weight_sums.get(), grad_weight);
    finish(bias_sums.get(), grad_bias);
  });
  return {placed.finish(), grad_weight, grad_bias};
}

OPFORGE_IMPL(group_norm, group_norm_cpu)
OPFORGE_IMPL(group_norm_backward, group_norm_backward_cpu)

}  // namespace opforge
