// SPDX-License-Identifier: Apache-2.0
// Matrix products by a warp group, 4 consecutive warps, on the tensor cores of compute capability
// 9.0 (wgmma, target sm_90a). Both operands are in shared memory, as core/tensor_map.h copies them:
// in boxes 128 bytes wide. Includes no torch header.
//
//   float sums[64 / 64][128 / 2];        // 64 x 128, spread over 128 threads
//   warpgroup_arrive();                  // sums may be changed from here on
//   warpgroup_multiply<bfloat16, 128>(sums[0], a, b, false);
//   warpgroup_commit();
//   warpgroup_wait<0>();                 // sums may be read, the boxes overwritten
//
// Element (row, col) of the product belongs to thread t of the warp group, and is its value
// 4 * (col / 8) + 2 * (row / 8 % 2) + col % 2, where t = 32 * (row / 16) + 4 * (row % 8) + col % 8
// / 2.
#pragma once

#include <cuda_runtime.h>
#include <opforge/core/async.h>
#include <opforge/core/float8.h>
#include <opforge/core/tensor_map.h>
#include <opforge/core/types.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace opforge {

// One call multiplies so many bytes along the inner dim: 16 elements of 16 bits.
constexpr int kMultiplyBytes = 32;

// Which dim of an operand is contiguous in memory: the inner one, along which products are summed,
// or the outer one, the rows of a and the columns of b.
enum class Major { inner, outer };

#if defined(OPFORGE_SIM)

using sim::TileOperand;

#else

struct TileOperand {
  uint64_t descriptor;
};

#endif

// The part of an operand that a call multiplies. `box` is the first box. Inner-major boxes have an
// outer index per row, and `step` counts the calls along the row. Outer-major boxes have an inner
// index per row, 64 outer ones (of 16 bits) beside each other, and the next 64 in another box
// box_bytes further.
template <Major major>
__device__ __forceinline__ TileOperand tile_operand(const void* box, int step, int box_bytes = 0) {
#if defined(OPFORGE_SIM)
  return {static_cast<const unsigned char*>(box), step, box_bytes, major == Major::outer};
#else
  // 16 inner indices are 16 rows of an outer-major box.
  const int offset = major == Major::inner ? step * kMultiplyBytes : step * 16 * kTileWidth;
  // Fields of 14 bits count 16 bytes each. Addresses in a cluster have the block's rank above them.
  // The offset is added to the field: between the calls for a stage that is one instruction.
  const auto field = [](uint32_t bytes) { return bytes >> 4 & 0x3fff; };
  constexpr uint64_t kSwizzle128 = uint64_t(1) << 62;
  constexpr uint32_t kEightRows = 8 * kTileWidth;
  const uint32_t low = (field(detail::shared_address(box)) + field(uint32_t(offset))) |
                       field(major == Major::inner ? 16u : uint32_t(box_bytes)) << 16;
  return {uint64_t(low) | uint64_t(field(kEightRows)) << 32 | kSwizzle128};
#endif
}

