// SPDX-License-Identifier: Apache-2.0
// What a kernel asks of memory: bytes, sectors, bank conflicts. A model of traffic, never a time.
#pragma once

#include "state.h"

namespace opforge::sim::traffic {

void begin_launch(const Launch& l);
void end_launch(const Launch& l);
void end_cluster();
void barrier();
// To or from global memory, in bulk. One copy is one request, which several pieces may make up.
void copy(uintptr_t address, size_t bytes, bool write, bool first = true);
void access(uintptr_t address, size_t bytes, bool write, const void* pc);

}  // namespace opforge::sim::traffic
