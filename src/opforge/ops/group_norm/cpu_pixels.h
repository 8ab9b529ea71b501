// SPDX-License-Identifier: Apache-2.0
// group_norm on the CPU of images that are stored pixel by pixel: vectors go along the channels.
// Includes no torch header.
#pragma once

#include <numeric>
#include <vector>

#include "cpu_planes.h"

namespace opforge {

constexpr int64_t kBlockPixels = 128;  // are summed in compute_t; their sums, in double
// A slab is some neighbouring groups of one sample; a thread takes one at a time. It is read at
// least twice, so it should fit the cache. But it spans several whole cache lines of a pixel.
constexpr int64_t kSlabElements = 1 << 17;  // of a slab, about
constexpr int64_t kSlabBytes = 256;         // of a pixel in it, about, if that is more

template <class T, bool kSilu>
struct Slab {
  using A = compute_t<T>;
  using V = vec<T>;
  const GroupNorm<T, kSilu>& norm;
  int64_t sample, first_group, groups, first, width;  // `width` channels, from `first` on
  // A value per channel. `mean` holds pivots while the statistics are not known. `sum` and `inner`
  // are of a block of pixels: of grad_z and of grad_z · normed, or the moments. In the end they
  // hold the two means of GroupGradient. `total_sum` and `total_inner` are of all pixels.
  A *mean, *rstd, *sum, *inner;
  double *total_sum, *total_inner;
  A* kept;  // grad_z of each element, or null

  // Calls body(slab) for every slab, in parallel. Slabs depend on the shape alone, not on the
  // number of threads.
  template <class F>
  static void each(const GroupNorm<T, kSilu>& norm, bool keeps, const F& body) {
    const int64_t members = norm.members, bytes = members * int64_t(sizeof(T));
    const int64_t unit = 64 / std::gcd<int64_t>(64, bytes);  // fewest groups that fill cache lines
    const int64_t wanted = std::max(kSlabBytes / bytes, kSlabElements / (norm.pixels * members));
    const int64_t groups =
        std::min(ceil_div(std::max<int64_t>(1, wanted), unit) * unit, norm.groups);
    const int64_t slabs = ceil_div(norm.groups, groups), width = groups * members;
    const int64_t grain = std::max<int64_t>(1, kGrain / (width * norm.pixels));
    parallel_for(norm.samples * slabs, grain, [&](int64_t i, int64_t end) {
      const auto room = std::make_unique_for_overwrite<A[]>(size_t(4 * width));
      const auto totals = std::make_unique_for_overwrite<double[]>(size_t(2 * width));
      const auto kept = keeps ? room_to_keep(norm, width * norm.pixels) : nullptr;
      A* const r = room.get();
      for (; i < end; ++i) {
        const int64_t g = i % slabs * groups, count = std::min(groups, norm.groups - g);
        body(Slab{norm, i / slabs, g, count, g * members, count * members, r, r + width,
                  r + 2 * width, r + 3 * width, totals.get(), totals.get() + width, kept.get()});
      }
    });
  }

  // Calls visit(pixel, count, channel, lanes) for every vector, with a constant count of pixels:
  // what belongs to the channels is loaded once for all of them. Channels count from 0.
  template <class Visit>
  OPFORGE_INLINE void over_vectors(int64_t pixel, int64_t end, const Visit& visit) const {
    const auto some = [&](auto count) {
      along<T>(width, [&](int64_t c, auto n) { visit(pixel, count, c, n); });
      pixel += count;
    };
    while (pixel + 4 <= end) some(std::integral_constant<int64_t, 4>{});
    while (pixel < end) some(std::integral_constant<int64_t, 1>{});
  }

  // The hardware does not foresee a slab's short rows.
  OPFORGE_INLINE static void prefetch(const T* p, int64_t stride) {
    __builtin_prefetch(p + 8 * stride);
  }

  // Adds up two numbers for every channel of a block of pixels, in `sum` and `inner`.
  // add_to(pixel, count, channel, lanes, s, q) adds those of `count` pixels to s and q.
  template <class AddTo>
  OPFORGE_INLINE void add_up(int64_t pixel, int64_t end, const AddTo& add_to) const {
    A *const first_sum = sum, *const second_sum = inner;
    std::fill_n(first_sum, width, A(0));
    std::fill_n(second_sum, width, A(0));
    over_vectors(pixel, end, [&](int64_t p, auto count, int64_t c, auto n) {
      V s = load_lanes(first_sum + c, n), q = load_lanes(second_sum + c, n);
      add_to(p, count, c, n, s, q);
      store_lanes(first_sum + c, n, s);
      store_lanes(second_sum + c, n, q);
    });
  }