// Before the first warpgroup_multiply(), and after registers of the sums were written otherwise.
__device__ __forceinline__ void warpgroup_arrive() {
#if defined(OPFORGE_SIM)
  sim::warpgroup_arrive();
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// Makes a group of the products asked for since the last one.
__device__ __forceinline__ void warpgroup_commit() {
#if defined(OPFORGE_SIM)
  sim::warpgroup_commit();
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Until all groups but the N latest are done.
template <int N>
__device__ __forceinline__ void warpgroup_wait() {
#if defined(OPFORGE_SIM)
  sim::warpgroup_wait(N);
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#endif
}

// The compiler must not move reads or writes of these registers across this point.
template <int N>
__device__ __forceinline__ void keep_in_place(float (&values)[N]) {
#if !defined(OPFORGE_SIM) && defined(__CUDA_ARCH__)
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(values[i])::"memory");
#endif
}

namespace detail {

#if defined(OPFORGE_SIM)

// The elements of a and those of b.
template <class T>
struct Operands {
  using A = T;
  using B = T;
};
template <class A_, class B_>
struct Operands<Mixed<A_, B_>> {
  using A = A_;
  using B = B_;
};

// Elements as the tensor cores take them.
template <class T>
inline void widen_operand(const void* from, float* to, int count) {
  for (int i = 0; i < count; ++i) {
    T value;
    memcpy(&value, static_cast<const T*>(from) + i, sizeof value);
    to[i] = widen(value);
    // Of a float the last 13 bits are not looked at.
    if constexpr (sizeof(T) == 4)
      to[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(to[i]) & ~0x1fffu);
  }
}

#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The product of a type and a width: an instruction each, with N / 2 registers named in it.
// clang-format off
#define OPFORGE_NAMES_0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define OPFORGE_NAMES_32 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define OPFORGE_NAMES_64 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define OPFORGE_NAMES_96 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define OPFORGE_8_VALUES(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define OPFORGE_32_VALUES(d, i) OPFORGE_8_VALUES(d, i), OPFORGE_8_VALUES(d, i + 8), OPFORGE_8_VALUES(d, i + 16), OPFORGE_8_VALUES(d, i + 24)
#define OPFORGE_VALUES_32(d) OPFORGE_32_VALUES(d, 0)
#define OPFORGE_VALUES_64(d) OPFORGE_32_VALUES(d, 0), OPFORGE_32_VALUES(d, 32)
#define OPFORGE_VALUES_96(d) OPFORGE_VALUES_64(d), OPFORGE_32_VALUES(d, 64)
#define OPFORGE_VALUES_128(d) OPFORGE_VALUES_96(d), OPFORGE_32_VALUES(d, 96)
#define OPFORGE_NAMES_TO_32 OPFORGE_NAMES_0
#define OPFORGE_NAMES_TO_64 OPFORGE_NAMES_0 ", " OPFORGE_NAMES_32
#define OPFORGE_NAMES_TO_96 OPFORGE_NAMES_TO_64 ", " OPFORGE_NAMES_64
#define OPFORGE_NAMES_TO_128 OPFORGE_NAMES_TO_96 ", " OPFORGE_NAMES_96

// d += a b, or d = a b where `sum` is 0.
#define OPFORGE_MULTIPLY(N, REGISTERS, A, B, SUM, TYPES, TAIL, ...)                               \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, " SUM ", 0; wgmma.mma_async.sync.aligned.m64n" #N \
               TYPES " {" OPFORGE_NAMES_TO_##REGISTERS "}, " A ", " B ", p, 1, 1" TAIL "; }"      \
               : OPFORGE_VALUES_##REGISTERS(d)                                                    \
               : "l"(a), "l"(b), "r"(sum) __VA_OPT__(, ) __VA_ARGS__)
#define OPFORGE_MULTIPLY_TYPES(N, REGISTERS, A, B, SUM, MAJOR_A, MAJOR_B)                                                                   \
  if constexpr (N_ == N) {                                                                                                                  \
    if constexpr (std::is_same_v<T, bfloat16>) {                                                                                            \
      OPFORGE_MULTIPLY(N, REGISTERS, A, B, SUM, "k16.f32.bf16.bf16", ", " MAJOR_A ", " MAJOR_B, "n"(int(major_a)), "n"(int(major_b)));      \
    } else if constexpr (std::is_same_v<T, half>) {                                                                                         \
      OPFORGE_MULTIPLY(N, REGISTERS, A, B, SUM, "k16.f32.f16.f16", ", " MAJOR_A ", " MAJOR_B, "n"(int(major_a)), "n"(int(major_b)));        \
    } else {                                                                                                                                \
      static_assert(major_a == Major::inner && major_b == Major::inner, "only 16-bit operands may be outer-major");                         \
      if constexpr (std::is_same_v<T, float>) OPFORGE_MULTIPLY(N, REGISTERS, A, B, SUM, "k8.f32.tf32.tf32", "");                            \
      if constexpr (std::is_same_v<T, float8_e4m3>) OPFORGE_MULTIPLY(N, REGISTERS, A, B, SUM, "k32.f32.e4m3.e4m3", "");                     \
      if constexpr (std::is_same_v<T, Mixed<float8_e5m2, float8_e4m3>>) OPFORGE_MULTIPLY(N, REGISTERS, A, B, SUM, "k32.f32.e5m2.e4m3", ""); \
      if constexpr (std::is_same_v<T, Mixed<float8_e4m3, float8_e5m2>>) OPFORGE_MULTIPLY(N, REGISTERS, A, B, SUM, "k32.f32.e4m3.e5m2", ""); \
    }                                                                                                                                       \
  }

template <class T, int N_, Major major_a, Major major_b>
__device__ __forceinline__ void multiply(float (&d)[N_ / 2], uint64_t a, uint64_t b, int sum) {
  OPFORGE_MULTIPLY_TYPES(64, 32, "%32", "%33", "%34", "%35", "%36")
  OPFORGE_MULTIPLY_TYPES(128, 64, "%64", "%65", "%66", "%67", "%68")
  OPFORGE_MULTIPLY_TYPES(192, 96, "%96", "%97", "%98", "%99", "%100")
  OPFORGE_MULTIPLY_TYPES(256, 128, "%128", "%129", "%130", "%131", "%132")
}
// clang-format on
#endif

}  // namespace detail

// Adds to `sums`, or writes it, the product of 64 rows of a and N columns of b along kMultiplyBytes
// of the inner dim: bfloat16, half, float whose values are TF32, or FP8 (T is float8_e4m3 or a
// Mixed of float8_e4m3 and float8_e5m2). Every thread of the warp group calls it with the same
// operands. It runs on while the thread goes on; see warpgroup_wait().
//
// For FP8, tensor cores align the products of a call with the sum so far and keep some 14 bits of
// them: a long sum needs float additions of shorter ones. The simulator adds all as floats.
template <class T, int N, Major major_a = Major::inner, Major major_b = Major::inner>
__device__ __forceinline__ void warpgroup_multiply(float (&sums)[N / 2], const TileOperand& a,
                                                   const TileOperand& b, bool add) {
  static_assert(N % 64 == 0 && N >= 64 && N <= 256);
#if defined(OPFORGE_SIM)
  static_assert(sizeof(T) == 2 || (major_a == Major::inner && major_b == Major::inner));
  using Operands = detail::Operands<T>;
  sim::warpgroup_multiply(sums,
                          {a, b, N, int(sizeof(T)), detail::widen_operand<typename Operands::A>,
                           detail::widen_operand<typename Operands::B>, add});
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
  detail::multiply<T, N, major_a, major_b>(sums, a.descriptor, b.descriptor, int(add));
#endif
}

}  // namespace opforge
