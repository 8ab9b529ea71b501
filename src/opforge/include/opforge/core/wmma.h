// SPDX-License-Identifier: Apache-2.0
// CUDA's own way to tensor cores (nvcuda::wmma), as far as kernels here need it: 16 x 16 x 16
// products of 16-bit elements. Who has which element is CUDA's secret, so that operands and sums
// can only be loaded, multiplied and stored as a whole. Includes no torch header.
//
//   WmmaSums sums;
//   wmma_clear(sums);
//   WmmaA<half> a;
//   WmmaB<half> b;
//   wmma_load(a, &s.a[row][k], kStrideA);
//   wmma_load(b, &s.b[k][col], kStrideB);
//   wmma_multiply(sums, a, b);
//   wmma_store(&s.sums[0][0], sums, 16);
//
// All matrices have rows in shared memory, so many elements apart. All lanes of a warp call these.
#pragma once

#include <cuda_runtime.h>
#include <opforge/core/types.h>

#if defined(OPFORGE_SIM)
#include <opforge/core/mma.h>
#elif defined(__CUDACC__)
#include <mma.h>
#endif

namespace opforge {

constexpr int kWmma = 16;  // rows, columns, inner indices

#if defined(OPFORGE_SIM)

// In the simulator, lanes have the elements that core/mma.h gives them.
template <class T>
struct WmmaA {
  uint32_t value[4];
};
template <class T>
struct WmmaB {
  uint32_t value[2][2];  // of 8 columns each
};
struct WmmaSums {
  float value[2][4];
};

namespace detail {

inline uint32_t two_elements(const void* first, const void* second) {
  uint16_t pair[2];
  memcpy(&pair[0], first, 2);
  memcpy(&pair[1], second, 2);
  return uint32_t(pair[0]) | uint32_t(pair[1]) << 16;
}

}  // namespace detail

template <class T>
inline void wmma_load(WmmaA<T>& a, const T* from, int stride) {
  const int g = int(threadIdx.x) % 32 / 4, t = int(threadIdx.x) % 4;
  for (int i = 0; i < 4; ++i) {
    const T* const at = from + (g + i % 2 * 8) * stride + i / 2 * 8 + 2 * t;
    a.value[i] = detail::two_elements(at, at + 1);
  }
}
template <class T>
inline void wmma_load(WmmaB<T>& b, const T* from, int stride) {
  const int g = int(threadIdx.x) % 32 / 4, t = int(threadIdx.x) % 4;
  for (int i = 0; i < 4; ++i) {
    const T* const at = from + (i % 2 * 8 + 2 * t) * stride + i / 2 * 8 + g;
    b.value[i / 2][i % 2] = detail::two_elements(at, at + stride);
  }
}
inline void wmma_clear(WmmaSums& sums) { sums = {}; }
template <class T>
inline void wmma_multiply(WmmaSums& sums, const WmmaA<T>& a, const WmmaB<T>& b) {
  for (int i = 0; i < 2; ++i) warp_multiply<T>(sums.value[i], a.value, b.value[i]);
}
inline void wmma_store(float* to, const WmmaSums& sums, int stride) {
  const int g = int(threadIdx.x) % 32 / 4, t = int(threadIdx.x) % 4;
  for (int i = 0; i < 8; ++i) {
    to[(g + i / 2 % 2 * 8) * stride + i / 4 * 8 + 2 * t + i % 2] = sums.value[i / 4][i % 4];
  }
}

#elif defined(__CUDACC__)

template <class T>
using WmmaA =
    nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, kWmma, kWmma, kWmma, T, nvcuda::wmma::row_major>;
template <class T>
using WmmaB =
    nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, kWmma, kWmma, kWmma, T, nvcuda::wmma::row_major>;
using WmmaSums = nvcuda::wmma::fragment<nvcuda::wmma::accumulator, kWmma, kWmma, kWmma, float>;

template <class Operand, class T>
__device__ __forceinline__ void wmma_load(Operand& operand, const T* from, int stride) {
  nvcuda::wmma::load_matrix_sync(operand, from, stride);
}
__device__ __forceinline__ void wmma_clear(WmmaSums& sums) {
  nvcuda::wmma::fill_fragment(sums, 0.0f);
}
template <class T>
__device__ __forceinline__ void wmma_multiply(WmmaSums& sums, const WmmaA<T>& a,
                                              const WmmaB<T>& b) {
  nvcuda::wmma::mma_sync(sums, a, b, sums);
}
__device__ __forceinline__ void wmma_store(float* to, const WmmaSums& sums, int stride) {
  nvcuda::wmma::store_matrix_sync(to, sums, stride, nvcuda::wmma::mem_row_major);
}

#endif

}  // namespace opforge
