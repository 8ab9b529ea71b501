// SPDX-License-Identifier: Apache-2.0
// Which kernels of this folder a GPU runs. Includes no torch header.
#pragma once

#include <opforge/core/launch.h>

#include <atomic>

namespace opforge {

namespace detail {

inline int capability_major() {
  static std::atomic<int> known[64];
  return device_attribute(cudaDevAttrComputeCapabilityMajor, known);
}

}  // namespace detail

// The tensor cores and the copy engine of compute capability 9.0: hopper.cuh.
inline bool is_hopper() {
  static std::atomic<int> minor[64];
  return detail::capability_major() == 9 &&
         detail::device_attribute(cudaDevAttrComputeCapabilityMinor, minor) == 0;
}

// The tensor cores of 8.0, which all newer GPUs have: ampere.cuh.
inline bool has_mma() { return detail::capability_major() >= 8; }

}  // namespace opforge
