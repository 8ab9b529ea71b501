// SPDX-License-Identifier: Apache-2.0
// What is kept to tell the order of accesses: events.cpp changes it, order.cpp asks.
#pragma once

#include <set>
#include <unordered_map>
#include <vector>

#include "groups.h"
#include "knowledge.h"
#include "state.h"

namespace opforge::sim::shadow {

struct Moment {
  uint32_t block, epoch, generation;
};

// An atomic variable, as a way to tell.
struct Signal {
  Knowledge told;
  std::set<uint32_t> blocks;  // that have changed it
};

struct ThreadOrder {
  Knowledge known;
  Knowledge read;           // from atomics; known once a fence or barrier follows
  Knowledge fenced;         // what it may tell other blocks, as of its last device fence
  Knowledge fenced_within;  // and its own block, as of its last fence of any kind
  std::set<Signal*> signals;
  uint32_t fenced_epoch = 0, fenced_clock = 0;  // what it wrote before, copies see
  uint32_t unfenced = 0;  // one more than the epoch of its last write that no fence followed
  bool used = false;
};

// One launch: what the ids of its moments stand for.
struct Moments {
  uint32_t base = 1;
  std::vector<Moment> list;
  dim3 grid, block;

  const Moment& operator[](uint32_t id) const { return list[id - base]; }
};

struct BlockOrder {
  Knowledge known;
  Knowledge fenced;
  std::set<Signal*> signals;
  uint32_t fenced_epoch = 0;  // what was done before it, some thread has fenced since
};
extern Moments now_, before_;        // this launch and the one before
extern bool overlaps;                // the one before
extern std::vector<uint32_t> begun;  // blocks of this launch
// Of the cluster that runs.
extern std::vector<ThreadOrder> threads;
extern std::vector<BlockOrder> blocks;
extern Groups groups;  // of its accesses

inline uint32_t epoch(const Fiber& f) { return now_[f.moment].epoch; }

inline size_t index_of(const Fiber& f) { return size_t(&f - worker->fibers.data()); }

inline BlockOrder& order_of(const Block& b) { return blocks[size_t(b.rank)]; }

}  // namespace opforge::sim::shadow
