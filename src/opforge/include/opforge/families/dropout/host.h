// SPDX-License-Identifier: Apache-2.0
// What dropout refuses, on the CPU and on a GPU.
#pragma once

#include <opforge/host.h>

namespace opforge {

inline void check_dropout(const char* op, const Tensor& seed, double p) {
  OPFORGE_CHECK(seed.numel() == 1 && dtype_code(seed) == aoti_torch_dtype_int64(), op,
                ": seed must be one int64");
  OPFORGE_CHECK(p >= 0 && p <= 1, op, ": p must be from 0 to 1");
}

}  // namespace opforge
