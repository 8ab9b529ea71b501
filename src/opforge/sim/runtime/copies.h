// SPDX-License-Identifier: Apache-2.0
// What copies of bytes and of tiles have in common. Each of these reports what no copy may be
// given, and ends the cluster; `pc` is where the current thread asks.
#pragma once

#include <string>

#include "async.h"

namespace opforge::sim {

[[noreturn]] void refuse_copy(const char* kind, const std::string& why, const void* pc);

void check_aligned(const void* address, size_t alignment, const char* what, const void* pc);
// Shared memory of the current block, at a multiple of `alignment`, where `bytes` have room.
void check_shared_of_copy(const void* shared, size_t bytes, size_t alignment, const void* pc);
// Global memory, to be written or read.
void check_global_of_copy(const void* global, size_t bytes, bool writes, const void* pc);

void check_published(const Barrier& b, const void* barrier, const std::string& does,
                     const void* pc);
// The barrier that counts bytes which come to a block of this cluster, from another one perhaps.
Barrier& barrier_of_copy(void* barrier, const char* does, const void* pc);
// That block must have started.
void check_started(int rank, const char* does, const void* pc);

// So many bytes will land for the barrier's phase.
void land_later(Barrier& b, void* barrier, size_t bytes, std::function<void()> move,
                const void* pc);
// They will be in global memory, in the group of stores that the current thread has not committed.
Stores& stores_of(const Fiber& f);
void store_later(Stores& stores, size_t bytes, std::function<void()> move, const void* pc);

}  // namespace opforge::sim
