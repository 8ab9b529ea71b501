// SPDX-License-Identifier: Apache-2.0
// The order in which the tiles of a product are made. Includes no torch header.
#pragma once

#include <cuda_runtime.h>

namespace opforge {

// Where tile number `tile` is. Tiles that run at the same time share rows of a and columns of b:
// bands of `group` rows of tiles are made one after the other, or with `by_columns` of columns.
__device__ __forceinline__ void walk_tiles(int group, bool by_columns, int tile, int tiles_m,
                                           int tiles_n, int& row, int& col) {
  const int across = by_columns ? tiles_n : tiles_m, along = by_columns ? tiles_m : tiles_n;
  const int band = tile / (group * along), first = band * group;
  const int width = min(group, across - first);
  tile -= band * group * along;
  const int i = first + tile % width, j = tile / width;
  row = by_columns ? j : i;
  col = by_columns ? i : j;
}

// The same in the order that the parameters of a kernel ask for.
template <class Params>
__device__ void walk_tiles(const Params& p, int tile, int tiles_m, int tiles_n, int& row,
                           int& col) {
  walk_tiles(p.group, p.by_columns, tile, tiles_m, tiles_n, row, col);
}

}  // namespace opforge
