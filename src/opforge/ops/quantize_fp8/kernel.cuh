// SPDX-License-Identifier: Apache-2.0
// FP8 numbers with scales. Includes no torch header.
//
// quantize_rows: the rows alone, in one launch. A warp or a block has a row, and keeps the first
//   1024 or 8192 columns in registers between the search and the cast. Bytes: x and the result
//   once.
// find_largest, then cast_tiles: rows and columns, or a scale for all of x. Bytes: x twice, the
//   results once. Rows of the transpose leave through shared memory.
//
// All of them wait for memory, unless enough loads are under way at a time. So a thread begins
// several, without a condition between them, before it converts what the first one brings.
#pragma once

#include <cuda_runtime.h>
#include <opforge/core/float8.h>
#include <opforge/core/launch.h>
#include <opforge/core/load_if.h>
#include <opforge/core/reduce.h>
#include <opforge/core/shared.h>
#include <opforge/core/types.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace opforge {

// Eight elements of a row, as they lie in memory.
template <class T>
struct Eight {
  static constexpr int kParts = 8 / kVec<T>;
  Packed<T, kVec<T>> part[kParts];

  __device__ __forceinline__ void widened(float (&to)[8]) const {
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      float values[kVec<T>];
      widen(part[i], values);
#pragma unroll
      for (int e = 0; e < kVec<T>; ++e) to[i * kVec<T> + e] = values[e];
    }
  }
};

// A matrix whose rows are contiguous. If `vectors`, they begin at multiples of 16 bytes and have a
// multiple of 8 columns.
template <class T>
struct Source {
  const T* data;
  int64_t rows, cols, row_stride;
  bool vectors;

  // Eights of elements from a column on, each `down` rows below the one before and `along` columns
  // further; zeros beyond the matrix.
  template <int N>
  __device__ __forceinline__ void load(Eight<T> (&to)[N], int64_t row, int64_t col, int down,
                                       int along) const {
    constexpr int kWidth = kVec<T>;
    const T* const from = data + row * row_stride + col;
    if (vectors) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        // Not &&, which would branch.
        const bool inside = (row + i * down < rows) & (col + i * along < cols);
        const T* const eight = from + i * (down * row_stride + along);
#pragma unroll
        for (int j = 0; j < Eight<T>::kParts; ++j) {
          to[i].part[j] = load_if<kWidth>(inside, eight + j * kWidth);
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const int64_t left = row + i * down < rows ? cols - (col + i * along) : 0;
        const T* const eight = from + i * (down * row_stride + along);
#pragma unroll
        for (int j = 0; j < Eight<T>::kParts; ++j) {
          Vec<T, kWidth> v;
#pragma unroll
          for (int e = 0; e < kWidth; ++e) {
            const int at = j * kWidth + e;
            v.value[e] = at < left ? eight[at] : narrow<T>(0.0f);
          }
          to[i].part[j] = v;
        }
      }
    }
  }
};

// The larger one of a size and that of x, which only counts if it is finite: 0 x is NaN for all
// else, and a maximum passes over NaN.
__device__ __forceinline__ float larger_size(float size, float x) {
  return fmaxf(size, fabsf(x + 0.0f * x));
}

// A smaller size counts as this one, so that 1 / scale is finite.
constexpr float kLeastSize = 0x1p-100f;

template <class Q>
__device__ __forceinline__ float scale_of(float largest) {
  return largest == 0.0f ? 1.0f : fmaxf(largest, kLeastSize) / Q::kLargest;
}
template <class Q>
__device__ __forceinline__ float inverse_of(float largest) {
  return largest == 0.0f ? 1.0f : Q::kLargest / fmaxf(largest, kLeastSize);
}

__device__ __forceinline__ bool all_finite(const float (&x)[8]) {
  float sum = 0.0f;
#pragma unroll
  for (int e = 0; e < 8; ++e) sum += 0.0f * x[e];
  return sum == 0.0f;
}

// Bytes of four numbers, the first one in the lowest bits. Numbers that may not be finite take
// several times the instructions.
template <class Q, bool Finite>
__device__ __forceinline__ uint32_t four_bytes(float a, float b, float c, float d) {
  uint32_t word = narrow_pair<Q>(a, b) | uint32_t(narrow_pair<Q>(c, d)) << 16;
  if constexpr (Finite) return word;
  const float x[4] = {a, b, c, d};
#pragma unroll
  for (int e = 0; e < 4; ++e) {  // NaN, and infinities where the type has them
    const uint32_t bits = detail::bits_of(x[e]), size = bits & 0x7fffffffu;
    if (size < 0x7f800000u) continue;
    const bool is_nan = size > 0x7f800000u || Q::kMantissa == 3;
    const uint32_t byte = is_nan ? kFloat8NaN : (Q::kMost + 1u) | (bits >> 24 & 0x80u);
    word = (word & ~(0xffu << 8 * e)) | byte << 8 * e;
  }
  return word;
}

