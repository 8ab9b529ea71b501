// SPDX-License-Identifier: Apache-2.0
// Shared memory is a struct got through here, never a bare __shared__ variable in an op: what runs
// kernels without a GPU has to find it through the block being executed. Includes no torch header.
#pragma once

namespace opforge {

template <class Struct>
__device__ __forceinline__ Struct& shared() {
  __shared__ alignas(alignof(Struct)) unsigned char bytes[sizeof(Struct)];
  return *reinterpret_cast<Struct*>(bytes);
}

}  // namespace opforge
