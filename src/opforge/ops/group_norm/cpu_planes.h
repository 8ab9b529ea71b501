// SPDX-License-Identifier: Apache-2.0
// group_norm on the CPU: what is computed of a group, and images that are stored plane by plane.
// Those that are stored pixel by pixel are in cpu_pixels.h. Includes no torch header.
#pragma once

#include <opforge/families/activations/cpu.h>
#include <opforge/families/norm/cpu_forward.h>

namespace opforge {

// Samples of channels of pixels. In the order of planes, all elements of a group are adjacent. In
// that of pixels, the channels of a pixel are.
template <class T>
struct Images {
  T* data;
  int64_t sample_stride, channel_stride, pixel_stride;

  T* at(int64_t sample, int64_t channel, int64_t pixel = 0) const {
    return data + sample * sample_stride + channel * channel_stride + pixel * pixel_stride;
  }
};

// The kernels of planes copy it into a local variable. Otherwise the compiler loads its members
// again after every store, which might have changed them.
template <class T, bool kSilu>
struct GroupNorm {
  using A = compute_t<T>;
  using V = vec<T>;
  int64_t samples, channels, pixels, groups;
  int64_t members, length;  // the channels and the elements of a group
  double eps;
  const A *weight = nullptr, *bias = nullptr;  // null: ones, zeros

  int64_t tasks() const { return samples * groups; }
  int64_t grain() const { return std::max<int64_t>(1, kGrain / length); }

  A factor(int64_t channel) const { return weight == nullptr ? A(1) : weight[channel]; }
  A shift(int64_t channel) const { return bias == nullptr ? A(0) : bias[channel]; }

  OPFORGE_INLINE V result(V normed, V factor, V shift) const {
    const V z = fma(normed, factor, shift);
    if constexpr (kSilu) return Silu<T>().value(z);
    return z;
  }
  // The gradient of z, given that of y.
  OPFORGE_INLINE V z_gradient(V grad_y, V normed, V factor, V shift) const {
    if constexpr (!kSilu) return grad_y;
    V value;
    return Silu<T>().gradient(fma(normed, factor, shift), grad_y, value);
  }
  // The gradient of x. A group of one element, which is its mean, has none, not even a rounding.
  OPFORGE_INLINE V gradient(V grad_z, V normed, V factor, V inner, V average, V rstd) const {
    const V v = fma(normed, -inner, fma(grad_z, factor, -average)) * rstd;
    return length == 1 ? v * 0 : v;
  }
};

// A number per sample and group each.
template <class T>
struct Statistics {
  compute_t<T>*mean, *rstd;

  void set(int64_t i, const Scale<T>& scale) const {
    mean[i] = scale.mean;
    rstd[i] = scale.rstd;
  }
};

// A number per sample and channel each, which are added up over the samples afterwards. Null: not
// wanted.
template <class T>
struct ChannelSums {
  compute_t<T>*weight, *bias;
};

// What the gradients of a group have in common.
template <class T>
struct GroupGradient {
  using A = compute_t<T>;
  double sum = 0, inner_sum = 0;

  // The sums over a channel's pixels of grad_z, and of grad_z · normed.
  void add(const auto& norm, int64_t sample, int64_t channel, double grads, double products,
           const ChannelSums<T>& sums) {
    const int64_t at = sample * norm.channels + channel;
    if (sums.bias != nullptr) sums.bias[at] = A(grads);
    if (sums.weight != nullptr) sums.weight[at] = A(products);
    sum += double(norm.factor(channel)) * grads;
    inner_sum += double(norm.factor(channel)) * products;
  }
  A average(const auto& norm) const { return A(sum / double(norm.length)); }
  A inner(const auto& norm) const { return A(inner_sum / double(norm.length)); }
};

// Cuts n elements into vectors, and calls visit(j, lanes) for each. The last may be shorter.
template <class T, class Visit>
OPFORGE_INLINE void along(int64_t n, const Visit& visit) {
  int64_t j = 0;
  for (; j + kLanes<T> <= n; j += kLanes<T>) visit(j, AllLanes<T>{});
  if (j < n) visit(j, n - j);
}

// With a silu, grad_z is kept from the backward's first pass to its second, if it has no more
// elements than this; else it is computed again.
constexpr int64_t kKeptElements = 1 << 20;

// Room for this, for one thread; null: it is not kept.
template <class T, bool kSilu>
std::unique_ptr<compute_t<T>[]> room_to_keep(const GroupNorm<T, kSilu>& norm, int64_t elements) {
  if (!kSilu || elements > kKeptElements) return nullptr;
  return std::make_unique_for_overwrite<compute_t<T>[]>(size_t(elements));
}

// How many elements there are, their mean, and the squares of their distances from it.
struct Moments {
  double count = 0, mean = 0, squares = 0;

