// SPDX-License-Identifier: Apache-2.0
// What the blocks of a cluster do together: their barrier, and each other's shared memory.
#include "async.h"
#include "memory.h"
#include "report.h"
#include "shadow.h"
#include "state.h"
#include "traffic.h"

namespace opforge::sim {

int cluster_rank() { return worker->running->block->rank; }
int cluster_size() { return int(worker->blocks.size()); }

void try_complete_cluster(Worker& w) {
  if (w.alive == 0 || w.cluster_arrived < w.alive) return;
  w.cluster_arrived = 0;
  ++w.cluster_barriers;
  for (Fiber& f : w.fibers) {
    if (f.state == State::at_cluster) f.state = State::ready;
  }
  w.last_relaxed = w.relaxed;
  w.relaxed = false;
  if (w.last_relaxed) {
    know_published_barriers(w);
  } else {
    shadow::cluster_barrier(w);
  }
  traffic::barrier();
}

namespace {

void arrive(bool relaxed, const void* pc) {
  Worker& w = *worker;
  Fiber& f = *w.running;
  if (f.generation % 2 != 0) {
    report("barrier",
           name_of(f) + " arrives at the cluster's barrier again, without cluster_wait()", pc);
    abandon();
  }
  ++f.generation;
  shadow::new_generation(f);
  ++w.cluster_arrived;
  w.relaxed = w.relaxed || relaxed;
  try_complete_cluster(w);
}

}  // namespace

void cluster_arrive() { arrive(false, __builtin_return_address(0)); }
void cluster_arrive_relaxed() { arrive(true, __builtin_return_address(0)); }

void cluster_wait() {
  Worker& w = *worker;
  Fiber& f = *w.running;
  if (f.generation % 2 == 0) {
    report("barrier", name_of(f) + " waits at the cluster's barrier without cluster_arrive()",
           __builtin_return_address(0));
    abandon();
  }
  f.site.pc = __builtin_return_address(0);
  if (f.generation / 2 == w.cluster_barriers) f.state = State::at_cluster;
  suspend();  // also the last one to come: the others are to go on in their order
  ++f.generation;
  if (!w.last_relaxed) f.cluster_ordered = f.generation / 2;
  shadow::new_generation(f);
}

void* peer_address(void* shared, int rank, const void* pc) {
  Worker& w = *worker;
  const Fiber& f = *w.running;
  if (rank < 0 || rank >= int(w.blocks.size())) {
    report("cluster",
           name_of(f) + " asks for shared memory of rank " + std::to_string(rank) +
               " in a cluster of " + std::to_string(w.blocks.size()) +
               (w.blocks.size() == 1 ? " block" : " blocks"),
           pc);
    abandon();
  }
  const auto [owner, part] = shadow::shared_at(w, reinterpret_cast<uintptr_t>(shared));
  if (owner != f.block) {
    report("cluster",
           name_of(f) +
               " gives in_block(), send(), arrive_at() or tile_copy_to() an address that is not in "
               "its own shared memory",
           pc);
    abandon();
  }
  Block& block = w.blocks[size_t(rank)];
  if (block.alive == 0) {
    report("not-running",
           name_of(f) + " asks for shared memory of block " + name_of_block(block) +
               ", which has exited",
           pc);
    abandon();
  }
  const auto offset = static_cast<char*>(shared) - part->memory;
  return shared_of(block, part->key, part->bytes, 128, pc).memory + offset;
}

void* in_block(void* shared, int rank) {
  return peer_address(shared, rank, __builtin_return_address(0));
}

}  // namespace opforge::sim
