// SPDX-License-Identifier: Apache-2.0
// group_norm of images that are stored pixel by pixel (NHWC): a sample is a matrix with a row per
// pixel and a column per channel. A block has a chunk of pixels and a tile of channels, all of them
// unless they are many. Its threads stand side by side, a vector of channels each, in several rows.
// A thread keeps in registers what belongs to its channels, and takes every height-th pixel. The
// results of a channel's threads meet in shared memory; a block leaves one per channel and chunk.
#pragma once

#include <opforge/families/norm/forward.cuh>

#include "kernel.cuh"

namespace opforge {

constexpr int kPixelThreads = 256;

struct PixelPlan {
  int64_t channels, pixels, samples;
  int across;      // threads side by side: vectors of a tile
  int height;      // rows of such threads: a thread takes every height-th pixel
  int64_t tiles;   // of channels
  int64_t chunk;   // pixels of a block
  int64_t chunks;  // of a sample

  int64_t blocks() const { return samples * chunks * tiles; }
  int threads() const { return int(ceil_div(across * height, kWarp)) * kWarp; }
  int64_t partials() const { return samples * chunks * channels; }  // results of blocks
};

inline PixelPlan plan_pixels(int64_t samples, int64_t channels, int64_t pixels, int width) {
  PixelPlan p{channels, pixels, samples};
  const int64_t vectors = ceil_div(channels, width);
  p.tiles = ceil_div(vectors, kPixelThreads / 2);
  p.across = int(ceil_div(vectors, p.tiles));
  // About 8 pixels a thread or more: fewer do not pay for loading its channels' parameters.
  p.height = int(std::min<int64_t>(kPixelThreads / p.across, ceil_div(pixels, 8)));
  // Four blocks for each multiprocessor, if a thread then has at least 8 pixels, and at most 256,
  // so that its sums stay exact enough.
  const int64_t wanted = ceil_div(int64_t(multiprocessors()) * 4, samples * p.tiles);
  const int64_t most = ceil_div(pixels, int64_t(p.height) * 8);
  const int64_t least = ceil_div(pixels, int64_t(p.height) * 256);
  p.chunk = ceil_div(pixels, std::clamp(wanted, least, most));
  p.chunks = ceil_div(pixels, p.chunk);
  return p;
}

// A block's part of a sample, and this thread's place in it. Tiles of a chunk are neighbours, then
// the chunks of a sample.
template <int N>
struct PixelPlace {
  int64_t sample, chunk, channel;  // the first of N channels
  int64_t first, end;              // pixels of this thread, p.height apart; end: of the chunk
  int down;                        // the thread's row in the block
  bool exists;  // not beyond the channels of the last tile, nor in a last warp's spare threads

  __device__ __forceinline__ explicit PixelPlace(const PixelPlan& p) {
    const int64_t block = blockIdx.x, parts = block / p.tiles;
    down = int(threadIdx.x) / p.across;
    const int64_t tile = block - parts * p.tiles;
    channel = (tile * p.across + int(threadIdx.x) - down * p.across) * N;
    sample = parts / p.chunks;
    chunk = parts - sample * p.chunks;
    first = chunk * p.chunk + down;
    end = min(p.pixels, (chunk + 1) * p.chunk);
    exists = down < p.height && channel < p.channels;
  }
};

// Calls use(pixel, loaded) for the pixels of a thread, a few loads ahead.
template <int AtOnce, int N, class Load, class Use>
__device__ __forceinline__ void each_pixel(const PixelPlan& p, const PixelPlace<N>& place,
                                           const Load& load, const Use& use) {
  if (!place.exists) return;
  int64_t pixel = place.first;
  using Loaded = decltype(load(pixel));
  for (; pixel + (AtOnce - 1) * p.height < place.end; pixel += AtOnce * p.height) {
    Loaded loaded[AtOnce];
#pragma unroll
    for (int u = 0; u < AtOnce; ++u) loaded[u] = load(pixel + u * p.height);
#pragma unroll
    for (int u = 0; u < AtOnce; ++u) use(pixel + u * p.height, loaded[u]);
  }
  for (; pixel < place.end; pixel += p.height) use(pixel, load(pixel));
}

template <class T>
struct Pixels {
  T* data;
  int64_t sample_stride, pixel_stride;

