// SPDX-License-Identifier: Apache-2.0
// What opforge/core/tensor_map.h, warpgroup.h and wgmma.h ask of the simulator's runtime: tiles of
// matrices, products of a warp group, barriers among some threads.
#pragma once

#include <opforge_sim/runtime.h>

namespace opforge::sim {

// A namespace of their own, so that a call with one of them finds no function of this one by
// itself.
namespace tiles {

// A matrix, or several, and the box that a copy moves: box_rows rows of 128 bytes.
struct TensorMap {
  const unsigned char* data;
  int64_t rows, cols, batches;
  int64_t row_bytes, batch_bytes;  // from one to the next
  int element_bytes, box_rows;
  bool to_tf32;
};

// The part of an operand that a product reads: in its boxes of shared memory from 32 bytes of each
// row, or with outer_major from 128 bytes of some rows.
struct TileOperand {
  const unsigned char* box;
  int step;
  int box_bytes;  // outer_major: from a box to the next along the outer dim
  bool outer_major;

  bool operator==(const TileOperand&) const = default;
};

}  // namespace tiles

using tiles::TensorMap;
using tiles::TileOperand;

// Strides in elements. Throws what the driver would refuse.
OPFORGE_SIM_API TensorMap tensor_map(const void* data, int element_bytes, int64_t rows,
                                     int64_t cols, int64_t row_stride, int64_t batches,
                                     int64_t batch_stride, int box_rows, bool to_tf32);

// To this block, or to those of the cluster whose bits are set in `blocks`.
OPFORGE_SIM_API void tile_copy(void* to, const TensorMap& map, int col, int row, int batch,
                               void* barrier, unsigned blocks);
OPFORGE_SIM_API void tile_store(const TensorMap& map, int col, int row, int batch,
                                const void* from);

// 64 rows of a times `columns` columns of b, along 32 bytes of the inner dim.
struct Product {
  TileOperand a, b;
  int columns;
  int element_bytes;
  void (*widen_a)(const void* from, float* to, int count);  // elements
  void (*widen_b)(const void* from, float* to, int count);
  bool add;

  bool operator==(const Product&) const = default;
};
OPFORGE_SIM_API void warpgroup_arrive();
OPFORGE_SIM_API void warpgroup_multiply(float* sums, const Product& product);
OPFORGE_SIM_API void warpgroup_commit();
OPFORGE_SIM_API void warpgroup_wait(int groups);

// Arrives at barrier `id` of the block, for `count` threads; waits for the others, or does not.
OPFORGE_SIM_API void named_barrier(int id, int count, bool wait);

}  // namespace opforge::sim