template <class Q, bool Finite>
__device__ __forceinline__ void store_8(uint8_t* to, const float (&x)[8], float inverse) {
  Vec<uint32_t, 2> words;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    words.value[i] = four_bytes<Q, Finite>(x[4 * i] * inverse, x[4 * i + 1] * inverse,
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

constexpr int kQuantizeThreads = 256, kQuantizeWarps = kQuantizeThreads / kWarp;
// Eights that a thread loads at a time.
constexpr int kBatch = 4;

// --- rows alone ----------------------------------------------------------------------------------

// So many threads have a row.
template <class T, class Q, int Threads>
__global__ void __launch_bounds__(kQuantizeThreads)
    quantize_rows(const Source<T> x, const Quantised q) {
  struct Warps {
    float largest[kQuantizeWarps];
  };
  constexpr int kStep = kBatch * Threads * 8;
  const int thread = int(threadIdx.x) % Threads;
  const int64_t row =
      int64_t(blockIdx.x) * (kQuantizeThreads / Threads) + int(threadIdx.x) / Threads;
  float largest = 0.0f;
  Eight<T> first[kBatch], more[kBatch];
  const auto search = [&](const Eight<T>(&batch)[kBatch]) {
#pragma unroll
    for (const Eight<T>& one : batch) {
      float values[8];
      one.widened(values);
#pragma unroll
      for (float value : values) largest = larger_size(largest, value);
    }
  };
  const auto cast = [&](int64_t col, const Eight<T>(&batch)[kBatch], float inverse) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int64_t at = col + (i * Threads + thread) * 8;
      float values[8];
      batch[i].widened(values);
      if (at >= q.stride) break;
      uint8_t* const to = q.data + row * q.stride + at;
      all_finite(values) ? store_8<Q, true>(to, values, inverse)
                         : store_8<Q, false>(to, values, inverse);
    }
  };
  x.load(first, row, thread * 8, 0, Threads * 8);
  search(first);
#pragma unroll 1
  for (int64_t col = kStep; col < x.cols; col += kStep) {
    x.load(more, row, col + thread * 8, 0, Threads * 8);
    search(more);
  }
  largest = warp_max(largest);
  if constexpr (Threads > kWarp) {
    Warps& s = shared<Warps>();
    if (threadIdx.x % kWarp == 0) s.largest[threadIdx.x / kWarp] = largest;
    __syncthreads();
    const int first_warp = int(threadIdx.x) / Threads * (Threads / kWarp);
#pragma unroll
    for (int i = 0; i < Threads / kWarp; ++i) largest = fmaxf(largest, s.largest[first_warp + i]);
  }
  if (row >= x.rows) return;
  if (thread == 0) q.scale[row] = scale_of<Q>(largest);
  const float inverse = inverse_of<Q>(largest);
  cast(0, first, inverse);
#pragma unroll 1
  for (int64_t col = kStep; col < q.stride; col += kStep) {
    x.load(more, row, col + thread * 8, 0, Threads * 8);
    cast(col, more, inverse);
  }
}

// --- rows and columns ----------------------------------------------------------------------------

// Largest sizes of rows and columns, or of everything: those that are wanted. They are the bits of
// floats, which as integers have the same order, and an atomic maximum. Its result does not depend
// on which block comes first.
struct Largest {
  uint32_t *rows = nullptr, *cols = nullptr, *all = nullptr;

  __device__ float of_row(int64_t row) const { return detail::float_of(all ? *all : rows[row]); }
  __device__ float of_col(int64_t col) const { return detail::float_of(all ? *all : cols[col]); }
};

__device__ __forceinline__ void raise(uint32_t* largest, float size) {
  atomicMax(largest, detail::bits_of(size));
}

// What a block searches. A warp reads 256 columns of a row at a time, so that one reduction over
// its lanes does for all of them.
constexpr int kSearchRows = 128, kSearchCols = kWarp * 8;

template <class T>
__global__ void __launch_bounds__(kQuantizeThreads)
    find_largest(const Source<T> x, const Largest largest, int64_t tiles_across) {
  static_assert(kSearchCols == kQuantizeThreads && kSearchRows <= kQuantizeThreads);
  struct Found {
    Vec<float, 8> col[kQuantizeWarps][kWarp];
    float row[kSearchRows];
  };
  Found& s = shared<Found>();
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
  const int64_t first_col = blockIdx.x % tiles_across * kSearchCols;
  const int64_t first_row = blockIdx.x / tiles_across * kSearchRows;
  release_next();
  Vec<float, 8> cols = {};
#pragma unroll 1
  for (int round = 0; round < kSearchRows; round += kBatch * kQuantizeWarps) {
    Eight<T> batch[kBatch];
    x.load(batch, first_row + round + warp, first_col + lane * 8, kQuantizeWarps, 0);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      float values[8], of_row = 0.0f;
      batch[i].widened(values);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        of_row = larger_size(of_row, values[e]);
        cols.value[e] = larger_size(cols.value[e], values[e]);
      }
      of_row = warp_max(of_row);
      if (lane == 0) s.row[round + i * kQuantizeWarps + warp] = of_row;
    }
  }
  s.col[warp][lane] = cols;
  __syncthreads();
  const int at = int(threadIdx.x);
  float of_col = 0.0f;