  __device__ __forceinline__ T* at(int64_t sample, int64_t channel) const {
    return data + sample * sample_stride + channel;
  }
};

// The moments of some values of a group. `offset` is their mean minus first_value() of the group: a
// small number, which loses little in rounding. `squares` is the sum of the squared differences
// from the mean.
template <class A>
struct Moments {
  A offset, squares;
};

// Of the group of a channel.
template <class T>
__device__ __forceinline__ compute_t<T> first_value(const GroupNorm<T>& norm,
                                                    const Pixels<const T>& x, int64_t sample,
                                                    int64_t channel) {
  return pivot_of(widen(*x.at(sample, norm.members.divide(channel) * norm.members.divisor)));
}

// The moments of n parts together, of count_of(i) values each and `count` in all. In two steps,
// with the first mean as a pivot.
template <class A, class Count, class Get>
__device__ __forceinline__ Moments<A> merge(int n, A count, const Count& count_of, const Get& get) {
  const A pivot = pivot_of(get(0).offset);
  A sum = 0, squares = 0;
  for (int i = 0; i < n; ++i) sum = fma(A(count_of(i)), get(i).offset - pivot, sum);
  const A offset = pivot + sum / count;
  for (int i = 0; i < n; ++i) {
    const Moments<A> one = get(i);
    squares += fma(A(count_of(i)) * (one.offset - offset), one.offset - offset, one.squares);
  }
  return {offset, squares};
}

// The moments of each channel in each chunk of a sample.
template <class T, int N>
__global__ void __launch_bounds__(kPixelThreads)
    pixel_moments(const GroupNorm<T> norm, const PixelPlan p, const Pixels<const T> x,
                  Moments<compute_t<T>>* out) {
  using A = compute_t<T>;
  struct Stack {
    Moments<A> of[kPixelThreads * N];
  };
  Stack& stack = shared<Stack>();
  const PixelPlace<N> place(p);
  const T* from = x.at(place.sample, place.channel);
  // The pivot of a channel is this thread's first value. At the end, sum² / n is subtracted from
  // the squares. Because the pivot is one of the n values, that is at most n times the result. A
  // thread has at most 256 values of a channel, so few digits are lost.
  A pivot[N] = {}, sum[N] = {}, squares[N] = {};
  const auto load = [&](int64_t pixel) { return load_packed<N>(from + pixel * x.pixel_stride); };
  const bool any = place.exists && place.first < place.end;
  if (any) widen(load(place.first), pivot);
#pragma unroll
  for (int e = 0; e < N; ++e) pivot[e] = pivot_of(pivot[e]);
  each_pixel<4>(p, place, load, [&](int64_t, const Packed<T, N>& in) {
    A v[N];
    widen(in, v);
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const A away = v[e] - pivot[e];
      sum[e] += away;
      squares[e] = fma(away, away, squares[e]);
    }
  });
  release_next();
  if (place.exists) {
    const A count = A(any ? (place.end - place.first + p.height - 1) / p.height : 1);
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const A apart = sum[e] / count;
      // The squares around the mean. Squares that are infinite or NaN stay what they are.
      const A rest = fma(-sum[e], apart, squares[e]);
      const A center = pivot[e] - first_value(norm, x, place.sample, place.channel + e) + apart;
      stack.of[threadIdx.x * N + e] = {
          center, squares[e] < A(INFINITY) ? (rest > A(0) ? rest : A(0)) : squares[e]};
    }
  }
  __syncthreads();
  const int64_t first = place.chunk * p.chunk;
  const int length = int(place.end - first);  // pixels of the chunk
  const int width = p.across * N;             // channels of a tile
  const int64_t tile_first = place.channel - (threadIdx.x - place.down * p.across) * N;  // channel
  for (int i = threadIdx.x; i < width && tile_first + i < p.channels; i += blockDim.x) {
    // Row y of the block took pixels y, y + height, ... of the chunk.
    const auto count_of = [&](int y) { return (length - y + p.height - 1) / p.height; };
    out[(place.sample * p.chunks + place.chunk) * p.channels + tile_first + i] = merge(
        min(p.height, length), A(length), count_of, [&](int y) { return stack.of[y * width + i]; });
  }
}

