// SPDX-License-Identifier: Apache-2.0
// A tile of an image in shared memory: which thread has which pixels of it, how it is loaded, and
// how a thread walks down its rows.
#pragma once

#include <opforge/core/launch.h>
#include <opforge/core/layout.h>
#include <opforge/core/reduce.h>
#include <opforge/core/vec.h>

#include <algorithm>

#include "pixels.h"

namespace opforge {

// How the threads of a block cover its tile: so many side by side, so many below each other, and
// the rows per thread.
struct Shape {
  int across, down, rows;

  OPFORGE_HOST_DEVICE int height() const { return down * rows; }
};

template <class T>
struct StencilParams {
  const T* x;
  int64_t x_plane, x_row;  // strides
  const T* grad;           // of y; only in the backward
  int64_t grad_plane, grad_row;
  T* out;  // y, or the gradient of x (null if not wanted): dense
  int64_t height, width;
  uint32_t tiles_across, tiles_down;
  Shape shape;      // of a tile
  const T* weight;  // or, if it is float32 and x is not,
  const float* weight32;
  int64_t weight_stride;
  Boundary boundary;
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

// Which tile a block has, and which place in it a thread.
struct Place {
  Shape shape;
  int64_t plane, top, left;  // its first pixel, inside of the rim
  int span;                  // columns that the image has of it, in pieces of N
  int across, down;          // in the image: threads beyond its columns, or left over,
  bool busy;                 // are where the last one is, and do nothing
  int rows;                  // of the thread that the image has

  template <class Tile, class T>
  __device__ __forceinline__ static Place of(const StencilParams<T>& p) {
    constexpr int N = Tile::N;
    const Shape shape = Tile::kAnyShape ? p.shape : Tile::usual();
    const uint32_t rest = blockIdx.x / p.tiles_across, plane = rest / p.tiles_down;
    const int64_t top = int64_t(rest - plane * p.tiles_down) * shape.height();
    const int64_t left = int64_t(blockIdx.x - rest * p.tiles_across) * (shape.across * N);
    const int span = int(min(int64_t(shape.across), (p.width - left) / N));
    const int down = threadIdx.x / unsigned(shape.across);
    const int across = threadIdx.x - down * shape.across;
    const bool busy = across < span && down < shape.down;
    const int64_t rows = busy ? p.height - top - down * shape.rows : 0;
    return {shape,
            plane,
            top,
            left,
            span,
            min(across, span - 1),
            min(down, shape.down - 1),
            busy,
            int(min(rows, int64_t(shape.rows)))};
  }
  // Where the thread's first pixel is in a dense image.
  template <int N, class T>
  __device__ __forceinline__ T* in(T* dense, const StencilParams<T>& p) const {
    return dense + (plane * p.height + top + down * shape.rows) * p.width + left + across * N;
  }
  // Whether the tile has pixels that may have stood in for others.
  template <int N, class T>
  __device__ __forceinline__ bool near_edge(const StencilParams<T>& p) const {
    return top < kEdge || left < kEdge || top + shape.height() > p.height - kEdge ||
           left + span * N > p.width - kEdge;
  }
};

// A thread has N neighbouring pixels, one 16-byte vector (or one pixel where rows are not aligned),
// in several rows, one below the other. kAcross and kRows are those of a tile inside of a large
// image; choose() makes other shapes of it, which take no more memory. Not where a thread has one
// pixel at a time: what it takes to find the next one counts then, and is less if the compiler
// knows the shape.
template <class T_, int N_, int kAcross_, int kRows_, int kThreads_, int kBlocks_>
struct Tile {
  using T = T_;
  static constexpr int N = N_, kAcross = kAcross_, kRows = kRows_, kThreads = kThreads_;
  static constexpr int kBlocks = kBlocks_;  // that the registers of a multiprocessor are to hold
  static constexpr int kBackwardBlocks = N == 1 ? kBlocks : kBlocks - 1;  // more have no memory
  static constexpr int kDown = kThreads / kAcross;
  // Between two rows: the pixel right of the one, that left of the other. Vectors stay aligned.
  static constexpr int kRim = N == 1 ? 2 : N;
  static constexpr int kRoom = (kDown * kRows + 2) * (kAcross * N + kRim);
  static constexpr int kTrips = kRows + 1;  // the rows of a thread, and its part of the rim
  static constexpr bool kAnyShape = N > 1;

  using Piece = std::conditional_t<N == 1, T, uint4>;  // to be moved: a Vec is taken apart

  static_assert(sizeof(Piece) == sizeof(T) * N);
  static_assert(kDown > 1 && kDown * kAcross == kThreads);

  alignas(16) T pixel[kRim + kRoom];

  OPFORGE_HOST_DEVICE static constexpr Shape usual() { return {kAcross, kDown, kRows}; }

  // The shape for images of so many rows and pieces of N columns: threads beside or below an image
  // have nothing to do. It follows the sizes alone, as the order of additions must.
  static Shape choose(int64_t height, int64_t pieces, int64_t images) {
    // So few tiles are no more than a launch, in whatever shape.
    const int64_t tiles = images * ceil_div(height, kDown * kRows) * ceil_div(pieces, kAcross);
    if (!kAnyShape || tiles <= 8) return usual();
    // As many tiles side by side as wide ones would be, but of the same width: what that leaves of
    // the threads goes below. Few rows leave some, too: they go to the side.
    const int64_t width = ceil_div(pieces, ceil_div(pieces, kAcross));
    const int64_t down = std::min(height, kThreads / width);
    const int64_t across = std::min(pieces, kThreads / down);
    const int64_t room = (kRoom / (across * N + kRim) - 2) / down;
    const int64_t most = std::min(room, int64_t(down > 1 ? kRows : kRows - 1));  // kTrips
    return {int(across), int(down), int(std::min(most, ceil_div(height, down)))};
  }

