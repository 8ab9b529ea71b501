// SPDX-License-Identifier: Apache-2.0
// A launch, its workers, the block each of them executes, and that block's threads.
#pragma once

#include <opforge_sim/host_api.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <random>
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

enum class State : uint8_t { ready, at_barrier, in_warp, at_active_mask, done };

// A CUDA thread.
struct Fiber {
  Index3 index{};  // threadIdx
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
};

struct Launch {
  dim3 grid, block;
  Kernel kernel;
  size_t shared_bytes = 0;  // dynamic
  unsigned cluster = 1;     // blocks
  bool overlaps = false;    // the kernel before it
  int threads = 0;          // of a block
  int64_t blocks = 0;
  std::atomic<int64_t> next{0};  // block to execute
  std::atomic<bool> stop{false};
  std::vector<uint32_t> order;  // of the blocks, where a seed shuffles them
};

// One host thread that executes blocks.
struct Worker {
  Launch* launch = nullptr;
  Context scheduler;
  Stack own_stack;
  Stacks stacks;
  std::vector<Stack> free_stacks;  // last in, first out: a kernel without barriers needs but one
  std::vector<Fiber> fibers;
  std::vector<WarpState> warps;
  std::vector<SharedPart> shared;
  std::vector<int> order;  // in which threads get their turn
  uint32_t block = 0;      // its number
  uint32_t moment = 0;     // the block and its barrier epoch, for the shadow
  int alive = 0, arrived = 0;
  bool exited_early = false;  // said once
  bool abandoned = false;     // the block cannot go on
  std::mt19937_64 random;
  double started = 0;  // the block, by a monotonic clock
  Fiber* running = nullptr;
  const void* late = nullptr;  // where a thread was when the block's time was up
  struct {
    const void *pc, *address;
  } crashed{};  // where a thread was when it accessed memory that is not there
};

extern __thread Worker* worker;
extern __thread bool in_kernel;  // device code runs on this host thread

// Executes one block on this worker.
void execute(Worker& w, int64_t number);
// Lets the other threads of the block run until this one is ready again, or for good.
void suspend(bool done = false);
// Completes what lane `at` of a warp waits in, if all lanes it names have come.
void try_complete(Worker& w, int warp, int at);
// Ends the current thread's block for good. Does not return.
[[noreturn]] void abandon();
// Ends it if its time is up; `pc` is where the current thread is.
void check_time(const void* pc);
double now();

// "thread (3,0,0) of block (1,0,0)"
std::string name_of(const Fiber& fiber);
std::string name_of_thread(const Launch& launch, uint32_t block, int thread);
std::string name_of_block(const Launch& launch, uint32_t block);
std::string name_of_block(const Worker& w);

}  // namespace opforge::sim
