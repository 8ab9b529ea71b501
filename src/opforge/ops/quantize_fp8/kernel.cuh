// SPDX-License-Identifier: Apache-2.0
// FP8 numbers with scales. Includes no torch header.
//
// quantize_rows: the rows alone, in one launch. A warp or a block has a row, which it reads twice,
//   the second time from the cache. Bytes: x and the result once.
// find_largest, then cast_tiles: rows and columns, or a scale for all of x. Bytes: x twice, the
//   results once. Rows of the transpose leave through shared memory.
#pragma once

#include <cuda_runtime.h>
#include <opforge/core/float8.h>
#include <opforge/core/launch.h>
#include <opforge/core/shared.h>
#include <opforge/core/types.h>
#include <opforge/core/vec.h>

#include <algorithm>
#include <cstdint>

namespace opforge {

// A matrix whose rows are contiguous. Where they begin at multiples of 16 bytes, it is aligned.
template <class T>
struct Source {
  const T* data;
  int64_t rows, cols, row_stride;
  bool aligned;

  // Elements col to col + 8 of a row, zeros beyond the matrix.
  __device__ __forceinline__ void load_8(int64_t row, int64_t col, float (&to)[8]) const {
    const T* const from = data + row * row_stride + col;
    if (aligned && row < rows && col + 8 <= cols) {
#pragma unroll
      for (int i = 0; i < 8; i += kVec<T>) {
        const Vec<T, kVec<T>> v = load<kVec<T>>(from + i);
#pragma unroll
        for (int e = 0; e < kVec<T>; ++e) to[i + e] = float(widen(v.value[e]));
      }
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e)
        to[e] = row < rows && col + e < cols ? float(widen(from[e])) : 0.0f;
    }
  }
};

// Sizes of floats are compared as integers, for which there are atomic maxima. Only finite ones
// count.
__device__ __forceinline__ uint32_t size_of(float x) {
  const uint32_t bits = detail::bits_of(x) & 0x7fffffffu;
  return bits < 0x7f800000u ? bits : 0u;
}
__device__ __forceinline__ uint32_t largest_of(const float (&x)[8]) {
  uint32_t largest = 0;
#pragma unroll
  for (int e = 0; e < 8; ++e) largest = max(largest, size_of(x[e]));
  return largest;
}
template <int From, int To>
__device__ __forceinline__ uint32_t largest_of_lanes(uint32_t value) {
#pragma unroll
  for (int step = From; step < To; step *= 2) {
    value = max(value, __shfl_xor_sync(0xffffffffu, value, step));
  }
  return value;
}

// A smaller size counts as this one, so that 1 / scale is finite.
constexpr float kLeastSize = 0x1p-100f;

template <class Q>
__device__ __forceinline__ float scale_of(uint32_t largest) {
  return largest == 0 ? 1.0f : fmaxf(detail::float_of(largest), kLeastSize) / Q::kLargest;
}
template <class Q>
__device__ __forceinline__ float inverse_of(uint32_t largest) {
  return largest == 0 ? 1.0f : Q::kLargest / fmaxf(detail::float_of(largest), kLeastSize);
}

// What is not finite: NaN, and infinities where the type has them.
template <class Q>
__device__ __forceinline__ uint32_t byte_of(float x) {
  const uint32_t bits = detail::bits_of(x), size = bits & 0x7fffffffu;
  if (size < 0x7f800000u) return narrow<Q>(x).bits;
  if (size > 0x7f800000u || Q::kMantissa == 3) return kFloat8NaN;
  return (Q::kMost + 1u) | (bits >> 24 & 0x80u);
}

template <class Q>
__device__ __forceinline__ uint32_t four_bytes(float a, float b, float c, float d) {
  const uint32_t most =
      max(max(detail::bits_of(a) & 0x7fffffffu, detail::bits_of(b) & 0x7fffffffu),
          max(detail::bits_of(c) & 0x7fffffffu, detail::bits_of(d) & 0x7fffffffu));
  if (most >= 0x7f800000u) {
    return byte_of<Q>(a) | byte_of<Q>(b) << 8 | byte_of<Q>(c) << 16 | byte_of<Q>(d) << 24;
  }
  return uint32_t(narrow_pair<Q>(a, b)) | uint32_t(narrow_pair<Q>(c, d)) << 16;
}

template <class Q>
__device__ __forceinline__ void store_8(uint8_t* to, const float (&x)[8], float inverse) {
  Vec<uint32_t, 2> words;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    words.value[i] = four_bytes<Q>(x[4 * i] * inverse, x[4 * i + 1] * inverse,
                                   x[4 * i + 2] * inverse, x[4 * i + 3] * inverse);
  }
  store<2>(reinterpret_cast<uint32_t*>(to), words);
}

