// SPDX-License-Identifier: Apache-2.0
// How boxes of tiles lie in shared memory: rows of 128 bytes whose 16-byte chunks change places.
#pragma once

#include <cstddef>
#include <cstdint>

namespace opforge::sim {

constexpr size_t kRowBytes = 128, kChunk = 16;

// Where the byte at `address` really is: bits of the address decide, not those of a box.
template <class Byte>
Byte* swizzled(Byte* address) {
  const auto bits = reinterpret_cast<uintptr_t>(address);
  return reinterpret_cast<Byte*>(bits ^ (bits / kRowBytes % 8 * kChunk));
}

}  // namespace opforge::sim
