// SPDX-License-Identifier: Apache-2.0
// Tiles of matrices, copied between global and shared memory by the copy engine (TMA) of compute
// capability 9.0. The host describes the matrix and the box that a copy moves; a kernel takes the
// description as `const __grid_constant__ TensorMap`. Includes no torch header.
//
//   // host
//   const TensorMap map = tensor_map(x, {rows, cols, row_stride}, 128);
//   // kernel
//   if (threadIdx.x == 0) arrive_expecting(s.full, 128 * kTileWidth), tile_copy(s.x, map, col, row,
//   0, s.full); wait(s.full, 0);
//
// A box is 128 bytes wide. In shared memory its rows follow each other, and within each group of
// 8 rows the 16-byte pieces are swizzled, which avoids bank conflicts: swizzled() says where a byte
// is. Boxes start at multiples of 1024 bytes. What a box has beyond the matrix is read as zeros and
// not written.
#pragma once

#include <cuda_runtime.h>
#include <opforge/core/async.h>
#include <opforge/core/launch.h>
#include <opforge/core/types.h>

#include <cstdint>

#if !defined(OPFORGE_SIM)
#include <cuda.h>
#endif

namespace opforge {

constexpr int kTileWidth = 128;       // bytes in a row of a box
constexpr int kTileAlignment = 1024;  // of boxes in shared memory

#if defined(OPFORGE_SIM)
using sim::TensorMap;
#else
struct TensorMap {
  CUtensorMap map;
};
#endif

// A matrix of row_stride elements from row to row, or `batches` of them.
struct MatrixExtent {
  int64_t rows, cols, row_stride;
  int64_t batches = 1, batch_stride = 0;
};

// Where byte `byte` (0 to 127) of a box's row is, from the start of the box.
OPFORGE_HOST_DEVICE int swizzled(int row, int byte) {
  return row * kTileWidth + (byte ^ (row % 8 * 16));
}

// Whether tensor_map() takes it: addresses and strides are multiples of 16 bytes. Expanded dims,
// whose stride is 0, are not tried.
template <class T>
inline bool can_map(const T* data, const MatrixExtent& x) {
  const auto whole = [](int64_t stride) {
    const int64_t bytes = stride * int64_t(sizeof(T));
    return bytes > 0 && bytes % 16 == 0 && bytes < int64_t(1) << 40;
  };
  constexpr int64_t kMost = int64_t(1) << 31;  // coordinates are 32-bit
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && (x.rows == 1 || whole(x.row_stride)) &&
         (x.batches == 1 || whole(x.batch_stride)) && x.rows < kMost && x.cols < kMost &&
         x.batches < kMost && x.rows > 0 && x.cols > 0 && x.batches > 0;
}

#if !defined(OPFORGE_SIM)
namespace detail {

template <class T>
constexpr CUtensorMapDataType kMapType = sizeof(T) == 1   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                         : sizeof(T) == 2 ? CU_TENSOR_MAP_DATA_TYPE_UINT16
                                                          : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;

using Encode = decltype(&cuTensorMapEncodeTiled);

// Asked of the driver when it is needed, so that no library has to be linked.
inline Encode find_encode() {
  constexpr const char* kName = "cuTensorMapEncodeTiled";
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  cuda_check(cudaGetDriverEntryPointByVersion(kName, &function, 12000, cudaEnableDefault, &found),
             "cudaGetDriverEntryPointByVersion");
  if (found != cudaDriverEntryPointSuccess) {
    opforge::fail("this CUDA driver has no ", kName,
                  "; tensor-core kernels for compute capability 9.0 ",
                  "need a driver for CUDA 12.0 or newer");
  }
  return reinterpret_cast<Encode>(function);
}

}  // namespace detail
#endif

// Boxes of `box_rows` rows (at most 256) by 128 bytes. With `to_tf32`, floats are rounded to TF32
// on the way to shared memory.
template <class T>
inline TensorMap tensor_map(const T* data, const MatrixExtent& x, int box_rows,
                            bool to_tf32 = false) {
#if defined(OPFORGE_SIM)
  return sim::tensor_map(data, sizeof(T), x.rows, x.cols, x.row_stride, x.batches, x.batch_stride,
                         box_rows, to_tf32);
#else
  static const detail::Encode encode = detail::find_encode();
  constexpr int64_t size = sizeof(T);
  const cuuint64_t extents[3] = {cuuint64_t(x.cols), cuuint64_t(x.rows), cuuint64_t(x.batches)};
  // A dim with one index has any stride, also one that the driver would refuse.
  const int64_t row_bytes = x.rows == 1 ? (x.cols * size + 15) / 16 * 16 : x.row_stride * size;
  const int64_t batch_bytes = x.batches == 1 ? x.rows * row_bytes : x.batch_stride * size;
  const cuuint64_t strides[2] = {cuuint64_t(row_bytes), cuuint64_t(batch_bytes)};
  const cuuint32_t box[3] = {cuuint32_t(kTileWidth / size), cuuint32_t(box_rows), 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  TensorMap result;
  const auto make = [&] {
    return encode(&result.map, to_tf32 ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 : detail::kMapType<T>, 3,
                  const_cast<T*>(data), extents, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  CUresult code = make();
  if (code == CUDA_ERROR_INVALID_CONTEXT) {  // a thread that has not used CUDA's runtime yet
    cuda_check(cudaFree(nullptr), "cudaFree");
    code = make();
  }
  if (code != CUDA_SUCCESS) {
    fail("cuTensorMapEncodeTiled refuses a matrix of ", x.batches, " x ", x.rows, " x ", x.cols,
         " elements of ", size, " bytes with strides ", x.batch_stride, " and ", x.row_stride,
         " (code ", int(code), ")");
  }
  return result;
#endif
}

// One thread asks for the box whose first element is (batch, row, col). It lands some time later,
// when its bytes, all box_rows * 128 of them, count for the barrier's phase.
__device__ __forceinline__ void tile_copy(void* to_shared, const TensorMap& map, int col, int row,
                                          int batch, Barrier& barrier) {
#if defined(OPFORGE_SIM)
  sim::tile_copy(to_shared, map, col, row, batch, &barrier, 0);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(detail::shared_address(to_shared)),
      "l"(&map), "r"(detail::shared_address(&barrier)), "r"(col), "r"(row), "r"(batch)
      : "memory");
#endif
}

// The same into the same place of several blocks of the cluster, those whose bits are set. In each
// of them its bytes count for the same barrier.
__device__ __forceinline__ void tile_copy_to(uint16_t blocks, void* to_shared, const TensorMap& map,
                                             int col, int row, int batch, Barrier& barrier) {
#if defined(OPFORGE_SIM)
  sim::tile_copy(to_shared, map, col, row, batch, &barrier, blocks);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(
          detail::shared_address(to_shared)),
      "l"(&map), "r"(detail::shared_address(&barrier)), "r"(col), "r"(row), "r"(batch), "h"(blocks)
      : "memory");
#endif
}

// The other way, as bulk_store() of async.h: bulk_commit() and bulk_wait_read() follow.
__device__ __forceinline__ void tile_store(const TensorMap& map, int col, int row, int batch,
                                           const void* from_shared) {
#if defined(OPFORGE_SIM)
  sim::tile_store(map, col, row, batch, from_shared);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&map),
      "r"(detail::shared_address(from_shared)), "r"(col), "r"(row), "r"(batch)
      : "memory");
#endif
}

// Hides the time that the first use of a map takes.
__device__ __forceinline__ void prefetch(const TensorMap& map) {
#if !defined(OPFORGE_SIM) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#endif
}

}  // namespace opforge