// The statistics of each group, from its channels in all chunks.
template <class T>
__global__ void __launch_bounds__(kRowBlock)
    group_moments(const RowPlan plan, const GroupNorm<T> norm, const PixelPlan p, int64_t groups,
                  const Pixels<const T> x, const Moments<compute_t<T>>* parts, compute_t<T> eps,
                  compute_t<T>* mean, compute_t<T>* rstd) {
  using A = compute_t<T>;
  const Place place(plan);
  const int64_t members = norm.members.divisor, sample = place.row / groups;
  const int64_t first = (place.row - sample * groups) * members;
  // Calls use(number of values, their moments) for this thread's share of the group.
  const auto each = [&](const auto& use) {
    for (int64_t i = place.index; i < plan.cols; i += place.size) {
      const int64_t chunk = norm.members.divide(i);
      const int64_t length = min(p.chunk, p.pixels - chunk * p.chunk);
      use(A(length), parts[(sample * p.chunks + chunk) * p.channels + first + i - chunk * members]);
    }
  };
  await_previous();
  const A pivot = pivot_of(parts[sample * p.chunks * p.channels + first].offset);
  Sum<A> sum, squares;
  each([&](A n, const Moments<A>& one) { sum.value = fma(n, one.offset - pivot, sum.value); });
  const A count = A(members) * A(p.pixels);
  const A center = pivot + row_total(plan, sum, 0).value / count;
  each([&](A n, const Moments<A>& one) {
    squares.value += fma(n * (one.offset - center), one.offset - center, one.squares);
  });
  const A variance = row_total(plan, squares, 1).value / count;
  if (place.exists && place.index == 0) {
    mean[place.row] = first_value(norm, x, sample, first) + center;
    rstd[place.row] = rsqrt(variance + eps);
  }
}

// What N channels of a sample have in registers.
template <class T, int N>
struct PixelChannels {
  using A = compute_t<T>;
  A mean[N], rstd[N];
  Affine<A> by[N];

  __device__ __forceinline__ PixelChannels(const GroupNorm<T>& norm, const PixelPlace<N>& place,
                                           int64_t groups, const A* means, const A* rstds) {
    if (!place.exists) return;
#pragma unroll
    for (int e = 0; e < N; ++e) {
      const int64_t group = place.sample * groups + norm.members.divide(place.channel + e);
      mean[e] = means[group];
      rstd[e] = rstds[group];
      by[e] = norm.affine(place.channel + e);
    }
  }
  __device__ __forceinline__ A normed(int e, A v) const { return (v - mean[e]) * rstd[e]; }
};

template <class T, int N>
__global__ void __launch_bounds__(kPixelThreads, 3)
    normalise_pixels(const GroupNorm<T> norm, const PixelPlan p, int64_t groups,
                     const Pixels<const T> x, const compute_t<T>* mean, const compute_t<T>* rstd,
                     const Pixels<T> y) {
  using A = compute_t<T>;
  const PixelPlace<N> place(p);
  await_previous();
  const PixelChannels<T, N> of(norm, place, groups, mean, rstd);
  const T* from = x.at(place.sample, place.channel);
  T* to = y.at(place.sample, place.channel);
  each_pixel<4>(
      p, place, [&](int64_t pixel) { return load_packed<N>(from + pixel * x.pixel_stride); },
      [&](int64_t pixel, const Packed<T, N>& in) {
        A v[N];
        widen(in, v);
#pragma unroll
        for (int e = 0; e < N; ++e) v[e] = norm.forward(of.normed(e, v[e]), of.by[e]);
        store<N>(to + pixel * y.pixel_stride, narrow<T>(v));
      });
}

template <class T, int N>
struct PixelPair {
  Packed<T, N> x, grad;
};