  void add(const Moments& more) {
    const double away = more.mean - mean, share = more.count / (count + more.count);
    squares += more.squares + away * away * count * share;
    mean += away * share;
    count += more.count;
  }
  bool finite() const { return std::isfinite(mean + squares); }
  template <class T>
  Scale<T> scale(double eps) const {
    using A = compute_t<T>;
    return {A(mean), A(1 / std::sqrt(std::max(squares, 0.0) / count + eps))};
  }
};

// Calls visit(k, j, lanes) for every vector from `begin` to `end`; k is 0 or 1, so that two sums
// are on their way.
template <class T, class Visit>
OPFORGE_INLINE void by_twos(int64_t begin, int64_t end, const Visit& visit) {
  constexpr int64_t lanes = kLanes<T>;
  for (; begin + 2 * lanes <= end; begin += 2 * lanes) {
    visit(0, begin, AllLanes<T>{});
    visit(1, begin + lanes, AllLanes<T>{});
  }
  for (; begin + lanes <= end; begin += lanes) visit(0, begin, AllLanes<T>{});
  if (begin < end) visit(1, begin, end - begin);
}

// One pass, because to convert 16-bit numbers is most of the work, and a second pass would do it
// again. The pivot of a block is its first element.
template <class T>
inline Moments moments_of(const T* v, int64_t n) {
  using A = compute_t<T>;
  constexpr int64_t block = 1024;
  Moments all;
  for (int64_t begin = 0; begin < n; begin += block) {
    const int64_t end = std::min(begin + block, n);
    const Scale<T> from{widen(v[begin]), 1};
    vec<T> sums[2] = {}, squares[2] = {};
    by_twos<T>(begin, end, [&](int k, int64_t j, auto lanes) {
      const vec<T> away = from.normed(v + j, lanes);
      sums[k] += away;
      squares[k] = fma(away, away, squares[k]);
    });
    const double count = double(end - begin), sum = double(sum_lanes<A>(sums[0] + sums[1]));
    const double average = sum / count;
    all.add({count, double(from.mean) + average,
             double(sum_lanes<A>(squares[0] + squares[1])) - sum * average});
  }
  return all;
}

template <class T>
inline Scale<T> scale_of_group(const T* v, int64_t n, double eps) {
  if constexpr (kShort<T>) {
    const Moments moments = moments_of(v, n);
    if (moments.finite()) return moments.scale<T>(eps);
  }
  Scale<T> scale = scale_of<true>(v, n, eps);
  // Equal numbers may differ from the mean of their rounded sum: a second step.
  if constexpr (sizeof(T) == 8) {
    vec<T> sum{};
    along<T>(n,
             [&](int64_t j, auto lanes) { sum += Scale<T>{scale.mean, 1}.normed(v + j, lanes); });
    scale.mean += sum_lanes<T>(sum) / double(n);
  }
  return scale;
}

// Whether planes of results are written without reading them into the caches.
template <class T, bool kSilu>
bool should_stream_planes(const GroupNorm<T, kSilu>& norm, const Images<T>& to) {
  return should_stream(to.data, norm.samples * norm.channels, norm.pixels) &&
         to.sample_stride % kLanes<T> == 0 && to.channel_stride % kLanes<T> == 0;
}

// Every group is a contiguous row of planes, each with a weight and a bias.
template <class T, bool kSilu>
void planes_forward(const GroupNorm<T, kSilu>& given, const Images<const T>& x, const Images<T>& y,
                    const Statistics<T>& saved) {
  using V = vec<T>;
  const bool large = should_stream_planes(given, y);
  parallel_for(given.tasks(), given.grain(), [&](int64_t i, int64_t end) {
    const GroupNorm<T, kSilu> norm = given;
    const bool streams = large;
    const int64_t members = norm.members, pixels = norm.pixels, length = norm.length;
    for (; i < end; ++i) {
      const int64_t sample = i / norm.groups, group = i % norm.groups;
      const T* from = x.at(sample, group * members);
      T* to = y.at(sample, group * members);
      const Scale<T> scale = scale_of_group(from, length, norm.eps);
      saved.set(i, scale);
      for (int64_t c = group * members; c < (group + 1) * members;
           ++c, from += pixels, to += pixels) {
        const V factor = norm.factor(c) - V{}, shift = norm.shift(c) - V{};
        along<T>(pixels, [&](int64_t j, auto n) {
          stream_lanes(streams, to + j, n, norm.result(scale.normed(from + j, n), factor, shift));
        });
      }
    }
    finish_streaming();
  });
}

// The two sums of GroupGradient over a plane.
template <class T, bool kSilu>
inline std::pair<double, double> plane_sums(const GroupNorm<T, kSilu> norm, const T* x,
                                            const T* grad, const Scale<T> scale, vec<T> factor,
                                            vec<T> shift, compute_t<T>* kept) {
  using V = vec<T>;
  using A = compute_t<T>;
  double grads = 0, products = 0;
  for (int64_t j = 0, end; j < norm.pixels; j = end) {
    end = std::min(j + kBlockTerms, norm.pixels);
    V sum[2] = {}, inner[2] = {};
    by_twos<T>(j, end, [&](int k, int64_t at, auto n) {
      const V normed = scale.normed(x + at, n);
      const V grad_z = norm.z_gradient(load_lanes(grad + at, n), normed, factor, shift);
      if (kSilu && kept != nullptr) store_lanes(kept + at, n, grad_z);
      sum[k] += grad_z;
      inner[k] = fma(grad_z, normed, inner[k]);
    });
    grads += double(sum_lanes<A>(sum[0] + sum[1]));
    products += double(sum_lanes<A>(inner[0] + inner[1]));
  }
  return {grads, products};
}

template <class T, bool kSilu>
void planes_backward(const GroupNorm<T, kSilu>& given, const Images<const T>& grad_y,
                     const Images<const T>& x, const Statistics<T>& saved, bool has_statistics,
                     const Images<T>& grad_x, const ChannelSums<T>& sums) {
  using A = compute_t<T>;
  using V = vec<T>;
  const bool large = should_stream_planes(given, grad_x);
  parallel_for(given.tasks(), given.grain(), [&](int64_t i, int64_t end) {
    const GroupNorm<T, kSilu> norm = given;
    const bool streams = large;
    const int64_t members = norm.members, pixels = norm.pixels, length = norm.length;
    const auto room = room_to_keep(norm, length);
    A* const kept = room.get();
    for (; i < end; ++i) {
      const int64_t sample = i / norm.groups, first = i % norm.groups * members;
      const T *const from = x.at(sample, first), *const grad = grad_y.at(sample, first);
      T* const to = grad_x.at(sample, first);
      const Scale<T> scale = has_statistics ? Scale<T>{saved.mean[i], saved.rstd[i]}
                                            : scale_of_group(from, length, norm.eps);
      GroupGradient<T> total;
      for (int64_t c = 0; c < members; ++c) {
        const V factor = norm.factor(first + c) - V{}, shift = norm.shift(first + c) - V{};
        const auto [grads, products] =
            plane_sums(norm, from + c * pixels, grad + c * pixels, scale, factor, shift,
                       kept == nullptr ? nullptr : kept + c * pixels);
        total.add(norm, sample, first + c, grads, products, sums);
      }
      const V inner = total.inner(norm) - V{}, average = total.average(norm) - V{};
      const V rstd = scale.rstd - V{};
      for (int64_t c = 0; c < members; ++c) {
        const V factor = norm.factor(first + c) - V{}, shift = norm.shift(first + c) - V{};
        along<T>(pixels, [&](int64_t j, auto n) {
          j += c * pixels;
          const V normed = scale.normed(from + j, n);
          const V grad_z = !kSilu || kept == nullptr
                               ? norm.z_gradient(load_lanes(grad + j, n), normed, factor, shift)
                               : load_lanes(kept + j, n);
          stream_lanes(streams, to + j, n,
                       norm.gradient(grad_z, normed, factor, inner, average, rstd));
        });
      }
    }
    finish_streaming();
  });
}

}  // namespace opforge
