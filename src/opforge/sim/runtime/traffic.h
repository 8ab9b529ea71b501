// SPDX-License-Identifier: Apache-2.0
// What a kernel asks of memory: bytes, sectors, bank conflicts. A model of traffic, never a time.
#pragma once

#include "state.h"

namespace opforge::sim::traffic {

void begin_launch(const Launch& l);
void end_launch(const Launch& l);
void end_cluster();
void barrier();
void copy(uintptr_t address, size_t bytes, bool write);  // to or from global memory, in bulk
void access(uintptr_t address, size_t bytes, bool write, const void* pc);

}  // namespace opforge::sim::traffic
