// SPDX-License-Identifier: Apache-2.0
// What happened before what: barrier epochs within a block, clocks within a warp, and between
// blocks what fences and atomics have told.
#pragma once

#include <string>

#include "pages.h"
#include "state.h"

namespace opforge::sim::shadow {

// unfenced: the other block told of what it did through an atomic, but without a fence before that.
enum class Order { before, unfenced, none };

// Whether an access is ordered before what thread `f` does now.
Order order(const Worker& w, const Fiber& f, const Access& a);

// The current thread changes an atomic in global memory: it tells others what it has fenced, and
// learns what they told, once it fences, too.
void tell(const Worker& w, uintptr_t address);

bool of_this_launch(const Access& a);
uint32_t block_of(const Access& a);  // if it is
std::string name_of(const Access& a);

}  // namespace opforge::sim::shadow