// Calls use(pixel, normed, grad_z) for the pixels of a thread.
template <class T, int N, class Use>
__device__ __forceinline__ void each_gradient(const GroupNorm<T>& norm, const PixelPlan& p,
                                              const PixelPlace<N>& place,
                                              const PixelChannels<T, N>& of,
                                              const Pixels<const T>& x, const Pixels<const T>& grad,
                                              const Use& use) {
  using A = compute_t<T>;
  const T *x_from = x.at(place.sample, place.channel),
          *grad_from = grad.at(place.sample, place.channel);
  each_pixel<2>(
      p, place,
      [&](int64_t pixel) -> PixelPair<T, N> {
        return {load_packed<N>(x_from + pixel * x.pixel_stride),
                load_packed<N>(grad_from + pixel * grad.pixel_stride)};
      },
      [&](int64_t pixel, const PixelPair<T, N>& in) {
        A normed[N], grad_z[N];
        widen(in.x, normed);
        widen(in.grad, grad_z);
#pragma unroll
        for (int e = 0; e < N; ++e) {
          normed[e] = of.normed(e, normed[e]);
          grad_z[e] = norm.z_gradient(normed[e], of.by[e], grad_z[e]);
        }
        use(pixel, normed, grad_z);
      });
}

// The sums of each channel in each chunk of a sample.
template <class T, int N>
__global__ void __launch_bounds__(kPixelThreads, 2)
    pixel_sums(const GroupNorm<T> norm, const PixelPlan p, int64_t groups, const Pixels<const T> x,
               const Pixels<const T> grad, const compute_t<T>* mean, const compute_t<T>* rstd,
               compute_t<T>* weight_sums, compute_t<T>* bias_sums) {
  using A = compute_t<T>;
  struct Stack {
    A of[2][kPixelThreads * N];
  };
  Stack& stack = shared<Stack>();
  const PixelPlace<N> place(p);
  const PixelChannels<T, N> of(norm, place, groups, mean, rstd);
  A inner[N] = {}, sum[N] = {};
  each_gradient(norm, p, place, of, x, grad,
                [&](int64_t, const A(&normed)[N], const A(&grad_z)[N]) {
#pragma unroll
                  for (int e = 0; e < N; ++e) {
                    inner[e] = fma(grad_z[e], normed[e], inner[e]);
                    sum[e] += grad_z[e];
                  }
                });
  release_next();
  if (place.exists) {
#pragma unroll
    for (int e = 0; e < N; ++e) {
      stack.of[0][threadIdx.x * N + e] = inner[e];
      stack.of[1][threadIdx.x * N + e] = sum[e];
    }
  }
  __syncthreads();
  const int width = p.across * N;  // channels of a tile
  const int64_t tile_first = place.channel - (threadIdx.x - place.down * p.across) * N;
  for (int i = threadIdx.x; i < width && tile_first + i < p.channels; i += blockDim.x) {
    A total[2] = {};
    for (int y = 0; y < p.height; ++y) {
      total[0] += stack.of[0][y * width + i];
      total[1] += stack.of[1][y * width + i];
    }
    const int64_t at = (place.sample * p.chunks + place.chunk) * p.channels + tile_first + i;
    weight_sums[at] = total[0];
    bias_sums[at] = total[1];
  }
}

template <class T, int N>
__global__ void __launch_bounds__(kPixelThreads, 2)
    pixels_gradient(const GroupNorm<T> norm, const PixelPlan p, int64_t groups,
                    const Pixels<const T> x, const Pixels<const T> grad, const compute_t<T>* mean,
                    const compute_t<T>* rstd, const GroupMeans<compute_t<T>>* means,
                    const Pixels<T> out) {
  using A = compute_t<T>;
  const PixelPlace<N> place(p);
  await_previous();
  const PixelChannels<T, N> of(norm, place, groups, mean, rstd);
  GroupMeans<A> group[N];
  if (place.exists) {
#pragma unroll
    for (int e = 0; e < N; ++e) {
      group[e] = means[place.sample * groups + norm.members.divide(place.channel + e)];
    }
  }
  T* to = out.at(place.sample, place.channel);
  each_gradient(norm, p, place, of, x, grad,
                [&](int64_t pixel, const A(&normed)[N], const A(&grad_z)[N]) {
                  A v[N];
#pragma unroll
                  for (int e = 0; e < N; ++e) {
                    v[e] = group[e].gradient(normed[e], of.rstd[e], of.by[e].weight, grad_z[e]);
                  }
                  store<N>(to + pixel * out.pixel_stride, narrow<T>(v));
                });
}

}  // namespace opforge
