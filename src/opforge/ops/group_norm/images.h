// SPDX-License-Identifier: Apache-2.0
// Tensors as the images that planes.cuh and pixels.cuh work on.
#pragma once

#include <opforge/host/rows.h>
#include <opforge/host/split.h>

#include "host.h"
#include "pixels.cuh"

namespace opforge {

// Samples of channels of pixels. Planes: the pixels of a channel are neighbours, and so are its
// planes. Pixels: the channels of a pixel are neighbours.
struct ImagesView {
  Tensor tensor;
  int64_t samples, channels, pixels = 1;
  int64_t sample_stride, pixel_stride = 1;
  bool are_planes, are_pixels;

  explicit ImagesView(const Tensor& x)
      : tensor(x), samples(x.size(0)), channels(x.size(1)), sample_stride(strides(x)[0]) {
    const bool merged = detail::merge_dims(x, 2, sizes(x).size(), pixels, pixel_stride);
    const int64_t channel_stride = strides(x)[1];
    are_planes =
        merged && (pixels == 1 || pixel_stride == 1) && (channels == 1 || channel_stride == pixels);
    are_pixels = merged && (channels == 1 || channel_stride == 1);
    // One pixel or sample may have any stride: take that of a new tensor.
    if (pixels == 1) pixel_stride = channels;
    if (samples == 1) sample_stride = channels * pixels;
    // Samples with gaps are the outer dim of Rows, whose rows are counted in 32 bits there, and an
    // outer stride of 0 means that there is none. A plane has no more pieces than this; see cut().
    const bool counted = samples * channels * (pixels / 1024 + 4) < int64_t(1) << 31;
    are_planes = are_planes && (dense_samples() || (counted && sample_stride != 0));
  }
  bool dense_samples() const { return sample_stride == channels * pixels; }
  // As new tensors are, with no gap.
  bool dense_planes() const { return are_planes && dense_samples(); }
  bool dense_pixels() const { return are_pixels && pixel_stride == channels && dense_samples(); }

  // Whether all samples begin at multiples of n elements, counted from a 16-byte boundary.
  template <class T>
  bool begins(int64_t n) const {
    return misalignment(data<T>(tensor)) % n == 0 && sample_stride % n == 0;
  }
  // Rows of `length` elements, one after the other in each sample.
  template <class T>
  Rows<const T> rows(int64_t length) const {
    const int64_t each = channels * pixels / length;
    if (dense_samples()) return {data<T>(tensor), length};
    return {data<T>(tensor), length, sample_stride, Divider<uint32_t>(each)};
  }
  template <class T>
  Pixels<const T> read() const {
    return {data<T>(tensor), sample_stride, pixel_stride};
  }
};

// The order that x and a result share, if there is a kernel for it.
inline ImageOrder order_of(const ImagesView& x, const ImagesView& out) {
  if (out.dense_planes() && x.are_planes) return ImageOrder::planes;
  return out.dense_pixels() && x.are_pixels ? ImageOrder::pixels : ImageOrder::other;
}

}  // namespace opforge
