// SPDX-License-Identifier: Apache-2.0
// What simulated device code asks of the simulator's runtime, a library of its own that is loaded
// once per process.
#pragma once

#include <opforge_sim/index.h>

#include <cstddef>
#include <cstdint>
#include <source_location>

#define OPFORGE_SIM_API __attribute__((visibility("default")))

// Of the CUDA thread that this host thread executes.
#define OPFORGE_SIM_INDEX \
  extern OPFORGE_SIM_API __thread __attribute__((tls_model("initial-exec"))) opforge::sim::Index3
OPFORGE_SIM_INDEX threadIdx;
OPFORGE_SIM_INDEX blockIdx;
OPFORGE_SIM_INDEX blockDim;
OPFORGE_SIM_INDEX gridDim;
#undef OPFORGE_SIM_INDEX

namespace opforge::sim {

using Where = std::source_location;

// Shared memory of the block being executed. `key` tells apart what a GPU would lay out separately.
OPFORGE_SIM_API void* shared_memory(const void* key, size_t bytes, size_t alignment);
OPFORGE_SIM_API void* dynamic_shared(size_t alignment);  // as much as the launch asked for

enum class Vote { none, all, any, count };
OPFORGE_SIM_API int block_barrier(Vote vote, int predicate, const Where& where);

enum class Lanes {
  sync,
  shuffle,
  up,
  down,
  exclusive_or,
  ballot,
  all,
  any,
  match,
  reduce,
  multiply
};
enum class Reduce { add, min, max, bit_and, bit_or, bit_xor, min_signed, max_signed };

// A lane's part of a product of its warp (opforge/core/mma.h): 16 rows of a times 8 columns of b,
// along 32 bytes of the inner dim.
struct WarpProduct {
  float* sums;            // 4
  const uint32_t *a, *b;  // 4 and 2 registers
  void (*widen)(const void* from, float* to, int count);
  int inner;  // elements
};

// What a lane brings to an operation of its warp. For products `value` is the address of its
// WarpProduct. For shuffles `argument` is the source lane, the
// distance or the lane mask; for reductions it is a Reduce.
struct Offer {
  Lanes operation;
  uint32_t mask;
  uint64_t value;
  int argument;
  int width;
};
OPFORGE_SIM_API uint64_t warp(const Offer& offer, const Where& where);
OPFORGE_SIM_API uint32_t active_mask(const Where& where);

enum class Scope { block, device };
OPFORGE_SIM_API void fence(Scope scope);
// Comes before every atomic operation; the operation itself is the host's.
OPFORGE_SIM_API void atomic_access(const void* address, size_t bytes);
// Comes before what a GPU does by an instruction for global memory alone.
OPFORGE_SIM_API void expect_global(const void* address);

// Of the cluster. in_block gives the address of a shared variable in another of its blocks; send
// below takes addresses in the caller's own.
OPFORGE_SIM_API int cluster_rank();
OPFORGE_SIM_API int cluster_size();
OPFORGE_SIM_API void cluster_arrive();
OPFORGE_SIM_API void cluster_arrive_relaxed();
OPFORGE_SIM_API void cluster_wait();
OPFORGE_SIM_API void* in_block(void* shared, int rank);

// Barriers of opforge/core/async.h, each known by its address, and copies that land later.
OPFORGE_SIM_API void barrier_init(void* barrier, int arrivals);
OPFORGE_SIM_API void publish_barriers();
OPFORGE_SIM_API void barrier_arrive(void* barrier, uint32_t bytes);
OPFORGE_SIM_API void barrier_arrive_at(void* barrier, int rank);
OPFORGE_SIM_API void barrier_wait(void* barrier, uint32_t phase);
OPFORGE_SIM_API void bulk_copy(void* to, const void* from, uint32_t bytes, void* barrier);
OPFORGE_SIM_API void send(void* to, const void* value, size_t bytes, void* barrier, int rank);
OPFORGE_SIM_API void bulk_store(void* to, const void* from, uint32_t bytes);
OPFORGE_SIM_API void bulk_commit();
OPFORGE_SIM_API void bulk_wait_read(int groups);
OPFORGE_SIM_API void fence_for_copies();
// Of opforge/core/pieces.h.
OPFORGE_SIM_API void piece_copy(void* to, const void* from, uint32_t bytes);
OPFORGE_SIM_API void piece_commit();
OPFORGE_SIM_API void piece_wait(int groups);

OPFORGE_SIM_API void await_previous();
OPFORGE_SIM_API void release_next();

[[noreturn]] OPFORGE_SIM_API void assertion_failed(const char* expression, const Where& where);
[[noreturn]] OPFORGE_SIM_API void trap(const Where& where);

// Seen by the host: memory of the op's own, and when one of its functions runs.
OPFORGE_SIM_API void allocated(void* address, size_t bytes);
OPFORGE_SIM_API void written_by_host(const void* address, size_t bytes);
OPFORGE_SIM_API void enter_op();
OPFORGE_SIM_API void returns(const void* address, size_t bytes, size_t element);
OPFORGE_SIM_API void finish_op();  // throws what was found out about its results
OPFORGE_SIM_API void leave_op();

}  // namespace opforge::sim
