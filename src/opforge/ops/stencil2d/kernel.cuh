// SPDX-License-Identifier: Apache-2.0
// Forward reads x and writes y: the floor is a copy. Backward reads grad_y and x and writes grad_x:
// 1.5 copies; the gradient of the weights is summed on the way.
//
// Every pixel is needed by nine threads. So a block first brings a tile of the image, and a rim of
// one pixel around it, to shared memory: each pixel comes from memory once. Beyond the edges of the
// image the tile holds what stands in, so that the sums need not know where they are.
#pragma once

#include <opforge/launch.h>
#include <opforge/layout.h>
#include <opforge/reduce.h>
#include <opforge/vec.h>

#include "pixels.h"

namespace opforge {

// A thread has N neighbouring pixels, one 16-byte vector (or one pixel where rows are not aligned),
// in several rows, one below the other.
template <class T_, int N_, int kWidth_, int kHeight_, int kThreads_, int kBlocks_>
struct Tile {
  using T = T_;
  static constexpr int N = N_, kWidth = kWidth_, kHeight = kHeight_, kThreads = kThreads_;
  static constexpr int kBlocks = kBlocks_;  // that the registers of a multiprocessor are to hold
  static constexpr int kAcross = kWidth / N, kDown = kThreads / kAcross;  // threads
  static constexpr int kRows = kHeight / kDown;                           // of a thread
  static constexpr int kRim = kVec<T>;  // one column is used; the others keep vectors aligned

  static_assert(2 * (kHeight + 2) <= kThreads, "a thread to each pixel beside the tile");

  alignas(16) T pixel[kHeight + 2][kRim + kWidth + kRim];

  __device__ __forceinline__ static int across() { return threadIdx.x % kAcross; }
  __device__ __forceinline__ static int down() { return threadIdx.x / kAcross; }

  // The tile whose first pixel, inside of the rim, is at (top, left).
  __device__ __forceinline__ void load(const Image<T>& image, int64_t top, int64_t left,
                                       int boundary, T fill) {
    const auto at = [&](int64_t row, int64_t col) {
      row = stand_in(row, image.height, boundary);
      col = stand_in(col, image.width, boundary);
      return row < 0 || col < 0 ? fill : image.data[row * image.row_stride + col];
    };
    // All loads come before the first store, and inside of the image without a condition between.
    constexpr int kTrips = (kHeight + 2 + kDown - 1) / kDown;
    Vec<T, N> v[kTrips];
    const int64_t first = top - 1 + down(), col = left + across() * N;
    const auto has = [&](int k) { return k < kTrips - 1 || down() + k * kDown < kHeight + 2; };
    if (top > 0 && top + kHeight < image.height && left + kWidth <= image.width) {
      const T* const from = image.data + first * image.row_stride + col;
#pragma unroll
      for (int k = 0; k < kTrips; ++k) {
        if (has(k)) v[k] = opforge::load<N>(from + k * kDown * image.row_stride);
      }
    } else {
#pragma unroll
      for (int k = 0; k < kTrips; ++k) {
        if (!has(k)) break;
        const int64_t row = first + k * kDown, from = stand_in(row, image.height, boundary);
        if (col < image.width && from >= 0) {
          v[k] = opforge::load<N>(image.data + from * image.row_stride + col);
        } else {
          // Further beyond than one column nobody uses it.
          v[k].value[0] = col == image.width ? at(row, col) : fill;
#pragma unroll
          for (int e = 1; e < N; ++e) v[k].value[e] = v[k].value[0];
        }
      }
    }
    const int rim_row = threadIdx.x / 2, right = threadIdx.x % 2;
    const bool rim = rim_row < kHeight + 2;
    T beside = fill;
    if (rim) beside = at(top - 1 + rim_row, right ? left + kWidth : left - 1);
#pragma unroll
    for (int k = 0; k < kTrips; ++k) {
      if (has(k)) store<N>(&pixel[down() + k * kDown][kRim + across() * N], v[k]);
    }
    if (rim) pixel[rim_row][right ? kRim + kWidth : kRim - 1] = beside;
  }

  __device__ __forceinline__ const T* pixels(int row) const {
    return &pixel[row][kRim + across() * N];
  }

  // A thread's pixels in a row of the tile (0 is the rim), and one on each side. Threads with a
  // vector each would all want the same few banks for those: they ask their neighbours.
  __device__ __forceinline__ void read(int row, compute_t<T> (&values)[N + 2]) const {
    const T* const p = pixels(row);
    compute_t<T> own[N];
    widen(load_packed<N>(p), own);
#pragma unroll
    for (int e = 0; e < N; ++e) values[e + 1] = own[e];
    if constexpr (kAcross == kWarp) {
      const int lane = across();
      values[0] = __shfl_up_sync(0xffffffffu, own[N - 1], 1);
      values[N + 1] = __shfl_down_sync(0xffffffffu, own[0], 1);
      if (lane == 0) values[0] = widen(p[-1]);
      if (lane == kWarp - 1) values[N + 1] = widen(p[N]);
    } else {
      values[0] = widen(p[-1]);
      values[N + 1] = widen(p[N]);
    }
  }

