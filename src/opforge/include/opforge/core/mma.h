// SPDX-License-Identifier: Apache-2.0
// Matrix products by a warp on the tensor cores of compute capability 8.0 and newer (mma.sync).
// Operands and sums are in registers. Includes no torch header.
//
//   uint32_t a[4], b[2];
//   float sums[4] = {};  // 16 x 8, spread over 32 lanes
//   load_matrices(a, …);  // core/matrices.h
//   warp_multiply<bfloat16>(sums, a, b);
//
// A call multiplies 16 rows of a by 8 columns of b, along 32 bytes of the inner dim: 16 elements of
// 16 bits, or 8 floats as TF32. With g = lane / 4 and t = lane % 4, a lane holds, 4 bytes each,
//
//   a[0]  row g,     bytes 4 t     a[2]  row g,     bytes 16 + 4 t
//   a[1]  row g + 8, bytes 4 t     a[3]  row g + 8, bytes 16 + 4 t
//   b[0]  column g,  bytes 4 t     b[1]  column g,  bytes 16 + 4 t
//
// where bytes count along the inner dim. Its sums are those of row g, columns 2 t and 2 t + 1, then
// those of row g + 8. load_matrices() gives registers in this order.
#pragma once

#include <cuda_runtime.h>
#include <opforge/core/matrices.h>
#include <opforge/core/types.h>

#include <cstdint>
#include <type_traits>

#if defined(OPFORGE_SIM)
#include <opforge/core/wgmma.h>  // widen_operand()
#endif

namespace opforge {

// sums += a b. T is bfloat16, half, or float for TF32: of floats, the last 13 bits are not looked
// at, see to_tf32(). All lanes of the warp call it.
template <class T>
__device__ __forceinline__ void warp_multiply(float (&sums)[4], const uint32_t (&a)[4],
                                              const uint32_t (&b)[2]) {
  static_assert(std::is_same_v<T, bfloat16> || std::is_same_v<T, half> || std::is_same_v<T, float>);
#if defined(OPFORGE_SIM)
  sim::warp_multiply({sums, a, b, detail::widen_operand<T>, 32 / int(sizeof(T))});
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define OPFORGE_WARP_MULTIPLY(SHAPE, TYPE)                                            \
  asm volatile("mma.sync.aligned." SHAPE ".row.col.f32." TYPE "." TYPE                \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])           \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
  if constexpr (std::is_same_v<T, bfloat16>) OPFORGE_WARP_MULTIPLY("m16n8k16", "bf16");
  if constexpr (std::is_same_v<T, half>) OPFORGE_WARP_MULTIPLY("m16n8k16", "f16");
  if constexpr (std::is_same_v<T, float>) OPFORGE_WARP_MULTIPLY("m16n8k8", "tf32");
#undef OPFORGE_WARP_MULTIPLY
#endif
}

// The bits of the nearest float with 10 bits after the point; ties go away from zero.
__device__ __forceinline__ uint32_t to_tf32(float x) {
#if !defined(OPFORGE_SIM) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
#else
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return nan ? 0x7fffffffu : (bits + 0x1000u) & ~0x1fffu;
#endif
}

}  // namespace opforge