// FP8 numbers: rows of `stride` bytes, a multiple of 16, that end with zeros.
struct Quantised {
  uint8_t* data = nullptr;
  int64_t stride = 0;
  float* scale = nullptr;  // or none of all this
};

// --- rows alone ----------------------------------------------------------------------------------

constexpr int kQuantizeThreads = 256;

template <class T, class Q, int Threads>
__global__ void __launch_bounds__(kQuantizeThreads)
    quantize_rows(const Source<T> x, const Quantised q) {
  struct Warps {
    uint32_t largest[kQuantizeThreads / 32];
  };
  const int thread = int(threadIdx.x) % Threads;
  const int64_t row =
      int64_t(blockIdx.x) * (kQuantizeThreads / Threads) + int(threadIdx.x) / Threads;
  uint32_t largest = 0;
  float values[8];
#pragma unroll 2
  for (int64_t col = thread * 8; col < x.cols; col += Threads * 8) {
    x.load_8(row, col, values);
    largest = max(largest, largest_of(values));
  }
  largest = largest_of_lanes<1, 32>(largest);
  if constexpr (Threads > 32) {
    Warps& s = shared<Warps>();
    if (threadIdx.x % 32 == 0) s.largest[threadIdx.x / 32] = largest;
    __syncthreads();
#pragma unroll
    for (uint32_t one : s.largest) largest = max(largest, one);
  }
  if (row >= x.rows) return;
  if (thread == 0) q.scale[row] = scale_of<Q>(largest);
  const float inverse = inverse_of<Q>(largest);
#pragma unroll 2
  for (int64_t col = thread * 8; col < q.stride; col += Threads * 8) {
    x.load_8(row, col, values);
    store_8<Q>(q.data + row * q.stride + col, values, inverse);
  }
}

// --- rows and columns ----------------------------------------------------------------------------

constexpr int kTileRows = 128, kTileCols = 64;
// A block looks for the largest sizes in so many tiles below each other.
constexpr int kTilesDown = 4;

// Largest sizes of rows and columns, or of everything: those that are wanted.
struct Largest {
  uint32_t *rows = nullptr, *cols = nullptr, *all = nullptr;

  __device__ uint32_t of_row(int64_t row) const { return all ? *all : rows[row]; }
  __device__ uint32_t of_col(int64_t col) const { return all ? *all : cols[col]; }
};

template <class T>
__global__ void __launch_bounds__(kQuantizeThreads)
    find_largest(const Source<T> x, const Largest largest, int64_t tiles_across) {
  struct Warps {
    uint32_t largest[kQuantizeThreads / 32][kTileCols];
  };
  Warps& s = shared<Warps>();
  // 8 threads have the columns of a tile, each of 32 such groups has 4 rows.
  const int across = int(threadIdx.x) % 8, down = int(threadIdx.x) / 8;
  const int64_t first_col = blockIdx.x % tiles_across * kTileCols;
  const int64_t first_row = blockIdx.x / tiles_across * (kTilesDown * kTileRows);
  uint32_t cols[8] = {};
#pragma unroll 1
  for (int tile = 0; tile < kTilesDown; ++tile) {
    const int64_t row = first_row + tile * kTileRows + down * 4;
    float values[4][8];
#pragma unroll
    for (int i = 0; i < 4; ++i) x.load_8(row + i, first_col + across * 8, values[i]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int e = 0; e < 8; ++e) cols[e] = max(cols[e], size_of(values[i][e]));
      if (largest.rows != nullptr) {
        const uint32_t of_row = largest_of_lanes<1, 8>(largest_of(values[i]));
        if (across == 0 && row + i < x.rows) atomicMax(largest.rows + row + i, of_row);
      }
    }
  }
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const uint32_t of_col = largest_of_lanes<8, 32>(cols[e]);
    if (threadIdx.x % 32 < 8) s.largest[threadIdx.x / 32][across * 8 + e] = of_col;
  }
  __syncthreads();
  if (threadIdx.x >= kTileCols) return;
  uint32_t of_col = 0;
#pragma unroll
  for (const auto& warp : s.largest) of_col = max(of_col, warp[threadIdx.x]);
  const int64_t col = first_col + threadIdx.x;
  if (largest.cols != nullptr && col < x.cols) atomicMax(largest.cols + col, of_col);
  if (largest.all != nullptr) {
    of_col = largest_of_lanes<1, 32>(of_col);
    if (threadIdx.x % 32 == 0) atomicMax(largest.all, of_col);
  }
}