#pragma unroll
  for (const auto& of_warp : s.col) of_col = fmaxf(of_col, of_warp[at / 8].value[at % 8]);
  if (largest.all != nullptr) {
    of_col = warp_max(of_col);
    if (lane == 0) raise(largest.all, of_col);
  }
  if (largest.cols != nullptr && first_col + at < x.cols) {
    raise(largest.cols + first_col + at, of_col);
  }
  if (largest.rows != nullptr && at < kSearchRows && first_row + at < x.rows) {
    raise(largest.rows + first_row + at, s.row[at]);
  }
}

// What a block casts. Four rows of eight columns to a thread, 16 rows of 64 columns to a warp.
constexpr int kTileRows = 16 * kQuantizeWarps, kTileCols = 64;

template <class T, class Q>
__global__ void __launch_bounds__(kQuantizeThreads)
    cast_tiles(const Source<T> x, const Largest largest, const Quantised q, const Quantised q_t,
               int64_t tiles_across) {
  struct Tile {
    float of_row[kTileRows], of_col[kTileCols];
    // 16 rows of a column each. Those of column c are in the order 0 to 7, exclusive or c / 8:
    // the lanes that write at the same time, eight columns apart, then meet different banks.
    Vec<uint32_t, 4> pieces[kTileCols][kQuantizeWarps];
  };
  Tile& s = shared<Tile>();
  const int across = int(threadIdx.x) % 8, down = int(threadIdx.x) / 8;
  // Last tiles first: the cache still holds what the search has read last.
  const int64_t tile = int64_t(gridDim.x) - 1 - blockIdx.x;
  const int64_t first_col = tile % tiles_across * kTileCols;
  const int64_t first_row = tile / tiles_across * kTileRows;
  Eight<T> batch[kBatch];
  x.load(batch, first_row + down * 4, first_col + across * 8, 1, 0);
  await_previous();
  // The factors of the tile, and by the first tiles the scales.
  const auto find = [&](int i, int64_t first, int64_t count, const Quantised& to, bool writes,
                        float* inverses, const auto& largest_of) {
    if (to.scale == nullptr) return;
    const float size = first + i < count ? largest_of(first + i) : 0.0f;
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
  float values[4][8];
  bool finite = true;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    batch[i].widened(values[i]);
    finite &= all_finite(values[i]);
  }
  const auto cast = [&]<bool Finite>(std::bool_constant<Finite>) {
    if (first_col + across * 8 < q.stride) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t row = first_row + down * 4 + i;
        if (row >= x.rows) break;
        store_8<Q, Finite>(q.data + row * q.stride + first_col + across * 8, values[i],
                           s.of_row[down * 4 + i]);
      }
    }
    if (q_t.scale == nullptr) return;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const float by = s.of_col[across * 8 + e];
      s.pieces[across * 8 + e][down / 4 ^ across].value[down % 4] = four_bytes<Q, Finite>(
          values[0][e] * by, values[1][e] * by, values[2][e] * by, values[3][e] * by);
    }
  };
  finite ? cast(std::true_type{}) : cast(std::false_type{});
  if (q_t.scale == nullptr) return;
  __syncthreads();
  // Eight lanes write 128 bytes of a row of the transpose.
#pragma unroll
  for (int i = int(threadIdx.x) / 8; i < kTileCols; i += kQuantizeThreads / 8) {
    const int64_t col = first_col + i, row = first_row + across * 16;
    if (col >= x.cols || row >= q_t.stride) continue;
    store<4>(reinterpret_cast<uint32_t*>(q_t.data + col * q_t.stride + row),
             s.pieces[i][across ^ (i / 8)]);
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
  // Few enough for each to load a batch, so that much is under way.
  const auto fits = [&](int threads) { return x.cols <= threads * kBatch * 8; };
  fits(32) ? run(Width<32>{}) : fits(128) ? run(Width<128>{}) : run(Width<kQuantizeThreads>{});
}

// `largest` is zeros, of the kinds that are wanted.
template <class T, class Q>
inline void launch_tiles(const Source<T>& x, const Largest& largest, const Quantised& q,
                         const Quantised& q_t, cudaStream_t stream) {
  const auto run = [&](int64_t tile_rows, int64_t tile_cols, bool overlap, const auto& start) {
    const int64_t across = std::max<int64_t>(1, (x.cols + tile_cols - 1) / tile_cols);
    const int64_t tiles = std::max<int64_t>(1, (x.rows + tile_rows - 1) / tile_rows) * across;
    if (tiles > 0x7fffffff) fail("quantize_fp8: ", tiles, " tiles are too many");
    start(Config{dim3(unsigned(tiles)), dim3(kQuantizeThreads), stream, 0, overlap}, across);
  };
  run(kSearchRows, kSearchCols, false, [&](const Config& config, int64_t across) {
    launch(find_largest<T>, config, x, largest, across);
  });
  run(kTileRows, kTileCols, true, [&](const Config& config, int64_t across) {
    launch(cast_tiles<T, Q>, config, x, largest, q, q_t, across);
  });
}

}  // namespace opforge