  // Calls use(r, around) for each row of a thread: around[i] are its pixels in row r - 1 + i.
  template <class Use>
  __device__ __forceinline__ void walk(const Use& use) const {
    compute_t<T> around[3][N + 2];
    const int first = down() * kRows;
    read(first, around[0]);
    read(first + 1, around[1]);
#pragma unroll 4
    for (int r = first; r < first + kRows; ++r) {
      read(r + 2, around[2]);
      use(r, around);
#pragma unroll
      for (int e = 0; e < N + 2; ++e) {
        around[0][e] = around[1][e];
        around[1][e] = around[2][e];
      }
    }
  }
};

// Measured on an H200 over tiles of 8 to 64 rows and 32 to 512 threads: eight rows to a thread in
// small blocks, with registers for seven of them.
template <class T>
using VectorTile = Tile<T, kVec<T>, kWarp * kVec<T>, 32, 128, 7>;
template <class T>
using PixelTile = Tile<T, 1, sizeof(T) == 8 ? 64 : 128, 32, 256, 4>;
template <class T>
using SmallTile = Tile<T, 1, 16, 8, 32, 16>;  // for narrow images

template <class T>
struct StencilParams {
  const T* x;
  int64_t x_plane, x_row;  // strides
  const T* grad;           // of y; only in the backward
  int64_t grad_plane, grad_row;
  T* out;  // y, or the gradient of x (null if not wanted): dense
  int64_t height, width;
  uint32_t tiles_across, tiles_down;
  const T* weight;  // or, if it is float32 and x is not,
  const float* weight32;
  int64_t weight_stride;
  int boundary;
  double fill;

  template <int Count>
  __device__ __forceinline__ void get_weights(compute_t<T> (&w)[9]) const {
#pragma unroll
    for (int i = 0; i < 9; ++i) w[i] = 0;
#pragma unroll
    for (int k = 0; k < Count; ++k) {
      const int64_t at = k * weight_stride;
      w[place_of_weight(k, Count)] = weight32 ? weight32[at] : widen(weight[at]);
    }
  }
};

// Which tile a block has.
struct Place {
  int64_t plane, top, left;
  int rows;  // of the tile that the image has