  // Where a row of the tile begins; 0 is the rim above.
  __device__ __forceinline__ T* line(int row, const Shape& shape) {
    return pixel + kRim + row * (shape.across * N + kRim);
  }
  __device__ __forceinline__ const T* line(int row, const Shape& shape) const {
    return const_cast<Tile*>(this)->line(row, shape);
  }

  __device__ __forceinline__ void load(const Image<T>& image, const Place& place, Boundary boundary,
                                       T fill) {
    const Shape& shape = place.shape;
    const auto at = [&](int64_t row, int64_t col) {
      row = stand_in(row, image.height, boundary);
      col = stand_in(col, image.width, boundary);
      return row < 0 || col < 0 ? fill : image.data[row * image.row_stride + col];
    };
    // All loads come before the first store, without a branch between: memory is waited for once.
    // What is not loaded has a value, too, or its registers would count as taken from the start.
    Piece piece[kTrips] = {};
    const int lines = shape.height() + 2;
    const int first = place.top == 0;  // row of the tile that the image has, and its last
    const int last = int(min(int64_t(lines - 1), image.height - place.top));
    const int trips = place.busy ? shape.rows + (place.down < 2) + (shape.down == 1) : 0;
    const bool inside = first == 0 && last == lines - 1;
    const auto in_row = [&](int64_t row) {
      return image.data + row * image.row_stride + place.left + place.across * N;
    };
    const T* next = in_row(place.top - 1 + place.down);
    const int64_t step = shape.down * image.row_stride;
    if (inside) {
#pragma unroll
      for (int k = 0; k < kTrips; ++k, next += step) {
        if (k < trips) piece[k] = *reinterpret_cast<const Piece*>(next);
      }
    } else {
      // Where no row stands in, any row will do.
      const T* const above = in_row(max(stand_in(-1, image.height, boundary), int64_t(0)));
      const T* const below =
          in_row(max(stand_in(image.height, image.height, boundary), int64_t(0)));
#pragma unroll
      for (int k = 0; k < kTrips; ++k, next += step) {
        const int row = place.down + k * shape.down;
        const T* const from = row < first ? above : row > last ? below : next;
        if (k < trips) piece[k] = *reinterpret_cast<const Piece*>(from);
      }
    }
#pragma unroll 1  // all those registers are taken
    for (int i = threadIdx.x; i < 2 * lines; i += kThreads) {
      const int row = i / 2, beside = i % 2 ? place.span * N : -1;
      line(row, shape)[beside] = at(place.top - 1 + row, place.left + beside);
    }
#pragma unroll
    for (int k = 0; k < kTrips; ++k) {
      if (k >= trips) break;
      T* const to = line(place.down + k * shape.down, shape) + place.across * N;
      *reinterpret_cast<Piece*>(to) = piece[k];
    }
    if (inside || boundary != Boundary::constant) return;
#pragma unroll 1
    for (int k = 0; k < trips; ++k) {
      const int row = place.down + k * shape.down;
      if (row >= first && row <= last) continue;
      for (int e = 0; e < N; ++e) line(row, shape)[place.across * N + e] = fill;
    }
  }

  // A thread's pixels in a row of the tile, and one on each side. Threads with a vector each would
  // all want the same few banks for those: they ask their neighbours.
  __device__ __forceinline__ void read(const T* p, const Place& place,
                                       compute_t<T> (&values)[N + 2]) const {
    compute_t<T> own[N];
    widen(load_packed<N>(p), own);
#pragma unroll
    for (int e = 0; e < N; ++e) values[e + 1] = own[e];
    bool ask_left = false, ask_right = false;
    if constexpr (N > 1) {
      const int lane = threadIdx.x % kWarp;
      values[0] = __shfl_up_sync(0xffffffffu, own[N - 1], 1);
      values[N + 1] = __shfl_down_sync(0xffffffffu, own[0], 1);
      ask_left = lane > 0 && place.across > 0;
      ask_right = lane < kWarp - 1 && place.across < place.span - 1;
    }
    if (!ask_left) values[0] = widen(p[-1]);
    if (!ask_right) values[N + 1] = widen(p[N]);
  }

  // Calls use(r, here, window) for each row of a thread: window[i] has its pixels of row
  // r - 1 + i with one more on each side, here is where those of row r are.
  template <class Use>
  __device__ __forceinline__ void walk(const Place& place, const Use& use) const {
    compute_t<T> window[3][N + 2];
    const int pitch = place.shape.across * N + kRim;
    const T* p = line(place.down * place.shape.rows, place.shape) + place.across * N;
    read(p, place, window[0]);
    read(p += pitch, place, window[1]);
    constexpr int kUnroll =
        kAnyShape ? 3 : kRows;  // 3, as many rows as `window` has: none is moved
#pragma unroll kUnroll
    for (int r = 0; r < place.shape.rows; ++r) {
      const T* const here = p;
      read(p += pitch, place, window[2]);
      use(r, here, window);
#pragma unroll
      for (int e = 0; e < N + 2; ++e) {
        window[0][e] = window[1][e];
        window[1][e] = window[2][e];
      }
    }
  }
};

// Measured on an H200 over tiles of 8 to 64 rows and 32 to 512 threads: eight rows to a thread in
// small blocks, with registers for seven of them.
template <class T>
using VectorTile = Tile<T, kVec<T>, kWarp, 8, 128, 7>;
template <class T>
using PixelTile = Tile<T, 1, sizeof(T) == 8 ? 64 : 128, sizeof(T) == 8 ? 8 : 16, 256, 4>;
template <class T>
using SmallTile = Tile<T, 1, 16, 4, 32, 16>;  // for a few pixels

}  // namespace opforge
