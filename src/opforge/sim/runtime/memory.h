// SPDX-License-Identifier: Apache-2.0
// Which memory is whose: the shared memory of the blocks that run, and what the op has allocated.
#pragma once

#include <string>

#include "state.h"

namespace opforge::sim::shadow {

struct Range {
  uintptr_t low, high;
  bool fresh;  // nothing but kernels may have written to it
};

// The allocation of the running op that holds an address, if any.
const Range* allocation(uintptr_t address);
// The shared memory of the running cluster that holds it, if any, and whose that is.
struct SharedAt {
  Block* owner = nullptr;
  const SharedPart* part = nullptr;
};
SharedAt shared_at(Worker& w, uintptr_t address);
// Whether memory is as `allocated` left it, or the host has used it since.
bool is_poison(uintptr_t address, size_t bytes);
// "shared memory (byte 4 of 128)"
std::string memory_at(Worker& w, uintptr_t address);

}  // namespace opforge::sim::shadow
