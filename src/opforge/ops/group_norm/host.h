// SPDX-License-Identifier: Apache-2.0
// What the host sides of group_norm share on CPU and GPU: arguments, checks, new tensors.
#pragma once

#include <opforge/host.h>
#include <opforge/host/split.h>

#include <optional>

namespace opforge {

// How images are stored. Planes (NCHW): the pixels of a channel are adjacent, and the channels of a
// sample follow each other. Pixels (NHWC): the channels of a pixel are adjacent. There is no kernel
// for others.
enum class ImageOrder { planes, pixels, other };

// A tensor as samples of channels of pixels.
struct ImagesView {
  Tensor tensor;
  int64_t samples, channels, pixels = 1;
  int64_t sample_stride, channel_stride, pixel_stride = 1;
  bool merged;  // the pixels have one stride

  explicit ImagesView(const Tensor& x)
      : tensor(x),
        samples(x.size(0)),
        channels(x.size(1)),
        sample_stride(x.stride(0)),
        channel_stride(x.stride(1)),
        merged(detail::merge_dims(x, 2, size_t(x.dim()), pixels, pixel_stride)) {
    // One pixel or sample may have any stride: take that of a new tensor.
    if (pixels == 1) pixel_stride = channels;
    if (samples == 1) sample_stride = channels * pixels;
  }
  bool adjacent_pixels() const { return merged && (pixels == 1 || pixel_stride == 1); }
  bool adjacent_channels() const { return merged && (channels == 1 || channel_stride == 1); }
};

struct GroupNormArguments {
  const std::optional<Tensor>&weight, &bias;
  int64_t groups;
  double eps;
  bool silu;

  void check(const Tensor& x) const {
    OPFORGE_CHECK(x.dim() >= 2, "group_norm: x must have at least two dims");
    OPFORGE_CHECK(groups >= 1 && x.size(1) % groups == 0,
                  "group_norm: groups must divide the channels of x");
    OPFORGE_CHECK(eps > 0 && eps < INFINITY, "group_norm: eps must be positive");
    for (const auto* param : {&weight, &bias}) {
      OPFORGE_CHECK(!*param || (same_device(x, **param) && (*param)->dim() == 1 &&
                                (*param)->size(0) == x.size(1)),
                    "group_norm: weight and bias must hold one value per channel of x");
    }
  }

  // The statistics are the forward's, or empty.
  void check_backward(const Tensor& grad_y, const Tensor& x, const Tensor& mean,
                      const Tensor& rstd) const {
    check(x);
    OPFORGE_CHECK(
        same_device(grad_y, x) && same_shape(grad_y, x) && dtype_code(grad_y) == dtype_code(x),
        "group_norm_backward: grad_y and x differ in device, shape or dtype");
    for (const Tensor* one : {&mean, &rstd}) {
      OPFORGE_CHECK(
          one->numel() == 0 || (one->numel() == x.size(0) * groups && same_device(*one, x) &&
                                dtype_code(*one) == accumulator_dtype(x)),
          "group_norm_backward: mean and rstd must be the forward's");
    }
  }

  // A value for each group of each sample.
  Tensor statistic(const Tensor& x) const {
    const int64_t shape[2] = {x.size(0), groups};
    return empty(shape, accumulator_dtype(x), x);
  }
};

inline Tensor no_statistic(const Tensor& x) {
  const int64_t none = 0;
  return empty({&none, 1}, accumulator_dtype(x), x);
}

// Of a parameter; empty if there is none.
inline Tensor param_gradient(const std::optional<Tensor>& param, const Tensor& x) {
  const int64_t none = 0;
  return param ? empty(sizes(*param), *param) : empty({&none, 1}, x);
}

}  // namespace opforge
