// SPDX-License-Identifier: Apache-2.0
#include <opforge/families/norm/cpu_host.h>

#include "cpu_pixels.h"
#include "host.h"

namespace opforge {

namespace {

// Planes must follow each other only where a group has several.
ImageOrder order_of(const ImagesView& x, int64_t groups) {
  if (x.channels > 1 && x.adjacent_channels()) return ImageOrder::pixels;
  const bool whole = x.channels == groups || x.channel_stride == x.pixels;
  return x.adjacent_pixels() && whole ? ImageOrder::planes : ImageOrder::other;
}

template <class T>
Images<const T> read_images(const ImagesView& x) {
  return {data<T>(x.tensor), x.sample_stride, x.channel_stride, x.pixel_stride};
}
template <class T>
Images<T> write_images(const ImagesView& x) {
  prefer_huge_pages(mutable_data<T>(x.tensor), x.tensor.numel() * int64_t(sizeof(T)));
  return {mutable_data<T>(x.tensor), x.sample_stride, x.channel_stride, x.pixel_stride};
}

// x and a new tensor like it, which are `from` and `to` where there is a kernel for their order.
// Otherwise a contiguous copy of x stands in for x, and finish() copies `to` into the result.
struct Placed {
  int64_t groups;
  Tensor result;
  ImagesView from, to;

  Placed(const Tensor& x, int64_t groups)
      : groups(groups), result(empty_like(x)), from(x), to(result) {
    if (order() == ImageOrder::other || order() != order_of(to, groups)) {
      from = ImagesView(contiguous(x));
    }
    if (order() != order_of(to, groups)) to = ImagesView(empty(sizes(x), x));
  }

  ImageOrder order() const { return order_of(from, groups); }

  // Another tensor of the same shape, or a copy of it.
  ImagesView in_order_of_x(const Tensor& other) const {
    const ImagesView view(other);
    if (order_of(view, groups) == order()) return view;
    const Tensor copy = empty_like(from.tensor);
    copy_into(copy, other);
    return ImagesView(copy);
  }

  Tensor finish() const {
    if (to.tensor.get() != result.get()) copy_into(result, to.tensor);
    return result;
  }
};

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
  const int64_t pixels = x.numel() / (samples * channels), members = channels / groups;
  GroupNorm<T, kSilu> norm{samples, channels, pixels, groups, members, members * pixels, eps};
  if (weight) norm.weight = data<A>(*weight);
  if (bias) norm.bias = data<A>(*bias);
  return norm;
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> group_norm_cpu(const Tensor& x,
                                                  const std::optional<Tensor>& weight,
                                                  const std::optional<Tensor>& bias, int64_t groups,
                                                  double eps, bool silu, bool save) {
  const GroupNormArguments given{weight, bias, groups, eps, silu};
  given.check(x);
  if (x.numel() == 0) return {empty_like(x), no_statistic(x), no_statistic(x)};
  const Tensor mean = given.statistic(x), rstd = given.statistic(x);
  const Placed placed(x, groups);
  const auto wide_weight = wide_param(weight, x), wide_bias = wide_param(bias, x);
  dispatch(dtype_of(x), silu, [&]<class T, bool kSilu>(Type<T>, std::bool_constant<kSilu>) {
    using A = compute_t<T>;
    const auto norm = make_norm<T, kSilu>(x, wide_weight, wide_bias, groups, eps);
    const Statistics<T> saved{mutable_data<A>(mean), mutable_data<A>(rstd)};
    const bool planes = placed.order() == ImageOrder::planes;
    const auto run = planes ? planes_forward<T, kSilu> : pixels_forward<T, kSilu>;
    run(norm, read_images<T>(placed.from), write_images<T>(placed.to), saved);
  });
  const Tensor y = placed.finish();
  if (!save) return {y, no_statistic(x), no_statistic(x)};
  return {y, mean, rstd};
}

std::tuple<Tensor, Tensor, Tensor> group_norm_backward_cpu(const Tensor& grad_y, const Tensor& x,
                                                           const std::optional<Tensor>& weight,
                                                           const std::optional<Tensor>& bias,
                                                           int64_t groups, double eps, bool silu,
                                                           const Tensor& mean, const Tensor& rstd) {
  const GroupNormArguments given{weight, bias, groups, eps, silu};
  given.check_backward(grad_y, x, mean, rstd);
  const Tensor grad_weight = param_gradient(weight, x), grad_bias = param_gradient(bias, x);
  if (x.numel() == 0) {
    fill_zero(grad_weight);
    fill_zero(grad_bias);
    return {empty_like(x), grad_weight, grad_bias};
  }
  const Placed placed(x, groups);
  const ImagesView grads = placed.in_order_of_x(grad_y);
  const auto wide_weight = wide_param(weight, x), wide_bias = wide_param(bias, x);
  const bool has_statistics = mean.numel() > 0 && rstd.numel() > 0;
  const Tensor means = has_statistics ? contiguous(mean) : given.statistic(x),
               rstds = has_statistics ? contiguous(rstd) : given.statistic(x);
  dispatch(dtype_of(x), silu, [&]<class T, bool kSilu>(Type<T>, std::bool_constant<kSilu>) {
    using A = compute_t<T>;
    const auto norm = make_norm<T, kSilu>(x, wide_weight, wide_bias, groups, eps);
    const Statistics<T> saved{mutable_data<A>(means), mutable_data<A>(rstds)};
    const auto sums_of = [&](const std::optional<Tensor>& param) {
      const size_t n = size_t(norm.samples * norm.channels);
      return param ? std::make_unique_for_overwrite<A[]>(n) : nullptr;
    };
    const auto weight_sums = sums_of(weight), bias_sums = sums_of(bias);
    const bool planes = placed.order() == ImageOrder::planes;
    const auto run = planes ? planes_backward<T, kSilu> : pixels_backward<T, kSilu>;
    run(norm, read_images<T>(grads), read_images<T>(placed.from), saved, has_statistics,
        write_images<T>(placed.to), {weight_sums.get(), bias_sums.get()});
    const auto finish = [&](const A* sums, const Tensor& to) {
      if (sums == nullptr) return;
      dispatch_all(dtype_of(to), [&]<class Out>(Type<Out>) {
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
