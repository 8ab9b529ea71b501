// SPDX-License-Identifier: Apache-2.0
// Values per column of the result, such as a bias, and factors per row and column: the warp groups
// that multiply ask for them before the product is made. Includes no torch header.
#pragma once

#include <opforge/core/warpgroup.h>
#include <opforge/families/product/call.h>

#include <algorithm>
#include <opforge/families/product/hopper_layout.cuh>

namespace opforge {

template <class Layout>
struct HopperColumns : Layout {
  using Layout::kColumns, Layout::kColumnsRead;
  using Layout::kGroups, Layout::kCols, Layout::kRowBlocks, Layout::kStep;
  using typename Layout::Tile, typename Layout::Params, typename Layout::Shared,
      typename Layout::Sums;

  // Of a tile, those that a thread loads; and those of its values in a step of the epilogue.
  using Loaded = float[std::max(kColumns, 1)][(kCols + kWarpGroup - 1) / kWarpGroup];
  using OfStep = float[std::max(kColumnsRead, 1)][kStep];
  using RowFactors = float[kRowBlocks][2];  // those of a thread's values

  // Asks for the values of the tile's columns before the product is made, and puts them to where
  // the epilogue reads them when it is.
  __device__ static void load(const Params& p, int batch, int first_col, Loaded& columns) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
#pragma unroll
      for (int j = 0; j * kWarpGroup < kCols; ++j) {
        const int col = j * kWarpGroup + int(threadIdx.x) % kWarpGroup;
        const bool there =
            col < kCols && first_col + col < p.n && (kGroups == Groups::none || batch < p.batches);
        columns[i][j] = there ? p.columns[i].at(batch, first_col + col) : 0.0f;
      }
    }
  }
  __device__ static void store(const Shared& s, int consumer, const Loaded& columns) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
#pragma unroll
      for (int j = 0; j * kWarpGroup < kCols; ++j) {
        const int col = j * kWarpGroup + int(threadIdx.x) % kWarpGroup;
        if (col < kCols) s.column(consumer, i)[col] = columns[i][j];
      }
    }
  }

  // Rows of the accumulators share their column's value.
  __device__ static void read(const Shared& s, int consumer, int first_col, OfStep& columns) {
#pragma unroll
    for (int i = 0; i < kColumnsRead; ++i) {
#pragma unroll
      for (int v = 0; v < kStep; v += 4) {
        const float2 pair = *reinterpret_cast<const float2*>(s.column(consumer, i) + first_col +
                                                             threadIdx.x % 4 * 2 + v * 2);
        columns[i][v] = columns[i][v + 2] = pair.x;
        columns[i][v + 1] = columns[i][v + 3] = pair.y;
      }
    }
  }

  // Asks for the factors of a thread's rows before the product is made.
  __device__ static void load_rows(const Params& p, int batch, int first_row, RowFactors& rows) {
    const int thread = int(threadIdx.x) % kWarpGroup;
#pragma unroll
    for (int i = 0; i < 2 * kRowBlocks; ++i) {
      const int row = first_row + i / 2 * 64 + i % 2 * 8 + thread / 32 * 16 + thread % 32 / 4;
      rows[i / 2][i % 2] = row < p.m ? p.rows.at(batch, row) : 0.0f;
    }
  }

  // Multiplies the sums by the factors of rows and columns. The latter are the last per column.
  __device__ static void scale(const Shared& s, int consumer, const RowFactors& rows, Sums& sums) {
    const float* const factors = s.column(consumer, kColumns - 1) + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < Tile::kN / 2; i += 4) {
      const float2 pair = *reinterpret_cast<const float2*>(factors + i * 2);
#pragma unroll
      for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          sums[r][i + 2 * half] *= rows[r][half] * pair.x;  // one alone may overflow
          sums[r][i + 2 * half + 1] *= rows[r][half] * pair.y;
        }
      }
    }
  }
};

}  // namespace opforge