template <class T, class Q>
__global__ void __launch_bounds__(kQuantizeThreads)
    cast_tiles(const Source<T> x, const Largest largest, const Quantised q, const Quantised q_t,
               int64_t tiles_across) {
  struct Tile {
    float of_row[kTileRows], of_col[kTileCols];
    uint32_t words[kTileCols][kTileRows / 4 + 1];  // 4 rows of a column
  };
  Tile& s = shared<Tile>();
  const int across = int(threadIdx.x) % 8, down = int(threadIdx.x) / 8;
  const int64_t first_col = blockIdx.x % tiles_across * kTileCols;
  const int64_t first_row = blockIdx.x / tiles_across * kTileRows;
  float values[4][8];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x.load_8(first_row + down * 4 + i, first_col + across * 8, values[i]);
  }
  // The factors of the tile, and by the first tiles the scales.
  const auto find = [&](int i, int64_t first, int64_t count, const Quantised& to, bool writes,
                        float* inverses, const auto& largest_of) {
    if (to.scale == nullptr) return;
    const uint32_t size = first + i < count ? largest_of(first + i) : 0;
    inverses[i] = inverse_of<Q>(size);
    if (!writes) return;
    if (largest.all ? first + i == 0 : first + i < count) to.scale[first + i] = scale_of<Q>(size);
  };
  if (threadIdx.x < kTileRows) {
    find(int(threadIdx.x), first_row, x.rows, q, first_col == 0, s.of_row,
         [&](int64_t row) { return largest.of_row(row); });
  } else if (threadIdx.x < kTileRows + kTileCols) {
    find(int(threadIdx.x) - kTileRows, first_col, x.cols, q_t, first_row == 0, s.of_col,
         [&](int64_t col) { return largest.of_col(col); });
  }
  __syncthreads();
  if (first_col + across * 8 < q.stride) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t row = first_row + down * 4 + i;
      if (row >= x.rows) break;
      store_8<Q>(q.data + row * q.stride + first_col + across * 8, values[i],
                 s.of_row[down * 4 + i]);
    }
  }
  if (q_t.scale == nullptr) return;
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const float inverse = s.of_col[across * 8 + e];
    s.words[across * 8 + e][down] = four_bytes<Q>(values[0][e] * inverse, values[1][e] * inverse,
                                                  values[2][e] * inverse, values[3][e] * inverse);
  }
  __syncthreads();
  const int lane = int(threadIdx.x) % 32;
  const int64_t row = first_row + lane * 4;
  for (int i = int(threadIdx.x) / 32; i < kTileCols; i += kQuantizeThreads / 32) {
    const int64_t col = first_col + i;
    if (col >= x.cols || row >= q_t.stride) continue;
    *reinterpret_cast<uint32_t*>(q_t.data + col * q_t.stride + row) = s.words[i][lane];
  }
}

// --- launches ------------------------------------------------------------------------------------

template <class T, class Q>
inline void launch_rows(const Source<T>& x, const Quantised& q, cudaStream_t stream) {
  const auto run = [&]<int Threads>(Width<Threads>) {
    constexpr int kRows = kQuantizeThreads / Threads;
    const int64_t blocks = (x.rows + kRows - 1) / kRows;
    if (blocks > 0x7fffffff) fail("quantize_fp8: ", x.rows, " rows are too many");
    if (blocks == 0) return;
    launch(quantize_rows<T, Q, Threads>, {dim3(unsigned(blocks)), dim3(kQuantizeThreads), stream},
           x, q);
  };
  x.cols <= 1024 ? run(Width<32>{}) : run(Width<kQuantizeThreads>{});
}

// `largest` is zeros, of the kinds that are wanted.
template <class T, class Q>
inline void launch_tiles(const Source<T>& x, const Largest& largest, const Quantised& q,
                         const Quantised& q_t, cudaStream_t stream) {
  const auto tiles = [](int64_t size, int64_t tile) {
    return std::max<int64_t>(1, (size + tile - 1) / tile);
  };
  const int64_t across = tiles(x.cols, kTileCols);
  const auto grid = [&](int64_t down) {
    if (across * down > 0x7fffffff) fail("quantize_fp8: ", across * down, " tiles are too many");
    return dim3(unsigned(across * down));
  };
  launch(find_largest<T>,
         {grid(tiles(x.rows, kTilesDown * kTileRows)), dim3(kQuantizeThreads), stream}, x, largest,
         across);
  launch(cast_tiles<T, Q>, {grid(tiles(x.rows, kTileRows)), dim3(kQuantizeThreads), stream}, x,
         largest, q, q_t, across);
}

}  // namespace opforge