  // The pivot of each channel: the mean of four of its pixels. One pixel alone may be further from
  // the mean of the block, and the subtraction in add_moments() would lose more digits.
  void find_pivots(const Images<const T>& x, int64_t pixel, int64_t end, A* pivot) const {
    std::fill_n(pivot, width, A(0));
    for (int64_t k = 0; k < 4; ++k) {
      const T* const v = x.at(sample, first) + (pixel + k * (end - pixel) / 4) * x.pixel_stride;
      for (int64_t c = 0; c < width; ++c) pivot[c] += A(0.25) * widen(v[c]);
    }
  }

  // Adds the moments of a block of pixels to those of each group, from its channels' distances from
  // their pivots.
  void add_moments(const Images<const T>& x, int64_t pixel, int64_t end, Moments* to) const {
    const T* const from = x.at(sample, first);
    A* const pivot = mean;  // holds no mean yet
    find_pivots(x, pixel, end, pivot);
    add_up(pixel, end, [&](int64_t p, auto count, int64_t c, auto n, V& s, V& q) {
      const V base = load_lanes(pivot + c, n);
      const T* v = from + p * x.pixel_stride + c;
#pragma GCC unroll 4
      for (int64_t k = 0; k < count; ++k, v += x.pixel_stride) {
        prefetch(v, x.pixel_stride);
        const V away = load_lanes(v, n) - base;
        s += away;
        q = fma(away, away, q);
      }
    });
    const int64_t members = norm.members;
    const double pixels = double(end - pixel), channels = double(members);
    for (int64_t begin = 0; begin < width; begin += members, ++to) {
      const double base = double(pivot[begin]);
      double offsets = 0, between = 0, within = 0;
      for (int64_t c = begin; c < begin + members; ++c) {
        const double average = double(sum[c]) / pixels;
        const double offset = double(pivot[c]) - base + average;
        offsets += offset;
        between += offset * offset;
        within += double(inner[c]) - double(sum[c]) * average;
      }
      const double offset = offsets / channels;
      to->add({pixels * channels, base + offset, within + pixels * (between - offsets * offset)});
    }
  }

  // The moments of the group that begins at `channel`, for numbers so large that their distances,
  // or the squares of these, overflow compute_t.
  Moments moments_in_double(const Images<const T>& x, int64_t channel) const {
    Moments all{double(norm.pixels * norm.members)};
    const auto over = [&](const auto& visit) {
      for (int64_t p = 0; p < norm.pixels; ++p) {
        const T* const v = x.at(sample, channel, p);
        for (int64_t c = 0; c < norm.members; ++c) visit(double(widen(v[c])));
      }
    };
    over([&](double v) { all.mean += v; });
    all.mean /= all.count;
    over([&](double v) { all.squares += (v - all.mean) * (v - all.mean); });
    return all;
  }

  void statistics(const Images<const T>& x, const Statistics<T>& to) const {
    const int64_t members = norm.members, at = sample * norm.groups + first_group;
    if (norm.pixels == 1) {
      const T* const from = x.at(sample, first);
      for (int64_t g = 0; g < groups; ++g) {
        to.set(at + g, scale_of_group(from + g * members, members, norm.eps));
      }
      return;
    }
    std::vector<Moments> moments(size_t(groups), Moments{});
    for (int64_t p = 0; p < norm.pixels; p += kBlockPixels) {
      add_moments(x, p, std::min(p + kBlockPixels, norm.pixels), moments.data());
    }
    for (int64_t g = 0; g < groups; ++g) {
      Moments m = moments[size_t(g)];
      if (!m.finite()) m = moments_in_double(x, first + g * members);
      to.set(at + g, m.scale<T>(norm.eps));
    }
  }

  void spread(const Statistics<T>& from) const {
    const int64_t members = norm.members, at = sample * norm.groups + first_group;
    for (int64_t g = 0; g < groups; ++g) {
      std::fill_n(mean + g * members, members, from.mean[at + g]);
      std::fill_n(rstd + g * members, members, from.rstd[at + g]);
    }
  }

