// SPDX-License-Identifier: Apache-2.0
// Images as planes.cuh and pixels.cuh take them.
#pragma once

#include <opforge/host/rows.h>

#include "host.h"
#include "pixels.cuh"

namespace opforge {

inline bool dense_samples(const ImagesView& x) { return x.sample_stride == x.channels * x.pixels; }

inline bool are_planes(const ImagesView& x) {
  if (!x.adjacent_pixels() || (x.channels > 1 && x.channel_stride != x.pixels)) return false;
  // With gaps between samples, the sample becomes the outer dim of Rows. Rows with an outer dim are
  // counted in 32 bits, and an outer stride of 0 would mean that there is no outer dim. A plane has
  // no more pieces than this; see cut().
  const bool counted = x.samples * x.channels * (x.pixels / 1024 + 4) < int64_t(1) << 31;
  return dense_samples(x) || (counted && x.sample_stride != 0);
}
inline bool are_pixels(const ImagesView& x) { return x.adjacent_channels(); }

// As new tensors are, with no gap.
inline bool dense_planes(const ImagesView& x) { return are_planes(x) && dense_samples(x); }
inline bool dense_pixels(const ImagesView& x) {
  return are_pixels(x) && x.pixel_stride == x.channels && dense_samples(x);
}

// The order that x and a result share, if there is a kernel for it.
inline ImageOrder order_of(const ImagesView& x, const ImagesView& out) {
  if (dense_planes(out) && are_planes(x)) return ImageOrder::planes;
  return dense_pixels(out) && are_pixels(x) ? ImageOrder::pixels : ImageOrder::other;
}

// Whether all samples begin at multiples of n elements, counted from a 16-byte boundary.
template <class T>
bool begins_at(const ImagesView& x, int64_t n) {
  return misalignment(data<T>(x.tensor)) % n == 0 && x.sample_stride % n == 0;
}

// Planes as rows of `length` elements, one after the other in each sample.
template <class T>
Rows<const T> rows_of(const ImagesView& x, int64_t length) {
  const int64_t each = x.channels * x.pixels / length;
  if (dense_samples(x)) return {data<T>(x.tensor), length};
  return {data<T>(x.tensor), length, x.sample_stride, Divider<uint32_t>(each)};
}

template <class T>
Pixels<const T> read_pixels(const ImagesView& x) {
  return {data<T>(x.tensor), x.sample_stride, x.pixel_stride};
}
template <class T>
Pixels<T> write_pixels(const ImagesView& x) {
  return {mutable_data<T>(x.tensor), x.sample_stride, x.pixel_stride};
}

}  // namespace opforge
