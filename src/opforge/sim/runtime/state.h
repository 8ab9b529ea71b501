// SPDX-License-Identifier: Apache-2.0
// A launch, its workers, the cluster of blocks each of them executes, and their threads.
#pragma once

#include <opforge_sim/host_api.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "fiber.h"
#include "settings.h"

namespace opforge::sim {

constexpr int kWarp = 32;

// A place in device code: what the source says, and the return address for the chain of inlining.
struct Site {
  Where where;
  const void* pc = nullptr;
};

enum class State : uint8_t {
  ready,
  at_barrier,
  in_warp,
  at_active_mask,
  at_cluster,
  at_phase,
  at_copies,
  at_named_barrier,
  at_products,
  done
};

struct Async;
struct Block;

// A CUDA thread.
struct Fiber {
  Index3 index{};  // threadIdx
  Block* block = nullptr;
  Context context;
  Stack stack;
  State state = State::ready;
  int number = 0;  // in the block
  Site site;       // of what it waits for
  Vote vote = Vote::none;
  int predicate = 0;
  Offer offer{};
  uint64_t result = 0;
  bool awaited = false;  // the previous kernel
  uint32_t moment = 0;   // its block, barrier epoch and cluster generation, for the shadow
  // Two for each cluster barrier behind it, and one more if it has arrived at the next.
  uint32_t generation = 0;
  uint32_t cluster_ordered = 0;  // the last of those barriers that orders memory, counted from 1
  uintptr_t awaits = 0;          // a barrier of async.h, or the id of a named one
  uint32_t phase = 0;            // its phase, or the groups of copies or products that must be over

  int lane() const { return number % kWarp; }
  int warp() const { return number / kWarp; }
};

struct WarpState {
  uint32_t alive = 0;    // lanes that have not exited
  uint32_t waiting = 0;  // lanes that wait in an operation of the warp
  uint32_t clock = 1;    // ticks with every __syncwarp and fence
  // seen[a][b]: what lane b did up to then happened before what lane a does now.
  std::array<std::array<uint32_t, kWarp>, kWarp> seen{};
  bool synced = false;  // seen is not all zero
};

struct SharedPart {
  const void* key;
  size_t bytes;
  char* memory;
  bool taken;  // by the block being executed
  void* allocated;
};

// Of another block's shared memory.
struct Visit {
  const void* pc = nullptr;
  int thread = 0;
  uint32_t generation = 0;
};

struct Block {
  uint32_t number = 0;  // in the grid
  int rank = 0;         // in the cluster
  Index3 index{};       // blockIdx
  std::span<Fiber> fibers;
  std::vector<WarpState> warps;
  std::vector<SharedPart> shared;
  std::vector<Visit> visits;  // to this block's shared memory, the last by each rank
  int alive = 0, arrived = 0;
  bool exited_early = false;  // said once
};

struct Launch {
  dim3 grid, block;
  Kernel kernel;
  size_t shared_bytes = 0;  // dynamic
  unsigned cluster = 1;     // blocks
  bool overlaps = false;    // the kernel before it
  int threads = 0;          // of a block
  int64_t blocks = 0;
  std::atomic<int64_t> next{0};  // cluster to execute
  std::atomic<bool> stop{false};
  std::vector<uint32_t> order;  // of the clusters, where a seed shuffles them
};

// One host thread that executes clusters; without them a block is a cluster of its own.
struct Worker {
  Launch* launch = nullptr;
  Context scheduler;
  Stack own_stack;
  std::vector<std::unique_ptr<Stacks>> stacks;
  std::vector<Stack> free_stacks;  // last in, first out: a kernel without barriers needs but one
  std::vector<Fiber> fibers;       // of all blocks
  std::vector<Block> blocks;
  std::vector<int> order;  // in which threads get their turn
  int alive = 0;           // of all threads
  int cluster_arrived = 0;
  uint32_t cluster_barriers = 0;  // that all have come to
  bool relaxed = false;           // an arrival at the next one
  bool last_relaxed = false;      // one at the last one
  std::shared_ptr<Async> async;   // if the kernel has barriers or copies of async.h
  bool abandoned = false;         // the cluster cannot go on
  std::mt19937_64 random;
  double started = 0;  // the cluster, by a monotonic clock
  Fiber* running = nullptr;
  const void* late = nullptr;  // where a thread was when the time was up
  struct {
    const void *pc, *address;
    bool writes;
  } crashed{};                   // where a thread was when it accessed memory that is not there
  const void* copies = nullptr;  // where the running thread asks for a copy, while it is looked at
};

extern __thread Worker* worker;
extern __thread bool in_kernel;  // device code runs on this host thread

// The code of the library that a kernel is in.
struct Code {
  uintptr_t low = 0, high = 0;
};
Code code_around(const void* function);

// Executes one cluster on this worker.
void execute(Worker& w, int64_t number);
// Lets the other threads run until this one is ready again, or for good.
void suspend(bool done = false);
// Completes what lane `at` of a warp waits in, if all lanes it names have come.
void try_complete(Block& b, int warp, int at);
// Completes the cluster barrier, if all threads that are left have arrived.
void try_complete_cluster(Worker& w);
// Shared memory of a block, as shared_memory(), for device code at `pc`.
SharedPart& shared_of(Block& b, const void* key, size_t bytes, size_t alignment, const void* pc);
// The same variable in block `rank` of the cluster; reports and ends the cluster if it has none.
void* peer_address(void* shared, int rank, const void* pc);
// Ends the current thread's cluster for good. Does not return.
[[noreturn]] void abandon();
// Ends it if its time is up; `pc` is where the current thread is.
void check_time(const void* pc);
double now();

// "thread (3,0,0) of block (1,0,0)"
std::string name_of(const Fiber& fiber);
std::string name_of_thread(const Launch& launch, uint32_t block, int thread);
std::string name_of_block(const Launch& launch, uint32_t block);
std::string name_of_block(const Block& block);

}  // namespace opforge::sim