  template <class T, class Tile>
  __device__ __forceinline__ static Place of(const StencilParams<T>& p, const Tile&) {
    const uint32_t rest = blockIdx.x / p.tiles_across, plane = rest / p.tiles_down;
    const int64_t top = int64_t(rest - plane * p.tiles_down) * Tile::kHeight;
    return {plane, top, int64_t(blockIdx.x - rest * p.tiles_across) * Tile::kWidth,
            int(min(int64_t(Tile::kHeight), p.height - top))};
  }
  // Where the first row of the tile is in a dense image.
  template <class T>
  __device__ __forceinline__ T* in(T* dense, const StencilParams<T>& p) const {
    return dense + (plane * p.height + top) * p.width;
  }
  // Whether the tile has pixels that may have stood in for others.
  template <class Tile, class T>
  __device__ __forceinline__ bool near_edge(const StencilParams<T>& p) const {
    return top < kEdge || left < kEdge || top + Tile::kHeight > p.height - kEdge ||
           left + Tile::kWidth > p.width - kEdge;
  }
};

// The weighted sums for N pixels. With five weights the corners are not looked at: they may be Inf.
template <class T, int Count, int N, class A>
__device__ __forceinline__ Packed<T, N> weighted(const A (&w)[9], const A (&around)[3][N + 2]) {
  A result[N];
#pragma unroll
  for (int e = 0; e < N; ++e) {
    A sum = w[4] * around[1][e + 1];
    sum = fused(w[1], around[0][e + 1], sum);
    sum = fused(w[7], around[2][e + 1], sum);
    sum = fused(w[3], around[1][e], sum);
    sum = fused(w[5], around[1][e + 2], sum);
    if constexpr (Count == 9) {
      sum = fused(w[0], around[0][e], sum);
      sum = fused(w[2], around[0][e + 2], sum);
      sum = fused(w[6], around[2][e], sum);
      sum = fused(w[8], around[2][e + 2], sum);
    }
    result[e] = sum;
  }
  return narrow<T>(result);
}

template <class Tile, int Count>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    stencil(const StencilParams<typename Tile::T> p) {
  using T = typename Tile::T;
  using A = compute_t<T>;
  constexpr int N = Tile::N;
  Tile& tile = shared<Tile>();
  const Place place = Place::of(p, tile);
  const Image<T> x{p.x + place.plane * p.x_plane, p.x_row, p.height, p.width};
  tile.load(x, place.top, place.left, p.boundary, narrow<T>(A(p.fill)));
  A w[9];
  p.template get_weights<Count>(w);
  __syncthreads();

  const int64_t col = place.left + tile.across() * N;
  const int rows = col < p.width ? place.rows : 0;  // of this thread
  T* const out = place.in(p.out, p) + col;
  tile.walk([&](int r, const A(&around)[3][N + 2]) {
    if (r >= rows) return;
    store<N>(out + r * p.width, weighted<T, Count, N>(w, around));
  });
}

// `partial` gets what a block adds to each weight, block by block; null if that is not wanted.
template <class Tile, int Count>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    stencil_backward(const StencilParams<typename Tile::T> p,
                     compute_t<typename Tile::T>* partial) {
  using T = typename Tile::T;
  using A = compute_t<T>;
  constexpr int N = Tile::N, kThreads = Tile::kThreads, kParts = kThreads / 16;
  struct Tiles {
    Tile grad, x;
  };
  struct Sums {
    A of_thread[9][kThreads + kParts];  // the rows start at different banks
    A of_part[9][kParts];
  };
  union Memory {
    Tiles tiles;
    Sums sums;  // afterwards
  };
  Memory& memory = shared<Memory>();
  Tiles& tiles = memory.tiles;
  const Place place = Place::of(p, tiles.grad);
  const Image<T> x{p.x + place.plane * p.x_plane, p.x_row, p.height, p.width};
  const Image<T> grad{p.grad + place.plane * p.grad_plane, p.grad_row, p.height, p.width};
  tiles.grad.load(grad, place.top, place.left, kConstant, narrow<T>(A(0)));
  if (partial) tiles.x.load(x, place.top, place.left, p.boundary, narrow<T>(A(p.fill)));
  __syncthreads();

  const int64_t col = place.left + tiles.grad.across() * N;
  const int rows = col < p.width ? place.rows : 0;  // of this thread
  if (p.out) {
    T* const out = place.in(p.out, p) + col;
    A w[9], turned[9];
    p.template get_weights<Count>(w);
#pragma unroll
    for (int i = 0; i < 9; ++i) turned[i] = w[8 - i];
    tiles.grad.walk([&](int r, const A(&around)[3][N + 2]) {
      if (r >= rows) return;
      store<N>(out + r * p.width, weighted<T, Count, N>(turned, around));
    });
    // For a constant none stands in; the zeros beyond the edges do, unless a weight makes them NaN.
    bool zeros = p.boundary == kConstant;
#pragma unroll
    for (const A& one : w) zeros = zeros && one - one == A(0);
    if (!zeros && place.near_edge<Tile>(p)) {
      const int first = tiles.grad.down() * Tile::kRows;
#pragma unroll 1
      for (int r = first; r < min(first + Tile::kRows, rows); ++r) {
        const int64_t row = place.top + r;
        const bool edge_row = row < kEdge || row >= p.height - kEdge;
#pragma unroll 1
        for (int e = 0; e < N; ++e) {
          if (!edge_row && col + e >= kEdge && col + e < p.width - kEdge) continue;
          out[r * p.width + e] =
              narrow<T>(gradient_at_edge(grad, w, Count, p.boundary, row, col + e));
        }
      }
    }
  }
  if (!partial) return;

  A sum[9] = {};
  tiles.x.walk([&](int r, const A(&around)[3][N + 2]) {
    if (r >= rows) return;
    A passed[N];
    widen(load_packed<N>(tiles.grad.pixels(r + 1)), passed);
#pragma unroll
    for (int i = 0; i < 9; ++i) {
      if (!has_place(i, Count)) continue;
#pragma unroll
      for (int e = 0; e < N; ++e) {
        sum[i] = fused(passed[e], around[i / 3][e + i % 3], sum[i]);
      }
    }
  });
  release_next();
  __syncthreads();  // the tiles are done with
  Sums& sums = memory.sums;
#pragma unroll
  for (int i = 0; i < 9; ++i) sums.of_thread[i][threadIdx.x] = sum[i];
  __syncthreads();
  if (threadIdx.x < 9 * kParts) {
    const int i = threadIdx.x / kParts, part = threadIdx.x % kParts;
    A total = 0;
#pragma unroll
    for (int k = 0; k < kThreads; k += kParts) total += sums.of_thread[i][part + k];
    sums.of_part[i][part] = total;
  }
  __syncthreads();
  if (threadIdx.x < Count) {
    const int i = place_of_weight(threadIdx.x, Count);
    A total = 0;
    for (int part = 0; part < kParts; ++part) total += sums.of_part[i][part];
    partial[int64_t(threadIdx.x) * gridDim.x + blockIdx.x] = total;
  }
}

// A block to a weight: adds up what the blocks before found.
template <class A, class Out>
__global__ void __launch_bounds__(1024)
    sum_weights(const A* partial, int64_t blocks, Out* grad_weight) {
  await_previous();
  A sum = 0;
#pragma unroll 8
  for (int64_t k = threadIdx.x; k < blocks; k += blockDim.x) {
    sum += partial[blockIdx.x * blocks + k];
  }
  sum = group_sum(sum, blockDim.x);
  if (threadIdx.x == 0) grad_weight[blockIdx.x] = narrow<Out>(sum);
}

}  // namespace opforge
