// SPDX-License-Identifier: Apache-2.0
// CUDA's short vectors: float4 and its like, with make_float4 and so on.
#pragma once

#define OPFORGE_SIM_VECTORS(T, name)                                                 \
  struct alignas(2 * sizeof(T)) name##2 { T x, y; };                                 \
  struct name##3 { T x, y, z; };                                                     \
  struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) name##4 { T x, y, z, w; }; \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                         \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                 \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
OPFORGE_SIM_VECTORS(char, char)
OPFORGE_SIM_VECTORS(unsigned char, uchar)
OPFORGE_SIM_VECTORS(short, short)
OPFORGE_SIM_VECTORS(unsigned short, ushort)
OPFORGE_SIM_VECTORS(int, int)
OPFORGE_SIM_VECTORS(unsigned, uint)
OPFORGE_SIM_VECTORS(float, float)
OPFORGE_SIM_VECTORS(double, double)
#undef OPFORGE_SIM_VECTORS
