// SPDX-License-Identifier: Apache-2.0
// Who last wrote and read each piece of memory, and whether that happened before what is done now.
//
// Order on a GPU comes from: __syncthreads for the threads of a block, __syncwarp for the lanes it
// names, the cluster's barrier for its threads, the end of a kernel, and between blocks from a
// device fence before an atomic that the other side sees before a fence or barrier of its own.
// Shuffles and votes order nothing. A bulk copy comes after what its thread did before asking for
// it, and before what is done by those who know that its phase is over.
#pragma once

#include <vector>

#include "pages.h"
#include "state.h"

namespace opforge::sim::shadow {

enum class Kind { read, write, atomic, barrier, copy_to, copy_from, send, multiply, piece };

// Makes asynchronous copies, or products. They are over for threads that know that their barrier's
// phase is.
struct Engine {
  static constexpr uint32_t kNever = ~0u;  // a phase that is over with the kernel
  uint32_t number, phase;
};

void begin_launch(const Launch& l);
void begin_cluster(Worker& w);
void end_block(Block& b);
void barrier(Block& b);
void warp_sync(Block& b, int warp, uint32_t lanes);
void new_generation(Fiber& f);  // it has arrived at or passed the cluster's barrier
void cluster_barrier(Worker& w);
void fresh_shared(const void* address, size_t bytes);

void access(uintptr_t address, size_t bytes, Kind kind, const void* pc,
            const Engine* engine = nullptr);

// A product is asked for by all threads of a warp group, one after the other. The first one's
// access() is followed by note_writes(); the others check that the same is over for them, too.
struct Written {
  Access by;
  uintptr_t address;  // the first
};
void note_writes(uintptr_t address, size_t bytes, std::vector<Written>& writes);
void check_writes(const std::vector<Written>& writes, Kind kind, const void* pc);

}  // namespace opforge::sim::shadow
