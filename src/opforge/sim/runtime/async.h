// SPDX-License-Identifier: Apache-2.0
// Barriers with phases, and copies that land later: what a cluster has of them.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "knowledge.h"
#include "products.h"
#include "state.h"

namespace opforge::sim {

struct Barrier {
  const Block* block = nullptr;
  const Fiber* maker = nullptr;
  bool published = false;
  uint32_t published_in = 0;  // the maker's generation
  int arrivals = 0, missing = 0;
  int64_t announced = 0, landed = 0, asked_for = 0;  // bytes in this phase
  uint32_t phases = 0;                               // that are over
  uint32_t engine = 0;
  shadow::Knowledge telling, told;  // by arrivals in this phase; in those before
  // The latest copy whose phase nobody has waited for.
  const void* unawaited = nullptr;
  uint32_t unawaited_phase = 0;
  // The latest arrival from another block whose phase nobody has waited for.
  Visit visit;
  const Fiber* visitor = nullptr;
  uint32_t visited_phase = 0;
};

// The bulk_store()s of a thread.
struct Stores {
  uint32_t engine = 0;
  uint32_t committed = 0;      // groups
  uint32_t awaited = 0;        // so many of them are known to be over
  const void* last = nullptr;  // where it asked
  uint32_t last_group = 0;
};

struct Copy {
  Fiber* thread;
  std::function<void()> move;
  size_t bytes;
  uintptr_t barrier;  // 0 for a store, which belongs to a group
  uint32_t group;
};

// Barrier 1 to 15 of a block, for some of its threads.
struct NamedBarrier {
  int count = 0;
  std::vector<Fiber*> came;
  bool awaited = false;  // the previous kernel, by one of them
  shadow::Knowledge telling;
};

// The piece_copy()s of a thread that it has not waited for.
struct Pieces {
  struct Piece {
    void* to;
    const void* from;
    uint32_t bytes;  // the rest of 16 is zeros
    uint32_t group;
  };
  uint32_t engine = 0;
  uint32_t committed = 0;  // groups
  std::deque<Piece> flying;
};

struct Async {
  std::map<uintptr_t, Barrier> barriers;
  std::map<std::pair<const Block*, int>, NamedBarrier> named;
  std::map<std::pair<const Block*, int>, WarpGroup> groups;  // those that multiply
  std::map<const Fiber*, Stores> stores;
  std::map<const Fiber*, Pieces> pieces;
  std::vector<Copy> copies;  // in flight
};

Async& async_of(Worker& w);
uint32_t new_engine();

// The barrier at an address; reports and ends the cluster if the current thread cannot use it.
Barrier& barrier_at(uintptr_t address, const void* pc, bool of_any_block = false);
// Threads have come from a cluster barrier that tells of nothing else.
void know_published_barriers(Worker& w);
void bytes_landed(uintptr_t barrier, size_t bytes);

// Lets a copy land: any, now and then, where a seed shuffles; or the oldest, false if there is
// none.
void land_some(Worker& w);
bool land_oldest(Worker& w);

// Report what nobody waited for.
void check_stores(Worker& w, const Fiber& exits);
void check_copies(Worker& w, const Block& exits);
void check_arrivals(const Worker& w, const Block& exits);

// "in wait() for phase 1 of the barrier …"
std::string waits_for_copies(const Fiber& f);
// "at barrier 3, where 96 of 128 threads have come, "
std::string waits_for_named(const Fiber& f);

}  // namespace opforge::sim
