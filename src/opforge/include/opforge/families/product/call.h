// SPDX-License-Identifier: Apache-2.0
// A matrix product as the kernels of this folder get it: sizes, operands, what the epilogue reads
// and writes. Includes no torch header.
#pragma once

#include <cuda_runtime.h>
#include <opforge/core/types.h>
#include <opforge/core/wgmma.h>

#include <cstdint>
#include <functional>

namespace opforge {

// A matrix that the epilogue reads or writes, or `batches` of them.
struct ProductMatrix {
  void* data = nullptr;
  int64_t row_stride = 0, batch_stride = 0;
};

// An operand: outer x inner, contiguous along one of them, `stride` elements along the other.
struct ProductOperand {
  const void* data = nullptr;
  Major major = Major::inner;
  int64_t stride = 0, batch_stride = 0;
};

// A value for each column of the result, or for each column of each batch: a bias, a scale.
struct ProductColumns {
  const void* data = nullptr;  // or none: zeros
  DType dtype = DType::f32;
  int64_t step = 1, batch_stride = 0;

  __device__ float at(int batch, int col) const {
    const int64_t i = batch * batch_stride + col * step;
    if (data == nullptr) return -0.0f;  // x + -0 is x, also where x is -0
    if (dtype == DType::bf16) return widen(static_cast<const bfloat16*>(data)[i]);
    if (dtype == DType::f16) return widen(static_cast<const half*>(data)[i]);
    return static_cast<const float*>(data)[i];
  }
};

// What the batches of a product are: matrices of their own, or groups of rows of a and of the
// result, or of the inner dim of both operands. Group i begins where group i - 1 ends, the first at
// 0.
enum class Groups { none, rows, inner };

// Where groups end, in memory of the GPU: int32, or with `wide` int64. An end before the one of the
// group before is that one, an end beyond `total` is `total`. Rows of the result after the last
// group are zeros.
struct ProductGroups {
  Groups kind = Groups::none;
  const void* ends = nullptr;
  bool wide = false;
  int count = 0, total = 0;

  __device__ int end(int group) const {
    const int64_t end =
        wide ? static_cast<const int64_t*>(ends)[group] : static_cast<const int32_t*>(ends)[group];
    return int(end < 0 ? 0 : end > total ? total : end);
  }
};

// Memory for a kernel's own use.
struct ProductMemory {
  float* floats = nullptr;
  int* zeros = nullptr;
};

constexpr int kMostIn = 2, kMostOut = 3, kMostColumns = 2;

// result (m, n) = epilogue(a (m, k) b (k, n)). b is given as its columns: n x k.
struct ProductCall {
  DType dtype;
  int64_t m = 0, n = 0, k = 0, batches = 1;
  ProductOperand a, b[2];  // b[1]: where two products make one result
  int ins = 0, outs = 1;
  ProductMatrix in[kMostIn], out[kMostOut];
  ProductColumns columns[kMostColumns];
  ProductColumns rows;    // a factor per row, where the epilogue scales rows
  float* sums = nullptr;  // (ceil(m / 64), n), where the epilogue sums columns
  // The order of the tiles: bands of `group` rows of tiles, or of columns of them.
  int group = 8;
  bool by_columns = false;
  ProductGroups groups;  // `batches` of them, for the kernels that know of them
  // Gives memory for so many floats and zeros until the call is over, to kernels that need some.
  std::function<ProductMemory(int64_t floats, int64_t zeros)> memory;
  cudaStream_t stream = nullptr;
};

}  // namespace opforge
