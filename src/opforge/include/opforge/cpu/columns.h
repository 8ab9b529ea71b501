// SPDX-License-Identifier: Apache-2.0
// Sums down the columns of a matrix on the CPU while its rows are visited for another result: bias
// and weight gradients. Includes no torch header.
#pragma once

#include <opforge/cpu/sum.h>

namespace opforge {

// A function that gets a piece of a row, n columns from `col` on, and adds to n sums:
//
//   [&](int64_t row, int64_t col, int64_t n, sum_t<float>* sums) {
//     for (int64_t j = 0; j < n; ++j) sums[j] += x[row * cols + col + j];
//   }
template <class Visit, class T>
concept RowPieceVisitor =
    requires(const Visit& visit, int64_t i, sum_t<T>* sums) { visit(i, i, i, sums); };

// out[j] = what `visit` added for column j, over all rows.
template <class T, class Visit>
  requires RowPieceVisitor<Visit, T>
void sum_columns(int64_t rows, int64_t cols, T* out, const Visit& visit) {
  // A task is a block of rows for some columns, whose sums stay in the L1 cache. The blocks depend
  // on the shape alone, and so do the bits of the sums.
  constexpr int64_t block = 64;
  const int64_t blocks = ceil_div(rows, block), tiles = ceil_div(cols, kBlockColumns);
  const auto sums = std::make_unique<sum_t<T>[]>(size_t(blocks * cols));
  const int64_t per_task = std::min(block, rows) * std::min(kBlockColumns, cols);
  parallel_for(
      blocks * tiles, std::max<int64_t>(1, kGrain / per_task), [&](int64_t i, int64_t end) {
        for (; i < end; ++i) {
          const int64_t first = i / tiles * block, last = std::min(first + block, rows);
          const int64_t col = i % tiles * kBlockColumns, n = std::min(kBlockColumns, cols - col);
          for (int64_t row = first; row < last; ++row) {
            visit(row, col, n, sums.get() + i / tiles * cols + col);
          }
        }
      });
  sum_rows<sum_t<T>>(sums.get(), blocks, cols, out);
}

}  // namespace opforge
