// SPDX-License-Identifier: Apache-2.0
// What happened before what: barrier epochs within a block, generations within a cluster, clocks
// within a warp, and what fences and atomics have told.
#pragma once

#include <string>

#include "knowledge.h"
#include "pages.h"
#include "state.h"

namespace opforge::sim::shadow {

// Whether an access, a read or not, is ordered before what thread `f` does now.
bool ordered(const Fiber& f, const Access& a, bool read);

// Adds an access of the current thread to others of its kind that nothing need order.
void join(const Fiber& f, Access& others, const Access& mine, bool read);

// The current thread writes to global memory: others cannot rely on seeing it before a fence.
void note_global_write(const Fiber& f);

// The current thread changes an atomic: it tells others what it has fenced, and learns what they
// told, once it reaches a fence or a barrier.
void tell(const Worker& w, uintptr_t address, bool shared);

// Arriving at a barrier tells what the thread did; having waited is to know what was told.
void release(const Fiber& f, Knowledge& telling);
// Sending, and arriving in another block, tells that what the thread read has been read, not what
// it wrote.
void release_reads(const Fiber& f, Knowledge& telling);
void acquire(const Fiber& f, const Knowledge& told);

// What a thread wrote before this, copies see.
void fence_for_copies(const Fiber& f);
bool fenced_for_copies(const Access& write);

// Whether a block has changed an atomic that thread `f` or its block has changed, too.
bool has_told(const Fiber& f, uint32_t block);

bool of_this_launch(const Access& a);
uint32_t block_of(const Access& a);  // if it is
bool same_cluster(uint32_t block, uint32_t other);
// A thread that did it, another one than `f` if there is one.
std::string name_of(const Access& a, const Fiber& f, bool read);

}  // namespace opforge::sim::shadow