  struct Channels {
    V mean, rstd, factor, shift;
  };
  template <class Lanes>
  OPFORGE_INLINE Channels channels(int64_t c, Lanes n) const {
    return {load_lanes(mean + c, n), load_lanes(rstd + c, n),
            norm.weight == nullptr ? 1 - V{} : load_lanes(norm.weight + first + c, n),
            norm.bias == nullptr ? V{} : load_lanes(norm.bias + first + c, n)};
  }
};

template <class T, bool kSilu>
void pixels_forward(const GroupNorm<T, kSilu>& norm, const Images<const T>& x, const Images<T>& y,
                    const Statistics<T>& saved) {
  using V = vec<T>;
  Slab<T, kSilu>::each(norm, false, [&](const Slab<T, kSilu>& slab) {
    slab.statistics(x, saved);
    slab.spread(saved);
    const T* const from = x.at(slab.sample, slab.first);
    T* const to = y.at(slab.sample, slab.first);
    slab.over_vectors(0, norm.pixels, [&](int64_t p, auto count, int64_t c, auto n) {
      const auto [mean, rstd, factor, shift] = slab.channels(c, n);
      const T* v = from + p * x.pixel_stride + c;
      T* out = to + p * y.pixel_stride + c;
#pragma GCC unroll 4
      for (int64_t k = 0; k < count; ++k, v += x.pixel_stride, out += y.pixel_stride) {
        const V normed = (load_lanes(v, n) - mean) * rstd;
        store_lanes(out, n, norm.result(normed, factor, shift));
      }
    });
  });
}

template <class T, bool kSilu>
void pixels_backward(const GroupNorm<T, kSilu>& norm, const Images<const T>& grad_y,
                     const Images<const T>& x, const Statistics<T>& saved, bool has_statistics,
                     const Images<T>& grad_x, const ChannelSums<T>& channel_sums) {
  using V = vec<T>;
  Slab<T, kSilu>::each(norm, true, [&](const Slab<T, kSilu>& slab) {
    if (!has_statistics) slab.statistics(x, saved);
    slab.spread(saved);
    const int64_t members = norm.members, width = slab.width;
    const T* const from = x.at(slab.sample, slab.first);
    const T* const grads = grad_y.at(slab.sample, slab.first);
    T* const to = grad_x.at(slab.sample, slab.first);
    std::fill_n(slab.total_sum, width, 0.0);
    std::fill_n(slab.total_inner, width, 0.0);
    for (int64_t begin = 0, end; begin < norm.pixels; begin = end) {
      end = std::min(begin + kBlockPixels, norm.pixels);
      slab.add_up(begin, end, [&](int64_t p, auto count, int64_t c, auto n, V& s, V& q) {
        const auto [mean, rstd, factor, shift] = slab.channels(c, n);
        const T *v = from + p * x.pixel_stride + c, *g = grads + p * grad_y.pixel_stride + c;
#pragma GCC unroll 4
        for (int64_t k = 0; k < count; ++k, v += x.pixel_stride, g += grad_y.pixel_stride) {
          Slab<T, kSilu>::prefetch(v, x.pixel_stride);
          Slab<T, kSilu>::prefetch(g, grad_y.pixel_stride);
          const V normed = (load_lanes(v, n) - mean) * rstd;
          const V grad_z = norm.z_gradient(load_lanes(g, n), normed, factor, shift);
          if (kSilu && slab.kept != nullptr)
            store_lanes(slab.kept + (p + k) * width + c, n, grad_z);
          s += grad_z;
          q = fma(grad_z, normed, q);
        }
      });
      for (int64_t c = 0; c < width; ++c) slab.total_sum[c] += double(slab.sum[c]);
      for (int64_t c = 0; c < width; ++c) slab.total_inner[c] += double(slab.inner[c]);
    }
    for (int64_t begin = 0; begin < width; begin += members) {
      GroupGradient<T> total;
      for (int64_t c = begin; c < begin + members; ++c) {
        total.add(norm, slab.sample, slab.first + c, slab.total_sum[c], slab.total_inner[c],
                  channel_sums);
      }
      std::fill_n(slab.sum + begin, members, total.average(norm));
      std::fill_n(slab.inner + begin, members, total.inner(norm));
    }
    slab.over_vectors(0, norm.pixels, [&](int64_t p, auto count, int64_t c, auto n) {
      const auto [mean, rstd, factor, shift] = slab.channels(c, n);
      const V average = load_lanes(slab.sum + c, n), inner = load_lanes(slab.inner + c, n);
      const T *v = from + p * x.pixel_stride + c, *g = grads + p * grad_y.pixel_stride + c;
      T* out = to + p * grad_x.pixel_stride + c;
#pragma GCC unroll 4
      for (int64_t k = 0; k < count;
           ++k, v += x.pixel_stride, g += grad_y.pixel_stride, out += grad_x.pixel_stride) {
        const V normed = (load_lanes(v, n) - mean) * rstd;
        const V grad_z = !kSilu || slab.kept == nullptr
                             ? norm.z_gradient(load_lanes(g, n), normed, factor, shift)
                             : load_lanes(slab.kept + (p + k) * width + c, n);
        store_lanes(out, n, norm.gradient(grad_z, normed, factor, inner, average, rstd));
      }
    });
  });
}

}  // namespace opforge
